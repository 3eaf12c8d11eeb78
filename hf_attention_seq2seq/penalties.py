"""Length and coverage penalties of beam search, within the library's own `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessor

from .modeling_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration

LEAST_COVERAGE = 0.01  # a source word that got no attention at all would rule a translation out (sparse attention)


@dataclass
class _Step:
    """What is known of the hypotheses before a step, and the scores that the step gave to their next words."""

    sequences: Tensor  # (rows, length)
    log_likelihood: Tensor  # (rows,)
    coverage: Tensor  # (rows, source_length)
    scores: Tensor  # (rows, target_vocab_size)


class BeamPenalties(LogitsProcessor):
    """
    Gives the end of a hypothesis the score that makes the search rank it by (Wu 2016, eq. 14)

        log P(Y|X) / lp(Y) + cp(X; Y),    lp(Y) = ((5 + |Y|) / 6)^length,
        cp(X; Y) = coverage * sum_j log(min(sum_i a_ij, 1)),

    with the attention `a_ij` to source word `j` in step `i`, the mean of the heads. Made by `beam_penalties`.
    """

    def __init__(self, length: float, coverage: float, ends: list[int]):
        for name, value in (("length", length), ("coverage", coverage)):
            if not value >= 0:
                raise ValueError(f"{name}={value!r} is not possible; allowed: a number from 0 up.")
        self.length = length
        self.coverage = coverage
        self.ends = ends
        self._attended: tuple[Tensor, Tensor] | None = None
        self._last: _Step | None = None

    def attend(self, weights: Tensor, mask: Tensor) -> None:
        """
        What the decoder attended to in this step.

        Args:
            weights: `(rows, heads, queries, source_length)`.
            mask: `(sentences, source_length)` bool, true at source tokens; the rows of a sentence are consecutive.
        """
        self._attended = weights[:, :, -1].mean(dim=1), mask

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `LogitsProcessor.__call__`; the scores are log-probabilities."""
        weights, mask = self._attended
        rows = len(input_ids)
        last = self._last
        if last is None or last.sequences.shape[1] + 1 != input_ids.shape[1]:  # a new search
            log_likelihood, coverage = scores.new_zeros(rows), torch.zeros_like(weights)
            self._prompt = input_ids.shape[1]
        else:
            beams = rows // len(mask)
            before, now = (ids.unflatten(0, (-1, beams)) for ids in (last.sequences, input_ids[:, :-1]))
            # The hypothesis of the same sentence that each one continues, (sentences, beams).
            parents = (now[:, :, None] == before[:, None]).all(dim=-1).float().argmax(dim=-1)
            parents = (parents + beams * torch.arange(len(mask), device=parents.device)[:, None]).flatten()
            log_likelihood = last.log_likelihood[parents] + last.scores[parents, input_ids[:, -1]]
            coverage = last.coverage[parents]
        coverage = coverage + weights
        # Where the search itself will divide by words^length.
        words = input_ids.shape[1] + 1 - self._prompt
        divisor = words**self.length
        covered = torch.where(mask.repeat_interleave(rows // len(mask), dim=0), coverage, 1.0)
        penalty = self.coverage * covered.clamp(LEAST_COVERAGE, 1.0).log().sum(dim=1)
        scores = scores.clone()
        total = log_likelihood[:, None] + scores[:, self.ends]
        wanted = total / ((5 + words) / 6) ** self.length + penalty[:, None]
        scores[:, self.ends] += divisor * wanted - total
        self._last = _Step(input_ids, log_likelihood, coverage, scores)
        return scores


@contextmanager
def beam_penalties(
    model: AttentionSeq2SeqForConditionalGeneration, length: float = 0.6, coverage: float = 0.2
) -> Iterator[dict]:
    """
    Arguments of `generate` for beam search with the penalties of Wu 2016:

        with beam_penalties(model, length=0.6, coverage=0.2) as penalties:
            model.generate(**batch, num_beams=5, **penalties)

    `sequences_scores` are then those of the paper's equation 14 for hypotheses that ended by themselves.

    Args:
        model: a model with attention, whose decoder is listened to as long as the context lasts.
        length: exponent of the length penalty, alpha in the paper.
        coverage: weight of the coverage penalty, beta in the paper.

    Raises:
        ValueError: a negative number, or a model without attention.
    """
    if model.config.attention_type == "none":
        raise ValueError("attention_type='none' has no attention, which the coverage penalty needs.")
    ends = model.generation_config.eos_token_id
    processor = BeamPenalties(length, coverage, ends if isinstance(ends, list) else [ends])

    def ask_for_weights(decoder, args, kwargs):
        return args, {**kwargs, "with_weights": True}

    def listen(decoder, args, kwargs, output):
        mask = args[1].source_mask
        processor.attend(output.weights, mask)

    decoder = model.get_decoder()
    hooks = [
        decoder.register_forward_pre_hook(ask_for_weights, with_kwargs=True),
        decoder.register_forward_hook(listen, with_kwargs=True),
    ]
    try:
        yield {"logits_processor": [processor], "length_penalty": length}
    finally:
        for hook in hooks:
            hook.remove()


__all__ = ["beam_penalties"]
