"""Measures of alignments, against values worked out by hand and the definitions written out."""

import math

import evaluate
import pytest
import torch

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)
from hf_attention_seq2seq.alignment import Alignment, to_pharaoh
from training import nettalk
from training.alignment_metrics import AlignmentError, AttentionFocus, parse_gold


def test_alignment_error_by_hand():
    predictions = ["0-0 1-1 2-1", "0-1"]
    references = ["0-0 1?1 3-3", "0p1 1-0"]
    # 4 predicted, 3 sure links; of the predicted 1 is sure (0-0) and 3 are possible (0-0, 1-1 and the second 0-1).
    figures = AlignmentError().compute(predictions=predictions, references=references)
    assert figures == pytest.approx({"alignment_error_rate": 1 - 4 / 7, "precision": 3 / 4, "recall": 1 / 3})


def test_right_and_wrong_links():
    perfect = AlignmentError().compute(predictions=["0-0 2-1"], references=["0-0 1?1 2?1"])
    assert perfect == {"alignment_error_rate": 0, "precision": 1, "recall": 1}
    for prediction in ("1-1", ""):
        wrong = AlignmentError().compute(predictions=[prediction], references=["0-0"])
        assert wrong == {"alignment_error_rate": 1, "precision": 0, "recall": 0}


def test_alignment_error_as_defined():
    generator = torch.Generator().manual_seed(0)
    metric = AlignmentError()
    pairs, kept = [[], [], []], []
    for _ in range(40):
        sets = torch.rand(3, 5, 6, generator=generator) < 0.3
        links, sure, possible = ({tuple(link) for link in one.nonzero().tolist()} for one in sets)
        gold = [to_pharaoh(sure), *(f"{i}?{j}" for i, j in possible)]
        metric.add(prediction=to_pharaoh(links), reference=" ".join(gold))
        possible |= sure
        kept.append((links, sure, possible))
        for entries, count in zip(pairs, (len(links & sure), len(links & possible), len(links) + len(sure))):
            entries.append(count)
    figures = metric.compute()
    both, right, total = map(sum, pairs)
    assert figures["alignment_error_rate"] == pytest.approx(1 - (both + right) / total)
    assert figures["precision"] == pytest.approx(right / sum(len(links) for links, _, _ in kept))
    assert figures["recall"] == pytest.approx(both / sum(len(sure) for _, sure, _ in kept))


def test_one_link_each_is_the_share_of_wrong_links():
    figures = AlignmentError().compute(predictions=["0-0 1-1 2-2 2-3"], references=["0-0 1-1 2-2 3-3"])
    assert figures["alignment_error_rate"] == figures["precision"] - 0.5 == 0.25


def test_gold_links():
    assert parse_gold(" 0-0 1?2 10p3 1-2") == ({(0, 0), (1, 2)}, {(0, 0), (1, 2), (10, 3)})
    assert parse_gold("") == (set(), set())
    for wrong in ("0:0", "0-0?", "1-", "S"):
        with pytest.raises(ValueError, match="no gold link of the form 0-2 .sure., 0.2 or 0p2 .possible."):
            parse_gold(wrong)


def test_what_alignment_error_refuses():
    with pytest.raises(ValueError, match="Sentence 1 has 2 references"):
        AlignmentError().compute(predictions=["0-0", "0-0"], references=["0-0", ["0-0", "1-1"]])
    with pytest.raises(ValueError, match="no sure link"):
        AlignmentError().compute(predictions=["0-0"], references=["0?0"])
    with pytest.raises(ValueError, match="'0.0' is no link of the form"):
        AlignmentError().compute(predictions=["0?0"], references=["0-0"])
    with pytest.raises(ValueError, match="2 predictions but references for 1"):
        AlignmentError().compute(predictions=["0-0", "0-0"], references=["0-0"])
    with pytest.raises(ValueError, match="nothing to score"):
        AlignmentError().compute()


# Focus


