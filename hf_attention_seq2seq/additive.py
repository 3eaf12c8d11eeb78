"""The additive energy, without its large intermediate kept for the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 1 << 19  # of the intermediate, which fit a processor's cache


def additive_energies(queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
    """
    `v^T tanh(q_i + k_j)` for every pair (Bahdanau 2014, A.1.2).

    The intermediate `(batch, heads, queries, source, size)` is computed again in the backward pass, a few queries at
    a time, so that memory grows with the scores and not with scores times size.

    Args:
        queries: `(batch, heads, queries, size)`.
        keys: `(batch, heads, source, size)`.
        energy: `v`, `(heads, size)`.

    Returns:
        `(batch, heads, queries, source)`.
    """
    return _AdditiveEnergies.apply(queries, keys, energy.to(queries.dtype))


def _hidden(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.tanh_(queries.unsqueeze(-2) + keys.unsqueeze(-3))


class _AdditiveEnergies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, energy)
        ctx.step = max(1, CHUNK_ELEMENTS // max(1, keys.numel()))
        vectors = energy[:, None, :, None]
        chunks = [(_hidden(part, keys) @ vectors).squeeze(-1) for part in queries.split(ctx.step, dim=2)]
        return torch.cat(chunks, dim=2) if len(chunks) > 1 else chunks[0]

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        queries, keys, energy = ctx.saved_tensors
        vectors = energy[:, None, None, :]
        key_gradient, energy_gradient, query_gradients = torch.zeros_like(keys), torch.zeros_like(energy), []
        for part, outer in zip(queries.split(ctx.step, dim=2), gradient.split(ctx.step, dim=2)):
            hidden = _hidden(part, keys)
            outer = outer.unsqueeze(-1)  # (batch, heads, part, source, 1)
            energy_gradient += (hidden * outer).sum(dim=(0, 2, 3))
            inner = hidden.square_().neg_().add_(1.0).mul_(vectors).mul_(outer)
            query_gradients.append(inner.sum(dim=3))
            key_gradient += inner.sum(dim=2)
        return torch.cat(query_gradients, dim=2), key_gradient, energy_gradient
