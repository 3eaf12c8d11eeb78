"""The metrics against values worked out by hand, definitions written out, jiwer, and sacreBLEU's command."""

import functools
import json
import math
import random
import subprocess
import sys

import evaluate
import jiwer
import pytest
import sacrebleu

from training.metrics import METRICS, Bleu, Chrf, ExactMatch, compute_metrics, figure_for_best, greater_is_better

NEEDS_ROUGE = ("rouge",)


def naive_distance(first, second) -> int:
    """Levenshtein 1966 by its recursion."""

    @functools.cache
    def distance(i, j):
        if not i or not j:
            return i + j
        substitution = distance(i - 1, j - 1) + (first[i - 1] != second[j - 1])
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, substitution)

    return distance(len(first), len(second))


def random_texts(seed: int, rows: int = 60, alphabet: str = "abc", separator: str = " ") -> tuple[list, list]:
    generator = random.Random(seed)

    def text() -> str:
        return separator.join(generator.choices(alphabet, k=generator.randint(1, 7)))

    references = [text() for _ in range(rows)]
    return [reference if generator.random() < 0.4 else text() for reference in references], references


# BLEU and chrF


def test_bleu_by_hand():
    # Right are 7 of 8 unigrams ("." is a token), 5 of 7 bigrams, 3 of 6 trigrams, 2 of 5 4-grams; lengths 8, 8.
    figures = compute_metrics("bleu", ["The cat sat on the red mat."], ["The cat sat on the blue mat."])
    precisions = [7 / 8, 5 / 7, 3 / 6, 2 / 5]
    assert figures["bleu"] == pytest.approx(100 * math.prod(precisions) ** 0.25)
    figures = compute_metrics("bleu", ["THE cat sat on the mat"], ["the cat sat on the mat"])
    assert figures["bleu_lowercased"] == pytest.approx(100)
    assert figures["bleu"] == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)


def test_rows_with_different_numbers_of_references():
    # All n-grams are right; of the lengths 9 and 4 the nearest ones are summed, so that the penalty is 13 to 8.
    # An empty reference in the place of the missing one would be nearer to 4 words than 9 words are.
    predictions = ["a b c d", "k l m n"]
    references = [["a b c d e f g h i"], ["o p q r", "k l m n"]]
    figures = compute_metrics(["bleu", "chrf"], predictions, references)
    assert figures["bleu"] == pytest.approx(100 * math.exp(1 - 13 / 8))
    assert "nrefs:var" in figures["bleu_signature"] and "nrefs:var" in figures["chrf_signature"]
    alone = [
        sacrebleu.CHRF().corpus_score([text], [[reference] for reference in several]).score
        for text, several in zip(predictions, references)
    ]
    assert min(alone) < figures["chrf"] < max(alone)


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char"])
def test_figures_and_signatures_of_the_sacrebleu_command(tmp_path, tokenize):
    predictions = ["The red cat sat, quietly.", "他 去 学校 了", "A dog is here; it runs."]
    references = ["The red cat sat quietly.", "他去了学校", "the dog is here, it runs!"]
    (tmp_path / "predictions").write_text("\n".join(predictions) + "\n", encoding="utf-8")
    (tmp_path / "references").write_text("\n".join(references) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "references", "-i", "predictions", "-f", "json", "-w", "6"]
    command += ["-m", "bleu", "chrf", "-tok", tokenize]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=True)
    figures = compute_metrics(["bleu", "chrf"], predictions, references, bleu_tokenize=tokenize)
    for expected in json.loads(run.stdout):
        name = {"BLEU": "bleu", "chrF2": "chrf"}[expected["name"]]
        assert figures[name] == pytest.approx(expected["score"], abs=1e-5)
        assert figures[f"{name}_signature"] == expected["signature"]
    assert "case:lc" in figures["bleu_lowercased_signature"]


def test_unknown_bleu_tokenizer():
    with pytest.raises(ValueError, match="'words'; allowed: .*zh, 13a"):
        Bleu(tokenize="words")


# Error rates


def test_error_rates_by_hand():
    predictions = ["a man sleeps", "the the dog"]
    references = [["the man slept", "one man sleeps"], ["the dog"]]
    # Nearest are "one man sleeps" with 1 word, 3 characters (a -> one) and "the dog" with 1 word, 4 characters.
    figures = compute_metrics(["word_error_rate", "character_error_rate"], predictions, references)
    assert figures["word_error_rate"] == pytest.approx(100 * 2 / 5)
    assert figures["character_error_rate"] == pytest.approx(100 * (3 + 4) / (14 + 7))


