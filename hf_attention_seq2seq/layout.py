"""Where the tokens of padded sentences are: the only place that looks at the shape of an attention mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PaddingLayout:
    """
    A batch of sentences in a padded tensor.

    Padding may be anywhere: on the right, on the left or in between. `compact` moves each sentence's tokens to the
    front, where recurrent layers and attention work on them, and `restore` moves results back, so that no result
    depends on the side or the amount of padding.

    Attributes:
        mask: `(batch, length)` bool, true at tokens.
        lengths: `(batch,)` int64 on the CPU, where packing needs them.
        order: `(batch, length)` int64, the position that `compact` puts at each place; `None` if tokens are in
            front already.
        steps: the longest sentence.
    """

    mask: Tensor
    lengths: Tensor
    order: Tensor | None

    @classmethod
    def from_mask(cls, mask: Tensor, reverse: bool = False) -> PaddingLayout:
        """
        Reads a mask `(batch, length)`; `reverse` asks for an order from each sentence's last token to its first.

        The lengths are brought to the CPU here, once for a batch.
        """
        mask = mask.bool()
        on_cpu = mask.cpu()
        lengths = on_cpu.sum(dim=1)
        positions = torch.arange(mask.shape[1])
        in_front = bool((on_cpu == (positions < lengths[:, None])).all())
        order = None if in_front else torch.sort((~mask).byte(), dim=1, stable=True).indices
        if reverse:
            on_device = lengths.to(mask.device)[:, None]
            positions = positions.to(mask.device)
            turned = torch.where(positions < on_device, on_device - 1 - positions, positions)
            order = turned if order is None else order.gather(1, turned)
        return cls(mask, lengths, order)

    @property
    def has_empty_rows(self) -> bool:
        """Whether some sentence has no token at all."""
        return bool((self.lengths == 0).any())

    @property
    def front_mask(self) -> Tensor:
        """`(batch, length)` bool: the mask after `compact`."""
        if self.order is None:
            return self.mask
        positions = torch.arange(self.mask.shape[1], device=self.mask.device)
        return positions < self.lengths.to(self.mask.device)[:, None]

    def without_empty(self, tensor: Tensor) -> Tensor:
        """`tensor`, `(batch, ...)`, with zeros for each sentence without tokens."""
        if not self.has_empty_rows:
            return tensor
        has_tokens = (self.lengths > 0).to(tensor.device)
        return torch.where(has_tokens.view(-1, *[1] * (tensor.dim() - 1)), tensor, 0.0)

    def compact(self, tensor: Tensor) -> Tensor:
        """Tokens of `(batch, length, size)` to the front."""
        if self.order is None:
            return tensor
        return tensor.gather(1, self.order[:, :, None].expand_as(tensor))

    def restore(self, tensor: Tensor) -> Tensor:
        """The inverse of `compact` for `(batch, length, size)`."""
        if self.order is None:
            return tensor
        return torch.zeros_like(tensor).scatter(1, self.order[:, :, None].expand_as(tensor), tensor)


def spread_over_tokens(weights: Tensor, mask: Tensor) -> Tensor:
    """
    Attention to memory positions that stand for several neighbouring tokens each, as attention to the tokens: each
    token of a group gets an even part of its weight. Where there is a position for each token, nothing changes.

    Args:
        weights: `(batch, ..., positions)`; a pyramidal encoder leaves `source_length / 2**n` positions, rounded up,
            and position `j` stands for a sentence's tokens from `2**n * j` on, wherever its padding is.
        mask: `(batch, source_length)`, true at tokens.

    Returns:
        `(batch, ..., source_length)`, zero at padding.

    Raises:
        ValueError: the number of positions is not that of the tokens, halved some number of times.
    """
    positions, length = weights.shape[-1], mask.shape[1]
    size = 1
    while -(-length // size) > positions:
        size *= 2
    if -(-length // size) != positions:
        raise ValueError(f"Attention to {positions} positions does not fit {length} source tokens.")
    if size == 1:
        return weights
    mask = mask.bool()
    groups = (mask.cumsum(dim=1) - 1).clamp(min=0) // size
    members = torch.zeros(len(mask), positions, dtype=weights.dtype, device=weights.device)
    members.scatter_add_(1, groups, mask.to(weights.dtype))
    shape = (len(mask), *[1] * (weights.dim() - 2), -1)
    even = torch.where(mask, 1 / members.gather(1, groups).clamp(min=1), 0.0)
    return weights.gather(-1, groups.view(shape).expand(*weights.shape[:-1], length)) * even.view(shape)
