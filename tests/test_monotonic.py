"""Monotonic attention in training against the sum over all paths, followed one by one."""

import math

import pytest
import torch

from hf_attention_seq2seq.monotonic import chunkwise_weights, expected_alignment

from .attention_helpers import MASK, assert_right_gradients, monotonic, naive_energies, random_memory, run, sentences
from .helpers import SCORED, tiny_model

every_score = pytest.mark.parametrize("name", SCORED)
every_chunk = pytest.mark.parametrize("chunk", [1, 3])


def expectation_over_paths(probabilities):
    """
    The probability that step `i` stops at `j`, by following every path one by one.

    `probabilities[i][j]` is the probability of stopping at `j` if step `i` looks there; a step begins where the one
    before stopped, and looks on to the right (Raffel 2017, section 2.2). Who runs off the end never comes back.
    """
    steps, source = len(probabilities), len(probabilities[0])
    expected = [[0.0] * source for _ in range(steps)]

    def follow(step, position, reached):
        if step == steps:
            return
        for j in range(position, source):
            stopping = reached * probabilities[step][j]
            expected[step][j] += stopping
            follow(step + 1, j, stopping)
            reached *= 1 - probabilities[step][j]

    follow(0, 0, 1.0)
    return expected


def chunk_expectation(alignment, energies, width):
    """`sum_k a_k softmax(u_{k-width+1} ... u_k)_j` (Chiu and Raffel 2018, eq. 12 to 14)."""
    weights = [0.0] * len(alignment)
    for k, probability in enumerate(alignment):
        chunk = range(max(k - width + 1, 0), k + 1)
        total = sum(math.exp(energies[j]) for j in chunk)
        for j in chunk:
            weights[j] += probability * math.exp(energies[j]) / total
    return weights


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def alignments(energies, mask, dtype=torch.float64):
    """`(steps, source)` by our function, step after step."""
    previous = torch.zeros(energies.shape[1], dtype=dtype)
    previous[0] = 1.0
    rows = []
    for step in energies.to(dtype):
        previous = expected_alignment(step, mask, previous)
        rows.append(previous)
    return torch.stack(rows)


@pytest.mark.parametrize("scale", [0.5, 3.0, 30.0])
def test_expected_alignment_sums_over_all_paths(scale):
    torch.manual_seed(0)
    for source in (1, 2, 5):
        energies = scale * torch.randn(4, source).double()
        expected = tensor(expectation_over_paths(torch.sigmoid(energies).tolist()))
        found = alignments(energies, torch.ones(source).bool())
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        assert (found.sum(-1).diff() <= 1e-12).all()  # what ran off is lost
        in_single = alignments(energies, torch.ones(source).bool(), torch.float32)
        torch.testing.assert_close(in_single.double(), expected, rtol=0, atol=1e-5)


def test_attention_passes_over_masked_positions():
    torch.manual_seed(0)
    mask = torch.tensor([0, 1, 0, 1, 1, 0]).bool()
    energies = torch.randn(3, 6).double()
    found = alignments(energies, mask)
    expected = tensor(expectation_over_paths(torch.sigmoid(energies[:, mask]).tolist()))
    torch.testing.assert_close(found[:, mask], expected)
    assert (found[:, ~mask] == 0).all()
    assert (alignments(energies, torch.zeros(6).bool()) == 0).all()


def test_nothing_is_lost_on_long_sentences():
    """No clipping: where all probabilities but the last are tiny, all attention arrives at the last position."""
    energies = torch.full((1, 400), -30.0)
    energies[0, -1] = 30.0
    found = alignments(energies, torch.ones(400).bool(), torch.float32)
    torch.testing.assert_close(found[0, -1], torch.tensor(1.0))
    energies[:] = 0.0
    found = alignments(energies.expand(3, -1), torch.ones(400).bool(), torch.float32)
    torch.testing.assert_close(found[0, :20], 0.5 ** torch.arange(1.0, 21.0))
    torch.testing.assert_close(found.sum(-1), torch.ones(3))


