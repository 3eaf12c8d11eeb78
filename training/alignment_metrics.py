"""
The measures of alignments: `evaluate.Metric` objects as those of `training.metrics`. All figures are between 0 and 1,
except the entropy.

    AlignmentError().compute(predictions=["0-0 1-1"], references=["0-0 1?1 2-1"])
    AttentionFocus().compute(predictions=align(model, tokenizer, sources, targets))
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import evaluate
import torch
from datasets import Features, Sequence, Value
from torch import Tensor

from hf_attention_seq2seq.alignment import Alignment, Link, parse_pharaoh

from .metrics import Figures, References, TextMetric, Texts


class AlignmentError(TextMetric):
    """
    Links against gold links that are sure (S) or possible (P, which contains S), over all sentences together
    (Och and Ney 2003, section 6). With the predicted links A:

    - `alignment_error_rate`: 1 - (|A and S| + |A and P|) / (|A| + |S|)
    - `precision`: |A and P| / |A|, 0 without predicted links
    - `recall`: |A and S| / |S|

    Predictions are lines in Pharaoh's format, `"0-0 1-2"` (source and target word, counted from 0); so are references,
    one for each, where `-` is a sure link and `?` or `p` a possible one: `"0-0 1?2"`. A line may be empty.

    Raises:
        TypeError, ValueError: as `TextMetric`; several references for one sentence; a line in another format; no sure
            link in any reference.
    """

    figures = {"alignment_error_rate": False, "precision": True, "recall": True}

    def _compute(self, predictions: Texts, references: References) -> Figures:
        predicted = sure = right_sure = right = 0
        for row, (line, several) in enumerate(zip(predictions, references)):
            if len(several) != 1:
                raise ValueError(f"Sentence {row} has {len(several)} references; gold links are one line for each.")
            links = set(parse_pharaoh(line))
            sure_links, possible_links = parse_gold(several[0])
            predicted += len(links)
            sure += len(sure_links)
            right_sure += len(links & sure_links)
            right += len(links & possible_links)
        if not sure:
            raise ValueError("The references have no sure link, the form 0-2; an error rate needs some.")
        return {
            "alignment_error_rate": 1 - (right_sure + right) / (predicted + sure),
            "precision": right / predicted if predicted else 0.0,
            "recall": right_sure / sure,
        }


def parse_gold(text: str) -> tuple[set[Link], set[Link]]:
    """
    The sure and the possible links, which contain them, of a line such as `"0-0 1?2"`; see `AlignmentError`.

    Raises:
        ValueError: anything else is in the line.
    """
    sure, possible = set(), set()
    for item in text.split():
        found = re.fullmatch(r"([0-9]+)([-?p])([0-9]+)", item)
        if found is None:
            raise ValueError(f"{item!r} is no gold link of the form 0-2 (sure), 0?2 or 0p2 (possible).")
        link = (int(found[1]), int(found[3]))
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return sure, possible


class AttentionFocus(TextMetric):
    """
    How attention is spread, whatever is right. The means are over all rows (target tokens) of all heads and sentences
    that have any weight.

    - `entropy`: mean entropy of a row in nats, the row divided by its sum; 0 where all weight is at one place
    - `sharpness`: mean of the largest weight of a row
    - `coverage`: share of the source tokens whose weights, mean over the heads, sum to more than `coverage_threshold`
      over the target

    Predictions are `Alignment` objects (`merge` them first to count words, or to leave `</s>` out) or weights,
    `(heads, target_length, source_length)` or `(target_length, source_length)`; there are no references.

    Args:
        coverage_threshold: at least 0.

    Raises:
        ValueError: weights of another shape, negative or not finite; no weights at all; a negative threshold.
    """

    figures = {"entropy": False, "sharpness": True, "coverage": True}

    def __init__(self, coverage_threshold: float = 0.5, **options: Any):
        if not coverage_threshold >= 0:
            raise ValueError(f"coverage_threshold={coverage_threshold!r} is not possible; it must be at least 0.")
        super().__init__(**options)
        self.coverage_threshold = coverage_threshold

    def _info(self) -> evaluate.MetricInfo:
        weights = Sequence(Sequence(Sequence(Value("float32"))))
        features = Features({"predictions": weights})
        return evaluate.MetricInfo(description=str(self.__doc__), citation="", features=features)

    def add(self, *, prediction: Alignment | Tensor | list) -> None:
        """Adds one sentence."""
        self.add_batch(predictions=[prediction])

    def add_batch(self, *, predictions: Iterable[Alignment | Tensor | list]) -> None:
        """Adds sentences."""
        evaluate.Metric.add_batch(self, predictions=[_as_weights(entry).tolist() for entry in predictions])

    def _compute(self, predictions: list) -> Figures:
        entropies, largest, covered = [], [], []
        for entry in predictions:
            weights = torch.tensor(entry, dtype=torch.float64)
            if not weights.numel():
                continue
            sums = weights.sum(dim=-1)
            rows = weights[sums > 0]
            shares = rows / rows.sum(dim=-1, keepdim=True)
            entropies.append(torch.special.entr(shares).sum(dim=-1))
            largest.append(rows.amax(dim=-1))
            covered.append(weights.mean(dim=0).sum(dim=0) > self.coverage_threshold)
        if not entropies or not sum(map(len, entropies)):
            raise ValueError("There is no attention to measure: all weights are zero, or there are none.")
        return {
            "entropy": torch.cat(entropies).mean().item(),
            "sharpness": torch.cat(largest).mean().item(),
            "coverage": torch.cat(covered).double().mean().item(),
        }


def _as_weights(entry: Alignment | Tensor | list) -> Tensor:
    weights = torch.as_tensor(entry.weights if isinstance(entry, Alignment) else entry, dtype=torch.float32)
    weights = weights.unsqueeze(0) if weights.dim() == 2 else weights
    if weights.dim() != 3:
        raise ValueError(
            f"Weights have the shape {tuple(weights.shape)}; it must be (heads, target_length, source_length), or "
            "(target_length, source_length)."
        )
    if not (weights.isfinite() & (weights >= 0)).all():
        raise ValueError("Weights must be finite and not negative.")
    return weights.detach()
