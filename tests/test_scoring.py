"""Score functions against their equations, and their gradients against finite differences."""

import math

import pytest
import torch

from hf_attention_seq2seq import Score, register_score
from hf_attention_seq2seq.attention import Attention, restore_weights
from hf_attention_seq2seq.configuration_attention_seq2seq import ATTENTION_TYPES
from hf_attention_seq2seq.layout import PaddingLayout
from hf_attention_seq2seq.scoring import SCORES, DotScore

from .helpers import SCORED, concatenated, source_batch, tiny_config, tiny_model


def attention(**fields):
    torch.manual_seed(0)
    module = Attention(tiny_config(**fields)).double()
    for parameter in module.parameters():
        parameter.data.uniform_(-0.7, 0.7)
    return module


def attend(module, states, prepared):
    attended = module(states, prepared, torch.arange(states.shape[1]).expand(states.shape[:2]))
    return attended.contexts, attended.weights


def equation(module, name, query, key, position):
    """The score of one query `(8,)` and one key `(8,)`, by hand."""
    score = module.score
    if name == "dot":
        return query @ key
    if name == "scaled_dot":
        return query @ key / math.sqrt(8)
    if name == "general":
        return query @ score.key_projection.weight @ key
    if name == "cosine":
        return score.strength.item() * (query @ key) / (query.norm() * key.norm())
    if name == "location":
        return score.positions.weight[position] @ query
    if name == "concat":
        return score.energy[0] @ torch.tanh(concatenated(score) @ torch.cat((query, key)))
    bias = score.key_projection.bias if name == "mlp" else 0.0
    hidden = score.query_projection.weight @ query + score.key_projection.weight @ key + bias
    return score.energy[0] @ torch.tanh(hidden)


@pytest.mark.parametrize("name", SCORED)
@torch.no_grad()
def test_weights_and_contexts_follow_the_equation(name):
    module = attention(attention_type=name)
    _, mask = source_batch()
    states, memory = torch.randn(4, 3, 8).double(), torch.randn(4, 7, 8).double()
    contexts, weights = attend(module, states, module.prepare(memory, PaddingLayout.from_mask(mask), None))
    assert weights.shape == (4, 1, 3, 7)
    for row, query in ((0, 0), (1, 2), (2, 1), (3, 0)):
        length = int(mask[row].sum())
        scores = [equation(module, name, states[row, query], memory[row, j], j) for j in range(length)]
        expected = torch.softmax(torch.stack(scores), 0)
        torch.testing.assert_close(weights[row, 0, query, :length], expected)
        assert (weights[row, 0, query, length:] == 0).all()
        torch.testing.assert_close(contexts[row, query], expected @ memory[row, :length])


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", SCORED)
def test_gradients_agree_with_finite_differences(name, heads):
    module = attention(attention_type=name, attention_heads=heads, max_source_positions=7)
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    layout = PaddingLayout.from_mask(mask)
    parameters = list(module.parameters())

    def run(states, memory, *_):
        return attend(module, states, module.prepare(memory, layout, None))

    states = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (states, memory, *parameters))


@pytest.mark.parametrize("fields", [{}, {"attention_size": 4}, {"attention_size": 4, "attention_values": "projected"}])
@pytest.mark.parametrize("name", SCORED)
@torch.no_grad()
def test_each_head_attends_with_its_own_part(name, fields):
    """Two heads are two attentions side by side, each with its half of queries, keys, parameters and values."""
    if name == "location":
        fields = {key: value for key, value in fields.items() if key == "attention_values"}
    module = attention(attention_type=name, attention_heads=2, **fields)
    memory_states, mask = torch.randn(4, 7, 8).double(), source_batch()[1]
    prepared = module.prepare(memory_states, PaddingLayout.from_mask(mask), None)
    states = torch.randn(4, 3, 8).double()
    contexts, weights = attend(module, states, prepared)
    assert weights.shape == (4, 2, 3, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 2, 3).double())
    values = module.value_projection(memory_states)
    half = values.shape[-1] // 2
    for head in range(2):
        expected = weights[:, head] @ values[..., head * half : (head + 1) * half]
        torch.testing.assert_close(contexts[..., head * half : (head + 1) * half], expected)
    if name == "dot" and not fields:
        first = torch.softmax((states[..., :4] @ memory_states[..., :4].mT).masked_fill(mask[:, None] == 0, -1e9), -1)
        torch.testing.assert_close(weights[:, 0], first)


