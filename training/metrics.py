"""
The metrics of the recipes: `evaluate.Metric` objects over sacrebleu, jiwer, rapidfuzz and rouge_score; no network.

    compute_metrics(["bleu", "chrf"], ["a man sleeps"], [["a man is sleeping", "a man sleeps"]])

Every prediction has one reference (a string) or several (a list). Case, Unicode form and spaces count, except where a
metric says otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import evaluate
import jiwer
import sacrebleu
from datasets import Features, Sequence, Value
from rapidfuzz.distance import Levenshtein

Texts = list[str]
References = list[list[str]]  # for each text one or more
Figures = dict[str, float | str]


class TextMetric(evaluate.Metric):
    """
    A metric of predicted texts, used as any `evaluate.Metric`: `compute`, `add`, `add_batch`, `evaluate.combine`.

    It keeps its texts in memory and writes no files unless asked to with `keep_in_memory=False`.

    Raises:
        TypeError: something else than texts is given.
        ValueError: there is nothing to score, the numbers of predictions and references differ, or a prediction has
            no reference.
    """

    figures: dict[str, bool] = {}  # what it computes, and whether greater is better; checkpoints go by the first

    def __init__(self, config_name: str | None = None, keep_in_memory: bool = True, **options: Any):
        super().__init__(config_name, keep_in_memory, **options)

    def _info(self) -> evaluate.MetricInfo:
        texts = Features({"predictions": Value("string"), "references": Sequence(Value("string"))})
        return evaluate.MetricInfo(description=str(self.__doc__), citation="", features=texts)

    def _build_data_dir(self) -> str:
        return "" if self.keep_in_memory else super()._build_data_dir()  # the library's makes a folder in any case

    def _finalize(self) -> None:
        if self.writer is None:
            raise ValueError("There is nothing to score: give predictions and references, or add some first.")
        super()._finalize()

    def add(self, *, prediction: str, reference: str | Iterable[str]) -> None:
        """Adds one prediction with its reference or references."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Iterable[str], references: Iterable[str | Iterable[str]]) -> None:
        """Adds predictions, each with its reference or references."""
        predictions, references = _checked(predictions, references)
        super().add_batch(predictions=predictions, references=references)


class Bleu(TextMetric):
    """
    sacreBLEU (Post 2018) of plain, not tokenized text, with signatures: cased, and both sides lower-cased.

    Args:
        tokenize: a tokenizer of sacrebleu, such as `"13a"`; for Chinese `"zh"`, for Japanese `"ja-mecab"` (with
            `pip install "sacrebleu[ja]"`), for either `"char"`. Any other name is a `ValueError`.
    """

    figures = {"bleu": True, "bleu_lowercased": True}

    def __init__(self, tokenize: str = "13a", **options: Any):
        if tokenize not in sacrebleu.BLEU.TOKENIZERS:
            raise ValueError(f"Unknown BLEU tokenizer {tokenize!r}; allowed: {', '.join(sacrebleu.BLEU.TOKENIZERS)}.")
        super().__init__(**options)
        self.scorers = [sacrebleu.BLEU(tokenize=tokenize), sacrebleu.BLEU(tokenize=tokenize, lowercase=True)]

    def _compute(self, predictions: Texts, references: References) -> Figures:
        return _sacrebleu(zip(self.figures, self.scorers), predictions, references)


class Chrf(TextMetric):
    """chrF (Popović 2015) of sacrebleu, with its signature."""

    figures = {"chrf": True}

    def _compute(self, predictions: Texts, references: References) -> Figures:
        return _sacrebleu([("chrf", sacrebleu.CHRF())], predictions, references)


class WordErrorRate(TextMetric):
    """100 x word edits to the nearest reference of each text / words of these references (jiwer)."""

    figures = {"word_error_rate": False}
    process = staticmethod(jiwer.process_words)

    def _compute(self, predictions: Texts, references: References) -> Figures:
        def edits_and_length(prediction: str, reference: str) -> tuple[int, int]:
            out = self.process(reference, prediction)
            return out.substitutions + out.deletions + out.insertions, out.hits + out.substitutions + out.deletions

        (name,) = self.figures
        return {name: _error_rate(edits_and_length, predictions, references)}


