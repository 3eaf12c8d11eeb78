"""The training loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import IGNORED_LABEL


def sequence_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """
    Mean negative log-likelihood in fp32.

    Args:
        logits: `(batch, target_length, vocabulary)`.
        labels: `(batch, target_length)` int64, -100 where there is nothing to predict.
        num_items_in_batch: the divisor; the number of labels other than -100 if not given.

    Returns:
        a scalar, 0 for a batch without labels.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
    if num_items_in_batch is None:
        num_items_in_batch = (labels != IGNORED_LABEL).sum().clamp(min=1)
    elif torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(total.device)
    return total / num_items_in_batch
