"""Phase 2, monotonic alignment: attention that moves along the sentence and never back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .spans import Window

SCANNED_AT_ONCE = 8  # positions that hard decoding looks at before it asks whether attention has stopped


def expected_alignment(energies: Tensor, mask: Tensor, previous: Tensor) -> Tensor:
    """
    The probability of stopping at each position, over all monotonic paths (Raffel 2017, eq. 8).

    `a_j = p_j sum_{k <= j} previous_k prod_{k <= l < j} (1 - p_l)` with `p = sigmoid(energies)`. The products are
    exponentials of differences of sums of logarithms, never positive, so nothing is divided by or clipped.

    Args:
        energies: `(..., source)`.
        mask: `(..., source)` bool; attention passes over false positions.
        previous: `(..., source)`, the alignment of the step before.

    Returns:
        `(..., source)`; it sums to 1 less the probability that no position is stopped at.
    """
    precise = torch.promote_types(energies.dtype, torch.float32)
    with torch.autocast(energies.device.type, enabled=False):  # what is rounded in each step adds up
        energies = energies.to(precise)
        passing = F.logsigmoid(-energies).masked_fill(~mask, 0.0)  # log (1 - p)
        before = F.pad(passing[..., :-1], (1, 0)).cumsum(dim=-1)
        spread = before.unsqueeze(-2) - before.unsqueeze(-1)  # (..., from k, to j)
        source = energies.shape[-1]
        behind = torch.ones(source, source, dtype=torch.bool, device=energies.device).tril(-1)
        reach = torch.exp(spread.masked_fill(behind, float("-inf")))
        reached = (previous.to(precise).unsqueeze(-2) @ reach).squeeze(-2)
        stop = torch.sigmoid(energies).masked_fill(~mask, 0.0)
        return (stop * reached).to(previous.dtype)


def chunkwise_weights(alignment: Tensor, scores: Tensor, mask: Tensor, width: int) -> Tensor:
    """
    `b_j = sum_k a_k softmax(u_{k-width+1} ... u_k)_j` (Chiu and Raffel 2018, eq. 16).

    Args:
        alignment: `(..., source)`.
        scores: `(..., source)`, the chunk energies `u`.
        mask: `(..., source)` bool.
        width: positions in a chunk.
    """
    width = min(width, scores.shape[-1])
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~mask, lowest)
    chunks = F.pad(scores, (width - 1, 0), value=lowest).unfold(-1, width, 1)  # (..., end of chunk, width)
    shares = alignment.unsqueeze(-1) * chunks.softmax(dim=-1)
    total = torch.zeros_like(alignment)
    for place in range(width):  # the chunk that ends at k has position k - behind at this place
        behind = width - 1 - place
        total = total + F.pad(shares[..., behind:, place], (0, behind))
    return total.masked_fill(~mask, 0.0)


class MonotonicAlignment(nn.Module):
    """
    Online attention (Raffel 2017) and its chunkwise extension MoChA (Chiu and Raffel 2018).

    From the last position on, attention stops at each position with probability `sigmoid(g e_j + r)`: a learned scale
    and offset of the scores, with noise before the sigmoid in training. In training the weights are the expected
    alignment over all paths. In evaluation mode the alignment is hard: the first position with a probability above
    1/2, found by looking at a few positions at a time from the last one on, so that a whole sentence is read once.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.noise = config.monotonic_noise
        self.chunk_size = config.monotonic_chunk_size
        self.first_offset = config.monotonic_offset
        self.scale = nn.Parameter(torch.empty(1))
        self.offset = nn.Parameter(torch.empty(1))

    def init_parameters(self, initialize: Callable[..., None]) -> None:
        """Scale 1, and an offset below zero, so that attention can reach far at first; see `Score`."""
        initialize(self.scale, 1.0)
        initialize(self.offset, self.first_offset)

    def forward(self, *arguments):
        """`soft` in training, `hard` in evaluation mode."""
        return self.soft(*arguments) if self.training else self.hard(*arguments)

    def soft(self, scores: Tensor, chunk_scores: Tensor | None, mask: Tensor, previous: Tensor):
        """
        Args:
            scores, chunk_scores: `(batch, 1, queries, source)`; `chunk_scores` only with chunks.
            mask: broadcastable bool.
            previous: `(batch, 1, queries, source)`.

        Returns:
            the weights to read with, and the alignment, which differ only with chunks.
        """
        energies = self.scale * scores + self.offset
        if self.noise:
            energies = energies + self.noise * torch.randn_like(energies)
        mask = mask.expand_as(energies)
        alignment = expected_alignment(energies, mask, previous)
        if chunk_scores is None:
            return alignment, alignment
        return chunkwise_weights(alignment, chunk_scores, mask, self.chunk_size), alignment

    def hard(self, score: Callable[[Window], Tensor], starts: Tensor, lengths: Tensor) -> tuple[Tensor, Window]:
        """
        Args:
            score: gives the scores `(batch, 1, queries, width)` in a window.
            starts: `(batch, queries)` int64, where the step before stopped; the sentence's length if it ran off.
            lengths: `(batch,)` int64.

        Returns:
            where attention stops (the length if nowhere), `(batch, queries)`, and the window that it reads there.
        """
        ends = lengths[:, None].expand_as(starts)
        position, stopped = torch.minimum(starts, ends), torch.zeros_like(starts, dtype=torch.bool)
        offsets = torch.arange(SCANNED_AT_ONCE, device=starts.device)
        while True:
            searching = ~stopped & (position < ends)
            if not searching.any():
                break
            places = position.unsqueeze(-1) + offsets
            inside = (places < ends.unsqueeze(-1)) & searching.unsqueeze(-1)
            window = Window(torch.minimum(places, (ends - 1).clamp(min=0).unsqueeze(-1)), inside)
            stops = (self.scale * score(window).squeeze(1) + self.offset > 0) & inside
            found = stops.any(dim=-1)
            advance = torch.where(found, stops.byte().argmax(dim=-1), SCANNED_AT_ONCE)
            position = torch.where(searching, torch.minimum(position + advance, ends), position)
            stopped = stopped | found
        chunk = position.unsqueeze(-1) + torch.arange(1 - self.chunk_size, 1, device=starts.device)
        inside = (chunk >= 0) & stopped.unsqueeze(-1)
        last = (ends - 1).clamp(min=0).unsqueeze(-1)
        return position, Window(torch.minimum(chunk.clamp(min=0), last), inside)
