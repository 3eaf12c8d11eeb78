"""Monotonic attention in evaluation mode against the papers' algorithms, written out for each sentence."""

import pytest
import torch

from hf_attention_seq2seq.monotonic import SCANNED_AT_ONCE, MonotonicAlignment

from .attention_helpers import MASK, monotonic, naive_energies, random_memory, run, sentences
from .helpers import SCORED, continue_reordered, tiny_config, tiny_model

every_score = pytest.mark.parametrize("name", SCORED)
every_chunk = pytest.mark.parametrize("chunk", [1, 3])


def algorithm_1(energies, keys, chunk_energies, width):
    """Contexts and weights of one sentence (Raffel 2017, algorithm 1; Chiu and Raffel 2018, algorithm 1)."""
    position, contexts, weights = 0, [], []
    for step, row in enumerate(energies):
        context, weight, finished = torch.zeros_like(keys[0]), torch.zeros(len(keys)).double(), False
        for j in range(position, len(keys)):
            if torch.sigmoid(row[j]) > 0.5:
                first = max(j - width + 1, 0)
                shares = torch.softmax(chunk_energies[step, first : j + 1], 0)
                weight[first : j + 1] = shares
                context = shares @ keys[first : j + 1]
                position, finished = j, True
                break
        if not finished:
            position = len(keys)
        contexts.append(context)
        weights.append(weight)
    return torch.stack(contexts), torch.stack(weights)


@every_chunk
@every_score
@torch.no_grad()
def test_decoding_is_the_papers_algorithm(name, chunk):
    module = monotonic(chunk, attention_type=name)
    module.monotonic.offset.fill_(-0.6)
    memory, states = random_memory(), 2 * torch.randn(4, 7, 8).double()
    found = run(module, states, memory)
    for row, places, keys in sentences(memory):
        energies = module.monotonic.scale * naive_energies(module, name, states[row], keys) + module.monotonic.offset
        chunk_energies = torch.zeros_like(energies)
        if chunk > 1:
            chunk_energies = naive_energies(module, name, states[row], keys, module.chunk_score)
        contexts, weights = algorithm_1(energies, keys, chunk_energies, chunk)
        torch.testing.assert_close(found.contexts[row], contexts)
        torch.testing.assert_close(found.weights[row, 0][:, places], weights)
        assert (found.weights[row, 0][:, MASK[row] == 0] == 0).all()


def hard_positions(table, lengths):
    """`hard` over a table of energies `(rows, steps, source)`: the positions `(rows, steps)` and what was read."""
    module = MonotonicAlignment(tiny_config(attention_selection="monotonic"))
    module.init_parameters(lambda parameter, value: parameter.data.fill_(1.0 if value == 1.0 else 0.0))
    starts, found, read = torch.zeros(len(table), 1).long(), [], []
    for step in range(table.shape[1]):
        rows = table[:, step, None]
        starts, window = module.hard(
            lambda place, rows=rows: rows.gather(-1, place.positions.flatten(1).unsqueeze(1)).unsqueeze(1),
            starts,
            lengths,
        )
        found.append(starts)
        read.append(window.inside.any(-1))
    return torch.cat(found, 1), torch.cat(read, 1)


def test_positions_on_long_sentences_of_a_batch():
    """Stops anywhere relative to the blocks that are scanned at once, at different speeds in one batch."""
    torch.manual_seed(0)
    lengths = torch.tensor([60, 1, 33, 16, 8, 59])
    table = torch.randn(6, 30, 60) - torch.tensor([2.0, 0.0, 1.3, 1.0, 0.5, 1.6])[:, None, None]
    found, read = hard_positions(table, lengths)
    for row, length in enumerate(lengths.tolist()):
        position = 0
        for step in range(30):
            stops = [j for j in range(position, length) if table[row, step, j] > 0]
            position = stops[0] if stops else length
            assert found[row, step] == position
            assert read[row, step] == bool(stops)
    assert (found[2:, -1] == lengths[2:]).any()  # some ran off
    assert (found[:, 5] < lengths).any()