@pytest.mark.parametrize(("scale", "tolerance"), [(1.0, 1e-5), (20.0, 2e-3), (3e4, 1e-6)])
def test_long_sentences_in_single_precision(scale, tolerance):
    torch.manual_seed(0)
    energies = scale * (torch.randn(20, 400) - 1.5)
    single, double = (alignments(energies, torch.ones(400).bool(), dtype) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(single.double(), double, rtol=0, atol=tolerance)
    assert double[-1].max() > 0.01


def test_gradients_of_the_alignment():
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0]]).bool()
    energies = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    previous = torch.rand(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e, p: expected_alignment(e, mask, p), (energies, previous))
    chunk = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, u: chunkwise_weights(a, u, mask, 3), (previous, chunk))


@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_chunks_are_shared_out_as_in_the_equation(width):
    torch.manual_seed(0)
    alignment, energies = torch.rand(6).double(), 3 * torch.randn(6).double()
    found = chunkwise_weights(alignment, energies, torch.ones(6).bool(), width)
    expected = tensor(chunk_expectation(alignment.tolist(), energies.tolist(), width))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(), alignment.sum())


@every_chunk
@every_score
@torch.no_grad()
def test_training_reads_with_the_expectation(name, chunk):
    module = monotonic(chunk, attention_type=name).train()
    memory, states = random_memory(), torch.randn(4, 3, 8).double()
    found = run(module, states, memory)
    for row, places, keys in sentences(memory):
        energies = module.monotonic.scale * naive_energies(module, name, states[row], keys) + module.monotonic.offset
        expected = expectation_over_paths(torch.sigmoid(energies).tolist())
        if chunk > 1:
            chunk_energies = naive_energies(module, name, states[row], keys, module.chunk_score).tolist()
            expected = [chunk_expectation(*pair, chunk) for pair in zip(expected, chunk_energies)]
        torch.testing.assert_close(found.weights[row, 0][:, places], tensor(expected), rtol=1e-8, atol=1e-10)
        assert (found.weights[row, 0][:, MASK[row] == 0] == 0).all()
        torch.testing.assert_close(found.contexts[row], tensor(expected) @ keys)


@torch.no_grad()
def test_noise_before_the_sigmoid_in_training_only():
    module = monotonic(attention_type="dot", noise=2.0)
    module.monotonic.scale.fill_(1.0)
    module.monotonic.offset.fill_(0.5)
    rows = 20000
    memory, states = torch.zeros(rows, 1, 8).double(), torch.zeros(rows, 1, 8).double()
    mask = torch.ones(rows, 1)
    energies = torch.logit(run(module.train(), states, memory, mask).weights.flatten())
    assert abs(energies.mean().item() - 0.5) < 0.1
    assert abs(energies.std().item() - 2.0) < 0.1
    states, memory = torch.randn(4, 5, 8).double(), random_memory()
    assert not torch.equal(run(module, states, memory).weights, run(module, states, memory).weights)
    quiet = monotonic(attention_type="dot", noise=0.0)
    quiet.load_state_dict(module.state_dict())
    assert torch.equal(run(module.eval(), states, memory).weights, run(quiet, states, memory).weights)
    assert torch.equal(run(quiet.train(), states, memory).weights, run(quiet, states, memory).weights)


@every_chunk
@every_score
def test_gradients_agree_with_finite_differences(name, chunk):
    module = monotonic(chunk, attention_type=name, max_source_positions=4).train()
    assert_right_gradients(module)


def test_sentences_shorter_than_a_chunk():
    for training in (True, False):
        model = tiny_model(attention_selection="monotonic", monotonic_chunk_size=4).train(training)
        loss = model(torch.tensor([[5], [6]]), labels=torch.tensor([[3, 4], [5, 2]])).loss
        loss.backward()
        assert loss.isfinite()
