"""The sentences of the benchmarks: Multi30k and SIGMORPHON 2020 where they are, else invented ones like them."""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from hf_attention_seq2seq import AttentionSeq2SeqTokenizer

Pairs = list[tuple[str, str]]
MULTI30K, FRENCH = "multi30k", "sigmorphon2020_g2p"
_FILES = {MULTI30K: ("train.tsv", "test_2016_flickr.tsv"), FRENCH: ("fre_train.tsv", "fre_test.tsv")}
_SOURCES = {MULTI30K: "Multi30k, English to German", FRENCH: "SIGMORPHON 2020, French"}
PAD = 0
_INVENTED = {MULTI30K: (29000, 1000), FRENCH: (3600, 450)}  # training and test pairs


@functools.cache
def read(name: str) -> tuple[Pairs, Pairs, str]:
    """Training and test pairs, and where they come from."""
    folder = Path(os.environ.get("ATTENTION_SEQ2SEQ_DATA", "")) / name
    if not os.environ.get("ATTENTION_SEQ2SEQ_DATA") or not (folder / _FILES[name][0]).exists():
        return *_invent(name), f"invented, as long as {_SOURCES[name]} (ATTENTION_SEQ2SEQ_DATA has none)"
    parts = []
    for file in _FILES[name]:
        lines = (folder / file).read_text(encoding="utf-8").splitlines()
        parts.append([tuple(line.split("\t")[:2]) for line in lines])
    return *parts, _SOURCES[name]


def _invent(name: str) -> tuple[Pairs, Pairs]:
    generator = random.Random(0)
    training, test = _INVENTED[name]
    letters = "etaoinshrdlucmfwypvbgkqjxz"

    def word(mean: float) -> str:
        length = max(1, round(generator.gauss(mean, mean / 3)))
        return "".join(generator.choices(letters, range(52, 0, -2), k=length))

    if name == FRENCH:
        pairs = [(word(8), " ".join(word(6))) for _ in range(training + test)]
        return pairs[:training], pairs[training:]
    words = [word(5) for _ in range(9000)]
    frequencies = [1 / (rank + 3) for rank in range(len(words))]

    def sentence(mean: float) -> str:
        return " ".join(generator.choices(words, frequencies, k=max(4, round(generator.gauss(mean, 4))))) + " ."

    pairs = [(sentence(12), sentence(11)) for _ in range(training + test)]
    return pairs[:training], pairs[training:]


@functools.cache
def tokenizer(name: str) -> AttentionSeq2SeqTokenizer:
    """Joint BPE of 8,000 pieces; for French, characters and phonemes."""
    pairs, _, _ = read(name)
    sources, targets = zip(*pairs)
    if name == FRENCH:
        return AttentionSeq2SeqTokenizer.train_from_iterator(
            [" ".join(source) for source in sources], targets, model="word"
        )
    return AttentionSeq2SeqTokenizer.train_from_iterator(sources + targets, model="bpe", vocab_size=8000)


def test_sources(lengths: list[int], number: int, size: int) -> list[int]:
    """
    Which test sentences are translated in batches of `size`: each batch has sentences of one length, since toolkits
    that read the padding translate others in another way. Single sentences are the first ones.

    Args:
        lengths: of all test sentences, in tokens.
        number: of sentences; of more than one batch, whole batches are taken.
    """
    if size == 1:
        return list(range(number))
    rows: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows.setdefault(length, []).append(row)
    groups = [found[start : start + size] for _, found in sorted(rows.items()) for start in range(0, len(found), size)]
    groups = [group for group in groups if len(group) == size]
    wanted = max(1, number // size)
    if len(groups) < wanted:
        raise ValueError(f"sentences: {number} are too many; there are {len(groups)} batches of {size} of one length")
    step = len(groups) / wanted
    return [row for index in range(wanted) for row in groups[int((index + 0.5) * step)]][:number]


def batches(name: str, number: int, size: int) -> list[dict[str, torch.Tensor]]:
    """Random ones of the batches of all training sentences by length: `input_ids`, `labels`."""
    own = tokenizer(name)
    sources, targets = zip(*read(name)[0])
    if name == FRENCH:
        sources = [" ".join(source) for source in sources]
    encoded = own(list(sources), text_target=list(targets))
    order = sorted(range(len(sources)), key=lambda row: (len(encoded["input_ids"][row]), len(encoded["labels"][row])))
    groups = [order[start : start + size] for start in range(0, len(order), size)]
    random.Random(1).shuffle(groups)
    groups = (groups * -(-number // len(groups)))[:number]

    def padded(column: str, rows: list[int], value: int) -> torch.Tensor:
        return pad_sequence([torch.tensor(encoded[column][row]) for row in rows], True, value)

    return [{"input_ids": padded("input_ids", rows, PAD), "labels": padded("labels", rows, -100)} for rows in groups]
