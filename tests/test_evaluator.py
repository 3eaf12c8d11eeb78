"""`evaluate.evaluator` with our models and pipelines, and the metrics of `training`."""

import pytest
import sacrebleu
import torch
import transformers
from datasets import Dataset
from evaluate import evaluator
from transformers import pipeline

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
)
from training.metrics import METRICS

pytest.importorskip("scipy", reason="evaluate.evaluator needs scipy")

ENGLISH = ["a man sleeps", "a dog runs", "a man runs", "a woman sleeps"]
GERMAN = ["ein Mann schläft", "ein Hund rennt", "ein Mann rennt", "eine Frau schläft"]


@pytest.fixture(scope="module")
def setting():
    """A model, its tokenizer, its translations one by one, and data: half of the references are translations."""
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(ENGLISH, GERMAN, model="word")
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size, "hidden_size": 8}
    torch.manual_seed(0)
    model = AttentionSeq2SeqForConditionalGeneration(AttentionSeq2SeqConfig(**sizes, initializer_range=1.0)).eval()
    model.generation_config.max_new_tokens = 6
    translations = []
    for text in ENGLISH:
        ids = model.generate(**tokenizer(text, return_tensors="pt"), num_beams=4)
        translations.append(tokenizer.decode(ids[0], skip_special_tokens=True))
    assert all(translations) and not set(translations) & set(GERMAN)
    references = translations[:2] + GERMAN[2:]
    data = Dataset.from_dict({"english": ENGLISH, "german": references})
    return model, tokenizer, translations, data


def evaluated(task, model, metric, data, **options):
    columns = {"input_column": "english", "label_column": "german"}
    figures = evaluator(task).compute(model, data, metric=METRICS[metric](), **columns, **options)
    assert figures["samples_per_second"] > 0
    return figures


@pytest.mark.parametrize("task", ["translation", "text2text-generation", "summarization"])
def test_a_model_with_its_tokenizer(setting, task):
    model, tokenizer, _, data = setting
    assert evaluated(task, model, "exact_match", data, tokenizer=tokenizer)["exact_match"] == 50


def test_a_saved_model(setting, tmp_path):
    model, tokenizer, translations, data = setting
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    figures = evaluated("translation", str(tmp_path), "bleu", data)
    assert figures["bleu"] == pytest.approx(sacrebleu.corpus_bleu(translations, [data["german"]]).score)
    assert 0 < figures["bleu"] < 100 and "tok:13a" in figures["bleu_signature"]


def test_confidence_intervals(setting):
    model, tokenizer, _, data = setting
    options = {"strategy": "bootstrap", "n_resamples": 50, "random_state": 0}
    figure = evaluated("translation", model, "exact_match", data, tokenizer=tokenizer, **options)["exact_match"]
    low, high = figure["confidence_interval"]
    assert figure["score"] == 50 and 0 <= low < 50 < high <= 100


@pytest.mark.skipif(
    not hasattr(transformers, "TFPreTrainedModel"),
    reason="evaluate looks for a class that transformers 5 dropped, unless it is given a model",
)
def test_a_pipeline(setting):
    model, tokenizer, _, data = setting
    translate = pipeline("translation", model, tokenizer=tokenizer, pipeline_class=TranslationPipeline, device="cpu")
    assert evaluated("translation", translate, "exact_match", data)["exact_match"] == 50
