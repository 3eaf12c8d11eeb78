"""Local attention against section 3.2 of Luong 2015, written out for each sentence, and what it must never touch."""

import math
import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_attention_seq2seq.layout import PaddingLayout

from .attention_helpers import MASK, assert_right_gradients, attention, naive_score, random_memory, run, sentences
from .helpers import SCORED, cache_of, source_batch, target_batch, tiny_model

LOCAL = ("local_m", "local_p")
every_span = pytest.mark.parametrize("span", LOCAL)
every_score = pytest.mark.parametrize("name", SCORED)


def center_and_factor(module, span, query, step, length):
    """The window's center, and what the weight at position `s` is multiplied by."""
    if span == "local_m":
        return min(step, length - 1), lambda s: 1.0
    wanted = module.span.center.weight[0] @ torch.tanh(module.span.hidden.weight @ query)
    center = length * torch.sigmoid(wanted).item()  # eq. 9
    sigma = module.span.half_width / 2
    return center, lambda s: math.exp(-((s - center) ** 2) / (2 * sigma**2))  # eq. 10


def naive_weights(module, name, span, query, step, keys, head):
    """`(length,)`; positions count from 0."""
    length = keys.shape[0]
    center, factor = center_and_factor(module, span, query, step, length)
    window = [s for s in range(length) if abs(s - center) <= module.span.half_width]
    scores = {s: naive_score(module, name, query, keys[s], s, head) for s in window}
    total = sum(math.exp(score) for score in scores.values())
    weights = [math.exp(scores[s]) / total * factor(s) if s in scores else 0.0 for s in range(length)]
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("heads", [1, 2])
@every_span
@every_score
@torch.no_grad()
def test_each_sentence_follows_the_equations(name, span, heads):
    module = attention(attention_type=name, attention_span=span, attention_window=2, attention_heads=heads)
    memory, states = random_memory(), 2 * torch.randn(4, 11, 8).double()  # more steps than tokens
    found = run(module, states, memory)
    size = 8 // heads
    for row, places, keys in sentences(memory):
        for step in range(11):
            for head in range(heads):
                expected = naive_weights(module, name, span, states[row, step], step, keys, head)
                part = slice(head * size, (head + 1) * size)
                torch.testing.assert_close(found.weights[row, head, step, places], expected, rtol=1e-9, atol=1e-12)
                torch.testing.assert_close(found.contexts[row, step, part], expected @ keys[:, part])
            outside = found.weights[row, :, step, MASK[row] == 0]
            assert (outside == 0).all()


@torch.no_grad()
def test_predicted_centers_lie_everywhere_in_the_sentence():
    """The test above would say little if all windows were alike."""
    module = attention(attention_span="local_p", attention_window=2)
    module.span.center.weight.data *= 4
    states = 2 * torch.randn(1, 200, 8).double()
    positions = module.span(states, torch.zeros(1, 200).long(), torch.tensor([9]))
    inside = [set(positions.positions[0, query][positions.inside[0, query]].tolist()) for query in range(200)]
    assert set().union(*inside) == set(range(9))
    assert {len(window) for window in inside} >= {2, 3, 4}  # cropped at both ends, and whole


@every_span
@every_score
@torch.no_grad()
def test_all_steps_at_once_equal_one_after_the_other(name, span):
    module = attention(attention_type=name, attention_span=span, attention_window=1, attention_heads=2)
    memory, states = random_memory(), torch.randn(4, 5, 8).double()
    stepwise = run(module, states, memory)
    prepared = module.prepare(memory, PaddingLayout.from_mask(MASK), None)
    attended = module(states, prepared, torch.arange(5).expand(4, 5))
    torch.testing.assert_close(attended.contexts, stepwise.contexts)
    unasked = module(states, prepared, torch.arange(5).expand(4, 5), with_weights=False)
    assert unasked.weights is None
    assert torch.equal(unasked.contexts, attended.contexts)


@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", "entmax15"])
@pytest.mark.parametrize("heads", [1, 2])
@every_span
@every_score
@torch.no_grad()
def test_a_window_over_the_whole_sentence_is_global(name, span, heads, normalizer):
    fields = {"attention_type": name, "attention_heads": heads, "attention_normalizer": normalizer}
    local = attention(**fields, attention_span=span, attention_window=9)
    whole = attention(**fields)
    whole.load_state_dict({key: value for key, value in local.state_dict().items() if not key.startswith("span.")})
    memory, states = random_memory(), torch.randn(4, 11, 8).double()
    found, expected = run(local, states, memory), run(whole, states, memory)
    weights = expected.weights
    for row, places, _ in sentences(memory):
        for step in range(11):
            _, factor = center_and_factor(local, span, states[row, step], step, len(places))
            for s, place in enumerate(places):
                weights[row, :, step, place] *= factor(s)
    torch.testing.assert_close(found.weights, weights, atol=1e-6, rtol=0)
    values = memory.unflatten(-1, (heads, -1)).transpose(1, 2)
    contexts = (weights @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found.contexts, contexts, atol=1e-6, rtol=0)