class CharacterErrorRate(WordErrorRate):
    """100 x character edits to the nearest reference of each text / characters of these references (jiwer)."""

    figures = {"character_error_rate": False}
    process = staticmethod(jiwer.process_characters)


class SigmorphonG2p(TextMetric):
    """
    Error rates of SIGMORPHON 2020 task 1 (Gorman et al. 2020); phones are separated by spaces.

    - `wer`: 100 x words whose phones are not exactly those of a reference / words
    - `per`: 100 x phone edits to the nearest reference of each word / phones of these references

    The task reports the mean over languages: give `compute_metrics` the languages as groups. Edits are Levenshtein's.
    The task's own script starts its table with ones, and so counts several phones too many or too few in front of a
    word as one edit: its PER may be a little lower, never higher.
    """

    figures = {"wer": False, "per": False}

    def _compute(self, predictions: Texts, references: References) -> Figures:
        phones = [text.split() for text in predictions]
        gold = [[text.split() for text in several] for several in references]

        def edits_and_length(prediction: list[str], reference: list[str]) -> tuple[int, int]:
            return Levenshtein.distance(prediction, reference), len(reference)

        return {"wer": 100 - _accuracy(phones, gold), "per": _error_rate(edits_and_length, phones, gold)}


class ExactMatch(TextMetric):
    """Percentage of predictions that equal a reference."""

    figures = {"exact_match": True}

    def _compute(self, predictions: Texts, references: References) -> Figures:
        return {"exact_match": _accuracy(predictions, references)}


class EditDistance(TextMetric):
    """Mean Levenshtein distance, in code points, to the nearest reference."""

    figures = {"edit_distance": False}

    def _compute(self, predictions: Texts, references: References) -> Figures:
        rows = zip(predictions, references)
        distances = [min(Levenshtein.distance(text, other) for other in several) for text, several in rows]
        return {"edit_distance": sum(distances) / len(distances)}


class SigmorphonInflection(EditDistance):
    """Percentage of forms that are exactly right, and mean edit distance, as in SIGMORPHON's inflection tasks."""

    figures = {"accuracy": True, "edit_distance": False}

    def _compute(self, predictions: Texts, references: References) -> Figures:
        return {"accuracy": _accuracy(predictions, references), **super()._compute(predictions, references)}


class Rouge(TextMetric):
    """
    100 x mean F-measure of ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), each with the reference that is best for it.

    rouge_score lower-cases and sees nothing but the letters a to z and digits: it is for English.

    Raises:
        ImportError: rouge_score is not installed.
    """

    figures = {"rougeL": True, "rouge1": True, "rouge2": True}

    def __init__(self, **options: Any):
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError as error:
            raise ImportError("The metric 'rouge' needs rouge_score: pip install rouge-score.") from error
        super().__init__(**options)
        self.scorer = RougeScorer(list(self.figures))

    def _compute(self, predictions: Texts, references: References) -> Figures:
        scores = [self.scorer.score_multi(several, text) for text, several in zip(predictions, references)]
        return {name: 100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in self.figures}


METRICS: dict[str, type[evaluate.Metric]] = {
    "bleu": Bleu,
    "chrf": Chrf,
    "word_error_rate": WordErrorRate,
    "character_error_rate": CharacterErrorRate,
    "sigmorphon_g2p": SigmorphonG2p,
    "sigmorphon_inflection": SigmorphonInflection,
    "exact_match": ExactMatch,
    "edit_distance": EditDistance,
    "rouge": Rouge,
}
_GREATER_IS_BETTER = {"loss": False} | {name: way for cls in METRICS.values() for name, way in cls.figures.items()}


