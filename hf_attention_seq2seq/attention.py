"""
The three phases of attention composed: score, align, read.

`prepare` does once a sentence all that does not depend on the decoder; calling the module then attends with any
number of queries at once. Nothing is kept on the modules between calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .layout import PaddingLayout
from .normalizers import masked_softmax
from .scoring import SCORES, split_heads


@dataclass(frozen=True)
class PreparedMemory:
    """
    One encoded batch as attention needs it, tokens in front.

    Attributes:
        keys: `(batch, heads, source, key_size)`.
        values: `(batch, heads, source, value_size)`; for a fixed context the one value `(batch, 1, 1, size)`.
        mask: `(batch, source)` bool, true at tokens.
        order: where each position stands in the padded input, or `None` if it stands there already
            (see `PaddingLayout`).
    """

    keys: Tensor | None
    values: Tensor
    mask: Tensor
    order: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of sentences."""
        return self.mask.shape[0]

    def select(self, indices: Tensor) -> PreparedMemory:
        """The sentences `indices`, `(rows,)` int64."""

        def pick(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.index_select(0, indices.to(tensor.device))

        return replace(
            self, keys=pick(self.keys), values=pick(self.values), mask=pick(self.mask), order=pick(self.order)
        )


class Attention(nn.Module):
    """
    Soft attention over the encoder states (Bahdanau 2014, Luong 2015).

    Attributes:
        context_size: width of the contexts.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.heads = config.attention_heads
        self.context_size = config.memory_size
        self.score = SCORES[config.attention_type](config)
        self.value_projection = nn.Identity()
        if config.attention_values == "projected":
            self.context_size = config.attention_size if config.attention_size is not None else config.hidden_size
            self.value_projection = nn.Linear(config.memory_size, self.context_size, bias=False)

    def prepare(self, memory: Tensor, layout: PaddingLayout, summary: Tensor | None) -> PreparedMemory:
        """
        Projects keys and values, once a sentence.

        Args:
            memory: encoder states `(batch, source, memory_size)` at the places of the padded input.
            layout: where the tokens are.
            summary: the last layer's final states `(batch, memory_size)`, which only a fixed context reads.
        """
        memory = layout.compact(memory)
        return PreparedMemory(
            keys=self.score.project_keys(memory),
            values=split_heads(self.value_projection(memory), self.heads),
            mask=layout.front_mask,
            order=layout.order,
        )

    def forward(self, states: Tensor, memory: PreparedMemory) -> tuple[Tensor, Tensor]:
        """
        Args:
            states: decoder states `(rows, queries, hidden_size)`; the rows of one sentence (beams) are consecutive.
            memory: of `rows` sentences, or of fewer which the rows share evenly.

        Returns:
            contexts `(rows, queries, context_size)` and weights `(rows, heads, queries, source)`, tokens in front.
        """
        rows, queries, _ = states.shape
        hypotheses = rows // memory.rows
        # Hypotheses of one sentence are further queries to the same memory.
        states = states.reshape(memory.rows, hypotheses * queries, -1)
        scores = self.score.score(self.score.project_queries(states), memory.keys)
        weights = masked_softmax(scores, memory.mask[:, None, None, :])
        contexts = weights @ memory.values  # (sentences, heads, hypotheses * queries, value_size)
        contexts = contexts.transpose(1, 2).reshape(rows, queries, -1)
        weights = weights.unflatten(2, (hypotheses, queries)).transpose(1, 2).reshape(rows, self.heads, queries, -1)
        return contexts, weights


class FixedContext(nn.Module):
    """
    No attention: the context is `c = tanh(V h)` of the encoder's final state in every step (Cho 2014, A.1), or, with
    `attention_query="current_state"`, nothing at all (Sutskever 2014).
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.context_size = 0
        if config.attention_query == "previous_state":
            self.context_size = config.memory_size
            self.summary_projection = nn.Linear(config.memory_size, config.memory_size, bias=False)

    def prepare(self, memory: Tensor, layout: PaddingLayout, summary: Tensor | None) -> PreparedMemory:
        """See `Attention.prepare`."""
        values = memory.new_zeros(memory.shape[0], 1, 1, 0)
        if self.context_size:
            values = torch.tanh(self.summary_projection(summary))[:, None, None, :]
        return PreparedMemory(keys=None, values=values, mask=layout.front_mask, order=layout.order)

    def forward(self, states: Tensor, memory: PreparedMemory) -> tuple[Tensor, None]:
        """See `Attention.forward`; there are no weights."""
        rows, queries, _ = states.shape
        contexts = memory.values.squeeze(1).repeat_interleave(rows // memory.rows, dim=0)
        return contexts.expand(rows, queries, self.context_size), None


def build_attention(config: AttentionSeq2SeqConfig) -> Attention | FixedContext:
    """The attention that the configuration asks for."""
    return FixedContext(config) if config.attention_type == "none" else Attention(config)


def restore_weights(weights: Tensor, memory: PreparedMemory) -> Tensor:
    """Weights `(rows, heads, queries, source)` at the places of the padded input."""
    if memory.order is None:
        return weights
    order = memory.order.repeat_interleave(weights.shape[0] // memory.rows, dim=0)[:, None, None, :]
    return torch.zeros_like(weights).scatter(-1, order.expand_as(weights), weights)
