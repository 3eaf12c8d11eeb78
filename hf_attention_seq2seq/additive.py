"""The additive energy, without its large intermediate kept for the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 1 << 19  # of the intermediate, which fit a processor's cache


def additive_energies(
    queries: Tensor,
    keys: Tensor,
    energy: Tensor,
    features: Tensor | None = None,
    feature_weight: Tensor | None = None,
) -> Tensor:
    """
    `v^T tanh(q_i + k_j)` for every pair (Bahdanau 2014, A.1.2), or `v^T tanh(q_i + k_j + U f_ij)` with features of the
    pair (See 2017, eq. 11; Chorowski 2015, eq. 9).

    The intermediate `(batch, heads, queries, source, size)` is computed again in the backward pass, a few queries at
    a time, so that memory grows with the scores and not with scores times size.

    Args:
        queries: `(batch, heads, queries, size)`.
        keys: `(batch, heads, source, size)`.
        energy: `v`, `(heads, size)`.
        features: `f`, `(batch, queries, source, features)`.
        feature_weight: `U`, `(heads * size, features)`.

    Returns:
        `(batch, heads, queries, source)`.
    """
    dtype = queries.dtype
    if features is not None:
        features, feature_weight = features.to(dtype), feature_weight.to(dtype)
    return _AdditiveEnergies.apply(queries, keys, energy.to(dtype), features, feature_weight)


def _hidden(queries: Tensor, keys: Tensor, features: Tensor | None, feature_weight: Tensor | None) -> Tensor:
    total = queries.unsqueeze(-2) + keys.unsqueeze(-3)  # (batch, heads, queries, source, size)
    if features is not None:
        own = features @ feature_weight.t()  # (batch, queries, source, heads * size)
        total += own.unflatten(-1, (queries.shape[1], -1)).permute(0, 3, 1, 2, 4)
    return total.tanh_()


class _AdditiveEnergies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys, energy, features, feature_weight) -> Tensor:
        ctx.save_for_backward(queries, keys, energy, features, feature_weight)
        ctx.step = max(1, CHUNK_ELEMENTS // max(1, keys.numel()))
        vectors = energy[:, None, :, None]
        chunks = []
        for start in range(0, queries.shape[2], ctx.step):
            part, own = _part(queries, features, start, ctx.step)
            chunks.append((_hidden(part, keys, own, feature_weight) @ vectors).squeeze(-1))
        return torch.cat(chunks, dim=2) if len(chunks) > 1 else chunks[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        queries, keys, energy, features, feature_weight = ctx.saved_tensors
        # Sums over many queries and positions are made in single precision at least.
        precise = torch.promote_types(queries.dtype, torch.float32)
        key_gradient = torch.zeros_like(keys, dtype=precise)
        energy_gradient = torch.zeros_like(energy, dtype=precise)
        weight_gradient = None if features is None else torch.zeros_like(feature_weight, dtype=precise)
        query_gradients, feature_gradients = [], []
        for start in range(0, queries.shape[2], ctx.step):
            part, own = _part(queries, features, start, ctx.step)
            hidden = _hidden(part, keys, own, feature_weight)
            outer = gradient[:, :, start : start + ctx.step].unsqueeze(-1)  # (batch, heads, part, source, 1)
            energy_gradient += (hidden * outer).sum(dim=(0, 2, 3), dtype=precise)
            inner = hidden.square_().neg_().add_(1.0).mul_(energy[:, None, None, :]).mul_(outer)
            query_gradients.append(inner.sum(dim=3, dtype=precise).to(queries.dtype))
            key_gradient += inner.sum(dim=2, dtype=precise)
            if features is not None:
                inner = inner.permute(0, 2, 3, 1, 4).flatten(3)  # (batch, part, source, heads * size)
                feature_gradients.append(inner @ feature_weight)
                weight_gradient += inner.flatten(0, 2).t().to(precise) @ own.flatten(0, 2).to(precise)
        return (
            torch.cat(query_gradients, dim=2),
            key_gradient.to(keys.dtype),
            energy_gradient.to(energy.dtype),
            None if features is None else torch.cat(feature_gradients, dim=1),
            None if features is None else weight_gradient.to(feature_weight.dtype),
        )


def _part(queries: Tensor, features: Tensor | None, start: int, step: int) -> tuple[Tensor, Tensor | None]:
    """`step` queries from `start` on, with their features."""
    own = None if features is None else features[:, start : start + step]
    return queries[:, :, start : start + step], own
