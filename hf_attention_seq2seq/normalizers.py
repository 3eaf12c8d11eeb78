"""Phase 2, how scores become weights: distributions over the source positions that a query may look at."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """
    Softmax over the last dimension, exactly zero where `mask` is false.

    A row without any position gets zeros, not NaN, and no gradient; fill values fit half precision.

    Args:
        scores: `(..., source)`.
        mask: bool, broadcastable to `scores`.
    """
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


def sparsemax(scores: Tensor, mask: Tensor) -> Tensor:
    """Euclidean projection onto the simplex (Martins and Astudillo 2016, eq. 2); see `softmax`."""
    return _sparse("sparsemax", scores, mask)


def entmax15(scores: Tensor, mask: Tensor) -> Tensor:
    """1.5-entmax (Peters, Niculae, Martins 2019, eq. 4 with alpha = 1.5); see `softmax`."""
    return _sparse("entmax15", scores, mask)


def _sparse(name: str, scores: Tensor, mask: Tensor) -> Tensor:
    try:
        import entmax
    except ImportError as error:
        raise ImportError(f"attention_normalizer={name!r} needs the package entmax: pip install entmax.") from error
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    # Whatever is 2 or more below the largest score gets weight zero from both functions. Raised to a moderate number,
    # fill values can not overflow in the squares and sums inside.
    scores = torch.maximum(scores, scores.detach().amax(dim=-1, keepdim=True) - 4.0)
    return getattr(entmax, name)(scores, dim=-1).masked_fill(~mask, 0.0)


NORMALIZERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}
