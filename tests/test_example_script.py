"""
The library calls of transformers' own example script for translation, in its order: from a model directory and JSON
lines to a trained directory with scores, predictions and a model card.
"""

import json

import numpy as np
import pytest
import sacrebleu
from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    default_data_collator,
    set_seed,
)

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)

PAIRS = [
    ("a man sleeps", "ein Mann schläft"),
    ("a dog runs", "ein Hund rennt"),
    ("a woman sleeps on a sofa", "eine Frau schläft auf einem Sofa"),
    ("two men", "zwei Männer"),
]
SPLITS = {"train": PAIRS * 8, "validation": PAIRS, "test": PAIRS[::-1] + [("", "")]}
ARGUMENTS = "--predict_with_generate --max_steps 60 --learning_rate 0.02 --save_strategy no --report_to none --use_cpu"
MAX_LENGTH = 24


def write_model(folder, shared, new_tokens):
    """A model directory; `new_tokens` are in the tokenizer only, so that the embeddings have to be resized."""
    english, german = zip(*PAIRS, strict=True)
    sides = ([*english, *german],) if shared else (english, german)
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(*sides, model="bpe", vocab_size=80)
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=None if shared else tokenizer.target_vocab_size,
        embedding_size=16,
        hidden_size=32,
        input_feeding=True,
    )
    AttentionSeq2SeqForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.add_tokens(new_tokens)
    tokenizer.save_pretrained(folder)


def write_data(folder):
    files = {}
    for split, pairs in SPLITS.items():
        lines = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in pairs]
        files[split] = str(folder / f"{split}.json")
        (folder / f"{split}.json").write_text("\n".join(lines))
    return files


def load(folder):
    folder = str(folder)
    hub = {"cache_dir": None, "revision": "main", "token": None, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(folder, **hub)
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, **hub)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, from_tf=False, config=config, **hub)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))
    return tokenizer, model


@pytest.mark.parametrize(
    ("shared", "pad_to_max_length", "smoothing", "prefix", "num_beams", "new_tokens"),
    [
        (False, False, 0.1, "en-de: ", 3, []),
        (False, True, 0.0, "", 1, ["<tag>"]),
        (True, False, 0.0, "", 3, ["<tag>"]),
    ],
    ids=["two-smoothed", "two-padded", "shared"],
)
def test_example_script(tmp_path, shared, pad_to_max_length, smoothing, prefix, num_beams, new_tokens):
    output = tmp_path / "output"
    command = ["--output_dir", str(output), "--label_smoothing_factor", str(smoothing), *ARGUMENTS.split()]
    (args,) = HfArgumentParser(Seq2SeqTrainingArguments).parse_args_into_dataclasses(command)
    set_seed(args.seed)
    write_model(tmp_path / "model", shared, new_tokens)
    raw = load_dataset("json", data_files=write_data(tmp_path), cache_dir=str(tmp_path / "cache"))
    tokenizer, model = load(tmp_path / "model")
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert model.config.decoder_start_token_id == tokenizer.bos_token_id
    padding = "max_length" if pad_to_max_length else False

    def preprocess(examples):
        sources = [prefix + row["en"] for row in examples["translation"]]
        targets = [row["de"] for row in examples["translation"]]
        inputs = tokenizer(sources, max_length=MAX_LENGTH, padding=padding, truncation=True)
        labels = tokenizer(text_target=targets, max_length=MAX_LENGTH, padding=padding, truncation=True)["input_ids"]
        if pad_to_max_length:
            labels = [[-100 if token == tokenizer.pad_token_id else token for token in row] for row in labels]
        inputs["labels"] = labels
        return inputs

    data = {
        split: rows.map(preprocess, batched=True, remove_columns=rows.column_names, load_from_cache_file=True)
        for split, rows in raw.items()
    }
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100, pad_to_multiple_of=None)

    def to_texts(ids, **options):
        ids = np.where(ids != -100, ids, tokenizer.pad_token_id)
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True, **options)]

    def compute_metrics(evaluated):
        predictions, labels = evaluated
        return {"bleu": sacrebleu.corpus_bleu(to_texts(predictions), [to_texts(labels)]).score}

    trainer = Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=default_data_collator if pad_to_max_length else collator,
        compute_metrics=compute_metrics,
    )
    trained = trainer.train(resume_from_checkpoint=None)
    trainer.save_model()
    evaluated = trainer.evaluate(max_length=MAX_LENGTH, num_beams=num_beams, metric_key_prefix="eval")
    predicted = trainer.predict(data["test"], metric_key_prefix="predict", max_length=MAX_LENGTH, num_beams=num_beams)
    for split, metrics in (("train", trained.metrics), ("eval", evaluated), ("predict", predicted.metrics)):
        trainer.log_metrics(split, metrics)
        trainer.save_metrics(split, metrics)
    trainer.save_state()
    trainer.create_model_card(finetuned_from="model", tasks="translation", language=["en", "de"])

    texts = to_texts(predicted.predictions, clean_up_tokenization_spaces=True)
    assert texts[:-1] == [target for _, target in SPLITS["test"][:-1]]
    assert len(texts) == len(SPLITS["test"])
    assert evaluated["eval_bleu"] == pytest.approx(100)
    assert 0 < evaluated["eval_loss"] < trained.metrics["train_loss"]
    assert json.loads((output / "all_results.json").read_text())["predict_bleu"] == predicted.metrics["predict_bleu"]
    assert (output / "target_tokenizer.json").is_file() != shared
    assert "bleu" in (output / "README.md").read_text().lower()

    tokenizer, model = load(output)
    inputs = tokenizer([prefix + source for source, _ in SPLITS["test"]], return_tensors="pt", padding=True)
    assert to_texts(model.generate(**inputs, max_length=MAX_LENGTH, num_beams=num_beams).numpy()) == texts