def compute_metrics(
    names: str | Iterable[str],
    predictions: Iterable[str],
    references: Iterable[str | Iterable[str]],
    groups: Iterable[str] | None = None,
    *,
    bleu_tokenize: str = "13a",
) -> Figures:
    """
    All figures of the metrics `names` (keys of `METRICS`) on the texts `predictions`.

    Args:
        references: for each text its reference, or a list of references.
        groups: for each text its group, such as a language or domain.
        bleu_tokenize: see `Bleu`.

    Returns:
        figures by name, and signatures by `NAME_signature`. With `groups`, `NAME/GROUP` is the figure of one group and
        `NAME` the plain mean over the groups; where their signatures differ, each is named.

    Raises:
        TypeError, ValueError: as `TextMetric`; an unknown metric or tokenizer; the number of groups differs.
    """
    names = [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in names if name not in METRICS]:
        raise ValueError(f"Unknown metrics {unknown}; known: {', '.join(METRICS)}.")
    metrics = [METRICS[name](tokenize=bleu_tokenize) if name == "bleu" else METRICS[name]() for name in names]
    predictions, references = _checked(predictions, references)

    def figures_of(rows: Iterable[int]) -> Figures:
        texts = {"predictions": [predictions[row] for row in rows], "references": [references[row] for row in rows]}
        return {name: value for metric in metrics for name, value in metric.compute(**texts).items()}

    if groups is None:
        return figures_of(range(len(predictions)))
    groups = list(groups)
    if len(groups) != len(predictions):
        raise ValueError(f"There are {len(predictions)} predictions but {len(groups)} groups; each needs one.")
    rows = range(len(groups))
    by_group = {name: figures_of([row for row in rows if groups[row] == name]) for name in dict.fromkeys(groups)}
    means: Figures = {}
    grouped: Figures = {}
    for name in next(iter(by_group.values())):
        values = [figures[name] for figures in by_group.values()]
        if isinstance(values[0], str):
            means[name] = " or ".join(dict.fromkeys(values))
        else:
            means[name] = sum(values) / len(values)
            grouped.update({f"{name}/{group}": value for group, value in zip(by_group, values)})
    return {**means, **grouped}


def figure_for_best(name: str) -> str:
    """
    The figure by which to choose among checkpoints for `name`: the first of a metric, or a figure itself.

    Raises:
        ValueError: `name` is neither a metric nor a figure.
    """
    figure = next(iter(METRICS[name].figures)) if name in METRICS else name
    greater_is_better(figure)
    return figure


def greater_is_better(figure: str) -> bool:
    """
    Whether a larger value of `figure` is better. `loss`, a group (`wer/fin`) and `eval_` in front are understood.

    Raises:
        ValueError: no metric has such a figure.
    """
    name = figure.removeprefix("eval_").partition("/")[0]
    if name not in _GREATER_IS_BETTER:
        raise ValueError(f"Unknown figure {figure!r}; known: {', '.join(_GREATER_IS_BETTER)}.")
    return _GREATER_IS_BETTER[name]


def _checked(predictions: Any, references: Any) -> tuple[Texts, References]:
    for name, values in (("predictions", predictions), ("references", references)):
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"{name} is of type {type(values).__name__}; it must be a list, one entry for each text.")
    predictions = list(predictions)
    references = [
        list(entry) if isinstance(entry, Iterable) and not isinstance(entry, str) else [entry] for entry in references
    ]
    if len(predictions) != len(references):
        raise ValueError(
            f"There are {len(predictions)} predictions but references for {len(references)}; each needs one reference "
            "or a list of them."
        )
    if not predictions:
        raise ValueError("There are no predictions; a metric needs at least one.")
    for row, (prediction, several) in enumerate(zip(predictions, references)):
        if not several:
            raise ValueError(f"Prediction {row}, {prediction!r:.60}, has no reference; it needs at least one.")
        for text in (prediction, *several):
            if not isinstance(text, str):
                raise TypeError(f"Prediction {row} or a reference of it is {text!r:.60}; both must be strings.")
    return predictions, references


def _sacrebleu(scorers: Iterable[tuple[str, Any]], predictions: Texts, references: References) -> Figures:
    # sacrebleu wants the first references of all texts, then the second ones, and so on, None where there is none.
    streams = list(itertools.zip_longest(*references))
    figures: Figures = {}
    for name, scorer in scorers:
        figures[name] = scorer.corpus_score(predictions, streams).score
        figures[f"{name}_signature"] = str(scorer.get_signature())
    return figures


def _accuracy(predictions: list, references: list[list]) -> float:
    return 100 * sum(map(list.__contains__, references, predictions)) / len(predictions)


def _error_rate(edits_and_length: Callable, predictions: list, references: list[list]) -> float:
    # Of several references with the least edits the shortest counts, so that their order does not matter.
    nearest = [
        min(edits_and_length(text, reference) for reference in several)
        for text, several in zip(predictions, references)
    ]
    edits, length = map(sum, zip(*nearest))
    if not length:
        raise ValueError("All references are empty; an error rate needs something that can be right.")
    return 100 * edits / length
