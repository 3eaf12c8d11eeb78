"""One recurrent layer, whichever cell it has: over whole sequences and step by step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .step_products import step_linear, step_lstm_cell, uses_step_products


class _Extended:
    """
    A recurrent module of torch that can also take a single step with its cell, and read sentences of many lengths.

    Both are calls of the module that has the weights, so that hooks on it (offloading, say) work. Sentences are
    packed: no step is spent on padding, and the backward direction starts at a sentence's own end.
    """

    def forward(self, inputs, state=None, step: bool = False, lengths: Tensor | None = None):
        if step:
            weights = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
            cell = type(self).step_cell if uses_step_products() else type(self).cell
            return cell(inputs, state, *weights)
        if lengths is None:
            return super().forward(inputs, state)
        if bool((lengths == inputs.shape[1]).all()):  # nothing to pack, and kernels for whole sequences are faster
            outputs, last = super().forward(inputs)
            return outputs.contiguous(), last  # by sentence, so that no step of the decoder has to turn it round
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        outputs, last = super().forward(packed)
        return pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])[0], last


def gru_gates(from_inputs: Tensor, from_state: Tensor, state: Tensor) -> Tensor:
    """The next state of a GRU, from what inputs and state give to its gates, each `(rows, 3 * hidden_size)`."""
    reset, keep, new = from_inputs.chunk(3, dim=1)
    old_reset, old_keep, old_new = from_state.chunk(3, dim=1)
    candidate = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
    return torch.lerp(candidate, state, torch.sigmoid(keep + old_keep))


def _step_gru_cell(inputs: Tensor, state: Tensor, weight: Tensor, inner: Tensor, *biases: Tensor) -> Tensor:
    return gru_gates(step_linear(inputs, weight, biases[0]), step_linear(state, inner, biases[1]), state)


def _step_rnn_cell(inputs: Tensor, state: Tensor, weight: Tensor, inner: Tensor, *biases: Tensor) -> Tensor:
    return torch.tanh(step_linear(inputs, weight, biases[0]) + step_linear(state, inner, biases[1]))


class _LSTM(_Extended, nn.LSTM):
    cell, step_cell = staticmethod(torch.lstm_cell), staticmethod(step_lstm_cell)


class _GRU(_Extended, nn.GRU):
    cell, step_cell = staticmethod(torch.gru_cell), staticmethod(_step_gru_cell)


class _RNN(_Extended, nn.RNN):
    cell, step_cell = staticmethod(torch.rnn_tanh_cell), staticmethod(_step_rnn_cell)


_MODULES = {"lstm": _LSTM, "gru": _GRU, "rnn": _RNN}
STATE_TENSORS = {"lstm": 2, "gru": 1, "rnn": 1}


class RecurrentLayer(nn.Module):
    """
    One LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho 2014) or tanh layer.

    A state is a tuple of tensors, `(hidden,)` or for LSTM `(hidden, cell)`, each `(batch, directions * hidden_size)`,
    so that nobody else needs to know which cell this is. `forward` and repeated `step` compute the same.
    """

    def __init__(self, rnn_type: str, input_size: int, hidden_size: int, bidirectional: bool = False):
        super().__init__()
        self.rnn = _MODULES[rnn_type](input_size, hidden_size, batch_first=True, bidirectional=bidirectional)

    def forward(
        self, inputs: Tensor, state: tuple[Tensor, ...] | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """
        Args:
            inputs: `(batch, length, input_size)`.
            state: the first state of a unidirectional layer; zeros if not given.
            lengths: `(batch,)` int64 on the CPU, from 1 up: where each sentence ends, in place of a state. No result
                depends on what stands behind, and the backward direction starts at a sentence's own end.

        Returns:
            the hidden states `(batch, length, directions * hidden_size)`, zero behind a sentence's end, and the last
            state of each sentence.
        """
        if state is not None:
            state = tuple(tensor.unsqueeze(0).contiguous() for tensor in state)
            state = state if len(state) > 1 else state[0]
        outputs, last = self.rnn(inputs, state, lengths=lengths)
        last = last if isinstance(last, tuple) else (last,)
        return outputs, tuple(tensor.transpose(0, 1).flatten(1) for tensor in last)

    def step(self, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The state after one more input `(batch, input_size)`; unidirectional layers only."""
        new = self.rnn(inputs, state if len(state) > 1 else state[0], step=True)
        return new if isinstance(new, tuple) else (new,)
