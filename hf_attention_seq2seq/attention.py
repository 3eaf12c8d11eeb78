"""
The three phases of attention composed: score, align, read.

`prepare` does once a sentence all that does not depend on the decoder; calling the module then attends with one query
for each hypothesis, or with the queries of many steps at once. Nothing is kept on the modules between calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .coverage import COVERAGES
from .encoders import EncoderOutput
from .hard_attention import Choice, HardSelection, JumpScores
from .layout import PaddingLayout
from .monotonic import MonotonicAlignment
from .normalizers import NORMALIZERS, log_distribution
from .scoring import SCORES, split_heads
from .spans import SPANS, Window
from .step_products import step_product


@dataclass(frozen=True)
class PreparedMemory:
    """
    One encoded batch as attention needs it, tokens in front.

    Attributes:
        keys: `(batch, heads, source, key_size)`.
        values: `(batch, heads, source, value_size)`; for a fixed context the one value `(batch, 1, 1, size)`.
        mask: `(batch, source)` bool, true at tokens.
        lengths: `(batch,)` int64, the number of tokens.
        order: where each position stands in the padded input, or `None` if it stands there already
            (see `PaddingLayout`).
        chunk_keys: the keys of monotonic attention's second score, as `keys`.
        readout_parts: `(batch, source, size)`, what each position's values give to the readout, for hard attention
            that is summed over positions.
        stays_soft: `(batch,)` bool, the sentences that REINFORCE reads the expected contexts of in this batch.
        source_ids: `(batch, source)` int64, where tokens stand in the padded input; `None` if nothing is copied.
        first_places: `(batch, source)` int64, where each of these tokens stands for the first time, or `None`.
        sentence_keys, sentence_mask, sentence_index: of hierarchical attention the keys `(batch, heads, sentences,
            key_size)`, which sentences there are, `(batch, sentences)` bool, and the number of each word's sentence,
            `(batch, source)` int64.
    """

    keys: Tensor | None
    values: Tensor
    mask: Tensor
    lengths: Tensor
    order: Tensor | None = None
    chunk_keys: Tensor | None = None
    readout_parts: Tensor | None = None
    stays_soft: Tensor | None = None
    source_ids: Tensor | None = None
    first_places: Tensor | None = None
    sentence_keys: Tensor | None = None
    sentence_mask: Tensor | None = None
    sentence_index: Tensor | None = None

    @property
    def rows(self) -> int:
        """Number of sentences."""
        return self.mask.shape[0]

    @property
    def source_mask(self) -> Tensor:
        """`(batch, source)` bool: true at tokens, where they stand in the padded input."""
        return self.mask if self.order is None else torch.zeros_like(self.mask).scatter(1, self.order, self.mask)

    def select(self, indices: Tensor) -> PreparedMemory:
        """The sentences `indices`, `(rows,)` int64."""
        return self._map(lambda tensor: tensor.index_select(0, indices.to(tensor.device)))

    def first(self, number: int) -> PreparedMemory:
        """The first sentences, without a copy."""
        return self._map(lambda tensor: tensor[:number])

    def _map(self, function: Callable[[Tensor], Tensor]) -> PreparedMemory:
        return replace(self, **{name: function(value) for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class Attended:
    """
    What one call of an attention gives.

    Attributes:
        contexts: `(rows, queries, context_size)`.
        weights: `(rows, heads, queries, source)`, tokens in front; `None` if they were not asked for, or do not exist.
        history: what the next step must know, a tuple of tensors with `rows` rows.
        coverage_loss: `(rows, queries)`, or `None`.
        choice: how a hard attention came to the weights, or `None`.
        sentence_weights: of hierarchical attention `(rows, heads, queries, sentences)`, where weights are asked for.
    """

    contexts: Tensor
    weights: Tensor | None = None
    history: tuple[Tensor, ...] = ()
    coverage_loss: Tensor | None = None
    choice: Choice | None = None
    sentence_weights: Tensor | None = None


class Attention(nn.Module):
    """
    Attention over the encoder states (Bahdanau 2014, Luong 2015).

    Attributes:
        context_size: width of the contexts.
        is_stateful: whether a step needs to know the alignment of the step before.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.heads = config.attention_heads
        self.context_size = config.memory_size
        self.score = SCORES[config.attention_type](config)
        self.span = SPANS[config.attention_span](config)
        self.normalizer = config.attention_normalizer
        self.value_projection = nn.Identity()
        if config.attention_values == "projected":
            self.context_size = config.attention_size if config.attention_size is not None else config.hidden_size
            self.value_projection = nn.Linear(config.memory_size, self.context_size, bias=False)
        self.coverage = self.monotonic = self.chunk_score = self.hard = self.jumps = None
        if config.coverage_type is not None:
            self.coverage = COVERAGES[config.coverage_type](config)
            self.score.add_features(self.coverage.features)
        if config.attention_selection == "monotonic":
            self.monotonic = MonotonicAlignment(config)
            if config.monotonic_chunk_size > 1:
                self.chunk_score = SCORES[config.attention_type](config)
        if config.attention_selection == "hard":
            self.hard = HardSelection(config)
            if config.hard_attention_order == 1:
                self.jumps = JumpScores(config, self.context_size)
        self.gate = nn.Linear(config.hidden_size, 1) if config.context_gate else None
        self.wants_coverage_loss = config.coverage_loss_weight > 0
        self.is_stateful = self.coverage is not None or self.monotonic is not None

    def prepare(self, memory: Tensor, layout: PaddingLayout, encoder: EncoderOutput) -> PreparedMemory:
        """
        Projects keys and values, once a sentence.

        Args:
            memory: encoder states `(batch, source, memory_size)` at the places of the padded input.
            layout: where the tokens are.
            encoder: what else the encoder gives, which only some attentions read.
        """
        memory = layout.compact(memory)
        return PreparedMemory(
            keys=self.score.project_keys(memory),
            values=split_heads(self.value_projection(memory), self.heads),
            mask=layout.front_mask,
            lengths=layout.lengths.to(memory.device),
            order=layout.order,
            chunk_keys=None if self.chunk_score is None else self.chunk_score.project_keys(memory),
            stays_soft=None if self.hard is None else self.hard.begin(len(memory), memory.device),
        )

    def first_history(self, memory: PreparedMemory, rows: int) -> tuple[Tensor, ...]:
        """What the first step is told of earlier alignments."""
        like = memory.values.new_zeros(rows, memory.mask.shape[1])
        if self.coverage is not None:
            return (like,)
        if self.monotonic is None:
            return ()
        if not self.training:
            return (torch.zeros(rows, dtype=torch.long, device=like.device),)
        like[:, 0] = 1.0  # attention stands at the first position
        return (like,)

    def forward(
        self,
        states: Tensor,
        memory: PreparedMemory,
        steps: Tensor,
        history: tuple[Tensor, ...] = (),
        with_weights: bool = True,
    ) -> Attended:
        """
        Args:
            states: decoder states `(rows, queries, hidden_size)`; the rows of one sentence (beams) are consecutive.
                More than one query a row only where `is_stateful` is false.
            memory: of `rows` sentences, or of fewer which the rows share evenly.
            steps: the decoding step of each query, `(rows, queries)` int64.
            history: of the step before.
            with_weights: whether `weights` are wanted; a local span has to spread them over the sentence.
        """
        rows, queries, _ = states.shape
        sentences = memory.rows

        def by_sentence(tensor: Tensor) -> Tensor:
            """Hypotheses of one sentence are further queries to the same memory."""
            return tensor.reshape(sentences, rows // sentences * queries, *tensor.shape[2:])

        states, steps = by_sentence(states), by_sentence(steps)
        history = tuple(by_sentence(tensor.unsqueeze(1)) for tensor in history)
        choice = None
        if self.monotonic is not None:
            weights, window, history = self._monotonic(states, memory, history)
        else:
            weights, window, choice = self._by_score(states, memory, steps, history)
        if window is None:
            contexts = step_product(weights, memory.values)  # (sentences, heads, queries, value_size)
        else:
            contexts = (weights.unsqueeze(-2) @ window.gather(memory.values)).squeeze(-2)
            if with_weights or self.coverage is not None:
                weights = window.spread(weights, memory.mask.shape[1])
        coverage_loss = None
        if self.coverage is not None:
            own = weights.transpose(1, 2).flatten(0, 1)  # one alignment for each row, (rows, heads, source)
            old = history[0].flatten(0, 1)
            if self.wants_coverage_loss:
                coverage_loss = self.coverage.loss(old, own).unsqueeze(1)
            history = (self.coverage.update(old, own),)
        else:
            history = tuple(tensor.flatten(0, 1) for tensor in history)
        contexts = contexts.transpose(1, 2)
        if self.gate is not None:  # (Xu 2015, 4.2.1)
            contexts = torch.sigmoid(self.gate(states)).unsqueeze(-1) * contexts
        contexts = contexts.reshape(rows, queries, -1)
        if with_weights:
            weights = weights.unflatten(2, (rows // sentences, queries)).transpose(1, 2).flatten(0, 1)
        if choice is not None:
            choice = choice.of_rows(rows)
        return Attended(contexts, weights if with_weights else None, history, coverage_loss, choice)

    def _by_score(
        self, states: Tensor, memory: PreparedMemory, steps: Tensor, history: tuple[Tensor, ...]
    ) -> tuple[Tensor, Window | None, Choice | None]:
        """Weights `(sentences, heads, queries, source or width)`, the window that they are in, and a hard choice."""
        window = self.span(states, steps, memory.lengths)
        features = None
        if self.coverage is not None:
            features = self.coverage(history[0].flatten(0, 1)).unflatten(0, states.shape[:2])
            if window is not None:
                places = window.positions.unsqueeze(-1).expand(-1, -1, -1, features.shape[-1])
                features = features.gather(2, places)
        scores = self._scores(states, memory, window, features)
        factor = None if window is None or window.factor is None else window.factor.unsqueeze(1)
        if self.hard is not None:
            logs = log_distribution(self.normalizer, scores, self._open(memory, window), factor)
            weights, window, choice = self.hard(logs, window, memory.stays_soft)
            if self.jumps is not None:
                choice = replace(choice, jumps=self.jumps(states, memory.values.squeeze(1)))
            return weights.to(scores.dtype), window, choice
        weights = NORMALIZERS[self.normalizer](scores, self._open(memory, window))
        return weights if factor is None else weights * factor, window, None

    def _scores(
        self, states: Tensor, memory: PreparedMemory, window: Window | None, features: Tensor | None
    ) -> Tensor:
        """`(sentences, heads, queries, source or width)`."""
        return self.score(self.score.project_queries(states), memory.keys, window, features)

    def _open(self, memory: PreparedMemory, window: Window | None) -> Tensor:
        """Where there may be attention, bool, broadcastable to scores."""
        inside = memory.mask[:, None, None, :] if window is None else window.inside.unsqueeze(1)
        if self.score.known_positions is None:
            return inside
        if window is None:
            positions = torch.arange(inside.shape[-1], device=inside.device)
        else:
            positions = window.positions.unsqueeze(1)
        return inside & (positions < self.score.known_positions)

    def _monotonic(
        self, states: Tensor, memory: PreparedMemory, history: tuple[Tensor, ...]
    ) -> tuple[Tensor, Window | None, tuple[Tensor, ...]]:
        """As `_by_score`, and the new history: alignments in training, positions in evaluation mode."""
        queries = self.score.project_queries(states)
        chunk_queries = None if self.chunk_score is None else self.chunk_score.project_queries(states)
        if self.training:
            mask = self._open(memory, None)
            chunk_scores = None
            if chunk_queries is not None:
                chunk_scores = self.chunk_score(chunk_queries, memory.chunk_keys)
            scores = self.score(queries, memory.keys)
            weights, alignment = self.monotonic(scores, chunk_scores, mask, history[0].unsqueeze(1))
            return weights, None, (alignment.squeeze(1),)
        lengths = memory.lengths
        if self.score.known_positions is not None:
            lengths = lengths.clamp(max=self.score.known_positions)
        position, window = self.monotonic(lambda place: self.score(queries, memory.keys, place), history[0], lengths)
        inside = window.inside.unsqueeze(1)
        if chunk_queries is None:
            return inside.to(memory.values.dtype), window, (position,)
        scores = self.chunk_score(chunk_queries, memory.chunk_keys, window)
        return NORMALIZERS[self.normalizer](scores, inside), window, (position,)


class FixedContext(nn.Module):
    """
    No attention: the context is `c = tanh(V h)` of the encoder's final state in every step (Cho 2014, A.1), or, with
    `attention_query="current_state"`, nothing at all (Sutskever 2014).
    """

    is_stateful = False

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.context_size = 0
        if config.attention_query == "previous_state":
            self.context_size = config.memory_size
            self.summary_projection = nn.Linear(config.memory_size, config.memory_size, bias=False)

    def prepare(self, memory: Tensor, layout: PaddingLayout, encoder: EncoderOutput) -> PreparedMemory:
        """See `Attention.prepare`."""
        values = memory.new_zeros(memory.shape[0], 1, 1, 0)
        if self.context_size:
            values = torch.tanh(self.summary_projection(encoder.final_hidden[:, -1]))[:, None, None, :]
        lengths = layout.lengths.to(memory.device)
        return PreparedMemory(None, values, mask=layout.front_mask, lengths=lengths, order=layout.order)

    def first_history(self, memory: PreparedMemory, rows: int) -> tuple[Tensor, ...]:
        """See `Attention.first_history`."""
        return ()

    def forward(
        self,
        states: Tensor,
        memory: PreparedMemory,
        steps: Tensor,
        history: tuple[Tensor, ...] = (),
        with_weights: bool = True,
    ) -> Attended:
        """See `Attention.forward`; there are no weights."""
        rows, queries, _ = states.shape
        contexts = memory.values.squeeze(1).repeat_interleave(rows // memory.rows, dim=0)
        return Attended(contexts.expand(rows, queries, self.context_size))


def restore_weights(weights: Tensor, memory: PreparedMemory) -> Tensor:
    """Weights `(rows, heads, queries, source)` at the places of the padded input."""
    if memory.order is None:
        return weights
    order = memory.order.repeat_interleave(weights.shape[0] // memory.rows, dim=0)[:, None, None, :]
    return torch.zeros_like(weights).scatter(-1, order.expand_as(weights), weights)