@every_chunk
@torch.no_grad()
def test_after_running_off_the_end_there_is_nothing(chunk):
    """In training, and in evaluation mode even if later steps would stop everywhere."""
    module = monotonic(chunk, attention_type="dot")
    module.monotonic.scale.fill_(1e3)
    module.monotonic.offset.fill_(0.0)
    memory = torch.ones(1, 9, 8).double()
    states = torch.ones(1, 5, 8).double()
    states[0, 2] = -1.0  # no position stops the third step
    for mode in (False, True):
        found = run(module.train(mode), states, memory, MASK[:1])
        assert (found.contexts[0, :2] == 1).all()
        assert (found.contexts[0, 2:] == 0).all()
        assert (found.weights[0, 0, 2:] == 0).all()


@every_chunk
@every_score
@torch.no_grad()
def test_certain_training_alignments_are_the_hard_ones(name, chunk):
    module = monotonic(chunk, attention_type=name, monotonic_offset=0.0)
    module.monotonic.scale.fill_(1e7)
    module.monotonic.offset.fill_(-4e5)
    memory, states = random_memory(), 2 * torch.randn(4, 6, 8).double()
    hard, soft = run(module, states, memory), run(module.train(), states, memory)
    torch.testing.assert_close(soft.weights, hard.weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(soft.contexts, hard.contexts, rtol=0, atol=1e-6)
    assert 0 < (hard.weights.sum(-1) > 0.5).double().mean() < 1  # some stop, some run off


@pytest.mark.parametrize(
    ("offset", "most"),
    [(-1e9, 400), (-30.0, 1200), (-10.0, 1200), (0.0, 1200), (1e9, 800)],
    ids=["never", "far", "near", "often", "always"],
)
@torch.no_grad()
def test_decoding_reads_a_long_sentence_once(offset, most):
    """Positions scored in 100 steps over 400 tokens: linear, not their product."""
    module = monotonic(3, attention_type="dot")
    module.monotonic.scale.fill_(5.0)
    module.monotonic.offset.fill_(offset)
    scored, chunks = [], []
    module.score.register_forward_pre_hook(lambda _, arguments: scored.append(arguments[2].positions.numel()))
    module.chunk_score.register_forward_pre_hook(lambda _, arguments: chunks.append(arguments[2].positions.numel()))
    found = run(module, torch.randn(1, 100, 8).double(), random_memory(1, 400), torch.ones(1, 400))
    assert found.weights.shape == (1, 1, 100, 400)
    assert 0 < sum(scored) <= most  # 400 tokens and a block for each step
    assert max(scored) <= SCANNED_AT_ONCE
    assert chunks == [3] * 100


@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_positions_that_the_location_score_does_not_know(training):
    """The sentence ends at `max_source_positions`, whatever the sign of the learned scale."""
    module = monotonic(attention_type="location", max_source_positions=3).train(training)
    module.monotonic.scale.fill_(-1.0)
    module.monotonic.offset.fill_(-0.1)
    found = run(module, torch.randn(4, 6, 8).double(), random_memory())
    front = found.weights[0, 0]  # a sentence without padding
    assert front[:, :3].sum() > 0
    assert (front[:, 3:] == 0).all()


@every_chunk
@torch.no_grad()
def test_beams_carry_their_own_positions(chunk):
    """Reordered hypotheses of one sentence go on where the hypothesis that they continue had stopped."""
    model = tiny_model(
        torch.float64, attention_selection="monotonic", monotonic_chunk_size=chunk, attention_type="dot"
    )
    model.get_decoder().attention.monotonic.scale.fill_(20.0)
    positions, _, _ = continue_reordered(model)
    assert positions.shape == (8,)
    assert len(positions.unique()) > 2
