"""The pyramidal encoder: fewer states to attend to than there are tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import Encoder, EncoderOutput, recurrent_layers
from .layout import PaddingLayout


class PyramidalEncoder(Encoder):
    """
    Recurrent layers, of which each after the first reads the outputs of the one below in pairs: its input at position
    `j` is `[h_2j; h_2j+1]` (Chan 2016, "Listen, Attend and Spell", eq. 5). An odd last output is paired with zeros.

    Of `n` tokens remain `n / 2**(encoder_layers - 1)` states, rounded up. They stand in front, whichever side the
    padding of the input is on.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.dropout = config.dropout
        self.tokens_per_position = config.tokens_per_position
        self.layers = recurrent_layers(config, config.embedding_size, 2 * config.memory_size)

    def memory_mask(self, mask: Tensor) -> Tensor:
        """See `Encoder.memory_mask`."""
        lengths = _divide_up(mask.bool().sum(dim=1, keepdim=True), self.tokens_per_position)
        return torch.arange(_divide_up(mask.shape[1], self.tokens_per_position), device=mask.device) < lengths

    def forward(
        self, embeddings: Tensor, mask: Tensor, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> EncoderOutput:
        """See `Encoder.forward`; `hidden_states` have the lengths of their layers, and there are no attentions."""
        layout = PaddingLayout.from_mask(mask)
        lengths = layout.lengths.clamp(min=1)
        states = layout.compact(embeddings)
        finals, hidden_states = [], [embeddings]
        for index, layer in enumerate(self.layers):
            if index > 0:
                states = F.dropout(_pairs(states), self.dropout, self.training)
                lengths = _divide_up(lengths, 2)
            states, final = layer(states, lengths=lengths)
            finals.append(final)
            if output_hidden_states:
                hidden_states.append(layout.without_empty(states))
        by_tensor = [layout.without_empty(torch.stack(layers, dim=1)) for layers in zip(*finals)]  # hidden, then cell
        return EncoderOutput(
            last_hidden_state=layout.without_empty(states),
            final_hidden=by_tensor[0],
            final_cell=by_tensor[1] if len(by_tensor) > 1 else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attention_mask=self.memory_mask(mask),
        )


def _pairs(states: Tensor) -> Tensor:
    """`(batch, length, size)` to `(batch, length / 2 rounded up, 2 * size)`; behind a sentence's end are zeros."""
    return F.pad(states, (0, 0, 0, states.shape[1] % 2)).unflatten(1, (-1, 2)).flatten(2)


def _divide_up(number, divisor: int):
    return (number + divisor - 1) // divisor
