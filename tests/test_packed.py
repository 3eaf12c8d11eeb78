"""Faster products with large matrices, in search and in training, against the usual ones."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hf_attention_seq2seq import packed
from hf_attention_seq2seq.packed import (
    PackedMatrix,
    faster_products,
    has_faster_products,
    pack,
    search_product,
    single_row_product,
)

from .helpers import tiny_model

pytestmark = pytest.mark.skipif(pack(torch.ones(1 << 10, 1 << 9), 2) is None, reason="torch has no oneDNN here")
INPUTS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0], [4, 3, 0, 0]])


@pytest.fixture
def products(monkeypatch):
    """Packs the smallest matrices too, and counts the products with them."""
    monkeypatch.setattr(packed, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(packed, "LEAST_INPUTS", 1)
    calls = []

    def count(function):
        return lambda *args, **options: calls.append(1) or function(*args, **options)

    monkeypatch.setattr(PackedMatrix, "__call__", count(PackedMatrix.__call__))
    monkeypatch.setattr(packed, "single_row_product", count(single_row_product))
    return calls


def fed_model(dtype: torch.dtype = torch.float32, **options):
    """A model with products in every step."""
    fields = {"attention_type": "general", "input_feeding": True, "decoder_layers": 2, "initializer_range": 0.3}
    return tiny_model(dtype, **{**fields, **options})


@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 7), (1, 7)])
def test_products_are_those_of_torch(shape):
    torch.manual_seed(0)
    inputs, matrix, bias = torch.randn(shape), torch.randn(5, 7), torch.randn(5)
    product = PackedMatrix(matrix)
    torch.testing.assert_close(product(inputs, bias), F.linear(inputs, matrix, bias))
    torch.testing.assert_close(product(inputs), F.linear(inputs, matrix))


@pytest.mark.parametrize("size", [(7,), (1, 7), (1, 1, 7)])
@pytest.mark.parametrize("inputs", [3, 512])
def test_single_rows_are_those_of_torch(size, inputs):
    torch.manual_seed(0)
    row, matrix, bias = torch.randn(*size[:-1], inputs), torch.randn(5, inputs), torch.randn(5)
    torch.testing.assert_close(single_row_product(row, bias, matrix=matrix), F.linear(row, matrix, bias))
    torch.testing.assert_close(single_row_product(row, matrix=matrix), F.linear(row, matrix))


@pytest.mark.parametrize("sentences", [1, 3])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rnn", ["lstm", "gru", "rnn"])
def test_search_finds_the_same(sentences, beams, rnn, products):
    model, inputs = fed_model(rnn_type=rnn), INPUTS[:sentences]
    options = {"num_beams": beams, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
    model.use_library_search = True
    expected = model.generate(inputs, **options)
    assert not products
    model.use_library_search = False
    found = model.generate(inputs, **options)
    assert len(products) > 5
    assert found.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(found.scores, expected.scores)


@pytest.mark.parametrize("sentences", [1, 3])
@pytest.mark.parametrize(
    "change",
    [lambda weight: weight.zero_(), lambda weight: weight.neg_(), lambda weight: weight.copy_(weight.flip(0))],
)
def test_search_sees_changes_of_the_weights(change, sentences, products):
    model, inputs = fed_model(), INPUTS[:sentences]
    options = {"num_beams": 3, "max_new_tokens": 4, "return_dict_in_generate": True, "output_scores": True}
    before = model.generate(inputs, **options)
    change(model.lm_head.weight.data)  # behind the back of autograd, as when an adapter is merged
    found = model.generate(inputs, **options)
    model.use_library_search = True
    assert not torch.allclose(before.scores[0], found.scores[0])
    torch.testing.assert_close(found.scores, model.generate(inputs, **options).scores)


def test_matrices_are_packed_once(products, monkeypatch):
    model, packed_so_far = fed_model(), []
    before = PackedMatrix.__init__
    monkeypatch.setattr(PackedMatrix, "__init__", lambda *args: packed_so_far.append(1) or before(*args))
    first = model.generate(INPUTS, num_beams=3, max_new_tokens=4)
    number = len(packed_so_far)
    assert number == sum(1 for _ in _kept_of(model)) > 3
    assert model.generate(INPUTS, num_beams=3, max_new_tokens=4).equal(first)
    assert len(packed_so_far) == number
    everything = len(packed._KEPT)
    del model
    gc.collect()
    assert len(packed._KEPT) == everything - number  # they go with the model


def test_what_was_packed_is_not_used_where_it_does_not_belong(products):
    model = fed_model()
    expected = model.generate(INPUTS, num_beams=3, max_new_tokens=4)
    for change in (model.double, model.float):
        change()
        del products[:]
        assert model.generate(INPUTS, num_beams=3, max_new_tokens=4).equal(expected)
        assert bool(products) == (model.dtype == torch.float)
    del products[:]
    with torch.backends.mkldnn.flags(enabled=False):
        assert model.generate(INPUTS, num_beams=3, max_new_tokens=4).equal(expected)
    assert not products


def _kept_of(model):
    return (parameter for parameter in model.parameters() if parameter in packed._KEPT)


def test_sampling_is_faster_too(products):
    fed_model().generate(INPUTS, do_sample=True, max_new_tokens=4)
    assert len(products) > 8


@pytest.mark.parametrize("rnn", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("attention", ["general", "additive"])
def test_training_has_the_same_gradients(rnn, attention, products):
    options = {"rnn_type": rnn, "attention_type": attention}
    found, exact = fed_model(**options).train(), fed_model(torch.float64, **options).train()
    exact.load_state_dict(found.state_dict())
    labels = torch.tensor([[5, 6, 7, 2], [8, 2, -100, -100], [9, 4, 2, -100]])
    for model in (found, exact):
        model(INPUTS, labels=labels).loss.backward()
    assert len(products) > 8
    for (name, parameter), other in zip(found.named_parameters(), exact.parameters()):
        torch.testing.assert_close(parameter.grad, other.grad.float(), msg=lambda text, name=name: f"{name}: {text}")


class Recorded(torch.Tensor):
    """Another class of weights, as quantization libraries have them."""


def test_what_is_not_packed():
    large = nn.Parameter(torch.randn(1 << 10, 1 << 9), requires_grad=False)
    one, three = torch.randn(1, 1 << 9), torch.randn(3, 1 << 9)
    assert pack(large[:8], 3) is pack(large.double(), 3) is pack(large, 1) is None
    assert pack(large.to_sparse_csr(), 3) is pack(large.as_subclass(Recorded), 3) is None
    with torch.backends.mkldnn.flags(enabled=False):
        assert pack(large, 3) is None
    assert search_product(three, large) is None  # not outside of a search
    with faster_products():
        assert not has_faster_products()  # nor where gradients are taken
        assert search_product(three, large) is None
    with torch.no_grad(), faster_products():
        assert search_product(three, large) is search_product(three[:2], large) is not None
        assert search_product(one, large).func is single_row_product
        others = [large[:8], large.double(), large.data, large.to_sparse_csr(), large.as_subclass(Recorded)]
        for inputs, other in [(inputs, other) for inputs in (one, three) for other in others]:
            assert search_product(inputs, other) is None
        assert search_product(one[:, :256], nn.Parameter(large.reshape(-1, 256))) is None
        assert search_product(three.double(), large) is search_product(one.bfloat16(), large) is None
        with torch.autocast("cpu"):
            assert search_product(three, large) is search_product(one, large) is None
    assert not has_faster_products()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rnn", ["lstm", "gru"])
def test_autocast_within_the_model(beams, rnn, products):
    """As `Accelerator.prepare` does in mixed precision."""
    model = fed_model(rnn_type=rnn)
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    found = [model.generate(INPUTS, num_beams=beams, max_new_tokens=4) for model.use_library_search in (True, False)]
    assert found[0].equal(found[1])
    assert not products


def test_weights_that_are_made_anew_are_not_kept(products, monkeypatch):
    model, seen = fed_model(decoder_layers=1), []
    nn.utils.parametrizations.weight_norm(model.get_decoder().layers[0].rnn, "weight_hh_l0")
    before = packed._packed_before
    monkeypatch.setattr(packed, "_packed_before", lambda matrix: seen.append(matrix) or before(matrix))
    model.generate(INPUTS, num_beams=3, max_new_tokens=8)
    parameters = set(map(id, model.parameters()))
    assert seen and {id(matrix) for matrix in seen} <= parameters


@pytest.mark.parametrize("size", [512, 4096, 10000])
def test_a_change_anywhere_is_seen(size):
    matrix = nn.Parameter(torch.randn(1 << 9, size), requires_grad=False)
    before = packed._probe(matrix)
    for column in (0, 3228 % size, size - 1):
        with torch.no_grad():
            matrix[3, column] += 1e-3
        assert not packed._probe(matrix).equal(before)
        before = packed._probe(matrix)
