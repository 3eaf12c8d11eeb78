"""Products of few rows at a time with a matrix that stays the same meanwhile, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

LEAST_ELEMENTS = 1 << 18  # of a matrix: below, its products cost little beside everything else
LEAST_INPUTS = 400  # of a single row: below, torch does not give products of vectors to MKL
Product = Callable[[Tensor, Tensor | None], Tensor]
_IN_SEARCH: ContextVar[dict[int, tuple[Tensor, Product | None]] | None] = ContextVar("in_search", default=None)
_KEPT = WeakIdKeyDictionary()  # from a matrix to its packed copy, and what it gave then for `_probe`


class PackedMatrix:
    """
    A matrix `(outputs, inputs)` in the order that oneDNN wants.

    The usual product puts the matrix in order anew in each call, which takes longer than the product itself where
    there are few rows. The matrix is a copy: later changes of the original do not reach it.
    """

    def __init__(self, matrix: Tensor):
        # For two rows and more the order is the same, whatever their number.
        self.matrix = torch.ops.mkldnn._reorder_linear_weight(matrix.detach().contiguous(), 64)

    def __call__(self, inputs: Tensor, bias: Tensor | None = None) -> Tensor:
        """`inputs @ matrix.T + bias`, without gradients: `(..., inputs)` to `(..., outputs)`."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.matrix, bias, "none", [], "")


def pack(matrix: Tensor, rows: int) -> PackedMatrix | None:
    """
    The matrix packed for products with about `rows` rows; `None` where it would not pay or cannot be done: for a
    single row, a small matrix, another type than float32, or without an x86 processor and a torch that has oneDNN.
    """
    return PackedMatrix(matrix) if rows > 1 and _can_be_packed(matrix) else None


def single_row_product(inputs: Tensor, bias: Tensor | None = None, *, matrix: Tensor) -> Tensor:
    """
    `F.linear` for a single row of inputs, `(..., inputs)` to `(..., outputs)`.

    What takes the time is reading the matrix. As products of vectors, one for each output, MKL reads it twice as fast
    as by its product of a matrix and a vector.
    """
    row = inputs.reshape(1, 1, -1).expand(len(matrix), 1, -1)
    outputs = torch.bmm(row, matrix.unsqueeze(1).mT).view(*inputs.shape[:-1], len(matrix))
    return outputs if bias is None else outputs.add_(bias)


def _is_large(matrix: Tensor) -> bool:
    return (
        type(matrix) in (Tensor, nn.Parameter)  # quantised matrices, say, are of other classes
        and matrix.layout == torch.strided
        and matrix.numel() >= LEAST_ELEMENTS
        and matrix.device.type == "cpu"
        and matrix.dtype == torch.float
    )


def _can_be_packed(matrix: Tensor) -> bool:
    return (
        _is_large(matrix)
        and torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


@contextmanager
def faster_products() -> Iterator[None]:
    """Inside, `search_product` is in force, except where gradients are taken; the matrices must not change inside."""
    before = _IN_SEARCH.set({})
    try:
        yield
    finally:
        _IN_SEARCH.reset(before)


def has_faster_products() -> bool:
    """Whether the caller runs within `faster_products`, without gradients and not under autocast."""
    return not (_IN_SEARCH.get() is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))


def search_product(inputs: Tensor, matrix: Tensor) -> Product | None:
    """
    What computes `F.linear(inputs, matrix, bias)`, from inputs and bias, faster for inputs like these; `None` where
    `has_faster_products` is false, and where nothing is faster.

    A packed matrix stays for later searches as long as the parameter itself; whether that has changed meanwhile is
    seen from a product with it. What is not a parameter is not packed: it may be another tensor in each step.
    """
    if not (has_faster_products() and type(matrix) is nn.Parameter and inputs.dtype == matrix.dtype):
        return None
    if inputs.numel() == inputs.shape[-1]:
        possible = _is_large(matrix) and matrix.shape[1] >= LEAST_INPUTS and torch.backends.mkl.is_available()
        return partial(single_row_product, matrix=matrix) if possible else None
    known = _IN_SEARCH.get()
    if id(matrix) not in known:
        known[id(matrix)] = (matrix, _packed_before(matrix))  # the matrix is kept, so that no other gets its id
    return known[id(matrix)][1]


def _packed_before(matrix: Tensor) -> PackedMatrix | None:
    """The matrix packed if it can be; as it was in an earlier search if it has not changed since."""
    if not _can_be_packed(matrix):
        _KEPT.pop(matrix, None)
        return None
    probe = _probe(matrix)
    packed, before = _KEPT.get(matrix, (None, None))
    if packed is None or not torch.equal(before, probe):
        packed = PackedMatrix(matrix)
        _KEPT[matrix] = packed, probe
    return packed


def _probe(matrix: Tensor) -> Tensor:
    """Products of the matrix with fixed random numbers, none of them near zero: any change that matters shows."""
    numbers = torch.rand(matrix.shape[1], generator=torch.Generator().manual_seed(0)) + 0.5
    return single_row_product(numbers, matrix=matrix)