def test_error_rates_of_jiwer():
    predictions, references = random_texts(0)
    figures = compute_metrics(["word_error_rate", "character_error_rate"], predictions, references)
    assert figures["word_error_rate"] == pytest.approx(100 * jiwer.wer(references, predictions))
    assert figures["character_error_rate"] == pytest.approx(100 * jiwer.cer(references, predictions))


def test_the_order_of_references_does_not_matter():
    names = [name for name in METRICS if name not in NEEDS_ROUGE]
    predictions, first = random_texts(1)
    second, third = random_texts(2)
    figures = compute_metrics(names, predictions, list(zip(first, second, third)))
    assert compute_metrics(names, predictions, list(zip(third, first, second))) == pytest.approx(figures)


# SIGMORPHON


def test_sigmorphon_g2p_by_hand():
    predictions = ["k æ t", "d ɔ ɡ", "", "tʃ"]
    references = [["k æ t"], ["d ɑ ɡ", "d ɔ ɡ z"], ["h ə"], ["t ʃ"]]
    # Right: the first. Edits: 0 of 3; 1 of 3 (the shorter of two that are equally near); 2 of 2; 2 of 2.
    assert compute_metrics("sigmorphon_g2p", predictions, references) == pytest.approx(
        {"wer": 75, "per": 100 * 5 / 10}
    )


@pytest.mark.parametrize("seed", range(5))
def test_sigmorphon_g2p_as_defined(seed):
    predictions, references = random_texts(seed)
    wrong = [prediction.split() != reference.split() for prediction, reference in zip(predictions, references)]
    edits = [naive_distance(text.split(), gold.split()) for text, gold in zip(predictions, references)]
    figures = compute_metrics(["sigmorphon_g2p"], predictions, references)
    assert figures["wer"] == pytest.approx(100 * sum(wrong) / len(wrong))
    assert figures["per"] == pytest.approx(100 * sum(edits) / sum(len(gold.split()) for gold in references))


def test_sigmorphon_g2p_with_several_pronunciations():
    predictions, first = random_texts(3)
    references = list(zip(first, random_texts(4)[1]))
    edits = length = wrong = 0
    for text, several in zip(predictions, references):
        wrong += all(text != gold for gold in several)
        distances = {gold: naive_distance(text.split(), gold.split()) for gold in several}
        nearest = [gold.split() for gold in several if distances[gold] == min(distances.values())]
        edits += min(distances.values())
        length += min(map(len, nearest))
    expected = {"wer": 100 * wrong / len(predictions), "per": 100 * edits / length}
    assert compute_metrics("sigmorphon_g2p", predictions, references) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_sigmorphon_inflection_as_defined(seed):
    predictions, references = random_texts(seed, separator="")
    pairs = list(zip(predictions, references))
    expected = {
        "accuracy": 100 * sum(text == gold for text, gold in pairs) / len(pairs),
        "edit_distance": sum(naive_distance(text, gold) for text, gold in pairs) / len(pairs),
    }
    assert 0 < expected["accuracy"] < 100
    assert compute_metrics("sigmorphon_inflection", predictions, references) == pytest.approx(expected)
    figures = compute_metrics(["exact_match", "edit_distance"], predictions, references)
    assert figures == pytest.approx({"exact_match": expected["accuracy"], "edit_distance": expected["edit_distance"]})


def test_case_and_spaces_count_in_exact_match():
    assert compute_metrics("exact_match", ["a b", "A b", "a  b", "x"], ["a b", "a b", "a b", ["y", "x"]]) == {
        "exact_match": 50.0
    }


# ROUGE


def test_rouge_by_hand():
    pytest.importorskip("rouge_score", reason="ROUGE needs rouge_score")
    prediction, references = "the cat the mat", ["the cat on the mat", "a cat"]
    # With the first: 4 of 4 and of 5 words; 2 of 3 and of 4 pairs; common subsequence 4 of 4 and of 5.
    expected = {"rouge1": 100 * 8 / 9, "rouge2": 100 * 4 / 7, "rougeL": 100 * 8 / 9}
    assert compute_metrics("rouge", [prediction], [references]) == pytest.approx(expected)
    halves = {name: value / 2 for name, value in expected.items()}
    assert compute_metrics("rouge", [prediction, "x"], [references, "y"]) == pytest.approx(halves)


def test_without_rouge_score(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ImportError, match="pip install rouge-score"):
        compute_metrics("rouge", ["a"], ["a"])


# Groups


def test_groups_and_their_plain_mean():
    predictions = ["a b", "a b", "a b", "c"]
    references = ["a b", "a x", "x y", "c"]
    figures = compute_metrics("sigmorphon_g2p", predictions, references, groups=["fin", "hun", "hun", "fin"])
    assert figures == pytest.approx(
        {"wer": 50, "wer/fin": 0, "wer/hun": 100, "per": 37.5, "per/fin": 0, "per/hun": 75}
    )


