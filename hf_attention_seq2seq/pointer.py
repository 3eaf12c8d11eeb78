"""
The pointer-generator: words of the source are copied by attention (See, Liu, Manning 2017, section 2.2).

The output is a mixture of the vocabulary's distribution and of the attention, as log-probabilities. Each column is a
word; behind those of the vocabulary come `max_unknown_words` columns for words that only this source sentence has.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .checks import IGNORED_LABEL
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .losses import CHUNK, mean_over_labels

# The log-probability of a column that stands for no word: never chosen, and small enough to be averaged.
NO_WORD = -64.0
LEAST_MASS = 1e-30  # attention below it counts as this much, so that its logarithm has a gradient in fp32


class Copying(NamedTuple):
    """
    What the output has of the source, all in fp32 or better.

    Attributes:
        log_generate: the log-probability that the word is not copied, `(rows, target_length)`.
        mass: with what probability each source word is copied, `(rows, target_length, source_length)`; a word that
            occurs several times has all of it where it comes first.
        source_ids: `(rows, source_length)` int64.
    """

    log_generate: Tensor
    mass: Tensor
    source_ids: Tensor


class PointerGenerator(nn.Module):
    """
    Whether to generate or to copy, `p_gen = sigmoid(w_c c + w_s s + w_x x + b)` (See 2017, eq. 8), and what to copy.

    Several heads copy with the mean of their attention. Local attention with a Gaussian copies with its weights over
    their sum. What monotonic attention leaves over, when it has run off the sentence, is generated; so is every word
    for a sentence without tokens.
    """

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__()
        self.gate = nn.Linear(context_size + config.hidden_size + config.embedding_size, 1)
        self.leaves_over = config.attention_selection == "monotonic"

    def forward(
        self, contexts: Tensor, states: Tensor, embeddings: Tensor, weights: Tensor, source_ids: Tensor, first: Tensor
    ) -> Copying:
        """
        Args:
            contexts: `(rows, target_length, context_size)`.
            states: `(rows, target_length, hidden_size)` of the last decoder layer.
            embeddings: `(rows, target_length, embedding_size)` of the previous words.
            weights: `(rows, heads, target_length, source_length)`, at the places of `source_ids`.
            source_ids: `(sentences, source_length)`; `rows` is a multiple of `sentences`.
            first: `first_places(source_ids)`.
        """
        precise = torch.promote_types(weights.dtype, torch.float32)
        gate = self.gate(torch.cat((contexts, states, embeddings), dim=-1)).squeeze(-1).to(precise)
        weights = weights.to(precise).mean(dim=1)
        total = weights.sum(dim=-1)
        log_generate = F.logsigmoid(gate)
        if self.leaves_over:
            log_left = (1 - total).clamp(min=LEAST_MASS).log()
            log_generate = torch.logaddexp(log_generate, F.logsigmoid(-gate) + log_left)
        else:
            looks = total > 0
            weights = weights / torch.where(looks, total, 1.0).unsqueeze(-1)
            log_generate = torch.where(looks, log_generate, 0.0)
        copied = torch.sigmoid(-gate).unsqueeze(-1) * weights
        repeats = len(weights) // len(source_ids)
        first, source_ids = (ids.repeat_interleave(repeats, dim=0) for ids in (first, source_ids.long()))
        mass = torch.zeros_like(copied).scatter_add(-1, first.unsqueeze(1).expand_as(copied), copied)
        return Copying(log_generate, mass, source_ids)


def first_places(source_ids: Tensor) -> Tensor:
    """Where each token stands for the first time in its sentence, `(batch, source_length)` int64."""
    return (source_ids.unsqueeze(-1) == source_ids.unsqueeze(-2)).byte().argmax(dim=-1)


def log_mixture(
    logits: Tensor, log_generate: Tensor, mass: Tensor, source_ids: Tensor, unknown_words: int = 0
) -> Tensor:
    """
    `log P(w)` with `P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i` (See 2017, eq. 9).

    Args:
        logits: `(..., vocab_size)`.
        log_generate: `(...)`.
        mass: `(..., source_length)`.
        source_ids: `(..., source_length)`, below `vocab_size + unknown_words`. For these three see `Copying`.
        unknown_words: columns for words outside of the vocabulary.

    Returns:
        `(..., vocab_size + unknown_words)` in fp32 or better; `NO_WORD` where `P` is zero.
    """
    precise = torch.promote_types(logits.dtype, mass.dtype)
    scores = logits.log_softmax(dim=-1, dtype=precise) + log_generate.unsqueeze(-1)
    if unknown_words:
        scores = F.pad(scores, (0, unknown_words), value=NO_WORD)
    # log(p + m) = log p + softplus(log m - log p), for the few words that have a mass m
    more = F.softplus(mass.clamp(min=LEAST_MASS).log() - scores.gather(-1, source_ids), threshold=40)
    return scores.scatter_add(-1, source_ids, torch.where(mass > 0, more, 0.0))


def copying_logits(logits: Tensor, copying: Copying, unknown_words: int = 0) -> Tensor:
    """`log_mixture` of logits `(rows, target_length, vocab_size)`."""
    source_ids = copying.source_ids.unsqueeze(1).expand(copying.mass.shape)
    return log_mixture(logits, copying.log_generate, copying.mass, source_ids, unknown_words)


def copying_loss(
    states: Tensor,
    output_layer: nn.Module,
    copying: Copying,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    smoothing: float = 0.0,
    unknown_words: int = 0,
) -> Tensor:
    """
    `sequence_loss` of `copying_logits(output_layer(states), ...)`, which never holds more than a part of the logits:
    nothing is computed for ignored labels, and each part is computed again for its gradient.

    Args:
        states: `(rows, target_length, size)`.
        output_layer: from `size` to the vocabulary.
        labels, num_items_in_batch, smoothing: see `sequence_loss`.
    """
    counted = labels != IGNORED_LABEL
    source_ids = copying.source_ids.unsqueeze(1).expand(copying.mass.shape)
    tensors = (states, copying.log_generate, copying.mass, source_ids, labels.long())
    tensors = [tensor[counted] for tensor in tensors]

    def part_loss(states: Tensor, log_generate: Tensor, mass: Tensor, source_ids: Tensor, labels: Tensor) -> Tensor:
        scores = log_mixture(output_layer(states), log_generate, mass, source_ids, unknown_words)
        loss = (smoothing - 1) * scores.gather(-1, labels.unsqueeze(-1)).sum()
        return loss - smoothing * scores.mean(dim=-1).sum() if smoothing else loss

    rows = max(CHUNK // output_layer.weight.shape[0], 1)
    parts = zip(*(tensor.split(rows) for tensor in tensors))
    losses = [checkpoint(part_loss, *part, use_reentrant=False) for part in parts]
    return mean_over_labels(torch.stack(losses).sum(), counted, num_items_in_batch)


def known_tokens(ids: Tensor, size: int, config: AttentionSeq2SeqConfig) -> Tensor:
    """Ids as embeddings have them: words outside of the `size` words of the vocabulary are the unknown token."""
    return ids.masked_fill(ids >= size, config.unk_token_id) if config.max_unknown_words else ids
