"""Decoding targets of different lengths without spending steps on what stands behind their ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .attention import PreparedMemory
from .cache import DecoderState
from .step_products import shared_gradients

if TYPE_CHECKING:
    from .decoders import DecoderOutput, RecurrentDecoder

# How often at most a batch gets smaller: each time costs a copy of the memory's gradient. Where layers run over all
# steps at once it costs another gradient of their weights too, which only much padding is worth.
LEVELS, LEVELS_AT_ONCE = 8, 2
WORTHWHILE_AT_ONCE = 0.25  # of the work saved


def decode_ragged(
    decoder: RecurrentDecoder,
    embeddings: Tensor,
    memory: PreparedMemory,
    state: DecoderState,
    lengths: Tensor,
    with_weights: bool = True,
) -> DecoderOutput:
    """
    `decoder(embeddings, memory, state)`, where only the first tokens of each row count.

    The rows are sorted by length, so that those which go on are the first ones, and the decoder is called with fewer
    of them as the steps go by. What stands behind a row's end is zero, or what the padding gives.

    Args:
        lengths: `(rows,)` int64 on the CPU, how many tokens of each row count.

        For the others see `RecurrentDecoder.forward`; `memory` is of as many sentences as there are rows.

    Returns:
        as the decoder, but its state is that of the longest rows only.
    """
    rows, steps, _ = embeddings.shape
    stretches = list(_stretches(lengths, steps, LEVELS_AT_ONCE if decoder.runs_at_once else LEVELS))
    work = sum(number * (end - start) for number, start, end in stretches)
    if decoder.runs_at_once and work > (1 - WORTHWHILE_AT_ONCE) * rows * steps:
        return decoder(embeddings, memory, state, None, with_weights)
    order = lengths.argsort(descending=True).to(embeddings.device)
    embeddings, memory = embeddings.index_select(0, order), memory.select(order)
    state = state.map(lambda tensor: tensor.index_select(0, order))
    outputs = []
    with shared_gradients(embeddings):
        for number, start, end in stretches:
            if number < memory.rows:
                memory = memory.first(number)
                state = state.map(lambda tensor, number=number: tensor[:number])
            outputs.append(decoder(embeddings[:number, start:end], memory, state, None, with_weights))
            state = outputs[-1].state
    back = order.argsort()

    def join(parts: tuple[Tensor | None, ...], dim: int = 1) -> Tensor | None:
        if parts[0] is None:
            return None
        padded = [torch.cat((part, part.new_zeros(rows - len(part), *part.shape[1:]))) for part in parts]
        return torch.cat(padded, dim=dim).index_select(0, back)

    return replace(
        outputs[-1],
        readouts=join([output.readouts for output in outputs]),
        layer_states=tuple(join(layer) for layer in zip(*(output.layer_states for output in outputs))),
        weights=join([output.weights for output in outputs], dim=2),
        coverage_loss=join([output.coverage_loss for output in outputs]),
    )


def _stretches(lengths: Tensor, steps: int, levels: int) -> Iterator[tuple[int, int, int]]:
    """Number of rows, first step and the step behind, wherever enough rows have ended to go on with fewer."""
    rows = len(lengths)
    unit = -(-rows // levels)
    going_on = (lengths[:, None] > torch.arange(steps)).sum(dim=0)
    numbers = (-(-going_on // unit) * unit).clamp(unit, rows)
    start = 0
    for number, count in zip(*(values.tolist() for values in numbers.unique_consecutive(return_counts=True))):
        yield number, start, start + count
        start += count
