"""Gradients that the steps of a loop share, against autograd's own; and decoding without padding."""

import contextlib
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hf_attention_seq2seq import decoders, ragged, step_products
from hf_attention_seq2seq.step_products import (
    shared_gradients,
    step_linear,
    step_lstm_cell,
    step_product,
    step_projection,
)

from .helpers import SCORED, tiny_model


def batch(rows: int = 5, longest: int = 7):
    """Sources and labels of many lengths; the last row has no label, and there is a hole in the first."""
    torch.manual_seed(1)
    source = torch.randint(4, 17, (rows, 6))
    mask = torch.arange(6) < torch.randint(1, 7, (rows, 1))
    labels = torch.randint(4, 13, (rows, longest))
    labels[torch.arange(longest) >= torch.randint(1, longest + 1, (rows, 1))] = -100
    labels[0, :] = 5
    labels[0, 2] = labels[-1, :] = -100
    return {"input_ids": source, "attention_mask": mask.long(), "labels": labels}


def gradients(model, seed: int = 0, **inputs):
    torch.manual_seed(seed)
    loss = model(**inputs).loss
    model.zero_grad()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"loss": loss.detach(), **{name: gradient.clone() for name, gradient in found.items()}}


@contextlib.contextmanager
def plain_autograd():
    with pytest.MonkeyPatch.context() as patch:
        for module in (decoders, ragged):
            patch.setattr(module, "shared_gradients", lambda device: contextlib.nullcontext())
        yield


@pytest.fixture
def products(monkeypatch):
    """Counts the products that shared their gradients, so that no test compares a thing with itself."""
    calls = []
    for function in (step_products._Product, step_products._LSTMCell):
        before = function.apply
        monkeypatch.setattr(function, "apply", lambda *args, before=before: calls.append(1) or before(*args))
    return calls


@pytest.mark.parametrize("query", ["previous_state", "current_state"])
@pytest.mark.parametrize("rnn", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize(
    "options",
    [
        *({"attention_type": name, "input_feeding": True} for name in SCORED),
        {"attention_type": "general", "input_feeding": True, "attention_heads": 2, "context_gate": True},
        {"attention_type": "additive", "coverage_type": "accumulated", "coverage_loss_weight": 0.5},
        {"attention_type": "general", "input_feeding": True, "attention_span": "local_p"},
        {"attention_type": "additive", "input_feeding": True, "decoder_layers": 2, "residual": True, "dropout": 0.3},
        {"attention_type": "dot", "input_feeding": True, "readout_type": "maxout", "output_dropout": 0.3},
        {"attention_type": "none", "input_feeding": True, "readout_type": "deep"},
    ],
    ids=str,
)
def test_gradients_are_those_of_autograd(options, rnn, query, products):
    model = tiny_model(torch.float64, attention_query=query, rnn_type=rnn, **options).train()
    inputs = batch()
    found = gradients(model, **inputs)
    assert products
    with plain_autograd():
        expected = gradients(model, **inputs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def fed_model(dtype=torch.float64, **options):
    return tiny_model(dtype, input_feeding=True, **{"attention_type": "general", **options}).train()


def test_with_a_decoder_mask():
    model, inputs = fed_model(), batch()
    inputs["decoder_attention_mask"] = torch.tensor([[1, 1, 0, 1, 1, 0, 0]] * 5)
    found = gradients(model, **inputs)
    with plain_autograd():
        torch.testing.assert_close(found, gradients(model, **inputs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "frozen", ["weight_ih", "weight_hh", "bias_ih", "readout", "decoder", "key_projection", "encoder"]
)
def test_frozen_parameters_get_no_gradient(frozen):
    model, inputs = fed_model(), batch()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    found = gradients(model, **inputs)
    assert not any(frozen in name for name in found)
    with plain_autograd():
        torch.testing.assert_close(found, gradients(model, **inputs), rtol=1e-9, atol=1e-12)


def test_a_second_backward_pass_through_the_same_graph():
    model, inputs = fed_model(), batch()
    once = gradients(model, **inputs)
    loss = model(**inputs).loss
    model.zero_grad()
    loss.backward(retain_graph=True)
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * once[name])


def test_a_pass_that_does_not_reach_the_matrices_leaves_nothing_behind():
    model, inputs = fed_model(), batch()
    expected = gradients(model, **inputs)
    loss = model(**inputs).loss
    model.zero_grad()
    torch.autograd.grad(loss, model.model.encoder.embed_tokens.weight, retain_graph=True)
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_the_graph_is_freed_without_the_garbage_collector():
    model, inputs = fed_model(), batch()

    def number() -> int:
        return sum(isinstance(thing, step_products._Shared) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    before = number()
    try:
        for backward in (False, True):
            loss = model(**inputs).loss
            if backward:
                loss.backward()
            del loss
            assert number() == before
    finally:
        gc.enable()


def test_changed_modules_are_called(products):
    model, inputs = fed_model(), batch()
    decoder, calls = model.model.decoder, []
    decoder.readout.projection.register_forward_hook(lambda module, given, output: calls.append(1) or 2 * output)
    nn.utils.parametrizations.weight_norm(decoder.attention.score.key_projection)
    found = gradients(model, **inputs)
    assert len(calls) == inputs["labels"].shape[1]
    with plain_autograd():
        torch.testing.assert_close(found, gradients(model, **inputs), rtol=1e-9, atol=1e-12)


def test_gradient_hooks_see_the_sum_once():
    model, inputs = fed_model(), batch()
    seen = []
    model.model.decoder.layers[0].rnn.weight_hh_l0.register_hook(seen.append)
    expected = gradients(model, **inputs)["model.decoder.layers.0.rnn.weight_hh_l0"]
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], expected)


def test_in_place_changes_between_the_passes_are_noticed():
    model, inputs = fed_model(), batch()
    loss = model(**inputs).loss
    with torch.no_grad():
        model.model.decoder.layers[0].rnn.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_under_autocast_autograd_does_it(products):
    model, inputs = fed_model(torch.float32), batch()
    full = gradients(model, **inputs)
    assert products
    products.clear()
    with torch.autocast("cpu", torch.bfloat16):
        half = gradients(model, **inputs)
    assert not products
    torch.testing.assert_close(half["loss"].float(), full["loss"], rtol=2e-2, atol=2e-2)


def test_without_gradients_nothing_is_shared(products):
    with torch.no_grad():
        fed_model()(**batch())
    assert not products


def test_gradients_agree_with_finite_differences():
    torch.manual_seed(0)
    names = {
        "x": (3, 5),
        "h": (3, 4),
        "c": (3, 4),
        "w": (16, 5),
        "u": (16, 4),
        "b": (16,),
        "d": (16,),
        "m": (3, 2, 6, 2),
    }
    tensors = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in names.values()]

    def steps(x, h, c, w, u, b, d, m):
        with shared_gradients(torch.zeros(1)):
            for _ in range(2):
                h, c = step_lstm_cell(x, (h, c), w, u, b, d)
                query = h.reshape(3, 2, 1, 2)
                weights = step_product(query, m, transposed=True)
                h = h + step_product(weights, m).reshape(3, 4)
            return step_linear(h, u, b), step_linear(h, u), c

    assert torch.autograd.gradcheck(steps, tensors)


