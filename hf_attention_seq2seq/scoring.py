"""
Phase 1: how well does a query match a key?

A score function is one class here and one name in `SCORES`. It sees several heads at once: queries
`(batch, heads, queries, size)`, keys `(batch, heads, source, size)`, scores `(batch, heads, queries, source)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .additive import additive_energies
from .configuration_attention_seq2seq import ATTENTION_TYPES, AttentionSeq2SeqConfig
from .spans import Window
from .step_products import step_product, step_projection

ScoreClass = TypeVar("ScoreClass", bound="type[Score]")
SCORES: dict[str, type[Score]] = {}


def register_score(name: str) -> Callable[[ScoreClass], ScoreClass]:
    """
    Class decorator: makes a `Score` available as `attention_type=name`.

    Raises:
        ValueError: the name is taken by another class.
    """

    def register(score_class: ScoreClass) -> ScoreClass:
        taken = SCORES.get(name)
        if taken is not None and taken.__qualname__ != score_class.__qualname__:
            raise ValueError(f"attention_type {name!r} is already taken by {taken.__name__}.")
        SCORES[name] = score_class
        if name not in ATTENTION_TYPES:
            ATTENTION_TYPES.append(name)
        return score_class

    return register


def split_heads(tensor: Tensor, heads: int) -> Tensor:
    """`(batch, length, heads * size)` to `(batch, heads, length, size)`."""
    return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)


def score_by_query(score: Callable[[Tensor, Tensor], Tensor], window: Window, queries: Tensor, keys: Tensor) -> Tensor:
    """
    Scores `(batch, heads, queries, width)` in a window, where each query has keys of its own: each becomes a batch of
    one, so that `score` sees `(batch * queries, heads, 1, size)` and `(batch * queries, heads, width, size)`.
    """
    picked = window.gather(keys).transpose(1, 2).flatten(0, 1)
    scores = score(queries.transpose(1, 2).flatten(0, 1).unsqueeze(2), picked)
    return scores.squeeze(2).unflatten(0, window.positions.shape[:2]).transpose(1, 2)


class Score(nn.Module):
    """
    Base of the score functions.

    Subclasses define `score`, and change `project_keys` and `project_queries` where they need more than the base's:
    linear maps to `attention_size` where the configuration has one, the vectors themselves where it has not. Keys
    are projected once a sentence, queries once a step. Windows and coverage features are dealt with here.

    Attributes:
        known_positions: the source positions from this one on get no attention; `None` if there is no limit.
    """

    known_positions: int | None = None

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.heads = config.attention_heads
        self.register_parameter("feature_weights", None)
        self.query_projection = self.key_projection = nn.Identity()
        if config.attention_size is not None:
            self.query_projection = nn.Linear(config.hidden_size, config.attention_size, bias=False)
            self.key_projection = nn.Linear(config.memory_size, config.attention_size, bias=False)

    def project_keys(self, memory: Tensor) -> Tensor:
        """Encoder states `(batch, source, memory_size)` to keys `(batch, heads, source, size)`."""
        return split_heads(self.key_projection(memory), self.heads)

    def project_queries(self, states: Tensor) -> Tensor:
        """Decoder states `(batch, queries, hidden_size)` to queries `(batch, heads, queries, size)`."""
        return split_heads(step_projection(self.query_projection, states), self.heads)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores `(batch, heads, queries, source)`; see the module's head for the shapes."""
        raise NotImplementedError(f"{type(self).__name__} must define score(queries, keys).")

    def forward(
        self, queries: Tensor, keys: Tensor, window: Window | None = None, features: Tensor | None = None
    ) -> Tensor:
        """
        Args:
            queries: as from `project_queries`.
            keys: as from `project_keys`.
            window: where to look; the whole sentence if not given.
            features: of coverage, `(batch, queries, source or width, features)`; their number must have been told to
                `add_features`.

        Returns:
            `(batch, heads, queries, source)`, or with a window `(batch, heads, queries, width)`.
        """
        scores = self.score(queries, keys) if window is None else self.score_in(window, queries, keys)
        expected = (*queries.shape[:3], keys.shape[2] if window is None else window.positions.shape[-1])
        if scores.shape != expected:
            raise ValueError(
                f"{type(self).__name__}.score gives the shape {tuple(scores.shape)} for queries "
                f"{tuple(queries.shape)} and keys {tuple(keys.shape)}; it must be {expected}."
            )
        return scores if features is None else scores + F.linear(features, self.feature_weights).permute(0, 3, 1, 2)

    def score_in(self, window: Window, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores `(batch, heads, queries, width)` of the positions in the window only."""
        return score_by_query(self.score, window, queries, keys)

    def add_features(self, number: int) -> None:
        """Makes room for `number` coverage features of each source position: a linear term of the score."""
        self.feature_weights = nn.Parameter(torch.empty(self.heads, number))

    def init_parameters(self, initialize: Callable[..., None]) -> None:
        """
        First values of parameters that the class itself has: `initialize(parameter)` makes it uniform like weight
        matrices, `initialize(parameter, value)` constant. Others keep what the constructor gave them.
        """


@register_score("dot")
class DotScore(Score):
    """`q . k` (Luong 2015, eq. 8, dot)."""

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return step_product(queries, keys, transposed=True)


@register_score("scaled_dot")
class ScaledDotScore(Score):
    """`q . k / sqrt(size)` (Vaswani 2017, eq. 1)."""

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return step_product(queries / math.sqrt(queries.shape[-1]), keys, transposed=True)


@register_score("general")
class GeneralScore(DotScore):
    """`q^T W k` (Luong 2015, eq. 8, general), with `W k` as the key; `attention_size` bounds the rank of `W`."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        if config.attention_size is None:
            self.key_projection = nn.Linear(config.memory_size, config.hidden_size, bias=False)


@register_score("cosine")
class CosineScore(Score):
    """`b cos(q, k)` with a learned strength `b` for each head (Graves 2014, eq. 5 and 6)."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.strength = nn.Parameter(torch.empty(config.attention_heads, 1, 1))

    def init_parameters(self, initialize: Callable[..., None]) -> None:
        initialize(self.strength, 10.0)

    # The smallest norm is well above the smallest half precision number: padding has norm zero.
    def project_keys(self, memory: Tensor) -> Tensor:
        return F.normalize(super().project_keys(memory), dim=-1, eps=1e-6)

    def project_queries(self, states: Tensor) -> Tensor:
        return F.normalize(super().project_queries(states), dim=-1, eps=1e-6)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.strength * step_product(queries, keys, transposed=True)


@register_score("additive")
class AdditiveScore(Score):
    """`v^T tanh(W q + U k)` (Bahdanau 2014, A.1.2)."""

    def __init__(self, config: AttentionSeq2SeqConfig, bias: bool = False):
        super().__init__(config)
        size = config.attention_size if config.attention_size is not None else config.hidden_size
        self.query_projection = nn.Linear(config.hidden_size, size, bias=False)
        self.key_projection = nn.Linear(config.memory_size, size, bias=bias)
        self.energy = nn.Parameter(torch.empty(config.attention_heads, size // config.attention_heads))

    def init_parameters(self, initialize: Callable[..., None]) -> None:
        initialize(self.energy)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return additive_energies(queries, keys, self.energy)

    def forward(
        self, queries: Tensor, keys: Tensor, window: Window | None = None, features: Tensor | None = None
    ) -> Tensor:
        if features is None:
            return super().forward(queries, keys, window)
        # Features enter within the tanh.
        matrix = self.feature_weights.unflatten(0, self.energy.shape)
        if window is None:
            return additive_energies(queries, keys, self.energy, features, matrix)
        own = features.flatten(0, 1).unsqueeze(1)
        return score_by_query(
            lambda single, picked: additive_energies(single, picked, self.energy, own, matrix), window, queries, keys
        )

    def add_features(self, number: int) -> None:
        self.feature_weights = nn.Parameter(torch.empty(self.energy.numel(), number))


@register_score("mlp")
class MLPScore(AdditiveScore):
    """`v^T tanh(W q + U k + b)`: the additive score with a bias in the hidden layer, as toolkits call `mlp`."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config, bias=True)


@register_score("concat")
class ConcatScore(AdditiveScore):
    """
    `v^T tanh(W [q; k])` (Luong 2015, eq. 8, concat).

    The two parts of `W` are applied to queries and keys apart, so that keys are projected once a sentence; with `W`
    cut in two this is the additive score.
    """


@register_score("location")
class LocationScore(Score):
    """
    `W q`, one row of `W` for each source position (Luong 2015, eq. 7): the encoder states play no part.

    Positions from `max_source_positions` on get no attention, as in the paper.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.known_positions = config.max_source_positions
        self.query_projection = self.key_projection = nn.Identity()
        self.positions = nn.Linear(
            config.hidden_size, config.attention_heads * config.max_source_positions, bias=False
        )

    def project_keys(self, memory: Tensor) -> Tensor:
        return memory.unsqueeze(1)

    def project_queries(self, states: Tensor) -> Tensor:
        return split_heads(step_projection(self.positions, states), self.heads)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        source = keys.shape[-2]
        return F.pad(queries[..., :source], (0, max(source - self.known_positions, 0)))

    def score_in(self, window: Window, queries: Tensor, keys: Tensor) -> Tensor:
        positions = window.positions.clamp(max=self.known_positions - 1)
        return queries.gather(-1, positions.unsqueeze(1).expand(-1, self.heads, -1, -1))
