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
    # Only differences from the largest score matter, and whatever is 2 or more below it gets weight zero from both
    # functions: a moderate number stands for it and for masked positions, and can not overflow in squares and sums.
    # These are taken over the whole sentence, so in fp32 at least, as torch's softmax does.
    top = scores.detach().masked_fill(~mask, torch.finfo(scores.dtype).min).amax(dim=-1, keepdim=True)
    precise = torch.promote_types(scores.dtype, torch.float32)
    below = (scores.to(precise) - top.to(precise)).clamp(min=-4.0).masked_fill(~mask, -4.0)
    return getattr(entmax, name)(below, dim=-1).masked_fill(~mask, 0.0).to(scores.dtype)


NORMALIZERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
}


def log_distribution(name: str, scores: Tensor, mask: Tensor, factor: Tensor | None = None) -> Tensor:
    """
    The logarithm of a normaliser's weights, -inf where they are zero, in fp32 at least.

    Args:
        name: of `NORMALIZERS`.
        scores, mask: see `softmax`.
        factor: multiplies the weights, which are then normalised again; broadcastable.
    """
    precise = torch.promote_types(scores.dtype, torch.float32)
    if name == "softmax":
        possible = mask.any(dim=-1, keepdim=True)
        logs = scores.to(precise).masked_fill(~(mask | ~possible), float("-inf")).log_softmax(dim=-1)
    else:
        weights = NORMALIZERS[name](scores, mask).to(precise)
        mask = mask & (weights > 0)
        logs = torch.where(mask, weights, 1.0).log()
    if factor is not None:
        logs = (logs + factor.to(precise).log()).masked_fill(~mask, torch.finfo(precise).min).log_softmax(dim=-1)
    return logs.masked_fill(~mask, float("-inf"))
