"""
Products with the same matrix in every step of a loop, whose gradients are taken in one product for all steps.

Autograd by itself makes a gradient of the whole matrix in each step and adds it to the sum, which for the short
products of a step is a good part of the work. Within `shared_gradients` a step keeps its input and its output's
gradient instead; when the backward pass has been through all steps, both are put together. Results are the same up to
rounding. Outside of it these are the functions of torch that they stand for, except in search, which has faster ones
(`packed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .packed import PackedMatrix, has_faster_products, pack, search_product

T = TypeVar("T")
_SHARED: ContextVar[dict[tuple, tuple] | None] = ContextVar("shared", default=None)


@contextmanager
def shared_gradients(inputs: Tensor) -> Iterator[None]:
    """
    Within it, the products of this module share the gradients of equal matrices (the same tensor object). Inside of
    another one it changes nothing.

    On the CPU only: elsewhere it is the number of kernels that counts, which torch keeps lower. Nor in half precision,
    where another order of the same operations gives other results, or under autocast, whose copies of the matrices
    have a dtype of their own.

    Args:
        inputs: what the steps read; their device and dtype count.
    """
    wanted = (
        inputs.device.type == "cpu"
        and inputs.dtype in (torch.float32, torch.float64)
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
    )
    if not wanted or shares_gradients():
        yield
        return
    before = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(before)


def shares_gradients() -> bool:
    """Whether the caller runs within a `shared_gradients` that is in force."""
    return _SHARED.get() is not None


def step_linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: `(..., inputs)` times `(outputs, inputs)` to `(..., outputs)`."""
    shared = _shared(weight, bias)
    if shared is not None:
        return _Product.apply(inputs, *shared, True)
    faster = search_product(inputs, weight)
    return F.linear(inputs, weight, bias) if faster is None else faster(inputs, bias)


def step_projection(module: nn.Module, inputs: Tensor) -> Tensor:
    """`module(inputs)`, as `step_linear` if it is a linear layer which nobody has changed."""
    if is_unchanged(module, nn.Linear):
        return step_linear(inputs, module.weight, module.bias)
    return module(inputs)


def step_product(inputs: Tensor, memory: Tensor, transposed: bool = False) -> Tensor:
    """`inputs @ memory`, or `inputs @ memory.mT`: `(batch, heads, queries, m)` by `(batch, heads, m, n)`."""
    shared = _shared(memory, None)
    if shared is None:
        return inputs @ (memory.mT if transposed else memory)
    return _Product.apply(inputs, *shared, transposed)


