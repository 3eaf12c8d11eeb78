"""Coverage and location-aware attention against their equations, as decoder state, and as a part of the loss."""

import pytest
import torch
from torch.nn import functional as F
from transformers.trainer_pt_utils import LabelSmoother

from hf_attention_seq2seq.layout import PaddingLayout

from .attention_helpers import MASK, attention, naive_score, random_memory, run, sentences
from .helpers import SCORED, cache_of, continue_reordered, source_batch, target_batch, tiny_model

COVERAGES = ("accumulated", "location_aware")
every_coverage = pytest.mark.parametrize("kind", COVERAGES)
every_score = pytest.mark.parametrize("name", SCORED)


def covering(kind, **fields):
    sizes = {"coverage_filters": 3, "coverage_kernel_size": 5} if kind == "location_aware" else {}
    return {"coverage_type": kind, **sizes, **fields}


def naive_features(module, kind, history, position):
    """What the score at one position is told of `history` `(length,)`."""
    if kind == "accumulated":
        return history[position : position + 1]
    filters = module.coverage.filters.weight[:, 0]  # (number, width): f_j = sum_k F_k a_{j + k - width // 2}
    width = filters.shape[1]
    total = torch.zeros(filters.shape[0], dtype=torch.float64)
    for k in range(width):
        place = position + k - width // 2
        if 0 <= place < len(history):
            total = total + filters[:, k] * history[place]
    return total


@pytest.mark.parametrize("span", ["global", "local_m"])
@pytest.mark.parametrize("heads", [1, 2])
@every_coverage
@every_score
@torch.no_grad()
def test_each_sentence_follows_the_equations(name, kind, heads, span):
    """
    See 2017, eq. 10 and 11, and Chorowski 2015, eq. 8 and 9: within the tanh where the score has one, else a term of
    the sum. Several heads share the average of their alignments.
    """
    weight = 1.0 if kind == "accumulated" else 0.0
    fields = covering(kind, attention_heads=heads, coverage_loss_weight=weight)
    module = attention(attention_type=name, attention_span=span, attention_window=2, **fields)
    module.score.feature_weights.data *= 3
    memory, states = random_memory(), torch.randn(4, 6, 8).double()
    found = run(module, states, memory)
    assert (found.losses is not None) == (weight > 0)
    size = 8 // heads
    for row, places, keys in sentences(memory):
        length = len(places)
        history = torch.zeros(length, dtype=torch.float64)
        for step in range(6):
            center = min(step, length - 1)
            window = [j for j in range(length) if span == "global" or abs(j - center) <= 2]
            features = [naive_features(module, kind, history, j) for j in window]
            alphas = torch.zeros(heads, length, dtype=torch.float64)
            for head in range(heads):
                scores = [
                    naive_score(module, name, states[row, step], keys[j], j, head, features[index])
                    for index, j in enumerate(window)
                ]
                alphas[head, window] = torch.softmax(torch.stack(scores), 0)
                part = slice(head * size, (head + 1) * size)
                torch.testing.assert_close(found.contexts[row, step, part], alphas[head] @ keys[:, part])
            torch.testing.assert_close(found.weights[row, :, step, places], alphas)
            assert (found.weights[row, :, step, MASK[row] == 0] == 0).all()
            alpha = sum(alphas) / heads
            if weight:  # eq. 12
                penalty = sum(min(a, c) for a, c in zip(alpha.tolist(), history.tolist()))
                assert found.losses[row, step].item() == pytest.approx(penalty, abs=1e-12)
            history = history + alpha if kind == "accumulated" else alpha


@every_coverage
@every_score
def test_gradients_agree_with_finite_differences(name, kind):
    """Through the alignments of earlier steps, and of the coverage loss."""
    fields = covering(kind, coverage_loss_weight=1.0 if kind == "accumulated" else 0.0, max_source_positions=4)
    module = attention(attention_type=name, attention_heads=2, **fields)
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    states = torch.randn(3, 4, 8, dtype=torch.float64, requires_grad=True)
    memory = random_memory(3, 4).requires_grad_()

    def outputs(states, memory, *_):
        found = run(module, states, memory, mask)
        return found.contexts, found.weights, *([] if found.losses is None else [found.losses])

    assert torch.autograd.gradcheck(outputs, (states, memory, *module.parameters()), fast_mode=True)


