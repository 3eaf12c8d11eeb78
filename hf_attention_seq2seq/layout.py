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
