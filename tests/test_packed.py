"""Products with packed matrices, in search and in training, against the usual ones."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hf_attention_seq2seq import packed
from hf_attention_seq2seq.packed import PackedMatrix, pack, packed_matrices, packed_once, packs_matrices

from .helpers import tiny_model

pytestmark = pytest.mark.skipif(pack(torch.ones(1 << 10, 1 << 9), 2) is None, reason="torch has no oneDNN here")
INPUTS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 0], [4, 3, 0, 0]])


@pytest.fixture
def products(monkeypatch):
    """Packs the smallest matrices too, and counts the products with them."""
    monkeypatch.setattr(packed, "LEAST_ELEMENTS", 1)
    calls = []
    before = PackedMatrix.__call__
    monkeypatch.setattr(PackedMatrix, "__call__", lambda *args: calls.append(1) or before(*args))
    return calls


def fed_model(dtype: torch.dtype = torch.float32, **options):
    """A model with products in every step."""
    fields = {"attention_type": "general", "input_feeding": True, "decoder_layers": 2, "initializer_range": 0.3}
    return tiny_model(dtype, **{**fields, **options})


@pytest.mark.parametrize("shape", [(4, 7), (2, 3, 7), (1, 7)])
def test_products_are_those_of_torch(shape):
    torch.manual_seed(0)
    inputs, matrix, bias = torch.randn(shape), torch.randn(5, 7), torch.randn(5)
    product = PackedMatrix(matrix, 4)
    torch.testing.assert_close(product(inputs, bias), F.linear(inputs, matrix, bias))
    torch.testing.assert_close(product(inputs), F.linear(inputs, matrix))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("rnn", ["lstm", "gru", "rnn"])
def test_search_finds_the_same(beams, rnn, products):
    model = fed_model(rnn_type=rnn)
    options = {"num_beams": beams, "max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
    model.use_library_search = True
    expected = model.generate(INPUTS, **options)
    assert not products
    model.use_library_search = False
    found = model.generate(INPUTS, **options)
    assert len(products) > 8
    assert found.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(found.scores, expected.scores)


def test_search_sees_changes_of_the_weights(products):
    model = fed_model()
    model.generate(INPUTS, max_new_tokens=4)
    model.lm_head.weight.data.zero_()
    model.lm_head.bias.data[7] = 1.0
    assert (model.generate(INPUTS, max_new_tokens=4)[:, 1:] == 7).all()


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


def test_what_is_not_packed():
    large = torch.randn(1 << 10, 1 << 9)
    assert pack(large[:8], 3) is pack(large.double(), 3) is pack(large, 1) is None
    with torch.backends.mkldnn.flags(enabled=False):
        assert pack(large, 3) is None
    assert packed_once(large, 3) is None  # not outside of a search
    with packed_matrices():
        assert not packs_matrices()  # nor where gradients are taken
    with torch.no_grad(), torch.autocast("cpu"), packed_matrices():
        assert not packs_matrices()
    with torch.no_grad(), packed_matrices():
        assert packed_once(large, 3) is packed_once(large, 3) is not None
        assert packed_once(large, 1) is None
        with torch.enable_grad():
            assert packed_once(large, 3) is None
    assert not packs_matrices()
