"""
Phase 1: how well does a query match a key?

A score function is one class here and one name in `SCORES`. It sees several heads at once: queries
`(batch, heads, queries, size)`, keys `(batch, heads, source, size)`, scores `(batch, heads, queries, source)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .configuration_attention_seq2seq import ATTENTION_TYPES, AttentionSeq2SeqConfig

SCORES: dict[str, type[Score]] = {}


def register_score(name: str) -> Callable[[type[Score]], type[Score]]:
    """
    Class decorator: makes a `Score` available as `attention_type=name`.

    Raises:
        ValueError: the name is taken by another class.
    """

    def register(score_class: type[Score]) -> type[Score]:
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


class Score(nn.Module):
    """
    Base of the score functions.

    Subclasses define `score`, and change `project_keys` and `project_queries` where they need more than the base's:
    linear maps to `attention_size` where the configuration has one, the vectors themselves where it has not. Keys
    are projected once a sentence, queries once a step.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.heads = config.attention_heads
        self.query_projection = self.key_projection = nn.Identity()
        if config.attention_size is not None:
            self.query_projection = nn.Linear(config.hidden_size, config.attention_size, bias=False)
            self.key_projection = nn.Linear(config.memory_size, config.attention_size, bias=False)

    def project_keys(self, memory: Tensor) -> Tensor:
        """Encoder states `(batch, source, memory_size)` to keys `(batch, heads, source, size)`."""
        return split_heads(self.key_projection(memory), self.heads)

    def project_queries(self, states: Tensor) -> Tensor:
        """Decoder states `(batch, queries, hidden_size)` to queries `(batch, heads, queries, size)`."""
        return split_heads(self.query_projection(states), self.heads)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores `(batch, heads, queries, source)`; see the module's head for the shapes."""
        raise NotImplementedError

    def init_parameters(self) -> None:
        """First values of parameters which should not start uniform like all others."""


@register_score("dot")
class DotScore(Score):
    """`q . k` (Luong 2015, eq. 8, dot)."""

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.transpose(-1, -2)


@register_score("scaled_dot")
class ScaledDotScore(Score):
    """`q . k / sqrt(size)` (Vaswani 2017, eq. 1)."""

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (queries / math.sqrt(queries.shape[-1])) @ keys.transpose(-1, -2)


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

    def init_parameters(self) -> None:
        fill_(self.strength, 10.0)

    # The smallest norm is well above the smallest half precision number: padding has norm zero.
    def project_keys(self, memory: Tensor) -> Tensor:
        return F.normalize(super().project_keys(memory), dim=-1, eps=1e-6)

    def project_queries(self, states: Tensor) -> Tensor:
        return F.normalize(super().project_queries(states), dim=-1, eps=1e-6)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.strength * (queries @ keys.transpose(-1, -2))


@register_score("additive")
class AdditiveScore(Score):
    """`v^T tanh(W q + U k)` (Bahdanau 2014, A.1.2)."""

    def __init__(self, config: AttentionSeq2SeqConfig, bias: bool = False):
        super().__init__(config)
        size = config.attention_size if config.attention_size is not None else config.hidden_size
        self.query_projection = nn.Linear(config.hidden_size, size, bias=False)
        self.key_projection = nn.Linear(config.memory_size, size, bias=bias)
        self.energy = nn.Parameter(torch.empty(config.attention_heads, size // config.attention_heads))

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        hidden = torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3))  # (batch, heads, queries, source, size)
        return (hidden @ self.energy[:, None, :, None]).squeeze(-1)


@register_score("mlp")
class MLPScore(AdditiveScore):
    """`v^T tanh(W q + U k + b)`: the additive score with a bias in the hidden layer, as toolkits call `mlp`."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config, bias=True)


@register_score("concat")
class ConcatScore(AdditiveScore):
    """
    `v^T tanh(W [q; k])` (Luong 2015, eq. 8, concat).

    One matrix over the concatenation; its two parts are applied to queries and keys apart, so that keys are
    projected once a sentence, with the same result.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.query_size = config.hidden_size
        size = self.query_projection.out_features
        self.query_projection = self.key_projection = nn.Identity()
        self.projection = nn.Linear(config.hidden_size + config.memory_size, size, bias=False)

    def project_keys(self, memory: Tensor) -> Tensor:
        return split_heads(F.linear(memory, self.projection.weight[:, self.query_size :]), self.heads)

    def project_queries(self, states: Tensor) -> Tensor:
        return split_heads(F.linear(states, self.projection.weight[:, : self.query_size]), self.heads)


@register_score("location")
class LocationScore(Score):
    """
    `W q`, one row of `W` for each source position (Luong 2015, eq. 7): the encoder states play no part.

    Positions from `max_source_positions` on get no attention, as in the paper.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.query_projection = self.key_projection = nn.Identity()
        self.positions = nn.Linear(
            config.hidden_size, config.attention_heads * config.max_source_positions, bias=False
        )

    def project_keys(self, memory: Tensor) -> Tensor:
        return memory.unsqueeze(1)

    def project_queries(self, states: Tensor) -> Tensor:
        return split_heads(self.positions(states), self.heads)

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        source, known = keys.shape[-2], queries.shape[-1]
        if source <= known:
            return queries[..., :source]
        return F.pad(queries, (0, source - known), value=torch.finfo(queries.dtype).min)


def fill_(parameter: Tensor, value: float) -> None:
    """Sets a parameter unless it has just been loaded from a checkpoint."""
    if not getattr(parameter, "_is_hf_initialized", False):
        with torch.no_grad():
            parameter.fill_(value)
