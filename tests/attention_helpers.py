"""An attention by itself, run step by step, and the scores written out for one query and one key."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hf_attention_seq2seq.attention import Attention, restore_weights
from hf_attention_seq2seq.layout import PaddingLayout

from .helpers import concatenated, tiny_config

# Sentences of 9, 5, 1 and 6 tokens, with padding on the right, on the left and in between.
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 1],
        [0, 1, 1, 0, 0, 1, 1, 1, 1],
    ]
)


def attention(**fields) -> Attention:
    """In evaluation mode and double precision, every parameter random, biases too."""
    module = Attention(tiny_config(**fields)).double().eval()
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data.uniform_(-0.7, 0.7)
    return module


def random_memory(rows: int = 4, source: int = 9) -> torch.Tensor:
    return torch.randn(rows, source, 8, dtype=torch.float64)


@dataclass
class Run:
    """Contexts `(rows, steps, size)`, weights at the places of the padded input, coverage losses `(rows, steps)`."""

    contexts: torch.Tensor
    weights: torch.Tensor
    losses: torch.Tensor | None


def run(module: Attention, states: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor = MASK, first=0) -> Run:
    """Attends with `states` `(rows, steps, hidden_size)`, one step after the other; the first is step `first`."""
    rows = states.shape[0]
    prepared = module.prepare(memory, PaddingLayout.from_mask(mask), None)
    history = module.first_history(prepared, rows)
    attended = []
    for index in range(states.shape[1]):
        steps = torch.full((rows, 1), first + index)
        attended.append(module(states[:, index : index + 1], prepared, steps, history))
        history = attended[-1].history
    losses = None if attended[0].coverage_loss is None else torch.cat([step.coverage_loss for step in attended], 1)
    weights = restore_weights(torch.cat([step.weights for step in attended], 2), prepared)
    return Run(torch.cat([step.contexts for step in attended], 1), weights, losses)


def sentences(memory: torch.Tensor, mask: torch.Tensor = MASK):
    """Of each row its number, the places of its tokens and their encoder states."""
    for row in range(mask.shape[0]):
        places = mask[row].nonzero().flatten()
        yield row, places, memory[row, places]


def naive_score(module, name, query, key, position, head=0, features=None, score=None):
    """The score of one query `(8,)` and one key `(8,)` with coverage features `(number,)`, by hand."""
    score = module.score if score is None else score
    heads = module.heads
    size = 8 // heads
    part = slice(head * size, (head + 1) * size)
    if name in ("additive", "mlp", "concat"):
        if name == "concat":
            hidden = concatenated(score) @ torch.cat((query, key))
        else:
            hidden = score.query_projection.weight @ query + score.key_projection.weight @ key
        if name == "mlp":
            hidden = hidden + score.key_projection.bias
        if features is not None:
            hidden = hidden + score.feature_weights @ features
        return score.energy[head] @ torch.tanh(hidden[part])
    if name == "location":
        value = score.positions.weight[head * (score.positions.out_features // heads) + position] @ query
    elif name == "general":
        value = query[part] @ (score.key_projection.weight @ key)[part]
    else:
        value = query[part] @ key[part]
        if name == "scaled_dot":
            value = value / math.sqrt(size)
        elif name == "cosine":
            value = score.strength[head, 0, 0] * value / (query[part].norm() * key[part].norm())
    return value if features is None else value + score.feature_weights[head] @ features


def naive_energies(module, name, states, keys, score=None):
    """`(steps, length)` of one sentence."""
    return torch.tensor(
        [[naive_score(module, name, q, k, j, score=score).item() for j, k in enumerate(keys)] for q in states],
        dtype=torch.float64,
    )


def monotonic(chunk: int = 1, noise: float = 0.0, **fields) -> Attention:
    """As `attention`, with monotonic alignment."""
    return attention(attention_selection="monotonic", monotonic_chunk_size=chunk, monotonic_noise=noise, **fields)


def assert_right_gradients(module: Attention) -> None:
    """Finite differences of contexts and weights, with padding on either side and a row of nothing else."""
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    states = torch.randn(3, 3, 8, dtype=torch.float64, requires_grad=True)
    memory = random_memory(3, 4).requires_grad_()

    def outputs(states, memory, *_):
        found = run(module, states, memory, mask)
        return found.contexts, found.weights

    assert torch.autograd.gradcheck(outputs, (states, memory, *module.parameters()), fast_mode=True)
