"""Phase 2, what attention remembers: features of earlier alignments that the scores can use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig


class AccumulatedCoverage(nn.Module):
    """
    The coverage vector: the sum of all earlier alignments (Tu 2016, section 3; See 2017, eq. 10), averaged over
    heads.

    Attributes:
        features: number of features per source position.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.features = 1

    def forward(self, history: Tensor) -> Tensor:
        """Features `(rows, source, features)` of the history `(rows, source)`."""
        return history.unsqueeze(-1)

    def update(self, history: Tensor, weights: Tensor) -> Tensor:
        """The history after one more alignment, `(rows, heads, source)`."""
        return history + weights.mean(dim=1)

    def loss(self, history: Tensor, weights: Tensor) -> Tensor:
        """`sum_j min(a_j, coverage_j)` of one step, `(rows,)` (See 2017, eq. 12)."""
        return torch.minimum(weights.mean(dim=1), history).sum(dim=-1)


class LocationAwareCoverage(nn.Module):
    """The previous alignment, convolved along the sentence (Chorowski 2015, eq. 8), averaged over heads."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.features = config.coverage_filters
        self.filters = nn.Conv1d(
            1,
            config.coverage_filters,
            config.coverage_kernel_size,
            padding=config.coverage_kernel_size // 2,
            bias=False,
        )

    def forward(self, history: Tensor) -> Tensor:
        """See `AccumulatedCoverage.forward`."""
        return self.filters(history.unsqueeze(1)).transpose(1, 2)

    def update(self, history: Tensor, weights: Tensor) -> Tensor:
        """See `AccumulatedCoverage.update`."""
        return weights.mean(dim=1)


COVERAGES = {"accumulated": AccumulatedCoverage, "location_aware": LocationAwareCoverage}
