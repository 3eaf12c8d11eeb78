"""Tiny models, a tokenizer and reference results for the tests of the pipelines."""

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.utils.data import Dataset
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)

from hf_attention_seq2seq import pipelines

CLASSES = {
    "text2text-generation": pipelines.Text2TextGenerationPipeline,
    "translation": pipelines.TranslationPipeline,
    "summarization": pipelines.SummarizationPipeline,
}
NATIVE = {task: getattr(transformers, cls.__name__, None) for task, cls in CLASSES.items()}
TEXTS = ["the cat sat on the mat", "a dog", "hello world how are you"]
GERMAN = ["die katze sass auf der matte", "ein hund", "hallo welt wie geht es dir"]
SIZES = {"pad_token_id": 0, "eos_token_id": 1, "d_model": 16}
LAYERS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
LAYERS |= {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 300, "init_std": 1.0}


class TextDataset(Dataset):
    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


class MultilingualTokenizer(PreTrainedTokenizerFast):
    """Takes languages the way mBART's and NLLB's tokenizers do."""

    def _build_translation_inputs(self, raw_inputs, return_tensors, src_lang, tgt_lang, **options):
        if src_lang is None or tgt_lang is None:
            raise ValueError("both languages are needed")
        inputs = self(f"{src_lang} {raw_inputs}", return_tensors=return_tensors, **options)
        inputs["forced_bos_token_id"] = self.convert_tokens_to_ids(tgt_lang)
        return inputs


def make_tokenizer(tokenizer_class=PreTrainedTokenizerFast, **options):
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>", "<s>", "en", "de", "fr"]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    backend.train_from_iterator((TEXTS + GERMAN) * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"}
    return tokenizer_class(tokenizer_object=backend, **named, **options)


def make_model(name, **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(TOKENIZER), **SIZES}
    if name == "marian":
        return MarianMTModel(
            MarianConfig(**sizes, **LAYERS, decoder_start_token_id=0, forced_eos_token_id=None, **options)
        ).eval()
    if name == "bart":  # one head; begins with the end token
        layers = LAYERS | {"encoder_attention_heads": 1, "decoder_attention_heads": 1}
        start = {"bos_token_id": 3, "decoder_start_token_id": 1, "forced_eos_token_id": 1}
        return BartForConditionalGeneration(BartConfig(**sizes, **layers, **start, **options)).eval()
    layers = {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "initializer_factor": 3.0}
    return T5ForConditionalGeneration(T5Config(**sizes, **layers, decoder_start_token_id=0, **options)).eval()


MODELS = ["marian", "bart", "t5"]
TOKENIZER = make_tokenizer()
SHORT = {"max_new_tokens": 6}


def make_pipeline(model, task="translation", tokenizer=TOKENIZER, **options):
    model = make_model(model) if isinstance(model, str) else model
    pipeline_class = CLASSES[task.split("_")[0]]
    options = {"device": "cpu", "pipeline_class": pipeline_class, **options}
    return pipeline(task, model=model, tokenizer=tokenizer, **options)


def by_hand(model, texts, key="translation_text", num_beams=4, max_new_tokens=256, stop_id=None, **options):
    """Version 4's results for a list of texts, one `generate` call for each."""
    results = []
    for text in texts:
        ids = TOKENIZER(text, return_tensors="pt")["input_ids"]
        options |= {"num_beams": num_beams, "max_new_tokens": max_new_tokens}
        options |= {} if stop_id is None else {"eos_token_id": stop_id}
        rows = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        if key.endswith("ids"):
            results.append([{key: row.tolist()} for row in rows])
        else:
            results.append([{key: TOKENIZER.decode(row, skip_special_tokens=True)} for row in rows])
    return results


def plain(result):
    """Tensors as lists, iterators as lists, so that results can be compared."""
    if isinstance(result, dict):
        return {name: plain(value) for name, value in result.items()}
    if isinstance(result, torch.Tensor):
        return result.tolist()
    return result if isinstance(result, str | int | float) else [plain(item) for item in result]