def test_signatures_of_groups():
    several = compute_metrics("bleu", ["a b c d", "a b c d"], ["a b c d", ["a b c d", "x"]], groups=["x", "y"])
    assert several["bleu"] == pytest.approx(100)
    one, two = several["bleu_signature"].split(" or ")
    assert one.startswith("nrefs:1|") and two.startswith("nrefs:2|")
    alike = compute_metrics("chrf", ["a", "b"], ["a", "b"], groups=["x", "y"])
    assert alike["chrf_signature"].count("nrefs") == 1 and "chrf_signature/x" not in alike


# Inputs


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_as_an_evaluate_metric(name, tmp_path, monkeypatch):
    if name in NEEDS_ROUGE:
        pytest.importorskip("rouge_score", reason="ROUGE needs rouge_score")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "cache")
    predictions, references = ["a b c d e", "", "x"], [["a b c d f", "a b c"], ["a"], ["x", "y", "z"]]
    expected = compute_metrics(name, predictions, references)
    assert expected.keys() >= METRICS[name].figures.keys()
    metric = METRICS[name]()
    assert isinstance(metric, evaluate.Metric)
    assert metric.compute(predictions=predictions, references=references) == expected
    metric.add(prediction=predictions[0], reference=tuple(references[0]))
    metric.add_batch(predictions=predictions[1:], references=["a", references[2]])
    assert metric.compute() == expected
    assert evaluate.combine([metric]).compute(predictions=predictions, references=references) == expected
    assert list(tmp_path.iterdir()) == []


def test_combined():
    together = evaluate.combine([Bleu(tokenize="char"), Chrf(), ExactMatch()])
    figures = together.compute(predictions=["a b c d"], references=["a b c d"])
    assert figures["bleu"] == pytest.approx(100) and figures["exact_match"] == 100 and "tok:char" in str(figures)


def test_empty_predictions_and_references():
    names = ["bleu", "chrf", "word_error_rate", "character_error_rate", "sigmorphon_g2p", "edit_distance"]
    figures = compute_metrics(names, ["", ""], ["a b", ""])
    assert {name: value for name, value in figures.items() if not name.endswith("_signature")} == {
        **{"bleu": 0, "bleu_lowercased": 0, "chrf": 0, "word_error_rate": 100, "character_error_rate": 100},
        **{"wer": 50, "per": 100, "edit_distance": 1.5},
    }
    with pytest.raises(ValueError, match="All references are empty"):
        compute_metrics("word_error_rate", ["a"], [""])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], []), ValueError, "no predictions"),
        ((["a", "b"], [["a", "b"]]), ValueError, "2 predictions but references for 1"),
        ((["a", "b"], [["a"], []]), ValueError, "Prediction 1, 'b', has no reference"),
        ((["a", None], ["a", "b"]), TypeError, "Prediction 1 or a reference of it is None"),
        ((["a"], [["a", 3]]), TypeError, "Prediction 0 or a reference of it is 3"),
        (("ab", ["a", "b"]), TypeError, "predictions is of type str"),
        ((["a"], None), TypeError, "references is of type NoneType"),
    ],
)
def test_what_can_not_be_scored(arguments, error, message):
    with pytest.raises(error, match=message):
        compute_metrics("exact_match", *arguments)
    with pytest.raises(error, match=message):
        ExactMatch().compute(predictions=arguments[0], references=arguments[1])


def test_other_mistakes():
    with pytest.raises(ValueError, match="nothing to score"):
        ExactMatch().compute()
    with pytest.raises(ValueError, match="'meteor'.*known: bleu"):
        compute_metrics(["bleu", "meteor"], ["a"], ["a"])
    with pytest.raises(ValueError, match="2 predictions but 1 groups"):
        compute_metrics("exact_match", ["a", "b"], ["a", "b"], groups=["x"])


# Choice of checkpoints


def test_figures_to_choose_by():
    chosen = {name: figure_for_best(name) for name in METRICS}
    assert chosen == {
        **{name: name for name in METRICS},
        **{"sigmorphon_g2p": "wer", "sigmorphon_inflection": "accuracy", "rouge": "rougeL"},
    }
    assert figure_for_best("per") == "per" and figure_for_best("loss") == "loss"
    for figure in ("bleu", "bleu_lowercased", "chrf", "accuracy", "exact_match", "rouge2", "eval_bleu", "chrf/fin"):
        assert greater_is_better(figure)
    for figure in ("wer", "per", "edit_distance", "word_error_rate", "character_error_rate", "loss", "eval_wer/fin"):
        assert not greater_is_better(figure)
    for function in (figure_for_best, greater_is_better):
        with pytest.raises(ValueError, match="'perplexity'; known: loss, bleu"):
            function("perplexity")