def alignment(weights):
    weights = torch.tensor(weights)
    names = {"source_tokens": ["s"] * weights.shape[-1], "target_tokens": ["t"] * weights.shape[-2]}
    return Alignment(source="s", target="t", weights=weights, **names)


def test_focus_by_hand():
    weights = [[0.5, 0.5, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    expected = {"entropy": (math.log(2) + 0 + math.log(4)) / 3, "sharpness": 1.75 / 3}
    # The columns sum to 0.75, 1.75, 0.25 and 0.25.
    for threshold, coverage in ((0.5, 0.5), (0.75, 0.25), (0.2, 1.0), (0, 1.0), (2, 0.0)):
        for entry in (weights, torch.tensor(weights), torch.tensor([weights]), alignment([weights])):
            figures = AttentionFocus(coverage_threshold=threshold).compute(predictions=[entry])
            assert figures == pytest.approx({**expected, "coverage": coverage})


def test_focus_of_several_heads_and_sentences():
    heads = [[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]]  # mean columns 1.75 and 0.25
    metric = AttentionFocus()
    metric.add(prediction=alignment(heads))
    metric.add_batch(predictions=[torch.full((1, 3), 1 / 3)])  # columns of a third
    metric.add(prediction=torch.zeros(1, 0, 0))  # an empty text
    figures = metric.compute()
    expected = {"entropy": (math.log(2) + math.log(3)) / 5, "sharpness": (3 + 0.5 + 1 / 3) / 5, "coverage": 1 / 5}
    assert figures == pytest.approx(expected)


def test_rows_that_do_not_sum_to_one():
    """The Gaussian of local-p takes weight away; monotonic attention has none behind the end."""
    figures = AttentionFocus(0.3).compute(predictions=[[[0.2, 0.2, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]]])
    assert figures == pytest.approx({"entropy": math.log(2) / 2, "sharpness": 0.35, "coverage": 1 / 3})


def test_combined_with_the_library():
    assert evaluate.combine([AttentionFocus()]).compute(predictions=[[[1.0]]]) == {
        "entropy": 0,
        "sharpness": 1,
        "coverage": 1,
    }


def test_what_focus_refuses():
    with pytest.raises(ValueError, match="coverage_threshold=-0.1"):
        AttentionFocus(-0.1)
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        AttentionFocus().compute(predictions=[[0.5, 0.5]])
    for wrong in (-0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            AttentionFocus().compute(predictions=[[[0.5, wrong]]])
    for nothing in ([torch.zeros(1, 2, 2)], [torch.zeros(1, 0, 0)]):
        with pytest.raises(ValueError, match="no attention to measure"):
            AttentionFocus().compute(predictions=nothing)


# NETtalk


@pytest.mark.parametrize("offset", [0, 1])
def test_alignment_error_of_nettalk(offset):
    """With one link for each phoneme, the share of phonemes whose most attended letter is not theirs."""
    words = [
        nettalk.Word("abhor", "@ b h c r", (0, 1, 2, 3, 4)),
        nettalk.Word("ox", "a X", (0, 1)),
        nettalk.Word("aisle", "A l", (0, 3)),
    ]
    letters, phonemes = [word.letters for word in words], [word.phonemes for word in words]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(letters, phonemes, model="char", target_model="word")
    torch.manual_seed(0)
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=tokenizer.target_vocab_size,
        embedding_size=8,
        hidden_size=8,
        attention_heads=2,
        initializer_range=1.0,
    )
    model = AttentionSeq2SeqForConditionalGeneration(config).eval()
    wrong = 0
    for word in words:
        batch = dict(tokenizer(word.letters, text_target=word.phonemes, return_tensors="pt"))
        with torch.no_grad():
            weights = model(**batch, output_attentions=True).cross_attentions[0][0].mean(dim=0)
        for step, link in enumerate(word.links):
            wrong += int(weights[step + offset, : len(word.letters)].argmax()) != link
    assert 0 < wrong < 9
    figures = nettalk.evaluate(model, tokenizer, words, offset)
    assert figures == {"word_accuracy": 0.0, "alignment_error": round(wrong / 9, 4)}