@pytest.mark.parametrize("feeding", [False, True])
@torch.no_grad()
def test_a_model_with_a_wide_window_is_the_global_model(feeding):
    local = tiny_model(attention_span="local_m", attention_window=7, input_feeding=feeding)
    whole = tiny_model(input_feeding=feeding)
    whole.load_state_dict(local.state_dict())
    input_ids, mask = source_batch()
    found, expected = (
        model(input_ids, mask, labels=target_batch(), output_attentions=True) for model in (local, whole)
    )
    torch.testing.assert_close(found.logits, expected.logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.cross_attentions[0], expected.cross_attentions[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("heads", [1, 2])
@every_span
@every_score
def test_nothing_outside_the_window_matters(name, span, heads):
    """Neither forward, whatever stands there, nor backward, where it gets exactly no gradient."""
    module = attention(
        attention_type=name,
        attention_span=span,
        attention_window=1,
        attention_heads=heads,
        attention_values="projected",
    )
    memory, states = random_memory().requires_grad_(), torch.randn(4, 1, 8).double()
    found = run(module, states, memory, first=2)
    found.contexts.square().sum().backward()
    outside = torch.ones(4, 9, dtype=torch.bool)
    for row, places, _ in sentences(memory):
        center, _ = center_and_factor(module, span, states[row, 0], 2, len(places))
        inside = [int(place) for s, place in enumerate(places) if abs(s - center) <= 1]
        assert 0 < len(inside) <= 3
        outside[row, inside] = False
    assert (memory.grad[outside] == 0).all()
    assert (memory.grad[~outside] != 0).any()
    with torch.no_grad():
        other = run(module, states, memory.masked_fill(outside.unsqueeze(-1), 1e6), first=2)
        assert torch.equal(found.contexts, other.contexts)
        assert torch.equal(found.weights, other.weights)
        assert (found.weights.transpose(1, 3)[outside] == 0).all()


@every_span
@every_score
def test_gradients_agree_with_finite_differences(name, span):
    module = attention(
        attention_type=name,
        attention_span=span,
        attention_window=2,
        attention_heads=2,
        max_source_positions=4,
    )
    assert_right_gradients(module)


@pytest.mark.parametrize("heads", [1, 2])
@every_span
@torch.no_grad()
def test_unknown_positions_of_the_location_score_get_nothing(span, heads):
    """Positions from `max_source_positions` on get no attention, even where the window holds no others."""
    module = attention(
        attention_type="location",
        attention_span=span,
        attention_window=1,
        attention_heads=heads,
        max_source_positions=3,
    )
    memory, states = random_memory(1), torch.randn(1, 9, 8).double()
    found = run(module, states, memory, MASK[:1])
    assert (found.weights[..., 3:] == 0).all()
    if span == "local_m":
        sums = torch.tensor([1.0] * 4 + [0.0] * 5).double()  # the window of step 4 begins at position 3
        torch.testing.assert_close(found.weights.sum(-1), sums.expand(1, heads, 9))
        assert (found.contexts[:, 4:] == 0).all()


class Allocations(TorchDispatchMode):
    """Every operation with the shapes of what it computes; views of its arguments are free."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        new = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        shapes = [tuple(leaf.shape) for leaf in new if leaf.untyped_storage().data_ptr() not in known]
        if shapes:
            self.shapes.append((str(func), shapes))
        return output


def decoding(model, source, rows=3):
    """A function that decodes one more token each time it is called."""
    input_ids = torch.randint(3, 17, (rows, source), generator=torch.Generator().manual_seed(0))
    encoded = model.get_encoder()(input_ids)
    cache = None

    def step():
        nonlocal cache
        output = model(
            encoder_outputs=encoded,
            decoder_input_ids=torch.full((rows, 1), 5),
            past_key_values=cache,
            use_cache=True,
        )
        cache = cache_of(output)

    for _ in range(12):  # past the sentence's beginning, where the window is cropped
        step()
    return step


@torch.no_grad()
def computed_in_a_step(source, **fields):
    step = decoding(tiny_model(attention_window=2, **fields), source)
    with Allocations() as allocations:
        step()
    return allocations.shapes


@pytest.mark.parametrize("heads", [1, 2])
@every_span
@every_score
def test_a_step_computes_nothing_of_the_size_of_the_source(name, span, heads):
    fields = {"attention_type": name, "attention_span": span, "attention_heads": heads, "input_feeding": True}
    short = computed_in_a_step(40, **fields)
    assert len(short) > 20
    assert short == computed_in_a_step(400, **fields)


def test_a_global_step_does():
    assert computed_in_a_step(40) != computed_in_a_step(400)


def step_cost_ratio(enough, **fields):
    """
    Time of a step at 4,000 source tokens over that at 200, batch 8: the best of many repeats, in turns, so that a busy
    machine slows both down; no more repeats once the ratio is `enough`.
    """
    model = tiny_model(hidden_size=512, embedding_size=512, attention_window=10, **fields)
    steps = [decoding(model, source, rows=8) for source in (200, 4000)]
    best = [math.inf, math.inf]
    for repeat in range(400):
        for index, step in enumerate(steps):
            start = time.perf_counter()
            step()
            best[index] = min(best[index], time.perf_counter() - start)
        if repeat >= 20 and best[1] / best[0] <= enough:
            break
    return best[1] / best[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dot", "general", "additive", "location"])
@every_span
@torch.no_grad()
def test_the_cost_of_a_step_does_not_grow_with_the_source(name, span):
    assert step_cost_ratio(1.3, attention_type=name, attention_span=span) <= 1.3


@pytest.mark.slow
@torch.no_grad()
def test_the_cost_of_a_global_step_does():
    assert step_cost_ratio(1.3, attention_type="general") > 1.3
