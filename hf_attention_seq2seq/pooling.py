"""A number of states into one vector, by attention that asks no decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .normalizers import softmax


class AttentionPooling(nn.Module):
    """
    `u_t = tanh(W h_t + b)`, weights `a = softmax_t(u_t · u)` with a learned vector `u`, and the average
    `sum_t a_t h_t` (Yang 2016, eq. 5 to 7). With several vectors (`hops`) and no bias this is Lin 2017, eq. 6.

    Args:
        size: of the states.
        attention_size: of `u`.
        hops: number of vectors `u`, each with weights of its own.
        bias: whether there is a `b`.
    """

    def __init__(self, size: int, attention_size: int, hops: int = 1, bias: bool = True):
        super().__init__()
        self.projection = nn.Linear(size, attention_size, bias=bias)
        self.context = nn.Linear(attention_size, hops, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """
        Args:
            states: `(batch, length, size)`.
            mask: `(batch, length)` bool, true where there is a state; nothing else gets a weight.

        Returns:
            averages `(batch, hops, size)` and weights `(batch, hops, length)`, zero in a row without any state.
        """
        scores = self.context(torch.tanh(self.projection(states))).transpose(1, 2)
        weights = softmax(scores, mask.unsqueeze(1))
        return weights @ states, weights


def disagreement_penalty(weights: Tensor, mask: Tensor) -> Tensor:
    """
    `|A A^T - I|_F^2` of the weights `A` of a text, the mean over the texts (Lin 2017, eq. 8): small where each hop
    looks at few states, and each at others.

    Args:
        weights: `(batch, hops, length)`.
        mask: `(batch, length)` bool; a text without any state counts zero.
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    difference = weights @ weights.mT - torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    return torch.where(mask.any(dim=1), difference.square().sum(dim=(1, 2)), 0.0).mean()