# The loss


def see_model(weight=0.7, **fields):
    fields = {"coverage_type": "accumulated", "input_feeding": True, **fields}
    return tiny_model(torch.float64, coverage_loss_weight=weight, **fields)


def ended_labels():
    """As from a tokenizer: 2, the end of a sentence, is its last label."""
    labels = target_batch()
    labels[torch.arange(4), torch.tensor([4, 2, 4, 1])] = 2
    return labels


def naive_coverage(weights, labels):
    """The sum over target tokens, and their number; `weights` are `(rows, heads, target, source)`."""
    total, number = 0.0, 0
    for row in range(labels.shape[0]):
        coverage = torch.zeros(weights.shape[-1], dtype=weights.dtype)
        for step in range(labels.shape[1]):
            alpha = weights[row, :, step].mean(0)
            if labels[row, step] != -100:
                total += torch.minimum(alpha, coverage).sum()
                number += 1
            coverage = coverage + alpha
    return total, number


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("span", ["global", "local_m", "local_p"])
@pytest.mark.parametrize("items", [None, 31, torch.tensor(31)], ids=["own", "number", "tensor"])
@torch.no_grad()
def test_the_loss_is_the_likelihood_and_the_weighted_mean(items, span, heads):
    model = see_model(attention_span=span, attention_window=2, attention_heads=heads)
    input_ids, mask = source_batch()
    labels = target_batch()
    output = model(input_ids, mask, labels=labels, output_attentions=True, num_items_in_batch=items)
    likelihood = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), reduction="sum")
    coverage, number = naive_coverage(output.cross_attentions[0], labels)
    assert number == 15 and coverage > 1
    expected = (likelihood + 0.7 * coverage) / (number if items is None else 31)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-6, atol=0)  # the likelihood is in fp32
    without_weights = model(input_ids, mask, labels=labels, num_items_in_batch=items)
    torch.testing.assert_close(without_weights.loss, output.loss)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(one, other, scale=1.0):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], scale * other[name], rtol=1e-6, atol=1e-7, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("start", [1, 0, 2], ids=["bos", "pad", "eos"])
def test_the_trainers_label_smoother_keeps_the_coverage_loss(start):
    """It takes the labels out; decoder inputs and logits are all that the model sees of the loss."""
    model = see_model(decoder_start_token_id=start).train()
    input_ids, mask = source_batch()
    labels = ended_labels()
    expected = gradients(model, model(input_ids, mask, labels=labels).loss)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    output = model(input_ids, mask, decoder_input_ids=decoder_input_ids)
    found = gradients(model, LabelSmoother(epsilon=0.0)(output, labels))
    assert_same(found, expected)
    likelihood = gradients(model, F.cross_entropy(model(input_ids, mask, labels=labels).logits.mT, labels))
    assert (
        expected["model.decoder.attention.score.energy"] - likelihood["model.decoder.attention.score.energy"]
    ).any()


def test_the_trainers_label_smoother_with_several_ends():
    model = see_model(eos_token_id=[2, 3]).train()
    input_ids, mask = source_batch()
    labels = ended_labels().masked_fill(target_batch() == 3, 4)
    labels[0, 4] = 3
    expected = gradients(model, model(input_ids, mask, labels=labels).loss)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    output = model(input_ids, mask, decoder_input_ids=decoder_input_ids)
    assert_same(gradients(model, LabelSmoother(epsilon=0.0)(output, labels)), expected)


@pytest.mark.parametrize("items", [None, 15])
def test_the_gradient_in_one_of_several_processes(items, monkeypatch):
    """
    Gradients are averaged over processes. Divided by the items of all of them, a loss must be multiplied by their
    number, as the Trainer does with its own; a mean over the process's own items must not.
    """
    model = see_model().train()
    input_ids, mask = source_batch()
    inputs = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(ended_labels())}

    def auxiliary_gradients():
        output = model(input_ids, mask, **inputs, num_items_in_batch=items)
        return gradients(model, 0.0 * output.logits.sum())

    alone = auxiliary_gradients()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert_same(auxiliary_gradients(), alone, scale=1.0 if items is None else 3.0)


