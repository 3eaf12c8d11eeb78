"""Encoders: from source tokens to the states that the decoder attends to."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import ModelOutput

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .layout import PaddingLayout
from .recurrent import RecurrentLayer


@dataclass
class EncoderOutput(ModelOutput):
    """
    Attributes:
        last_hidden_state: `(batch, source_length, memory_size)`, the states to attend to; zero at padding.
        final_hidden: `(batch, encoder_layers, memory_size)`, each layer's hidden state after its last token, both
            directions concatenated; zero for a sentence without tokens.
        final_cell: the same of the LSTM cell state.
        hidden_states: with `output_hidden_states`, the embeddings and each layer's states.
        attentions: always `None`; recurrent encoders have no self-attention.
        attention_mask: `(batch, source_length)` bool, true at tokens; what the decoder may attend to.
        source_ids: `(batch, source_length)` int64, if the configuration has a `copy_mechanism`.
    """

    last_hidden_state: Tensor | None = None
    final_hidden: Tensor | None = None
    final_cell: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    attention_mask: Tensor | None = None
    source_ids: Tensor | None = None

    @classmethod
    def from_any(cls, outputs: EncoderOutput | dict | tuple) -> EncoderOutput:
        """Reads what an encoder may have returned: another output, a dictionary, or the tuple of any of them."""
        if isinstance(outputs, cls):
            return outputs
        if isinstance(outputs, dict):
            known = {field.name for field in fields(cls)}
            return cls(**{name: value for name, value in outputs.items() if name in known})
        last_hidden_state, *others = outputs
        masks = [value for value in others if torch.is_tensor(value) and value.dtype == torch.bool]
        finals = [value for value in others if torch.is_tensor(value) and value.is_floating_point()]
        ids = [value for value in others if torch.is_tensor(value) and value.dtype in (torch.int32, torch.int64)]
        tuples = [value for value in others if isinstance(value, tuple)]
        names = ("final_hidden", "final_cell", "hidden_states", "attention_mask", "source_ids")
        values = [*finals, None, None][:2] + [*tuples, None][:1] + [*masks, None][:1] + [*ids, None][:1]
        return cls(last_hidden_state=last_hidden_state, **dict(zip(names, values)))


class RecurrentEncoder(nn.Module):
    """
    A stack of recurrent layers over sentences of different lengths; no result depends on padding.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.dropout = config.dropout
        self.residual = config.residual
        self.reverse = config.reverse_source
        directions = 2 if config.encoder_bidirectional else 1
        self.layers = nn.ModuleList(
            RecurrentLayer(
                config.rnn_type,
                config.embedding_size if index == 0 else config.memory_size,
                config.memory_size // directions,
                bidirectional=config.encoder_bidirectional,
            )
            for index in range(config.encoder_layers)
        )

    def forward(self, embeddings: Tensor, mask: Tensor, output_hidden_states: bool = False) -> EncoderOutput:
        """
        Args:
            embeddings: `(batch, source_length, embedding_size)`.
            mask: `(batch, source_length)` bool, true at tokens.
        """
        layout = PaddingLayout.from_mask(mask, reverse=self.reverse)
        has_tokens = (layout.lengths > 0).to(embeddings.device)[:, None, None] if layout.has_empty_rows else None
        # A sentence without tokens is read as one token of padding; what comes of it is set to zero.
        lengths = layout.lengths.clamp(min=1)

        def without_empty(tensor: Tensor) -> Tensor:
            return tensor if has_tokens is None else torch.where(has_tokens, tensor, 0.0)

        states = layout.compact(embeddings)
        finals, hidden_states = [], [embeddings]
        for index, layer in enumerate(self.layers):
            inputs = F.dropout(states, self.dropout, self.training) if index > 0 and self.dropout else states
            states, final = layer(inputs, lengths=lengths)
            if self.residual and index > 0:
                states = states + inputs
            finals.append(final)
            if output_hidden_states:
                hidden_states.append(layout.restore(without_empty(states)))
        memory = layout.restore(without_empty(states))
        by_tensor = [without_empty(torch.stack(layers, dim=1)) for layers in zip(*finals)]  # hidden, then cell
        return EncoderOutput(
            last_hidden_state=memory,
            final_hidden=by_tensor[0],
            final_cell=by_tensor[1] if len(by_tensor) > 1 else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attention_mask=mask,
        )
