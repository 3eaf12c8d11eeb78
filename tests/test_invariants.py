"""What must hold for every legal combination of score, query timing, input feeding, cell, bridge and readout."""

import itertools
import math

import pytest
import torch

from hf_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq.configuration_attention_seq2seq import (
    ATTENTION_QUERIES,
    BRIDGE_TYPES,
    READOUT_TYPES,
    RNN_TYPES,
)

from .helpers import (
    alignment_grid,
    attention_grid,
    cache_of,
    name_of,
    pairwise,
    source_batch,
    target_batch,
    tiny_config,
    tiny_model,
)

GRID = attention_grid()
ALIGNMENTS = alignment_grid()
every_alignment = pytest.mark.parametrize("case", pairwise(ALIGNMENTS), ids=name_of)
all_alignments = pytest.mark.parametrize("part", range(16))
every_combination = pytest.mark.parametrize("case", GRID, ids=name_of)


def frame_grid():
    """Every legal combination of the parts around attention, with uneven numbers of layers."""
    names = ("bridge_type", "readout_type", "attention_type", "attention_query", "rnn_type", "encoder_bidirectional")
    layers = itertools.cycle([(1, 1), (1, 3), (3, 1), (2, 2), (3, 2)])
    for values in itertools.product(
        BRIDGE_TYPES, READOUT_TYPES, ("general", "none"), ATTENTION_QUERIES, RNN_TYPES, (True, False)
    ):
        case = dict(zip(names, values))
        case["encoder_layers"], case["decoder_layers"] = next(layers)
        case["residual"] = case["rnn_type"] != "gru"
        case["reverse_source"] = not case["encoder_bidirectional"]
        case["context_gate"] = case["attention_type"] != "none" and case["rnn_type"] == "lstm"
        try:
            tiny_config(**case)
        except ValueError:
            continue
        yield case


FRAMES = list(frame_grid())
every_frame = pytest.mark.parametrize("case", FRAMES, ids=name_of)


def run(model, input_ids, mask, decoder_input_ids, **options):
    output = model(input_ids, mask, decoder_input_ids=decoder_input_ids, output_attentions=True, **options)
    return output.logits, None if output.cross_attentions is None else output.cross_attentions[0]


def own_weights(case, weights, before, length):
    """The weights at the `length` tokens behind `before` of padding, and all others."""
    if case.get("encoder_type") == "pyramidal":  # fewer positions, and these in front
        before, length = 0, math.ceil(length / 2 ** (case["encoder_layers"] - 1))
    own = slice(before, before + length)
    return weights[..., own], torch.cat((weights[..., :before], weights[..., own.stop :]), -1)


def check_padding(case, dtype=torch.float32):
    """Invariant 1: neither batch mates, nor the amount of padding, nor its side matters."""
    model = tiny_model(dtype, **case)
    input_ids, mask = source_batch()
    decoder_input_ids = target_batch().clamp(min=0)
    logits, weights = run(model, input_ids, mask, decoder_input_ids)
    junk = torch.randint(3, 17, (4, 3))
    more = run(model, torch.cat((input_ids, junk), 1), torch.cat((mask, mask.new_zeros(4, 3)), 1), decoder_input_ids)
    torch.testing.assert_close(more[0], logits, atol=1e-5, rtol=0)
    for row in range(4):
        length = int(mask[row].sum())
        rows = slice(row, row + 1)
        alone = run(model, input_ids[rows, :length], None, decoder_input_ids[rows])
        torch.testing.assert_close(alone[0], logits[rows], atol=1e-5, rtol=0)
        left_ids = torch.cat((junk[rows], input_ids[rows, :length]), 1)
        left_mask = torch.cat((mask.new_zeros(1, 3), mask[rows, :length]), 1)
        left = run(model, left_ids, left_mask, decoder_input_ids[rows])
        torch.testing.assert_close(left[0], logits[rows], atol=1e-5, rtol=0)
        if weights is not None:
            own, others = own_weights(case, weights[rows], 0, length)
            left_own, left_others = own_weights(case, left[1], 3, length)
            torch.testing.assert_close(alone[1], own, atol=1e-5, rtol=0)
            torch.testing.assert_close(left_own, own, atol=1e-5, rtol=0)
            assert (others == 0).all()
            assert (left_others == 0).all()
            check_distributions(case, weights[row])


def check_distributions(case, weights):
    """Invariant 4: distributions, but for local-p (times a Gaussian) and monotonic attention that ran off the end."""
    sums = weights.sum(-1)
    chooses = case.get("attention_selection") == "hard"
    if (case.get("attention_span") == "local_p" and not chooses) or case.get("attention_selection") == "monotonic":
        assert (sums <= 1 + 1e-5).all()
        assert (weights >= 0).all()
    else:
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-5, rtol=0)


