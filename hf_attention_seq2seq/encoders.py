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
            `source_length` is that of the input, or less for a pyramidal encoder.
        final_hidden: `(batch, encoder_layers, memory_size)`, each layer's hidden state after its last token, both
            directions concatenated; zero for a sentence without tokens. Without recurrent layers, each layer's mean.
        final_cell: the same of the LSTM cell state.
        hidden_states: with `output_hidden_states`, the embeddings and each layer's states.
        attentions: with `output_attentions`, of each self-attention layer `(batch, heads, source_length,
            source_length)`.
        attention_mask: `(batch, source_length)` bool; what the decoder may attend to.
        source_ids: `(batch, source_length)` int64, if the configuration has a `copy_mechanism`.
        sentence_states: of a hierarchical encoder `(batch, sentences, memory_size)`, zero behind the last sentence.
        sentence_mask: `(batch, sentences)` bool, true at sentences.
        sentence_index: `(batch, source_length)` int64, the number of each word's sentence, from 0.
        word_weights: with `output_attentions`, `(batch, source_length)`: each word's part in its sentence's vector.
    """

    last_hidden_state: Tensor | None = None
    final_hidden: Tensor | None = None
    final_cell: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    attention_mask: Tensor | None = None
    source_ids: Tensor | None = None
    sentence_states: Tensor | None = None
    sentence_mask: Tensor | None = None
    sentence_index: Tensor | None = None
    word_weights: Tensor | None = None

    @classmethod
    def from_any(cls, outputs: EncoderOutput | dict | tuple) -> EncoderOutput:
        """Reads what an encoder may have returned: another output, a dictionary, or the tuple of any of them."""
        if isinstance(outputs, cls):
            return outputs
        if isinstance(outputs, dict):
            known = {field.name for field in fields(cls)}
            return cls(**{name: value for name, value in outputs.items() if name in known})
        last_hidden_state, *others = outputs
        tuples = {value[0].dim(): value for value in others if isinstance(value, tuple)}
        found = {"last_hidden_state": last_hidden_state, "hidden_states": tuples.get(3), "attentions": tuples.get(4)}
        tensors = [value for value in others if torch.is_tensor(value)]
        end = next((place for place, value in enumerate(tensors) if not value.is_floating_point()), len(tensors))
        found.update(zip(("final_hidden", "final_cell"), tensors[:end]))
        rest = tensors[end:]
        if rest and rest[0].dtype == torch.bool:
            found["attention_mask"] = rest.pop(0)
        if rest and not rest[0].is_floating_point():
            found["source_ids"] = rest.pop(0)
        found.update(zip(("sentence_states", "sentence_mask", "sentence_index", "word_weights"), rest))
        return cls(**found)


class Encoder(nn.Module):
    """Base of the encoders: sentences of different lengths in, states to attend to out; nothing depends on padding."""

    def memory_mask(self, mask: Tensor) -> Tensor:
        """The mask of the states to attend to, `(batch, memory_length)`, for a mask of the input."""
        return mask

    def forward(
        self, embeddings: Tensor, mask: Tensor, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> EncoderOutput:
        """
        Args:
            embeddings: `(batch, source_length, embedding_size)`.
            mask: `(batch, source_length)` bool, true at tokens.
            output_hidden_states, output_attentions: whether `hidden_states` and `attentions` are wanted.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(embeddings, mask, ...).")


def recurrent_layers(config: AttentionSeq2SeqConfig, first_size: int, inner_size: int) -> nn.ModuleList:
    """The recurrent layers of an encoder: the first reads `first_size` values at a position, others `inner_size`."""
    directions = 2 if config.encoder_bidirectional else 1
    return nn.ModuleList(
        RecurrentLayer(
            config.rnn_type,
            first_size if index == 0 else inner_size,
            config.memory_size // directions,
            bidirectional=config.encoder_bidirectional,
        )
        for index in range(config.encoder_layers)
    )


class RecurrentEncoder(Encoder):
    """A stack of recurrent layers (`encoder_type="rnn"`), over embeddings or inputs of another size."""

    def __init__(self, config: AttentionSeq2SeqConfig, input_size: int | None = None):
        super().__init__()
        self.dropout = config.dropout
        self.residual = config.residual
        self.reverse = config.reverse_source
        self.layers = recurrent_layers(config, input_size or config.embedding_size, config.memory_size)

    def forward(
        self, embeddings: Tensor, mask: Tensor, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> EncoderOutput:
        """See `Encoder.forward`; there are no attentions."""
        layout = PaddingLayout.from_mask(mask, reverse=self.reverse)
        # A sentence without tokens is read as one token of padding; what comes of it is set to zero.
        lengths = layout.lengths.clamp(min=1)
        states = layout.compact(embeddings)
        finals, hidden_states = [], [embeddings]
        for index, layer in enumerate(self.layers):
            inputs = F.dropout(states, self.dropout, self.training) if index > 0 and self.dropout else states
            states, final = layer(inputs, lengths=lengths)
            if self.residual and index > 0:
                states = states + inputs
            finals.append(final)
            if output_hidden_states:
                hidden_states.append(layout.restore(layout.without_empty(states)))
        memory = layout.restore(layout.without_empty(states))
        by_tensor = [layout.without_empty(torch.stack(layers, dim=1)) for layers in zip(*finals)]  # hidden, then cell
        return EncoderOutput(
            last_hidden_state=memory,
            final_hidden=by_tensor[0],
            final_cell=by_tensor[1] if len(by_tensor) > 1 else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attention_mask=mask,
        )
