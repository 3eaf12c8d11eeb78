"""Linear layers whose products of few rows are fast on a CPU, for as long as their weights stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAST_ELEMENTS = 1 << 20  # of a weight: below, its products cost little beside everything else


def can_pack(layer: nn.Module) -> bool:
    """Whether this is a plain layer in single precision on an x86 processor whose torch has oneDNN."""
    return (
        type(layer) is nn.Linear
        and "forward" not in vars(layer)
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float
        and layer.weight.numel() >= LEAST_ELEMENTS
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


@contextmanager
def packed(model: nn.Module, rows: int) -> Iterator[None]:
    """
    Inside, the large linear layers of `model` have their weights in the order that oneDNN wants for some `rows` rows.

    The usual product puts the weight in order anew in each call, which takes longer than the product itself where
    there are few rows; for a single row there is nothing to gain. The weights must not change inside.
    """
    layers = [layer for layer in model.modules() if can_pack(layer)] if rows > 1 else []
    try:
        for layer in layers:
            layer.forward = _packed_forward(layer, rows)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)  # a search in another thread may have ended first


def _packed_forward(layer: nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)

    def forward(inputs: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            return F.linear(inputs, layer.weight, layer.bias)
        return torch.ops.mkldnn._linear_pointwise(inputs, weight, layer.bias, "none", [], "")

    return forward
