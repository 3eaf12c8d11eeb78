"""The training loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import IGNORED_LABEL


def sequence_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """
    Mean negative log-likelihood in fp32.

    Args:
        logits: `(batch, target_length, vocabulary)`.
        labels: `(batch, target_length)` int64, -100 where there is nothing to predict.
        num_items_in_batch: the divisor; the number of labels other than -100 if not given.

    Returns:
        a scalar, 0 for a batch without labels.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten().long(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    return _mean(total, labels != IGNORED_LABEL, num_items_in_batch)


def coverage_loss(per_step: Tensor, counted: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """
    Mean coverage loss of the target tokens (See 2017, eq. 12 and 13).

    Args:
        per_step: `(rows, target_length)`.
        counted: `(rows, target_length)` bool, true at target tokens.
        num_items_in_batch: the divisor, as in `sequence_loss`.
    """
    return _mean(torch.where(counted, per_step, 0.0).sum(), counted, num_items_in_batch)


def doubly_stochastic_loss(
    weights: Tensor, source_mask: Tensor, counted: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """
    How far the attention that each source position gets in all is from 1, `sum_j (1 - sum_i a_ij)^2` (Xu 2015,
    eq. 14), the mean of the heads, divided as the likelihood is.

    Args:
        weights: `(rows, heads, target_length, source_length)`.
        source_mask: `(rows, source_length)` bool, true at source tokens.
        counted: `(rows, target_length)` bool, true at target tokens.
        num_items_in_batch: the divisor, as in `sequence_loss`.
    """
    received = torch.where(counted[:, None, :, None], weights, 0.0).sum(dim=2)
    missing = torch.where(source_mask.unsqueeze(1), 1 - received, 0.0)
    return _mean(missing.square().mean(dim=1).sum(), counted, num_items_in_batch)


def _mean(total: Tensor, counted: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    if num_items_in_batch is None:
        num_items_in_batch = counted.sum().clamp(min=1)
    elif torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(total.device)
    if torch.is_tensor(num_items_in_batch):
        return total / num_items_in_batch.clamp(min=1)
    return total / max(num_items_in_batch, 1)


def with_auxiliary_loss(logits: Tensor, loss: Tensor, over_processes: bool = False) -> Tensor:
    """
    The same logits, through which `loss` gets its gradient as well.

    For trainers that compute the loss from the logits alone, such as transformers' with label smoothing: whatever
    they do, `loss` is minimised too. A trainer that divides by the items of all processes multiplies by their number;
    with `over_processes` the same is done here. A scale that the trainer gives its loss, as for fp16, does not reach
    `loss`: train such models in bf16 or fp32, or without label smoothing.
    """
    if over_processes and torch.distributed.is_available() and torch.distributed.is_initialized():
        loss = loss * torch.distributed.get_world_size()
    return _WithAuxiliaryLoss.apply(logits, loss)


class _WithAuxiliaryLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, loss: Tensor) -> Tensor:
        ctx.dtype = loss.dtype
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, torch.ones((), dtype=ctx.dtype, device=gradient.device)


def with_scaled_gradient(logits: Tensor, scale: Tensor) -> Tensor:
    """
    The same logits, whose gradient is multiplied by the scalar `scale`.

    For trainers that average over one of several accumulated batches; the loss that they log stays theirs.
    """
    return _WithScaledGradient.apply(logits, scale)


class _WithScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(scale)
        return logits.view_as(logits)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (scale,) = ctx.saved_tensors
        return gradient * scale.to(gradient.dtype), None
