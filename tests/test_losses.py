"""The loss that never holds all logits, against torch's own over all of them."""

import pytest
import torch
from torch.nn import functional as F
from transformers.utils import find_labels

from hf_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration, losses

from .helpers import source_batch, target_batch, tiny_model


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("items", [None, 60])
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_without_logits_the_loss_is_the_same(tied, smoothing, items, rows, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK", 13 * rows)
    model = tiny_model(torch.float64, tie_word_embeddings=tied, coverage_type="accumulated", coverage_loss_weight=0.5)
    input_ids, mask = source_batch()
    options = {"labels": target_batch(), "num_items_in_batch": items, "smoothing": smoothing}
    whole, parts = model(input_ids, mask, **options), model(input_ids, mask, **options, output_logits=False)
    assert parts.logits is None
    torch.testing.assert_close(parts.loss, whole.loss, check_dtype=False, rtol=1e-6, atol=0)  # one is taken in fp32
    torch.testing.assert_close(gradients(model, parts.loss), gradients(model, whole.loss), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradients_agree_with_finite_differences(smoothing, monkeypatch):
    monkeypatch.setattr(losses, "CHUNK", 14)
    torch.manual_seed(0)
    states, weight, bias = (
        torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((5, 3), (7, 3), (7,))
    )
    labels = torch.tensor([0, 6, 3, 3, 1])

    def loss(states, weight, bias):
        return losses._LinearCrossEntropy.apply(states, weight, bias, labels, smoothing)

    assert torch.autograd.gradcheck(loss, (states, weight, bias))
    expected = F.cross_entropy(states @ weight.T + bias, labels, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss(states, weight, bias), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 50).to(dtype)
    states = (4 * torch.randn(3, 5, 8)).to(dtype).requires_grad_()
    labels = torch.randint(50, (3, 5))
    found = losses.linear_sequence_loss(states, layer, labels)
    expected = losses.sequence_loss(layer(states), labels)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    (one,) = torch.autograd.grad(found, states)
    (other,) = torch.autograd.grad(expected, states)
    torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-3)


def test_under_autocast_and_with_frozen_parts():
    model = tiny_model().train()
    input_ids, mask = source_batch()
    model.lm_head.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids, mask, labels=target_batch(), output_logits=False).loss
        expected = model(input_ids, mask, labels=target_batch()).loss
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    loss.backward()
    assert model.lm_head.weight.grad is None and model.get_decoder().readout.projection.weight.grad.abs().sum() > 0


def test_no_labels_at_all():
    model = tiny_model()
    input_ids, mask = source_batch()
    labels = torch.full((4, 5), -100)
    loss = model(input_ids, mask, labels=labels, output_logits=False).loss
    assert loss == 0 and all(gradient.isfinite().all() for gradient in gradients(model, loss).values())
    with pytest.raises(ValueError, match="output_logits=False"):
        model(input_ids, mask, decoder_input_ids=labels.clamp(min=0), output_logits=False)


def test_the_trainer_takes_labels_alone_for_labels():
    """It goes by parameter names that contain "label"."""
    assert find_labels(AttentionSeq2SeqForConditionalGeneration) == ["labels"]
