"""
English to German on Multi30k: does attention pay, and does a fixed context fall off with sentence length?

    python -m training.multi30k --attention_type additive --output_dir runs/additive
    python -m training.multi30k --attention_type none --attention_query previous_state --output_dir runs/fixed

Both train for the same number of epochs with `Seq2SeqTrainer`, save, load the checkpoint through the Auto classes,
translate the test sets, and write `results.json`: validation loss after each epoch, BLEU and chrF with their
signatures, BLEU by source length, and whether batch sizes 1 and 64 translate alike.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import sacrebleu
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
    set_seed,
)

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)

TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
LENGTH_BUCKETS = ((1, 9), (10, 12), (13, 16), (17, 21), (22, 200))  # source words


@dataclass
class StudyArguments:
    """What to compare; everything else is an option of `Seq2SeqTrainingArguments`."""

    data: str = field(
        default=os.environ.get("ATTENTION_SEQ2SEQ_DATA", "data"),
        metadata={
            "help": "folder that has multi30k/train.tsv and so on (columns en, de); else $ATTENTION_SEQ2SEQ_DATA"
        },
    )
    attention_type: str = field(default="additive", metadata={"help": "field of the configuration"})
    attention_query: str = field(default="current_state", metadata={"help": "field of the configuration"})
    input_feeding: bool = field(default=False, metadata={"help": "field of the configuration"})
    embedding_size: int = field(default=256, metadata={"help": "field of the configuration"})
    hidden_size: int = field(default=256, metadata={"help": "field of the configuration"})
    dropout: float = field(default=0.0, metadata={"help": "embedding and output dropout; two epochs need none"})
    vocab_size: int = field(default=8000, metadata={"help": "joint byte-pair vocabulary"})
    num_beams: int = field(default=5, metadata={"help": "beam width for the test sets"})
    max_rows: int | None = field(default=None, metadata={"help": "use only so many rows of each set, to try things"})


def read_pairs(folder: Path, name: str, max_rows: int | None) -> list[tuple[str, str]]:
    """English and German sentences of one set."""
    path = folder / "multi30k" / f"{name}.tsv"
    if not path.exists():
        sys.exit(f"{path} does not exist; set ATTENTION_SEQ2SEQ_DATA or --data to the folder that has multi30k/")
    rows = [line.split("\t")[:2] for line in path.read_text(encoding="utf-8").splitlines()]
    return [(english, german) for english, german in rows[:max_rows]]


def main() -> None:
    """Trains, translates and reports."""
    parser = HfArgumentParser((StudyArguments, Seq2SeqTrainingArguments))
    fields = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    by_length = (
        {"train_sampling_strategy": "group_by_length"}
        if "train_sampling_strategy" in fields
        else {"group_by_length": True}
    )
    parser.set_defaults(
        output_dir="runs/multi30k",
        num_train_epochs=2,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=3e-3,
        lr_scheduler_type="linear",
        warmup_steps=100,
        dataloader_pin_memory=False,
        max_grad_norm=1.0,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=100,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=1,
        **by_length,
    )
    study, arguments = parser.parse_args_into_dataclasses()
    set_seed(arguments.seed)
    folder = Path(study.data)
    train = read_pairs(folder, "train", study.max_rows)
    valid = read_pairs(folder, "val", study.max_rows)

    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        (text for pair in train for text in pair), model="bpe", vocab_size=study.vocab_size
    )
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        embedding_size=study.embedding_size,
        hidden_size=study.hidden_size,
        attention_type=study.attention_type,
        attention_query=study.attention_query,
        input_feeding=study.input_feeding,
        tie_word_embeddings=True,
        embedding_dropout=study.dropout,
        output_dropout=study.dropout,
    )
    model = AttentionSeq2SeqForConditionalGeneration(config)

    def encode(pairs: list[tuple[str, str]]) -> Dataset:
        sources, targets = zip(*pairs)
        return Dataset.from_dict(dict(tokenizer(list(sources), text_target=list(targets))))

    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=encode(train),
        eval_dataset=encode(valid),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    started = time.time()
    trainer.train()
    minutes = (time.time() - started) / 60
    trainer.save_model()

    device = arguments.device
    model = AutoModelForSeq2SeqLM.from_pretrained(arguments.output_dir)
    tokenizer = AutoTokenizer.from_pretrained(arguments.output_dir)
    translate = pipeline("translation", model=model, tokenizer=tokenizer, device=device)

    def translations(sources: list[str], batch_size: int, num_beams: int) -> list[str]:
        outputs = translate(sources, batch_size=batch_size, num_beams=num_beams, max_new_tokens=100)
        return [output["translation_text"] for output in outputs]

    results = {
        "configuration": {
            name: getattr(study, name) for name in ("attention_type", "attention_query", "input_feeding")
        },
        "parameters": model.num_parameters(),
        "training_minutes": round(minutes, 1),
        "validation_loss": [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row],
    }
    by_length: dict[str, list[tuple[str, str]]] = {f"{low}-{high}": [] for low, high in LENGTH_BUCKETS}
    for name in TEST_SETS:
        sources, references = zip(*read_pairs(folder, name, study.max_rows))
        hypotheses = translations(list(sources), batch_size=64, num_beams=study.num_beams)
        bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
        results[name] = {
            "bleu": round(bleu.corpus_score(hypotheses, [references]).score, 2),
            "bleu_signature": str(bleu.get_signature()),
            "chrf": round(chrf.corpus_score(hypotheses, [references]).score, 2),
            "chrf_signature": str(chrf.get_signature()),
        }
        for source, hypothesis, reference in zip(sources, hypotheses, references):
            length = len(source.split())
            for low, high in LENGTH_BUCKETS:
                if low <= length <= high:
                    by_length[f"{low}-{high}"].append((hypothesis, reference))
    results["bleu_by_source_words"] = {
        bucket: {"bleu": round(sacrebleu.BLEU().corpus_score(*_columns(pairs)).score, 2), "sentences": len(pairs)}
        for bucket, pairs in by_length.items()
        if pairs
    }
    sources = [english for english, _ in read_pairs(folder, TEST_SETS[0], study.max_rows)][:200]
    one, many = (translations(sources, batch_size, num_beams=1) for batch_size in (1, 64))
    results["translated_alike_in_batches_of_1_and_64"] = f"{sum(a == b for a, b in zip(one, many))} of {len(sources)}"
    results["examples"] = [{"source": source, "translation": text} for source, text in zip(sources[:5], many)]
    report = json.dumps(results, indent=2, ensure_ascii=False)
    Path(arguments.output_dir, "results.json").write_text(report + "\n", encoding="utf-8")
    print(report)


def _columns(pairs: list[tuple[str, str]]) -> tuple[list[str], list[list[str]]]:
    hypotheses, references = zip(*pairs)
    return list(hypotheses), [list(references)]


if __name__ == "__main__":
    main()