@pytest.mark.parametrize("name", SCORED)
@torch.no_grad()
def test_beams_share_the_memory_of_their_sentence(name):
    module = attention(attention_type=name)
    memory, mask = torch.randn(4, 7, 8).double(), source_batch()[1]
    states = torch.randn(12, 2, 8).double()
    shared = attend(module, states, module.prepare(memory, PaddingLayout.from_mask(mask), None))
    repeated_layout = PaddingLayout.from_mask(mask.repeat_interleave(3, 0))
    repeated = attend(module, states, module.prepare(memory.repeat_interleave(3, 0), repeated_layout, None))
    for mine, theirs in zip(shared, repeated):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", SCORED)
@torch.no_grad()
def test_weights_come_back_to_the_places_of_the_tokens(name):
    module = attention(attention_type=name)
    memory = torch.randn(2, 5, 8).double()
    states = torch.randn(2, 3, 8).double()
    right = module.prepare(memory, PaddingLayout.from_mask(torch.tensor([[1, 1, 1, 0, 0]] * 2)), None)
    moved = torch.zeros_like(memory)
    moved[:, [1, 2, 4]] = memory[:, :3]
    holes = module.prepare(moved, PaddingLayout.from_mask(torch.tensor([[0, 1, 1, 0, 1]] * 2)), None)
    (context, weights), (moved_context, moved_weights) = attend(module, states, right), attend(module, states, holes)
    torch.testing.assert_close(context, moved_context)
    restored = restore_weights(moved_weights, holes)
    torch.testing.assert_close(restored[..., [1, 2, 4]], weights[..., :3])
    assert (restored[..., [0, 3]] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", SCORED)
def test_half_precision_is_finite(name, dtype):
    module = attention(attention_type=name).to(dtype)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    memory = torch.zeros(2, 3, 8, dtype=dtype, requires_grad=True)
    states = torch.randn(2, 1, 8).to(dtype).requires_grad_()
    contexts, weights = attend(module, states, module.prepare(memory, PaddingLayout.from_mask(mask), None))
    (contexts.sum() + weights.square().sum()).backward()
    for tensor in (contexts, weights, states.grad, memory.grad):
        assert tensor.isfinite().all()
    assert (weights[1] == 0).all()


def test_location_gives_nothing_to_positions_it_does_not_know():
    module = attention(attention_type="location", max_source_positions=3)
    prepared = module.prepare(torch.randn(2, 5, 8).double(), PaddingLayout.from_mask(torch.ones(2, 5)), None)
    weights = attend(module, torch.randn(2, 2, 8).double(), prepared)[1]
    torch.testing.assert_close(weights[..., :3].sum(-1), torch.ones(2, 1, 2).double())
    assert (weights[..., 3:] == 0).all()


@pytest.fixture
def forgets_scores():
    yield
    for name in set(SCORES) - set(SCORED):
        del SCORES[name]
        ATTENTION_TYPES.remove(name)


def test_a_score_of_a_wrong_shape_is_refused(forgets_scores):
    @register_score("constant")
    class ConstantScore(Score):
        def score(self, queries, keys):
            return queries[..., :1]

    input_ids, mask = source_batch()
    with pytest.raises(ValueError, match=r"ConstantScore.score gives the shape .* must be \(4, 1, 2, 7\)"):
        tiny_model(attention_type="constant")(input_ids, mask, decoder_input_ids=torch.full((4, 2), 3))


def test_a_score_without_a_score_is_refused(forgets_scores):
    @register_score("nothing")
    class Nothing(Score):
        pass

    with pytest.raises(NotImplementedError, match="Nothing must define score"):
        tiny_model(attention_type="nothing")(torch.tensor([[3]]), decoder_input_ids=torch.tensor([[3]]))


def test_a_score_that_is_not_registered_is_refused_with_advice():
    with pytest.raises(ValueError, match="a score of your own must be registered first"):
        tiny_config(attention_type="elsewhere")


def test_ones_own_score_function(forgets_scores, tmp_path):
    @register_score("negative_distance")
    class NegativeDistanceScore(Score):
        def __init__(self, config):
            super().__init__(config)
            self.sharpness = torch.nn.Parameter(torch.full((1,), 2.5))

        def score(self, queries, keys):
            return -self.sharpness * torch.cdist(queries, keys)

    model = tiny_model(attention_type="negative_distance", input_feeding=True)
    input_ids, mask = source_batch()
    assert model.generate(input_ids, attention_mask=mask, num_beams=2, max_new_tokens=3).shape[0] == 4
    with pytest.raises(ValueError, match="'negative_distance' is already taken by NegativeDistanceScore"):
        register_score("negative_distance")(DotScore)
    assert model.get_decoder().attention.score.sharpness.item() == 2.5  # what the constructor gave it
    model.get_decoder().attention.score.sharpness.data.fill_(1.5)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.get_decoder().attention.score.sharpness.item() == 1.5
