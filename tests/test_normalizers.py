"""Normalisers against their definitions, written out for one row, and at the edges of each number format."""

import math
import sys

import pytest
import torch

from hf_attention_seq2seq.normalizers import NORMALIZERS

from .helpers import source_batch, target_batch, tiny_model

SPARSE = ("sparsemax", "entmax15")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
every_normalizer = pytest.mark.parametrize("name", NORMALIZERS)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


def softmax(scores):
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    return [value / sum(exponentials) for value in exponentials]


def sparsemax(scores):
    """The projection onto the simplex: subtract what leaves a sum of 1, found over the sorted numbers."""
    top = max(scores)
    ordered = sorted((score - top for score in scores), reverse=True)
    threshold = None
    for count in range(1, len(ordered) + 1):
        total = sum(ordered[:count])
        if 1 + count * ordered[count - 1] > total:
            threshold = (total - 1) / count
    return [max(score - top - threshold, 0.0) for score in scores]


def entmax15(scores):
    """`p_j = max(z_j / 2 - t, 0)^2` with the `t` that gives a sum of 1, found by bisection."""
    top = max(scores)
    halves = [(score - top) / 2 for score in scores]
    low, high = -1.0, 0.0
    for _ in range(100):
        middle = (low + high) / 2
        if sum(max(half - middle, 0.0) ** 2 for half in halves) > 1:
            low = middle
        else:
            high = middle
    return [max(half - low, 0.0) ** 2 for half in halves]


DEFINITIONS = {"softmax": softmax, "sparsemax": sparsemax, "entmax15": entmax15}


def check(name, scores, mask):
    """`scores` and `mask` `(rows, source)`; each row against its definition over the open positions."""
    weights = NORMALIZERS[name](scores, mask)
    assert weights.dtype == scores.dtype
    expected = torch.zeros(scores.shape, dtype=torch.float64)
    for row in range(scores.shape[0]):
        if mask[row].any():
            numbers = scores[row, mask[row]].double().tolist()
            expected[row, mask[row]] = torch.tensor(DEFINITIONS[name](numbers), dtype=torch.float64)
    torch.testing.assert_close(weights.double(), expected, atol=TOLERANCE[scores.dtype], rtol=0)
    assert (weights[~mask] == 0).all()
    assert weights.isfinite().all()
    return weights


def random_mask(rows, source):
    mask = torch.rand(rows, source) < 0.6
    mask[0] = True
    mask[1] = False
    mask[2] = torch.arange(source) == source - 1
    return mask


@every_dtype
@every_normalizer
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 100.0])
def test_the_definition(name, dtype, scale):
    torch.manual_seed(0)
    weights = check(name, (scale * torch.randn(40, 12)).to(dtype), random_mask(40, 12))
    if name != "softmax" and scale >= 1:
        assert ((weights[0] == 0).any()) and ((weights > 0).sum(-1) > 1).any()  # sparse, and not only one-hot


@every_dtype
@every_normalizer
def test_long_sentences(name, dtype):
    """Half precision can not sum hundreds of numbers; whoever sums them must not use it."""
    torch.manual_seed(0)
    check(name, (0.05 * torch.randn(8, 700)).to(dtype), random_mask(8, 700))


@every_dtype
@every_normalizer
@pytest.mark.parametrize("center", [1e4, -1e4, 3e4, -3e4])
def test_scores_of_which_only_the_differences_matter(name, dtype, center):
    """Large numbers of half precision lie far apart: neighbours of 8, 16 or 64 must not be taken for equals."""
    start = torch.tensor(center, dtype=dtype)
    step = torch.nextafter(start, torch.tensor(math.inf, dtype=dtype)) - start
    scores = start + step * torch.tensor([[3, 1, 2, 0], [0, 3, 3, 1], [0, 0, 3, 1], [2, 2, 1, 1]], dtype=dtype)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 0, 1], [0, 1, 1, 0]]).bool()
    check(name, scores, mask)


@every_dtype
@every_normalizer
def test_the_largest_and_smallest_numbers(name, dtype):
    largest = torch.finfo(dtype).max
    scores = torch.tensor(
        [
            [largest, -largest, 0.0, largest],
            [largest, -largest, 0.0, largest],
            [-largest, 0.0, -largest, 1.0],
            [largest, largest, largest, -largest],
            [0.0, largest, largest, largest],
        ],
        dtype=dtype,
    )
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0]]).bool()
    check(name, scores, mask)


@every_dtype
@pytest.mark.parametrize("name", SPARSE)
def test_nothing_but_the_smallest_number(name, dtype):
    """Open positions with the lowest of all scores are not taken for closed ones."""
    scores = torch.full((2, 4), torch.finfo(dtype).min, dtype=dtype)
    check(name, scores, torch.tensor([[1, 0, 1, 0], [0, 0, 0, 1]]).bool())


@every_dtype
@every_normalizer
def test_gradients_stay_finite_and_inside(name, dtype):
    torch.manual_seed(0)
    mask = random_mask(6, 5)
    scores = torch.randn(6, 5).mul(3)
    scores[3], scores[4, 0], scores[5, 0] = 1e4, 3e4, -3e4
    scores = scores.to(dtype).requires_grad_()
    weights = NORMALIZERS[name](scores, mask)
    (weights * torch.randn(6, 5).to(dtype)).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[~mask] == 0).all()
    assert (scores.grad[0] != 0).any()


@every_normalizer
def test_gradients_agree_with_finite_differences(name):
    torch.manual_seed(0)
    mask = random_mask(7, 5).view(7, 1, 1, 5)
    scores = torch.randn(7, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda scores: NORMALIZERS[name](scores, mask), scores)


@every_normalizer
def test_masks_are_broadcast_over_heads_and_queries(name):
    torch.manual_seed(0)
    scores, mask = torch.randn(4, 2, 3, 9, dtype=torch.float64), random_mask(4, 9)
    weights = NORMALIZERS[name](scores, mask[:, None, None, :])
    for head in range(2):
        for query in range(3):
            expected = NORMALIZERS[name](scores[:, head, query], mask)
            assert torch.equal(weights[:, head, query], expected)


@pytest.mark.parametrize("name", SPARSE)
def test_without_the_package_entmax(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "entmax", None)
    message = f"attention_normalizer='{name}' needs the package entmax: pip install entmax"
    with pytest.raises(ImportError, match=message):
        NORMALIZERS[name](torch.zeros(1, 2), torch.ones(1, 2).bool())
    input_ids, mask = source_batch()
    with pytest.raises(ImportError, match=message):
        tiny_model(attention_normalizer=name)(input_ids, mask, labels=target_batch())
    assert tiny_model()(input_ids, mask, labels=target_batch()).loss.isfinite()
