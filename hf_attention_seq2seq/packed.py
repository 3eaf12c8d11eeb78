"""Products of few rows at a time with a matrix that stays the same meanwhile, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

LEAST_ELEMENTS = 1 << 18  # of a matrix: below, its products cost little beside everything else
_PACKED: ContextVar[dict[int, tuple[Tensor, PackedMatrix | None]] | None] = ContextVar("packed", default=None)


class PackedMatrix:
    """
    A matrix `(outputs, inputs)` in the order that oneDNN wants.

    The usual product puts the matrix in order anew in each call, which takes longer than the product itself where
    there are few rows. The matrix is a copy: later changes of the original do not reach it.
    """

    def __init__(self, matrix: Tensor, rows: int):
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(matrix.detach(), rows)

    def __call__(self, inputs: Tensor, bias: Tensor | None = None) -> Tensor:
        """`inputs @ matrix.T + bias`, without gradients: `(..., inputs)` to `(..., outputs)`."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.matrix, bias, "none", [], "")


def pack(matrix: Tensor, rows: int) -> PackedMatrix | None:
    """
    The matrix packed for products with about `rows` rows; `None` where it would not pay or cannot be done: for a
    single row, a small matrix, another type than float32, or without an x86 processor and a torch that has oneDNN.
    """
    possible = (
        rows > 1
        and matrix.numel() >= LEAST_ELEMENTS
        and matrix.device.type == "cpu"
        and matrix.dtype == torch.float
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
    return PackedMatrix(matrix.contiguous(), rows) if possible else None


@contextmanager
def packed_matrices() -> Iterator[None]:
    """
    Inside, `packed_once` packs each matrix at its first use; the matrices must not change inside. Where gradients are
    taken or under autocast it changes nothing.
    """
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        yield
        return
    before = _PACKED.set({})
    try:
        yield
    finally:
        _PACKED.reset(before)


def packs_matrices() -> bool:
    """Whether the caller runs within a `packed_matrices` that is in force."""
    return _PACKED.get() is not None


def packed_once(matrix: Tensor, rows: int) -> PackedMatrix | None:
    """`pack(matrix, rows)`, once for all calls within `packed_matrices`; `None` outside of it."""
    known = _PACKED.get()
    if known is None or rows < 2 or torch.is_grad_enabled():
        return None
    if id(matrix) not in known:
        known[id(matrix)] = (matrix, pack(matrix, rows))  # the matrix is kept, so that no other gets its id
    return known[id(matrix)][1]
