"""The additive energies against their formula, and the memory and time of training with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_attention_seq2seq import additive
from hf_attention_seq2seq.additive import additive_energies

from .attention_helpers import attention
from .helpers import tiny_model

SCRIPT = Path(__file__).with_name("additive_script.py")


def naive(queries, keys, energy):
    """`v^T tanh(q_i + k_j)`, one pair after the other."""
    batch, heads, steps, _ = queries.shape
    rows = [
        energy[head] @ torch.tanh(queries[row, head, i] + keys[row, head, j])
        for row in range(batch)
        for head in range(heads)
        for i in range(steps)
        for j in range(keys.shape[2])
    ]
    return torch.stack(rows).view(batch, heads, steps, keys.shape[2])


def inputs(dtype=torch.float64, batch=2, heads=2, steps=5, source=4, size=3):
    torch.manual_seed(0)
    shapes = ((batch, heads, steps, size), (batch, heads, source, size), (heads, size))
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


# One query at a time, two, all at once: the intermediate has 48 elements a query.
every_chunk_size = pytest.mark.parametrize("elements", [1, 100, 1 << 19])


@every_chunk_size
def test_values_and_gradients_follow_the_formula(elements, monkeypatch):
    monkeypatch.setattr(additive, "CHUNK_ELEMENTS", elements)
    results = []
    for function in (additive_energies, naive):
        tensors = inputs()
        energies = function(*tensors)
        (energies * torch.arange(energies.numel()).view_as(energies)).sum().backward()
        results.append([energies, *(tensor.grad for tensor in tensors)])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected)


@every_chunk_size
def test_gradients_agree_with_finite_differences(elements, monkeypatch):
    monkeypatch.setattr(additive, "CHUNK_ELEMENTS", elements)
    assert torch.autograd.gradcheck(additive_energies, inputs())


def test_views_and_single_positions():
    queries, keys, energy = inputs(batch=1, steps=1, source=1)
    torch.testing.assert_close(additive_energies(queries, keys, energy), naive(queries, keys, energy))
    queries, keys, energy = inputs()
    queries, keys = queries.mT.contiguous().mT, keys.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(additive_energies(queries, keys, energy), naive(queries, keys, energy))


@pytest.mark.parametrize("wanted", [0, 1, 2], ids=["queries", "keys", "energy"])
def test_frozen_inputs(wanted):
    tensors = inputs()
    for index, tensor in enumerate(tensors):
        tensor.requires_grad_(index == wanted)
    expected = torch.autograd.grad(naive(*tensors).square().sum(), tensors[wanted])[0]
    found = torch.autograd.grad(additive_energies(*tensors).square().sum(), tensors[wanted])[0]
    torch.testing.assert_close(found, expected)


@every_chunk_size
@pytest.mark.parametrize("heads", [1, 2])
def test_features_of_each_pair_enter_within_the_tanh(heads, elements, monkeypatch):
    """With several queries to one memory, as of beams: `v^T tanh(q_i + k_j + U f_ij)`, and its gradients."""
    monkeypatch.setattr(additive, "CHUNK_ELEMENTS", elements)
    score = attention(attention_type="additive", attention_heads=heads, coverage_type="location_aware").score
    matrix = score.feature_weights
    queries, keys, _ = inputs(heads=heads, size=8 // heads)
    features = torch.randn(2, 5, 4, matrix.shape[1], dtype=torch.float64, requires_grad=True)
    tensors = (queries, keys, features, matrix, score.energy)

    def formula():
        own = features @ matrix.T  # (batch, queries, source, heads * size)
        rows = [
            naive(queries[:, :, i : i + 1], keys + own[:, i].unflatten(-1, (heads, -1)).transpose(1, 2), score.energy)
            for i in range(5)
        ]
        return torch.cat(rows, dim=2)

    found, expected = score(queries, keys, None, features), formula()
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(expected)
    for mine, theirs in zip(*(torch.autograd.grad((x * weights).sum(), tensors) for x in (found, expected))):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, monkeypatch):
    """The energy vector may be kept in single precision, as under autocast; sums over chunks lose nothing."""
    monkeypatch.setattr(additive, "CHUNK_ELEMENTS", 1)
    tensors = inputs(dtype, steps=300, size=16)
    tensors[2] = tensors[2].detach().float().requires_grad_()
    energies = additive_energies(*tensors)
    assert energies.dtype == dtype
    energies.sum().backward()
    doubles = [tensor.detach().double().requires_grad_() for tensor in tensors]
    naive(*doubles).sum().backward()
    for tensor, double in zip(tensors, doubles):
        assert tensor.grad.dtype == tensor.dtype
        torch.testing.assert_close(tensor.grad.double(), double.grad, rtol=0.03, atol=0.1)


@pytest.mark.parametrize("coverage", [None, "accumulated", "location_aware"])
@pytest.mark.parametrize("name", ["additive", "concat", "mlp"])
def test_the_intermediate_is_not_kept(name, coverage):
    """
    Of what autograd keeps of a training step, tensors of the width of the keys have together less than half of the
    elements of one `(batch, target, source, size)`; the straightforward formula keeps at least all of these.
    """
    model = tiny_model(attention_type=name, attention_size=256, coverage_type=coverage).train()
    kept = {}

    def pack(tensor):
        if 256 in tensor.shape:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address comes again
        return tensor

    input_ids, labels = torch.randint(3, 13, (2, 13)), torch.randint(3, 13, (2, 11))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids, labels=labels).loss.backward()
    elements = [tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values()]
    assert 2 * 13 * 256 < sum(elements) < 2 * 11 * 13 * 256 / 2


def measured(kind):
    """Of one training step in its own process: bytes above those before it, seconds, and some of the gradients."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, "-m", f"{__package__}.{SCRIPT.stem}", kind]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr[-3000:]
    peak, seconds, *gradients = map(float, result.stdout.split())
    return peak, seconds, torch.tensor(gradients)


@pytest.mark.slow
def test_memory_and_time_of_a_training_step():
    """Batch 16, source 400, target 100, size 512: a quarter of the memory, and no more than 1.3 times the time."""
    ours, theirs = measured("ours"), measured("straightforward")
    assert ours[0] <= theirs[0] / 4, (ours[0], theirs[0])
    assert ours[1] <= 1.3 * theirs[1], (ours[1], theirs[1])
    assert (ours[2] - theirs[2]).norm() <= 1e-5 * theirs[2].norm()
