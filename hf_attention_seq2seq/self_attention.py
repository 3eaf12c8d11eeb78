"""Self-attention in the encoder: instead of recurrent layers, or on top of them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import Encoder, EncoderOutput, RecurrentEncoder
from .layout import PaddingLayout
from .recurrent import STATE_TENSORS
from .scoring import split_heads


class SelfAttentionLayer(nn.Module):
    """
    Multi-head scaled dot-product attention of all positions to all positions, then a feed-forward network (Vaswani
    2017, 3.1 to 3.3), each on normalised inputs and added to what it read: `x + f(norm(x))` ("pre-norm", Chen 2018).
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        size = config.memory_size
        inner = 4 * size if config.encoder_feedforward_size is None else config.encoder_feedforward_size
        self.heads = config.encoder_attention_heads
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(size)
        self.query_key_value = nn.Linear(size, 3 * size)
        self.output = nn.Linear(size, size)
        self.feedforward_norm = nn.LayerNorm(size)
        self.feedforward_in = nn.Linear(size, inner)
        self.feedforward_out = nn.Linear(inner, size)

    def forward(self, states: Tensor, mask: Tensor | None, with_weights: bool) -> tuple[Tensor, Tensor | None]:
        """
        Args:
            states: `(batch, length, size)`.
            mask: `(batch, 1, 1, length)` bool, true at tokens, at least one a sentence; `None` if all are true.

        Returns:
            new states, and if asked for the weights `(batch, heads, length, length)`; without them the computation is
            fused.
        """
        projected = self.query_key_value(self.attention_norm(states)).chunk(3, dim=-1)
        queries, keys, values = (split_heads(tensor, self.heads) for tensor in projected)
        weights = None
        if with_weights:
            scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            weights = torch.softmax(scores, dim=-1)
            read = weights @ values
        else:
            read = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        states = states + self._drop(self.output(read.transpose(1, 2).flatten(2)))
        inner = self._drop(torch.relu(self.feedforward_in(self.feedforward_norm(states))))
        return states + self._drop(self.feedforward_out(inner)), weights

    def _drop(self, tensor: Tensor) -> Tensor:
        return F.dropout(tensor, self.dropout, self.training)


class SelfAttentionStack(nn.Module):
    """Self-attention layers over sentences of different lengths, and the normalisation after the last one."""

    def __init__(self, config: AttentionSeq2SeqConfig, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(SelfAttentionLayer(config) for _ in range(layers))
        self.norm = nn.LayerNorm(config.memory_size)

    def forward(
        self, states: Tensor, layout: PaddingLayout, with_weights: bool = False
    ) -> tuple[list[Tensor], tuple[Tensor, ...] | None]:
        """
        Args:
            states: `(batch, length, memory_size)`, tokens in front (`layout.compact`).

        Returns:
            each layer's states, as the input, the last normalised, and the weights `(batch, heads, length, length)`;
            both at the places of the padded input, and zero at padding.
        """
        length = states.shape[1]
        padding = mask = None
        if bool((layout.lengths < length).any()):
            padding = ~layout.front_mask
            # A sentence without tokens is read as one token of padding; what comes of it is set to zero.
            mask = layout.front_mask | (torch.arange(length, device=states.device) == 0)
            mask = mask[:, None, None, :]
        outputs, attentions = [], []
        for index, layer in enumerate(self.layers):
            states, weights = layer(states, mask, with_weights)
            output = self.norm(states) if index == len(self.layers) - 1 else states
            outputs.append(layout.restore(output if padding is None else output.masked_fill(padding[..., None], 0.0)))
            if with_weights:
                if padding is not None:
                    weights = weights.masked_fill(padding[:, None, :, None] | padding[:, None, None, :], 0.0)
                attentions.append(_restore_pairs(weights, layout))
        return outputs, tuple(attentions) if with_weights else None


class SelfAttentionEncoder(Encoder):
    """
    The Transformer's encoder (Vaswani 2017) with normalised inputs of each layer (pre-norm) and sinusoidal positions,
    under a recurrent decoder as in Chen 2018, "The Best of Both Worlds".

    Positions count a sentence's own tokens. Where other encoders have final states, this one has each layer's average
    state, also in place of an LSTM's cell state.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.scale = math.sqrt(config.embedding_size)
        self.has_cell = STATE_TENSORS[config.rnn_type] > 1
        self.input_projection = nn.Identity()
        if config.embedding_size != config.memory_size:
            self.input_projection = nn.Linear(config.embedding_size, config.memory_size, bias=False)
        self.stack = SelfAttentionStack(config, config.encoder_layers)

    def forward(
        self, embeddings: Tensor, mask: Tensor, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> EncoderOutput:
        """See `Encoder.forward`."""
        layout = PaddingLayout.from_mask(mask)
        states = self.input_projection(layout.compact(embeddings) * self.scale)
        states = states + sinusoidal_positions(states.shape[1], states.shape[2], states)
        outputs, attentions = self.stack(states, layout, output_attentions)
        tokens = mask.sum(dim=1).clamp(min=1)[:, None, None]
        means = torch.stack(outputs, dim=1).sum(dim=2) / tokens
        return EncoderOutput(
            last_hidden_state=outputs[-1],
            final_hidden=means,
            final_cell=means if self.has_cell else None,
            hidden_states=(embeddings, *outputs) if output_hidden_states else None,
            attentions=attentions,
            attention_mask=mask,
        )


class RecurrentSelfAttentionEncoder(Encoder):
    """
    Recurrent layers, and self-attention layers over their outputs (after the cascaded encoder of Chen 2018). The order
    of the words is known from the recurrent layers, and the final states are theirs.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.recurrent = RecurrentEncoder(config)
        self.stack = SelfAttentionStack(config, config.encoder_attention_layers)

    def forward(
        self, embeddings: Tensor, mask: Tensor, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> EncoderOutput:
        """See `Encoder.forward`."""
        output = self.recurrent(embeddings, mask, output_hidden_states)
        layout = PaddingLayout.from_mask(mask)
        outputs, attentions = self.stack(layout.compact(output.last_hidden_state), layout, output_attentions)
        return replace(
            output,
            last_hidden_state=outputs[-1],
            hidden_states=(*output.hidden_states, *outputs) if output_hidden_states else None,
            attentions=attentions,
        )


def sinusoidal_positions(length: int, size: int, like: Tensor) -> Tensor:
    """`(length, size)`: at position `p`, `sin(p / 10000^(2i / size))` at `2i` and the cosine at `2i + 1` (3.5)."""
    positions = torch.arange(length, dtype=torch.float32, device=like.device)[:, None]
    rates = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float32, device=like.device) / size)
    angles = positions * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :size].to(like.dtype)


def _restore_pairs(weights: Tensor, layout: PaddingLayout) -> Tensor:
    """`(batch, heads, length, length)` at the places of the padded input, in both of the last dimensions."""
    if layout.order is None:
        return weights
    for dimension, order in ((2, layout.order[:, None, :, None]), (3, layout.order[:, None, None, :])):
        weights = torch.zeros_like(weights).scatter(dimension, order.expand_as(weights), weights)
    return weights