def step_lstm_cell(
    inputs: Tensor, state: tuple[Tensor, Tensor], weight: Tensor, inner: Tensor, bias: Tensor, inner_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """`torch.lstm_cell`."""
    shared, inner_shared = _shared(weight, bias), _shared(inner, inner_bias)
    if shared is not None and inner_shared is not None:
        return _LSTMCell.apply(inputs, *state, *shared, *inner_shared)
    if search_product(inputs, inner) is None:
        return torch.lstm_cell(inputs, state, weight, inner, bias, inner_bias)
    gates = step_linear(inputs, weight, bias).add_(step_linear(state[0], inner, inner_bias))
    return lstm_gates(gates, state[1])[:2]


def is_unchanged(module: nn.Module, kind: type[nn.Module]) -> bool:
    """
    Whether calling the module does what `kind` does and nothing else: no adapter, quantization or parametrization has
    taken its place, and there are no hooks, for offloading, say.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and not any(hooks) and "forward" not in vars(module)


def uses_step_products() -> bool:
    """Whether a recurrent cell made of these functions is faster than torch's own."""
    return shares_gradients() or has_faster_products()


def _rows(inputs: Tensor) -> int:
    return inputs.numel() // max(inputs.shape[-1], 1)


def current_pass() -> int:
    """A number of the backward pass that is running."""
    return torch._C._current_graph_task_id()


class _Shared:
    """
    What the steps leave for the gradient of one matrix.

    Terms belong to one backward pass: a pass that does not get to the matrix leaves them, and no other may count them.
    """

    def __init__(self, matrix: Tensor, bias: Tensor | None):
        self.matrix = matrix.detach()
        self.bias = None if bias is None else bias.detach()
        self.terms: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.packed: dict[bool, PackedMatrix | None] = {}

    def product(self, inputs: Tensor, transposed: bool) -> Tensor:
        """`inputs @ matrix`, or `inputs @ matrix.T + bias`; only for a matrix that all rows share."""
        if transposed not in self.packed:
            self.packed[transposed] = pack(self.matrix if transposed else self.matrix.T, _rows(inputs))
        packed, bias = self.packed[transposed], self.bias if transposed else None
        if packed is not None and inputs.dtype == self.matrix.dtype:
            return packed(inputs, bias)
        return F.linear(inputs, self.matrix, bias) if transposed else inputs @ self.matrix

    def add(self, inputs: Tensor, gradient: Tensor) -> None:
        self.terms.setdefault(current_pass(), []).append((inputs, gradient))

    def take(self) -> tuple[Tensor, Tensor]:
        """Inputs and gradients of all steps, `(..., steps * queries, size)`."""
        inputs, gradients = zip(*self.terms.pop(current_pass()))
        return torch.cat(inputs, dim=-2), torch.cat(gradients, dim=-2)


def once(tensors: tuple[Tensor | None, ...], make: Callable[[], T]) -> T | None:
    """What `make` gave for these very tensors within this `shared_gradients`; `None` where they need no sharing."""
    loop = _SHARED.get()
    if loop is None or not any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return None
    key = tuple(map(id, tensors))
    if key not in loop:
        loop[key] = (tensors, make())  # the tensors are kept, so that no other gets their ids
    return loop[key][1]


def _shared(matrix: Tensor, bias: Tensor | None) -> tuple[Tensor, _Shared] | None:
    """A token that each step depends on, and the place for what it leaves."""

    def make() -> tuple[Tensor, _Shared]:
        shared = _Shared(matrix, bias)
        return _Collect.apply(matrix, bias, shared), shared

    return once((matrix, bias), make)


class _Collect(torch.autograd.Function):
    """From a matrix to a token that each step depends on: its backward pass comes after those of all steps."""

    @staticmethod
    def forward(ctx, matrix: Tensor, bias: Tensor | None, shared: _Shared) -> Tensor:
        ctx.shared = shared
        return matrix.new_empty(())

    @staticmethod
    @once_differentiable
    def backward(ctx, _):
        inputs, gradient = ctx.shared.take()
        needs_matrix, needs_bias, _ = ctx.needs_input_grad
        return (
            gradient.mT @ inputs if needs_matrix else None,
            gradient.sum(dim=0) if needs_bias else None,
            None,
        )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs: Tensor, token: Tensor, shared: _Shared, transposed: bool) -> Tensor:
        ctx.save_for_backward(inputs, shared.matrix)
        ctx.shared, ctx.transposed = shared, transposed
        if shared.matrix.dim() == 2:
            return shared.product(inputs, transposed=True)
        return inputs @ (shared.matrix.mT if transposed else shared.matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        inputs, matrix = ctx.saved_tensors
        needs_inputs, needs_token = ctx.needs_input_grad[:2]
        inner = None
        if needs_inputs and matrix.dim() == 2:
            inner = ctx.shared.product(gradient, transposed=False)
        elif needs_inputs:
            inner = gradient @ (matrix if ctx.transposed else matrix.mT)
        if matrix.dim() == 2:
            inputs, gradient = inputs.flatten(0, -2), gradient.flatten(0, -2)
        # The gradient of the matrix is `gradient.mT @ inputs`, that of its transpose the other way round.
        ctx.shared.add(*((inputs, gradient) if ctx.transposed else (gradient, inputs)))
        return inner, gradient.new_zeros(()), None, None


class _LSTMCell(torch.autograd.Function):
    """Products and gates of one LSTM step; like torch's cell, but with few and small intermediates."""

    @staticmethod
    def forward(
        ctx, inputs: Tensor, hidden: Tensor, cell: Tensor, token: Tensor, shared: _Shared, _, inner: _Shared
    ) -> tuple[Tensor, Tensor]:
        gates = shared.product(inputs, transposed=True).add_(inner.product(hidden, transposed=True))
        new_hidden, after, shown = lstm_gates(gates, cell)
        ctx.save_for_backward(inputs, hidden, cell, gates, shown, shared.matrix, inner.matrix)
        ctx.shared, ctx.inner = shared, inner
        return new_hidden, after

    @staticmethod
    @once_differentiable
    def backward(ctx, hidden_gradient: Tensor, cell_gradient: Tensor):
        inputs, hidden, cell, gates, shown, *_ = ctx.saved_tensors
        read, keep, new, show = gates.chunk(4, dim=1)
        through_sigmoid, through_tanh = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward
        cell_gradient = cell_gradient + through_tanh(hidden_gradient * show, shown)
        gradient = torch.empty_like(gates)
        to_read, to_keep, to_new, to_show = gradient.chunk(4, dim=1)
        through_sigmoid(cell_gradient * new, read, grad_input=to_read)
        through_sigmoid(cell_gradient * cell, keep, grad_input=to_keep)
        through_tanh(cell_gradient * read, new, grad_input=to_new)
        through_sigmoid(hidden_gradient * shown, show, grad_input=to_show)
        ctx.shared.add(inputs, gradient)
        ctx.inner.add(hidden, gradient)
        needs = ctx.needs_input_grad
        token = gradient.new_zeros(())
        return (
            ctx.shared.product(gradient, transposed=False) if needs[0] else None,
            ctx.inner.product(gradient, transposed=False) if needs[1] else None,
            cell_gradient.mul_(keep) if needs[2] else None,
            token,
            None,
            token,
            None,
        )


def lstm_gates(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next hidden state, cell and the cell's tanh, from the gates `(rows, 4 * size)`, overwritten by theirs."""
    size = cell.shape[1]
    gates[:, : 2 * size].sigmoid_()
    gates[:, 3 * size :].sigmoid_()
    read, keep, new, show = gates.chunk(4, dim=1)
    new.tanh_()
    after = torch.addcmul(read * new, keep, cell)
    shown = after.tanh()
    return show * shown, after, shown
