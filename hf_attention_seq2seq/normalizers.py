"""From scores to weights: distributions over the source positions of each sentence."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """
    Softmax over the last dimension, exactly zero where `mask` is false.

    A row without any position gets zeros, not NaN, and no gradient; fill values fit half precision.

    Args:
        scores: `(..., source)`.
        mask: bool, broadcastable to `scores`.
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)