def check_steps(case, dtype=torch.float32):
    """Invariant 2: step by step with the cache gives what one call gives, logits and attentions."""
    model = tiny_model(dtype, **case)
    input_ids, mask = source_batch()
    decoder_input_ids = target_batch().clamp(min=0)
    logits, weights = run(model, input_ids, mask, decoder_input_ids)
    cache, steps = None, []
    for piece in decoder_input_ids.split([1, 1, 2, 1], dim=1):
        output = model(
            input_ids, mask, decoder_input_ids=piece, past_key_values=cache, use_cache=True, output_attentions=True
        )
        cache = cache_of(output)
        steps.append(output)
    assert cache.get_seq_length() == 5
    torch.testing.assert_close(torch.cat([step.logits for step in steps], 1), logits, atol=1e-5, rtol=0)
    if weights is not None:
        stepped = torch.cat([step.cross_attentions[0] for step in steps], 2)
        torch.testing.assert_close(stepped, weights, atol=1e-5, rtol=0)


def check_gradients(case):
    """Every parameter is used; a sentence without a token is finite, gradients included (invariant 5)."""
    model = tiny_model(**case).train()
    input_ids, mask = source_batch()
    labels = target_batch()
    model(input_ids, mask, labels=labels).loss.backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not unused
    model.zero_grad()
    mask[1] = 0
    torch.manual_seed(0)  # hard attention may draw positions
    output = model(input_ids, mask, labels=labels, output_attentions=True)
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    if output.cross_attentions:
        assert (output.cross_attentions[0][1] == 0).all()
    other_ids = input_ids.clone()
    other_ids[1] = 5
    torch.manual_seed(0)
    torch.testing.assert_close(model(other_ids, mask, labels=labels).logits, output.logits)


def check_everything(case, folder):
    """One combination through training, generation with and without the cache, saving and loading."""
    check_gradients(case)
    with torch.no_grad():
        check_padding(case, torch.float64)
        check_steps(case, torch.float64)  # sparse weights enlarge what fp32 rounds
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 4}
    with_cache = model.generate(input_ids, **options)
    assert torch.equal(with_cache, model.generate(input_ids, **options, use_cache=False))
    model.save_pretrained(folder)
    loaded = AttentionSeq2SeqForConditionalGeneration.from_pretrained(folder)
    assert torch.equal(with_cache, loaded.generate(input_ids, **options))


@every_alignment
def test_every_pair_of_choices(case, tmp_path):
    check_everything(case, tmp_path)


@pytest.mark.slow
@all_alignments
def test_every_choice_with_every_other(part, tmp_path):
    for case in ALIGNMENTS[part::16]:
        check_everything(case, tmp_path)


@every_combination
@torch.no_grad()
def test_padding_does_not_matter(case):
    check_padding(case)


@every_combination
@torch.no_grad()
def test_steps_equal_one_call(case):
    check_steps(case)


@every_combination
def test_all_parameters_get_finite_gradients(case):
    check_gradients({**case, "encoder_layers": 2, "decoder_layers": 2})


@every_frame
@torch.no_grad()
def test_padding_does_not_matter_in_any_frame(case):
    check_padding(case)


@every_frame
@torch.no_grad()
def test_steps_equal_one_call_in_any_frame(case):
    check_steps(case)


@every_frame
def test_all_parameters_get_finite_gradients_in_any_frame(case):
    check_gradients(case)


@pytest.mark.parametrize("case", [case for case in GRID if tiny_model(**case).get_decoder().runs_at_once], ids=name_of)
def test_running_at_once_equals_running_step_by_step(case):
    """The fast path against the one that follows the equations, gradients included."""
    model = tiny_model(torch.float64, **case, decoder_layers=2, residual=True)
    input_ids, mask = source_batch()
    results = []
    for runs_at_once in (True, False):
        model.get_decoder().runs_at_once = runs_at_once
        model.zero_grad()
        output = model(input_ids, mask, labels=target_batch())
        output.loss.backward()
        results.append([output.logits, *(parameter.grad.clone() for parameter in model.parameters())])
    for fast, plain in zip(*results):
        torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-8)


def test_there_are_fast_and_slow_cases():
    fast = [case for case in GRID if tiny_model(**case).get_decoder().runs_at_once]
    assert 0 < len(fast) < len(GRID)


@torch.no_grad()
def test_a_one_token_source():
    model = tiny_model()
    logits = model(torch.tensor([[5]]), decoder_input_ids=torch.tensor([[1, 4]])).logits
    assert logits.isfinite().all()
    assert logits.shape == (1, 2, 13)
