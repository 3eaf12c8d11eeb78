"""
Does attention look where it should? Every attention type on NETtalk, where the true alignment is known.

    python -m training.nettalk --output_dir runs/nettalk

NETtalk (Sejnowski and Rosenberg 1987) has one phoneme for each letter, "-" for silent ones. The model reads the
letters and writes the phonemes that are heard; the letter of each is known. For each attention this trains the same
small model for the same number of steps with `Seq2SeqTrainer`, and reports on the test words

- word accuracy: the whole pronunciation is right (greedy search);
- alignment error: the alignment error rate of Och and Ney 2003, linking each phoneme to its most attended letter while
  the true pronunciation is force-decoded. With one link for each phoneme on both sides this is the share of wrong
  links. With `--attention_offset 1` the row of a phoneme is that of the step which had just read it (see
  `hf_attention_seq2seq.alignment`).

The table goes to `OUTPUT_DIR/table.md`, the figures to `OUTPUT_DIR/results.json`; a run that is there already is not
repeated, so that an interrupted table can be continued.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)
from hf_attention_seq2seq.alignment import align, to_pharaoh

from .alignment_metrics import AlignmentError

SCORES = ("additive", "mlp", "concat", "dot", "scaled_dot", "general", "cosine", "location")
ATTENTIONS: dict[str, dict] = {
    **{score: {"attention_type": score} for score in SCORES},
    "scaled_dot, projected": {"attention_type": "scaled_dot", "attention_size": 128},
    **{
        f"{score}, {span}": {"attention_type": score, "attention_span": span, "attention_window": 3}
        for span in ("local_m", "local_p")
        for score in ("additive", "general", "location")
    },
    **{
        f"{score}, {normalizer}": {"attention_type": score, "attention_normalizer": normalizer}
        for normalizer in ("sparsemax", "entmax15")
        for score in ("additive", "general")
    },
    **{
        f"mlp, {kind} coverage": {"attention_type": "mlp", "coverage_type": kind}
        for kind in ("accumulated", "location_aware")
    },
    "mlp, monotonic": {"attention_type": "mlp", "attention_selection": "monotonic"},
    "mlp, monotonic, chunks of 3": {
        "attention_type": "mlp",
        "attention_selection": "monotonic",
        "monotonic_chunk_size": 3,
    },
}


@dataclass
class TableArguments:
    """What to compare; everything else is an option of `Seq2SeqTrainingArguments`."""

    data: str = field(
        default=os.environ.get("ATTENTION_SEQ2SEQ_DATA", "data"),
        metadata={"help": "folder that has nettalk_aligned/train.tsv and so on; else $ATTENTION_SEQ2SEQ_DATA"},
    )
    attention_query: str = field(default="current_state", metadata={"help": "field of the configuration"})
    input_feeding: bool = field(default=True, metadata={"help": "field of the configuration"})
    hidden_size: int = field(default=128, metadata={"help": "field of the configuration"})
    embedding_size: int = field(default=64, metadata={"help": "field of the configuration"})
    attention_offset: int = field(
        default=0, metadata={"help": "the row of a phoneme: 0, the step that predicted it; 1, that had just read it"}
    )
    only: str | None = field(default=None, metadata={"help": "only the attentions whose name contains this"})


@dataclass(frozen=True)
class Word:
    """A word with its heard phonemes, and for each the index of its letter."""

    letters: str
    phonemes: str
    links: tuple[int, ...]


def read_words(folder: Path, name: str) -> list[Word]:
    """The words of one set."""
    path = folder / "nettalk_aligned" / f"{name}.tsv"
    if not path.exists():
        sys.exit(
            f"{path} does not exist; set ATTENTION_SEQ2SEQ_DATA or --data to the folder that has nettalk_aligned/"
        )
    words = []
    for line in path.read_text(encoding="utf-8").splitlines():
        letters, phonemes = line.split("\t")[:2]
        links = tuple(index for index, phoneme in enumerate(phonemes) if phoneme != "-")
        words.append(Word(letters, " ".join(phonemes[index] for index in links), links))
    return words


def evaluate(model, tokenizer, words: list[Word], attention_offset: int = 0) -> dict[str, float]:
    """Word accuracy in percent and alignment error rate."""
    model.eval()
    right = 0
    error = AlignmentError()
    for start in range(0, len(words), 256):
        batch = words[start : start + 256]
        letters, phonemes = [word.letters for word in batch], [word.phonemes for word in batch]
        source = tokenizer(letters, padding=True, return_tensors="pt")
        predictions = tokenizer.batch_decode(model.generate(**source, max_new_tokens=40), skip_special_tokens=True)
        right += sum(map(str.__eq__, predictions, phonemes))
        alignments = align(model, tokenizer, letters, phonemes, batch_size=256, offset=attention_offset)
        error.add_batch(
            predictions=[to_pharaoh(alignment.merge("token").links()) for alignment in alignments],
            references=[to_pharaoh((letter, index) for index, letter in enumerate(word.links)) for word in batch],
        )
    return {
        "word_accuracy": round(100 * right / len(words), 2),
        "alignment_error": round(error.compute()["alignment_error_rate"], 4),
    }


def main() -> None:
    """Trains what is missing and writes the table."""
    parser = HfArgumentParser((TableArguments, Seq2SeqTrainingArguments))
    parser.set_defaults(
        output_dir="runs/nettalk",
        max_steps=1000,
        per_device_train_batch_size=64,
        learning_rate=3e-3,
        lr_scheduler_type="linear",
        warmup_steps=100,
        dataloader_pin_memory=False,
        max_grad_norm=1.0,
        logging_steps=500,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    table, arguments = parser.parse_args_into_dataclasses()
    folder = Path(table.data)
    train, test = read_words(folder, "train"), read_words(folder, "test")
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        (word.letters for word in train), (word.phonemes for word in train), model="char", target_model="word"
    )
    data = Dataset.from_dict(
        dict(tokenizer([word.letters for word in train], text_target=[word.phonemes for word in train]))
    )
    output = Path(arguments.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    results_file = output / "results.json"
    results = json.loads(results_file.read_text()) if results_file.exists() else {}
    for name, fields in ATTENTIONS.items():
        if name in results or (table.only is not None and table.only not in name):
            continue
        set_seed(arguments.seed)
        config = AttentionSeq2SeqConfig(
            vocab_size=len(tokenizer),
            decoder_vocab_size=tokenizer.target_vocab_size,
            embedding_size=table.embedding_size,
            hidden_size=table.hidden_size,
            attention_query=table.attention_query,
            input_feeding=table.input_feeding,
            max_source_positions=40,
            output_dropout=0.1,
            **fields,
        )
        model = AttentionSeq2SeqForConditionalGeneration(config)
        trainer = Seq2SeqTrainer(
            model=model,
            args=arguments,
            train_dataset=data,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
        )
        started = time.time()
        trainer.train()
        figures = evaluate(model, tokenizer, test, table.attention_offset)
        results[name] = {**figures, "minutes": round((time.time() - started) / 60, 1)}
        results_file.write_text(json.dumps(results, indent=2) + "\n")
        print(name, results[name], flush=True)
    rows = ["| attention | word accuracy (%) | alignment error |", "|---|---|---|"]
    rows += [
        f"| {name} | {row['word_accuracy']:.1f} | {row['alignment_error']:.3f} |" for name, row in results.items()
    ]
    (output / "table.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
