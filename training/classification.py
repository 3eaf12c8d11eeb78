"""
Which section of the archive does a package belong to? Hierarchical attention (Yang 2016) beside a bag of words.

    python -m training.classification --output_dir runs/classification

Trains `AttentionSeq2SeqForSequenceClassification` with the library's Trainer on the descriptions of Debian packages,
cut into sentences, and a logistic regression on TF-IDF weights of words (its `C` chosen on the validation data; it
needs scikit-learn). Into the output folder go the model, `results.json`, `table.md`, and `document.png` with the
weights of the words and sentences of one test document. All sections are kept, those with very few
rows too; macro F1 is the mean over the sections of the test set.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding, HfArgumentParser, Trainer, TrainingArguments, set_seed

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForSequenceClassification,
    AttentionSeq2SeqTokenizer,
)
from hf_attention_seq2seq.visualization import plot_document

from .data import DataArguments, TextData, load_text_data
from .train import write_whole

SEPARATOR = "<sep>"


@dataclass
class ClassificationArguments:
    """Data and model; everything else is an option of `TrainingArguments`."""

    data_dir: str | None = field(default=None, metadata={"help": "else $ATTENTION_SEQ2SEQ_DATA"})
    folder: str = field(
        default="debian_synopsis", metadata={"help": "in it, with train.jsonl, valid.jsonl and test.jsonl"}
    )
    text_column: str = field(default="document", metadata={"help": "the text"})
    class_column: str = field(default="section", metadata={"help": "the class"})
    max_train_rows: int | None = field(default=None, metadata={"help": "only so many training rows"})
    max_test_rows: int | None = field(default=None, metadata={"help": "only so many test rows"})
    vocab_size: int = field(default=20000, metadata={"help": "most words"})
    embedding_size: int = field(default=200, metadata={"help": "field of the configuration"})
    encoder_hidden_size: int = field(default=100, metadata={"help": "field of the configuration"})
    dropout: float = field(default=0.3, metadata={"help": "on embeddings and on the document's vector"})
    baseline: bool = field(default=True, metadata={"help": "train the logistic regression too"})

    def load(self) -> TextData:
        """The texts, cut into sentences, and their classes."""
        sets = {"train_file": "train", "validation_file": "valid", "test_file": "test"}
        return load_text_data(
            DataArguments(
                **{name: [f"{self.folder}/{file}.jsonl"] for name, file in sets.items()},
                **({} if self.data_dir is None else {"data_dir": self.data_dir}),
                source_column=self.text_column,
                target_column=self.class_column,
                source_separator=SEPARATOR,
                split_sentences=True,
                max_train_rows=self.max_train_rows,
                max_test_rows=self.max_test_rows,
            )
        )


def accuracy_and_f1(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Accuracy and macro F1 in percent; the latter is the mean over the classes that `references` have."""
    right = Counter(gold for guess, gold in zip(predictions, references, strict=True) if guess == gold)
    guessed, gold = Counter(predictions), Counter(references)
    scores = [2 * right[name] / (guessed[name] + gold[name]) for name in gold]
    return {
        "accuracy": 100 * right.total() / len(references),
        "macro_f1": 100 * sum(scores) / len(scores),
    }


def texts_and_classes(rows: Dataset) -> tuple[list[str], list[str]]:
    """Of training rows or of rows with references."""
    names = rows["target"][:] if "target" in rows.column_names else [several[0] for several in rows["references"]]
    return rows["source"][:], names