def test_the_functions_are_those_of_torch_inside_and_outside():
    torch.manual_seed(0)
    linear = nn.Linear(4, 8).double()
    inputs, memory = torch.randn(2, 3, 4).double(), torch.randn(2, 1, 4, 5).double().requires_grad_()
    for context in (contextlib.nullcontext(), shared_gradients(torch.zeros(1))):
        with context:
            torch.testing.assert_close(step_projection(linear, inputs), linear(inputs))
            torch.testing.assert_close(step_linear(inputs, linear.weight), F.linear(inputs, linear.weight))
            torch.testing.assert_close(step_product(inputs.unsqueeze(1), memory), inputs.unsqueeze(1) @ memory)


@pytest.mark.parametrize("rows", [1, 5, 20])
@pytest.mark.parametrize(
    "options",
    [
        {"attention_type": "general", "input_feeding": True},
        {"attention_type": "additive", "attention_query": "previous_state", "readout_type": "maxout"},
        {"attention_type": "general"},
        {"attention_type": "none", "rnn_type": "gru"},
        {"attention_type": "additive", "coverage_type": "accumulated", "coverage_loss_weight": 0.5},
        {"attention_type": "dot", "attention_span": "local_m", "doubly_stochastic_weight": 0.5},
    ],
    ids=str,
)
def test_decoding_no_padding_changes_no_loss(options, rows, monkeypatch):
    monkeypatch.setattr(ragged, "WORTHWHILE_AT_ONCE", 0.0)
    model, inputs = tiny_model(torch.float64, **options).train(), batch(rows, longest=12)
    sizes = []
    model.model.decoder.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    found = gradients(model, **inputs, output_logits=False)
    assert sizes[0] <= rows and sizes == sorted(sizes, reverse=True) and (rows < 20 or sizes[-1] < rows)
    expected = gradients(model, **inputs)
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-6, atol=1e-8)  # one loss is taken in fp32


def test_readouts_of_the_counted_tokens_are_the_decoders():
    model, inputs = fed_model().eval(), batch(20, longest=12)
    labels = inputs.pop("labels")
    inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels)
    lengths = torch.randint(0, 13, (20,))
    found = model.model(**inputs, decoder_lengths=lengths, use_cache=True).last_hidden_state
    expected = model.model(**inputs).last_hidden_state
    counted = torch.arange(12) < lengths[:, None]
    torch.testing.assert_close(found[counted], expected[counted])
