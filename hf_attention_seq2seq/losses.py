"""The training loss."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .checks import IGNORED_LABEL

CHUNK = 1 << 22  # logits that `linear_sequence_loss` holds at a time, 16 MB in fp32


def sequence_loss(
    logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None, smoothing: float = 0.0
) -> Tensor:
    """
    Mean negative log-likelihood in fp32.

    Args:
        logits: `(batch, target_length, vocabulary)`.
        labels: `(batch, target_length)` int64, -100 where there is nothing to predict.
        num_items_in_batch: the divisor; the number of labels other than -100 if not given.
        smoothing: this part of the probability is expected evenly over the vocabulary (Szegedy 2016).

    Returns:
        a scalar, 0 for a batch without labels.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten().long(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return mean_over_labels(total, labels != IGNORED_LABEL, num_items_in_batch)


def linear_sequence_loss(
    states: Tensor,
    output_layer: nn.Linear,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """
    `sequence_loss` of `output_layer(states)`, which never holds more than a part of the logits: nothing is computed
    for ignored labels, and gradients are taken at once, part by part.

    Args:
        states: `(batch, target_length, size)`.
        output_layer: from `size` to the vocabulary.
        labels, num_items_in_batch, smoothing: see `sequence_loss`.
    """
    counted = labels != IGNORED_LABEL
    total = _LinearCrossEntropy.apply(
        states[counted], output_layer.weight, output_layer.bias, labels[counted].long(), smoothing
    )
    return mean_over_labels(total, counted, num_items_in_batch)


class _LinearCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy of a linear layer; its gradients are made in the forward pass, where the logits are."""

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        total = torch.zeros((), dtype=torch.promote_types(states.dtype, torch.float32), device=states.device)
        states_gradient = torch.empty_like(states) if needs_states else None
        weight_gradient = torch.zeros_like(weight) if needs_weight else None
        bias_gradient = torch.zeros_like(bias) if needs_bias else None
        dtype = _product_dtype(weight)
        matrix = weight.to(dtype)
        rows = max(CHUNK // weight.shape[0], 1)
        for start in range(0, len(states), rows):
            part = states[start : start + rows].to(dtype)
            label = labels[start : start + rows, None]
            logits = torch.addmm(bias.to(dtype), part, matrix.T).to(total.dtype)
            # d loss / d logits: the softmax less what was expected. The log of its normaliser is read off the largest
            # entry, where no probability is too small for it.
            gradient = logits.softmax(dim=1)
            normalizer = logits.amax(dim=1, keepdim=True) - gradient.amax(dim=1, keepdim=True).log()
            losses = normalizer - (1 - smoothing) * logits.gather(1, label)
            if smoothing:
                losses = losses - smoothing * logits.mean(dim=1, keepdim=True)
            total += losses.sum()
            if not any((needs_states, needs_weight, needs_bias)):
                continue
            if smoothing:
                gradient -= smoothing / weight.shape[0]
            gradient.scatter_add_(1, label, gradient.new_full(label.shape, smoothing - 1))
            if needs_bias:
                bias_gradient += gradient.sum(dim=0)
            gradient = gradient.to(dtype)
            if needs_states:
                states_gradient[start : start + rows] = gradient @ matrix
            if needs_weight:
                weight_gradient.addmm_(gradient.T.to(weight.dtype), part.to(weight.dtype))
        ctx.save_for_backward(states_gradient, weight_gradient, bias_gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        scaled = (None if saved is None else saved * gradient.to(saved.dtype) for saved in ctx.saved_tensors)
        return (*scaled, None, None)


def linear_log_likelihood(states: Tensor, output_layer: nn.Linear, words: Tensor, smoothing: float = 0.0) -> Tensor:
    """
    `log_softmax(output_layer(states))` at each word, `(words,)`, or with `smoothing` that part of it the vocabulary's
    mean; only a part of the logits exists at a time, and none is kept for the gradient.

    Args:
        states: `(words, size)`.
        output_layer: from `size` to the vocabulary.
        words: `(words,)` int64.
    """
    return _LinearLogLikelihood.apply(states, output_layer.weight, output_layer.bias, words, smoothing)


class _LinearLogLikelihood(torch.autograd.Function):
    """The logits are computed again in the backward pass."""

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor, words: Tensor, smoothing: float) -> Tensor:
        ctx.dtype, ctx.smoothing = _product_dtype(weight), smoothing
        normalizers, likelihoods = [], []
        for part, word in _parts(weight, states, words):
            logits = _linear(part, weight, bias, ctx.dtype)
            normalizers.append(logits.logsumexp(dim=1))
            picked = logits.gather(1, word.unsqueeze(1)).squeeze(1)
            if smoothing:
                picked = (1 - smoothing) * picked + smoothing * logits.mean(dim=1)
            likelihoods.append(picked - normalizers[-1])
        normalizer = torch.cat(normalizers)
        ctx.save_for_backward(states, weight, bias, words, normalizer)
        return torch.cat(likelihoods)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        states, weight, bias, words, normalizer = ctx.saved_tensors
        states_gradient = torch.empty_like(states)
        weight_gradient, bias_gradient = torch.zeros_like(weight), torch.zeros_like(bias)
        done = 0
        for part, word, total, outer in _parts(weight, states, words, normalizer, gradient):
            logits = _linear(part, weight, bias, ctx.dtype)
            # d likelihood / d logits: what was expected less the softmax
            inner = logits.sub_(total.unsqueeze(1)).exp_().mul_(-outer.unsqueeze(1))
            if ctx.smoothing:
                inner += (outer * ctx.smoothing / weight.shape[0]).unsqueeze(1)
            inner.scatter_add_(1, word.unsqueeze(1), ((1 - ctx.smoothing) * outer).unsqueeze(1))
            bias_gradient += inner.sum(dim=0)
            inner = inner.to(ctx.dtype)
            states_gradient[done : done + len(part)] = inner @ weight.to(ctx.dtype)
            weight_gradient.addmm_(inner.T.to(weight.dtype), part.to(weight.dtype))
            done += len(part)
        return states_gradient, weight_gradient, bias_gradient, None, None


def _parts(weight: Tensor, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same rows of all tensors, so many that their logits fit in a chunk."""
    return zip(*(tensor.split(max(CHUNK // weight.shape[0], 1)) for tensor in tensors))


def _linear(states: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits in fp32 at least, of a product in `dtype`."""
    logits = torch.addmm(bias.to(dtype), states.to(dtype), weight.to(dtype).T)
    return logits.to(torch.promote_types(dtype, torch.float32))


def _product_dtype(weight: Tensor) -> torch.dtype:
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def counted_mean(values: Tensor, counted: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """
    Mean of what each target token adds to the loss.

    Args:
        values: `(rows, target_length)`.
        counted: `(rows, target_length)` bool, true at target tokens.
        num_items_in_batch: the divisor, as in `sequence_loss`.
    """
    return mean_over_labels(torch.where(counted, values, 0.0).sum(), counted, num_items_in_batch)


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
    return mean_over_labels(missing.square().mean(dim=1).sum(), counted, num_items_in_batch)


def mean_over_labels(total: Tensor, counted: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """`total` divided by `num_items_in_batch`, or if that is not given, by the number of `counted` labels."""
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
