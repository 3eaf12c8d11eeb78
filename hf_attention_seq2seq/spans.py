"""Phase 2, where attention may look: the whole sentence, or a window around one place of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig


@dataclass(frozen=True)
class Window:
    """
    The source positions that each query may look at; everything outside is never touched.

    Attributes:
        positions: `(batch, queries, width)` int64, moved into the sentence where they stand out of it.
        inside: `(batch, queries, width)` bool, false at positions out of the window or out of the sentence.
        factor: `(batch, queries, width)`, by which the weights are multiplied, or `None`.
    """

    positions: Tensor
    inside: Tensor
    factor: Tensor | None = None

    def gather(self, tensor: Tensor) -> Tensor:
        """`(batch, heads, source, size)` to `(batch, heads, queries, width, size)`."""
        batch, heads, source, size = tensor.shape
        rows = tensor.transpose(1, 2).reshape(batch * source, heads * size)
        first = torch.arange(batch, device=tensor.device)[:, None, None] * source
        picked = rows.index_select(0, (first + self.positions).flatten())
        return picked.view(*self.positions.shape, heads, size).permute(0, 3, 1, 2, 4)

    def spread(self, weights: Tensor, source: int) -> Tensor:
        """Weights `(batch, heads, queries, width)` at their places of `(batch, heads, queries, source)`."""
        places = self.positions.unsqueeze(1).expand_as(weights)
        # Positions that were moved into the sentence have weight zero and add nothing.
        return weights.new_zeros(*weights.shape[:-1], source).scatter_add(-1, places, weights)


class GlobalSpan(nn.Module):
    """The whole sentence."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()

    def forward(self, states: Tensor, steps: Tensor, lengths: Tensor) -> Window | None:
        """
        Args:
            states: decoder states `(batch, queries, hidden_size)`.
            steps: the decoding step of each query, `(batch, queries)` int64, from 0.
            lengths: `(batch,)` int64, tokens of each sentence.

        Returns:
            `None`: there is no window.
        """
        return None


class LocalMonotonicSpan(nn.Module):
    """
    `local-m` (Luong 2015, section 3.2): a window of `attention_window` positions on both sides of the decoding step,
    of the last token once the step is beyond it.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.half_width = config.attention_window

    def forward(self, states: Tensor, steps: Tensor, lengths: Tensor) -> Window:
        """See `GlobalSpan.forward`."""
        last = (lengths - 1).clamp(min=0)[:, None]
        return self.around(torch.minimum(steps, last), lengths)

    def around(self, centers: Tensor, lengths: Tensor) -> Window:
        """The window around int64 centers `(batch, queries)`, cropped at the borders of each sentence."""
        offsets = torch.arange(-self.half_width, self.half_width + 1, device=centers.device)
        positions = centers.unsqueeze(-1) + offsets
        inside = (positions >= 0) & (positions < lengths[:, None, None])
        last = (lengths - 1).clamp(min=0)[:, None, None]
        return Window(torch.minimum(positions.clamp(min=0), last), inside)


class LocalPredictiveSpan(LocalMonotonicSpan):
    """
    `local-p` (Luong 2015, eq. 9 and 10): the center is `p = S sigmoid(v^T tanh(W h))` with the sentence's own length
    `S`; the window holds the positions `s` with `|s - p| <= D`, and the weights are multiplied by
    `exp(-(s - p)^2 / (2 sigma^2))`, `sigma = D / 2`, and not normalised again. Positions count from 0.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.hidden = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.center = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, states: Tensor, steps: Tensor, lengths: Tensor) -> Window:
        """See `GlobalSpan.forward`."""
        wanted = self.center(torch.tanh(self.hidden(states))).squeeze(-1)
        # At least fp32: half precision can not tell the positions of long sentences apart.
        wanted = wanted.to(torch.promote_types(wanted.dtype, torch.float32))
        centers = lengths[:, None] * torch.sigmoid(wanted)
        window = self.around(centers.detach().round().long(), lengths)
        distance = window.positions - centers.unsqueeze(-1)
        inside = window.inside & (distance.abs() <= self.half_width)
        factor = torch.exp(-2.0 * (distance / self.half_width) ** 2)  # sigma = D / 2
        return Window(window.positions, inside, factor.to(states.dtype))


SPANS = {"global": GlobalSpan, "local_m": LocalMonotonicSpan, "local_p": LocalPredictiveSpan}
