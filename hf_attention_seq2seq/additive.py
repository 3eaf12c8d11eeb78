"""The additive energy, without its large intermediate kept for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .step_products import current_pass, once

CHUNK_ELEMENTS = 1 << 19  # of the intermediate, which fit a processor's cache


def additive_energies(
    queries: Tensor, keys: Tensor, energy: Tensor, features: Tensor | None = None, matrix: Tensor | None = None
) -> Tensor:
    """
    `v^T tanh(q_i + k_j)` for every pair (Bahdanau 2014, A.1.2), or `v^T tanh(q_i + k_j + U f_ij)` with features of
    each pair (See 2017, eq. 11; Chorowski 2015, eq. 9).

    The intermediate `(batch, heads, queries, source, size)` is computed again in the backward pass, a few queries at
    a time, so that memory grows with the scores and not with scores times size.

    Args:
        queries: `(batch, heads, queries, size)`.
        keys: `(batch, heads, source, size)`.
        energy: `v`, `(heads, size)`.
        features: `f`, `(batch, queries, source, features)`.
        matrix: `U`, `(heads, size, features)`.

    Returns:
        `(batch, heads, queries, source)`.
    """
    if features is not None:
        features, matrix = features.to(queries.dtype), matrix.to(queries.dtype)
    elif queries.shape[2] == 1 and queries.dtype == keys.dtype == energy.dtype:
        shared = once((keys, energy), lambda: _share(keys, energy))
        if shared is not None:
            return _StepEnergies.apply(queries, *shared)
    return _AdditiveEnergies.apply(queries, keys, energy.to(queries.dtype), features, matrix)


def _hidden(
    queries: Tensor, keys: Tensor, features: Tensor | None, matrix: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the queries, each with its `(batch, heads, part, source, size)` in the memory of the one before."""
    step = max(1, CHUNK_ELEMENTS // max(1, keys.numel()))
    space = keys.new_empty(0)
    for start in range(0, queries.shape[2], step):
        part = slice(start, start + step)
        own = queries[:, :, part].unsqueeze(-2)
        shape = (*own.shape[:3], *keys.shape[2:])
        if space.shape != shape:
            space = keys.new_empty(shape)
        hidden = torch.add(own, keys.unsqueeze(-3), out=space)
        if features is not None:
            hidden += features[:, part].unsqueeze(1) @ matrix.mT.unsqueeze(1)
        yield part, hidden.tanh_()


class _AdditiveEnergies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries: Tensor, keys: Tensor, energy: Tensor, features: Tensor | None, matrix: Tensor | None):
        ctx.save_for_backward(queries, keys, energy, features, matrix)
        scores = queries.new_empty(*queries.shape[:3], keys.shape[2])
        for part, hidden in _hidden(queries, keys, features, matrix):
            scores[:, :, part] = (hidden @ energy[:, None, :, None]).squeeze(-1)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        queries, keys, energy, features, matrix = ctx.saved_tensors
        # Summed over many chunks, so in fp32 at least.
        gradients = [
            None
            if tensor is None
            else tensor.new_zeros(tensor.shape, dtype=torch.promote_types(tensor.dtype, torch.float32))
            for tensor in ctx.saved_tensors
        ]
        for part, hidden in _hidden(queries, keys, features, matrix):
            outer = gradient[:, :, part]
            gradients[2] += torch.einsum("bhqs,bhqsz->hz", outer, hidden)
            inner = hidden.square_().neg_().add_(1.0).mul_(energy[:, None, None, :]).mul_(outer.unsqueeze(-1))
            gradients[0][:, :, part] = inner.sum(dim=3)
            gradients[1] += inner.sum(dim=2)
            if features is not None:
                gradients[3][:, part] = (inner @ matrix.unsqueeze(1)).sum(dim=1)
                gradients[4] += torch.einsum("bhqsz,bqsf->hzf", inner, features[:, part])
        return tuple(
            None if tensor is None else total.to(tensor.dtype) for tensor, total in zip(ctx.saved_tensors, gradients)
        )


class _Sums:
    """
    What the steps of one backward pass leave for the gradients of keys and `v`, with `h` for `tanh(q + k)` and `g` for
    the gradient of a score: the sums of `g`, of `g h^2` and of `g h`.
    """

    def __init__(self, keys: Tensor, energy: Tensor):
        self.keys, self.energy = keys.detach(), energy.detach()
        self.passes: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def of_this_pass(self) -> tuple[Tensor, Tensor, Tensor]:
        if current_pass() not in self.passes:
            outer = self.keys.new_zeros(*self.keys.shape[:3], 1)
            sums = (outer, torch.zeros_like(self.keys), torch.zeros_like(self.energy))
            self.passes[current_pass()] = sums
        return self.passes[current_pass()]


def _share(keys: Tensor, energy: Tensor) -> tuple[Tensor, _Sums]:
    sums = _Sums(keys, energy)
    return _CollectEnergies.apply(keys, energy, sums), sums


class _CollectEnergies(torch.autograd.Function):
    """Keys and `v` to a token that each step depends on."""

    @staticmethod
    def forward(ctx, keys: Tensor, energy: Tensor, sums: _Sums) -> Tensor:
        ctx.sums = sums
        return keys.new_empty(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        outer, squares, hidden = ctx.sums.of_this_pass()
        del ctx.sums.passes[current_pass()]
        return (outer - squares).mul_(ctx.sums.energy[:, None, :]), hidden, None


class _StepEnergies(torch.autograd.Function):
    """`_AdditiveEnergies` of one query a row, the keys' gradient being shared by all steps."""

    @staticmethod
    def forward(ctx, queries: Tensor, token: Tensor, sums: _Sums) -> Tensor:
        ctx.save_for_backward(queries, sums.keys, sums.energy)
        ctx.sums = sums
        hidden = (queries + sums.keys).tanh_()
        return (hidden @ sums.energy[:, :, None]).mT

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        queries, keys, energy = ctx.saved_tensors
        outer_sum, squares_sum, hidden_sum = ctx.sums.of_this_pass()
        hidden = (queries + keys).tanh_()
        outer = gradient.mT  # (batch, heads, source, 1)
        hidden_sum += (gradient @ hidden).sum(dim=(0, 2))
        squares = hidden.square_()
        outer_sum += outer
        squares_sum.addcmul_(outer, squares)
        inner = (gradient.sum(dim=3, keepdim=True) - gradient @ squares) * energy[:, None, :]
        return inner, gradient.new_zeros(()), None