@pytest.mark.parametrize("labelled", [False, True])
def test_the_number_of_items_divides_the_gradient_of_the_coverage_loss(labelled):
    model = see_model().train()
    input_ids, mask = source_batch()
    labels = ended_labels()
    inputs = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    inputs |= {"labels": labels} if labelled else {}

    def coverage_gradients(**options):
        """What is left if the likelihood has no part in the loss."""
        output = model(input_ids, mask, **inputs, **options)
        if not labelled:
            return gradients(model, 0.0 * output.logits.sum())
        likelihood = F.cross_entropy(output.logits.float().mT, labels, reduction="sum")
        return gradients(model, output.loss - likelihood / options.get("num_items_in_batch", 15))

    output = model(input_ids, mask, labels=labels, output_attentions=True)
    coverage, number = naive_coverage(output.cross_attentions[0], labels)
    expected = gradients(model, 0.7 * coverage / number + 0.0 * output.logits.sum())
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-4
    assert_same(coverage_gradients(), expected)
    assert_same(coverage_gradients(num_items_in_batch=60), expected, scale=15 / 60)


def test_no_hidden_loss_where_nothing_is_trained():
    """In evaluation mode, and without a weight, the logits carry their own gradient only."""
    input_ids, mask = source_batch()
    for model in (see_model().eval(), see_model(weight=0.0).train()):
        output = model(input_ids, mask, decoder_input_ids=target_batch().clamp(min=0))
        for gradient in gradients(model, 0.0 * output.logits.sum()).values():
            assert (gradient == 0).all()


# The state


@every_coverage
@torch.no_grad()
def test_beams_carry_their_own_coverage(kind):
    model = tiny_model(torch.float64, **covering(kind, attention_heads=2))
    history, found, expected = continue_reordered(model)
    assert history.shape == (8, 7)
    alignments = expected.cross_attentions[0].mean(1)
    remembered = alignments.sum(1) if kind == "accumulated" else alignments[:, -1]
    torch.testing.assert_close(cache_of(found).state.history[0], remembered)


@pytest.mark.parametrize("beams", [1, 4])
@every_coverage
@torch.no_grad()
def test_generation_scores_what_it_returns(kind, beams):
    """A hypothesis that took another one's coverage would not have the score that its words have."""
    model = tiny_model(torch.float64, **covering(kind, input_feeding=True))
    model.get_decoder().attention.score.feature_weights.data *= 8
    input_ids, mask = source_batch()
    options = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 6, "length_penalty": 0.0}
    options |= {"output_scores": True, "return_dict_in_generate": True, "attention_mask": mask}
    encoded = model.get_encoder()(input_ids, attention_mask=mask)
    before = {name: value.clone() for name, value in encoded.items()}
    output = model.generate(encoder_outputs=encoded, **options)
    for name, value in encoded.items():
        assert torch.equal(value, before[name])
    again = model.generate(input_ids, **options)
    assert torch.equal(output.sequences, again.sequences)
    labels = output.sequences[:, 1:]
    logits = model(input_ids, mask, decoder_input_ids=output.sequences[:, :-1]).logits
    words = logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    ended = (labels == 2).cumsum(-1) - (labels == 2).long() > 0  # behind the first end of a sentence
    expected = words.masked_fill(ended, 0.0).sum(-1)
    if beams == 1:
        steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
        found = steps.masked_fill(ended, 0.0).sum(-1)
    else:
        found = output.sequences_scores
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@every_coverage
@torch.no_grad()
def test_coverage_is_new_in_each_step(kind):
    """A step changes neither the coverage of the step before nor the memory."""
    module = attention(**covering(kind))
    memory, states = random_memory(), torch.randn(4, 3, 8).double()
    prepared = module.prepare(memory, PaddingLayout.from_mask(MASK), None)
    kept = [prepared.keys.clone(), prepared.values.clone(), prepared.mask.clone()]
    history = module.first_history(prepared, 4)
    for step in range(3):
        before = history[0].clone()
        steps = torch.full((4, 1), step)
        new = module(states[:, step : step + 1], prepared, steps, history).history
        assert torch.equal(history[0], before)
        assert not torch.equal(new[0], before)
        own = {
            tensor.untyped_storage().data_ptr() for tensor in (prepared.keys, prepared.values, prepared.mask, memory)
        }
        assert new[0].untyped_storage().data_ptr() not in own
        history = new
    for tensor, copy in zip((prepared.keys, prepared.values, prepared.mask), kept):
        assert torch.equal(tensor, copy)
