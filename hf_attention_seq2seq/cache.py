"""What a decoder carries from one step to the next, as one value object, and its place in `generate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .attention import PreparedMemory

LayerState = tuple[Tensor, ...]


@dataclass(frozen=True)
class DecoderState:
    """
    The recurrent state of a batch of hypotheses.

    Attributes:
        layers: per decoder layer `(hidden,)`, for LSTM `(hidden, cell)`, each `(rows, hidden_size)`.
        steps: number of tokens consumed, `(rows,)` int64.
        feed: the last readout vector `(rows, readout_width)`, or `None` without input feeding.
        history: what attention must know of earlier alignments, tensors `(rows, ...)`.
        chain: where an alignment stands that moves ahead only, see `Mixture.along_chain`; nothing before the start.
    """

    layers: tuple[LayerState, ...]
    steps: Tensor
    feed: Tensor | None = None
    history: tuple[Tensor, ...] = ()
    chain: tuple[Tensor, ...] = ()

    @property
    def rows(self) -> int:
        """Number of hypotheses."""
        return self.layers[0][0].shape[0]

    @property
    def top(self) -> Tensor:
        """Hidden state of the last layer, `(rows, hidden_size)`."""
        return self.layers[-1][0]

    def map(self, function: Callable[[Tensor], Tensor]) -> DecoderState:
        """Applies `function` to every tensor, whatever the state consists of."""

        def apply(value):
            if isinstance(value, tuple):
                return tuple(apply(item) for item in value)
            return None if value is None else function(value)

        return replace(self, **{field.name: apply(getattr(self, field.name)) for field in fields(self)})

    def where(self, keep: Tensor, other: DecoderState) -> DecoderState:
        """This state in the rows where `keep`, `(rows,)` bool, is true, `other` elsewhere."""
        others = iter(other.tensors())
        return self.map(lambda mine: torch.where(keep.view(-1, *[1] * (mine.dim() - 1)), mine, next(others)))

    def tensors(self) -> list[Tensor]:
        """Every tensor of the state, in a fixed order."""
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)
        return found


class _StatesByLayer(list):
    """An empty list, whose `[i]` has the hidden and the last state tensor of layer `i` as `keys` and `values`."""

    def __init__(self, state: DecoderState | None):
        super().__init__()
        self.state = state

    def __getitem__(self, index: int) -> SimpleNamespace:
        if self.state is None:
            raise IndexError("The cache is empty.")
        tensors = self.state.layers[index]
        return SimpleNamespace(keys=tensors[0], values=tensors[-1], is_initialized=True)


class AttentionSeq2SeqCache(Cache):
    """
    The cache of a recurrent decoder: its state, the prepared memory and the number of tokens consumed.

    The state has one row per hypothesis. The memory has one row per sentence: the hypotheses of a sentence are
    consecutive rows and share it, so beam search moves states of `hidden_size` values instead of whole memories.
    There are no keys per target token: the cache has constant size, and it can not be cropped.
    """

    is_compileable = False
    is_croppable = False
    is_initialized = True
    is_linear = [False]
    is_sliding = [False]
    is_dummy = [False]
    max_batch_size = None

    def __init__(self) -> None:  # the base class builds key-value layers, which do not exist here
        self.state: DecoderState | None = None
        self.memory: PreparedMemory | None = None
        self.consumed_tokens = 0

    @property
    def layers(self) -> list:
        """Empty: there are no key-value layers. By index, the state of each decoder layer, to compare caches by."""
        return _StatesByLayer(self.state)

    def update_state(self, state: DecoderState, new_tokens: int) -> None:
        """Replaces the state after `new_tokens` more decoder tokens."""
        self.state = state
        self.consumed_tokens += new_tokens

    def __len__(self) -> int:
        return 0 if self.state is None else len(self.state.layers)

    def __repr__(self) -> str:
        rows = None if self.state is None else self.state.rows
        return f"{type(self).__name__}(hypotheses={rows}, consumed_tokens={self.consumed_tokens})"

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of decoder tokens consumed so far."""
        return self.consumed_tokens

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no limit."""
        return -1

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """-1: there is no limit (the name before transformers 5)."""
        return -1

    @property
    def batch_size(self) -> int | None:
        """Number of hypotheses, `None` before the first step."""
        return None if self.state is None else self.state.rows

    def reset(self) -> None:
        """Forgets everything."""
        self.__init__()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """
        Row `i` continues hypothesis `beam_idx[i]`, as beam search asks after each step.

        Args:
            beam_idx: `(rows,)` int64. Where several hypotheses share a sentence, each must stay within its sentence.
        """
        if self.state is None:
            return
        if self.memory.rows == self.state.rows:
            self.memory = self.memory.select(beam_idx)
        self.state = self.state.map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every hypothesis `repeats` times; the memory is shared by the copies."""
        if self.state is not None:
            self.state = self.state.map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the hypotheses `indices`, `(rows,)` int64 or a boolean mask."""
        if self.state is None:
            return
        indices = torch.arange(self.state.rows, device=indices.device)[indices]
        self.memory = self.memory.select(indices // (self.state.rows // self.memory.rows))
        self.state = self.state.map(lambda tensor: tensor[indices.to(tensor.device)])

    def select_sentences(self, indices: Tensor) -> None:
        """Keeps the sentences `indices`, `(sentences,)` int64, with all their hypotheses."""
        beams = self.state.rows // self.memory.rows
        rows = (indices[:, None] * beams + torch.arange(beams, device=indices.device)).flatten()
        self.memory = self.memory.select(indices)
        self.state = self.state.map(lambda tensor: tensor.index_select(0, rows.to(tensor.device)))

    def crop(self, *args, **kwargs) -> None:
        """Refused: a recurrent state has no history to go back to."""
        raise ValueError(
            f"{type(self).__name__} can not be cropped: a recurrent decoder keeps its last state only and can not go "
            "back to an earlier token. Assisted decoding, and whatever else takes tokens back, needs another model."
        )

    def update(self, *args, **kwargs):
        """Refused: the decoder has no keys and values per target token."""
        raise ValueError(f"{type(self).__name__} holds a recurrent state, not key and value states per token.")
