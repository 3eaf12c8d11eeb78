"""Tiny models and batches that the tests share."""

from __future__ import annotations

import itertools
import random

import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq.compat import CACHE_NAME
from hf_attention_seq2seq.configuration_attention_seq2seq import (
    ATTENTION_NORMALIZERS,
    ATTENTION_QUERIES,
    ATTENTION_SPANS,
    ATTENTION_TYPES,
    ATTENTION_VALUES,
    COVERAGE_TYPES,
    HARD_ATTENTION_ESTIMATORS,
    HARD_ATTENTION_ORDERS,
    RNN_TYPES,
)

SIZES = {"vocab_size": 17, "decoder_vocab_size": 13, "embedding_size": 6, "hidden_size": 8}
MONOTONIC_CHOICES = ("attention_type", "attention_values", "attention_query", "input_feeding", "rnn_type")
SCORED = [name for name in ATTENTION_TYPES if name != "none"]


def tiny_config(**overrides) -> AttentionSeq2SeqConfig:
    return AttentionSeq2SeqConfig(**{**SIZES, **overrides})


def tiny_model(dtype: torch.dtype = torch.float32, seed: int = 0, **overrides):
    """A model in evaluation mode whose weights are large enough that its outputs differ between inputs."""
    torch.manual_seed(seed)
    config = tiny_config(**{"initializer_range": 0.5, **overrides})
    return AttentionSeq2SeqForConditionalGeneration(config).to(dtype).eval()


def attention_grid(**extra) -> list[dict]:
    """Every combination of score, query timing, input feeding and cell."""
    grid = itertools.product(ATTENTION_TYPES, ATTENTION_QUERIES, (False, True), RNN_TYPES)
    names = ("attention_type", "attention_query", "input_feeding", "rnn_type")
    return [{**dict(zip(names, values)), **extra} for values in grid]


def alignment_grid() -> list[dict]:
    """Every legal combination of the choices within attention, with timing, feeding and cell."""
    choices = {
        "attention_type": SCORED,
        "attention_span": ATTENTION_SPANS,
        "attention_normalizer": ATTENTION_NORMALIZERS,
        "attention_heads": (1, 4),
        "attention_values": ATTENTION_VALUES,
        "coverage_type": COVERAGE_TYPES,
        "attention_query": ATTENTION_QUERIES,
        "input_feeding": (False, True),
        "rnn_type": RNN_TYPES,
    }
    soft = [{**dict(zip(choices, values)), "attention_window": 2} for values in itertools.product(*choices.values())]
    choices = {name: choices[name] for name in choices if name in MONOTONIC_CHOICES} | {"monotonic_chunk_size": (1, 3)}
    monotonic = [
        {**dict(zip(choices, values)), "attention_selection": "monotonic", "monotonic_noise": 0.0}
        for values in itertools.product(*choices.values())
    ]
    choices = {
        "attention_type": SCORED,
        "attention_span": ATTENTION_SPANS,
        "attention_normalizer": ATTENTION_NORMALIZERS,
        "attention_query": ATTENTION_QUERIES,
        "input_feeding": (False, True),
        "hard_attention_estimator": HARD_ATTENTION_ESTIMATORS,
        "hard_attention_order": HARD_ATTENTION_ORDERS,
    }
    extra = {"attention_window": 2, "attention_selection": "hard"}
    hard = [{**dict(zip(choices, values)), **extra} for values in itertools.product(*choices.values())]
    return soft + monotonic + [case for case in hard if is_legal(case)]


def is_legal(case: dict) -> bool:
    """Whether there is such a model."""
    try:
        tiny_config(**case)
    except ValueError:
        return False
    return True


def pairwise(cases: list[dict]) -> list[dict]:
    """A few of the cases, in which each value of a choice meets each value of every other that it can meet."""

    def pairs(case):
        return set(itertools.combinations(case.items(), 2))

    missing = set().union(*map(pairs, cases))
    order = random.Random(0).sample(cases, len(cases))
    chosen = []
    while missing:
        best = max(order[: 400 + 10 * len(chosen)], key=lambda case: len(pairs(case) & missing))
        if not pairs(best) & missing:
            best = next(case for case in order if pairs(case) & missing)
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def name_of(case: dict) -> str:
    return "-".join(str(value) for value in case.values())


def source_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Four sentences of 7, 4, 1 and 5 tokens, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(3, SIZES["vocab_size"], (4, 7), generator=generator)
    mask = (torch.arange(7) < torch.tensor([7, 4, 1, 5])[:, None]).long()
    return input_ids * mask, mask


def target_batch(seed: int = 1) -> torch.Tensor:
    """Labels of 5, 3, 5 and 2 tokens, -100 behind."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, SIZES["decoder_vocab_size"], (4, 5), generator=generator)
    return labels.masked_fill(torch.arange(5) >= torch.tensor([5, 3, 5, 2])[:, None], -100)


def concatenated(score) -> torch.Tensor:
    """The matrix `W` of the concat score, `(size, hidden_size + memory_size)`."""
    return torch.cat((score.query_projection.weight, score.key_projection.weight), dim=1)


def cache_of(output):
    return output[CACHE_NAME]


def continue_reordered(model):
    """
    Two hypotheses a sentence, reordered, must go on as if each had been read from its beginning.

    Returns the history before the reordering, what the reordered cache gave, and what reading everything gave.
    """
    input_ids, mask = source_batch()
    prefixes = torch.randint(3, 13, (8, 4), generator=torch.Generator().manual_seed(0))
    order = torch.tensor([1, 1, 2, 3, 5, 4, 7, 7])
    cache = cache_of(model(input_ids, mask, decoder_input_ids=prefixes, use_cache=True))
    (history,) = cache.state.history
    cache.reorder_cache(order)
    words = torch.arange(3, 11)[:, None]
    encoded = model.get_encoder()(input_ids, attention_mask=mask)
    found = model(encoder_outputs=encoded, decoder_input_ids=words, past_key_values=cache, output_attentions=True)
    whole = torch.cat((prefixes[order], words), 1)
    expected = model(input_ids, mask, decoder_input_ids=whole, output_attentions=True)
    torch.testing.assert_close(found.logits, expected.logits[:, -1:])
    torch.testing.assert_close(found.cross_attentions[0], expected.cross_attentions[0][:, :, -1:])
    return history, found, expected