def bag_of_words(data: TextData) -> dict[str, float]:
    """
    The figures of a logistic regression on TF-IDF weights of words.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError("The baseline needs scikit-learn, or give --baseline false.") from error
    (train, names), (valid, valid_names), (test, test_names) = map(
        texts_and_classes, (data.train, data.validation, data.tests["test"])
    )
    started = time.time()
    train, valid, test = ([text.replace(SEPARATOR, " ") for text in texts] for texts in (train, valid, test))
    words = TfidfVectorizer(sublinear_tf=True, min_df=2)
    features = words.fit_transform(train)
    models = [LogisticRegression(C=strength, max_iter=300).fit(features, names) for strength in (1.0, 10.0)]
    best = max(models, key=lambda model: model.score(words.transform(valid), valid_names))
    figures = accuracy_and_f1(best.predict(words.transform(test)).tolist(), test_names)
    return {**figures, "minutes": round((time.time() - started) / 60, 1)}


def make_model(
    arguments: ClassificationArguments, tokenizer: AttentionSeq2SeqTokenizer, classes: dict[str, int]
) -> AttentionSeq2SeqForSequenceClassification:
    """Yang 2016, section 2.2 and 3.3: bidirectional GRUs over words and over sentences."""
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        encoder_type="hierarchical",
        sentence_separator_token_id=tokenizer.convert_tokens_to_ids(SEPARATOR),
        rnn_type="gru",
        embedding_size=arguments.embedding_size,
        encoder_hidden_size=arguments.encoder_hidden_size,
        embedding_dropout=arguments.dropout,
        output_dropout=arguments.dropout,
        id2label={number: name for name, number in classes.items()},
        label2id=classes,
    )
    return AttentionSeq2SeqForSequenceClassification(config)


@torch.no_grad()
def read_document(
    model: AttentionSeq2SeqForSequenceClassification, tokenizer: AttentionSeq2SeqTokenizer, text: str
) -> tuple[str, list[list[str]], list[list[float]], list[float]]:
    """The predicted class; words by sentence; their weights; the weights of the sentences."""
    model.eval()
    inputs = tokenizer([text], return_tensors="pt", return_offsets_mapping=True)
    offsets = inputs.pop("offset_mapping")[0].tolist()
    output = model(**inputs.to(model.device), output_attentions=True)
    separator = model.config.sentence_separator_token_id
    sentences, weights = [[]], [[]]
    for token, (start, end), weight in zip(
        inputs["input_ids"][0].tolist(), offsets, output.pooling_attentions[0, 0].tolist()
    ):
        if token == separator:
            sentences.append([])
            weights.append([])
        else:
            sentences[-1].append(text[start:end] or tokenizer.convert_ids_to_tokens(token))
            weights[-1].append(weight)
    name = model.config.id2label[int(output.logits[0].argmax())]
    return name, sentences, weights, output.sentence_attentions[0].tolist()


def main(words: list[str] | None = None) -> None:
    """Trains both and writes the results."""
    parser = HfArgumentParser((ClassificationArguments, TrainingArguments))
    parser.set_defaults(
        output_dir="runs/classification",
        num_train_epochs=5,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=2e-3,
        lr_scheduler_type="linear",
        warmup_steps=100,
        max_grad_norm=1.0,
        dataloader_pin_memory=False,
        logging_steps=200,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
        seed=1,
    )
    arguments, training = parser.parse_args_into_dataclasses(words)
    try:
        data = arguments.load()
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(*data.report, sep="\n", flush=True)
    set_seed(training.seed)
    texts, names = texts_and_classes(data.train)
    classes = {name: number for number, name in enumerate(sorted(set(names)))}
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        texts,
        model="text_word",
        vocab_size=arguments.vocab_size,
        min_frequency=2,
        lowercase=True,
        special_tokens=[SEPARATOR],
    )
    model = make_model(arguments, tokenizer, classes)
    print(f"{model.num_parameters():,} parameters, {len(classes)} classes", flush=True)
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=Dataset.from_dict({**tokenizer(texts), "labels": [classes[name] for name in names]}),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    started = time.time()
    trainer.train()
    minutes = round((time.time() - started) / 60, 1)
    trainer.save_model()
    output = Path(training.output_dir)
    test, test_names = texts_and_classes(data.tests["test"])
    logits = trainer.predict(Dataset.from_dict(dict(tokenizer(test)))).predictions
    guesses = [model.config.id2label[int(number)] for number in logits.argmax(axis=-1)]
    results = {"hierarchical attention": {**accuracy_and_f1(guesses, test_names), "minutes": minutes}}
    if arguments.baseline:
        results["TF-IDF, logistic regression"] = bag_of_words(data)
    write_whole(output / "results.json", json.dumps(results, indent=2) + "\n")
    lines = ["| | accuracy (%) | macro F1 (%) | minutes |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(f'{value:.1f}' for value in row.values())} |" for name, row in results.items()]
    write_whole(output / "table.md", "\n".join(lines) + "\n")
    print("\n".join(lines))
    # The first test document of a handful of sentences that the model is right about; else the first one.
    right = [text for text, guess, gold in zip(test, guesses, test_names) if guess == gold]
    shown = next((text for text in right if 3 <= text.count(SEPARATOR) <= 6), test[0])
    name, sentences, word_weights, sentence_weights = read_document(model, tokenizer, shown)
    plot_document(sentences, word_weights, sentence_weights, output / "document.png", title=name)


if __name__ == "__main__":
    main()
