"""
What copying, coverage and attention to sentences are worth for summaries: package descriptions to their one line.

    python -m training.summaries --output_dir runs/summaries
    python -m training.summaries --rows pointer --max_steps 100

Trains each row by `training/recipes/debian_synopsis.yaml` with the same number of epochs, into `OUTPUT_DIR/ROW/SEED`;
what is there already is not repeated. The table of all that is there, with baselines that are not trained, goes to
`OUTPUT_DIR/table.md` and its figures to `OUTPUT_DIR/results.json`: ROUGE on the test set, and the share of trigrams of
words that had been in the same summary before.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from transformers import HfArgumentParser

from . import train
from .arguments import parse_recipe
from .data import load_text_data, sentences_of
from .metrics import compute_metrics
from .tables import directory_of, words_of

RECIPE = Path(__file__).parent / "recipes" / "debian_synopsis.yaml"
POINTER = {"copy_mechanism": "pointer_generator", "max_unknown_words": 100}
ROWS: dict[str, dict] = {
    "attention": {},
    "pointer": POINTER,
    # See 2017 adds the loss in the last steps only, with weight 1; here it is there from the beginning.
    "pointer, coverage": {**POINTER, "coverage_type": "accumulated", "coverage_loss_weight": 0.2},
    "hierarchical": {"encoder_type": "hierarchical", "source_separator": "<sep>", "split_sentences": True},
    "hierarchical, pointer": {
        **POINTER,
        "encoder_type": "hierarchical",
        "source_separator": "<sep>",
        "split_sentences": True,
    },
}
FIGURES = ("rouge1", "rouge2", "rougeL", "repeated trigrams (%)", "words")


@dataclass
class TableArguments:
    """What to compare."""

    rows: list[str] = field(
        default_factory=lambda: [row for row in ROWS if row != "hierarchical, pointer"],
        metadata={"help": f"some of: {'; '.join(ROWS)}"},
    )
    seeds: list[int] = field(default_factory=lambda: [1], metadata={"help": "one training for each"})
    epochs: int | None = field(default=None, metadata={"help": "passes over the training data; else the recipe's"})
    max_steps: int | None = field(default=None, metadata={"help": "only so many steps, for a trial"})
    max_test_rows: int | None = field(default=None, metadata={"help": "only so many test rows, for a trial"})
    data_dir: str | None = field(default=None, metadata={"help": "else $ATTENTION_SEQ2SEQ_DATA"})
    output_dir: str = field(default="runs/summaries", metadata={"help": "where everything goes"})

    def __post_init__(self):
        unknown = [row for row in self.rows if row not in ROWS]
        if unknown:
            raise ValueError(f"rows: {unknown[0]!r} is unknown; allowed: {', '.join(map(repr, ROWS))}")

    def options(self) -> list[str]:
        """The words of the command line that are the same for all rows."""
        options = {
            "num_train_epochs": self.epochs,
            "max_steps": self.max_steps,
            "max_test_rows": self.max_test_rows,
            "data_dir": self.data_dir,
        }
        return words_of(options)


def repeated_trigrams(texts: Iterable[str]) -> float:
    """Percentage of the trigrams of words in all texts that their own text has had before; 0 without trigrams."""
    total = repeated = 0
    for text in texts:
        words = text.lower().split()
        trigrams = list(zip(words, words[1:], words[2:]))
        total += len(trigrams)
        repeated += len(trigrams) - len(set(trigrams))
    return 100 * repeated / total if total else 0.0


def measure(summaries: list[str], references: list[list[str]]) -> dict[str, float]:
    """`FIGURES` of summaries."""
    figures = compute_metrics("rouge", summaries, references)
    figures["repeated trigrams (%)"] = repeated_trigrams(summaries)
    figures["words"] = statistics.mean(len(summary.split()) for summary in summaries)
    return {name: figures[name] for name in FIGURES}


def baselines(documents: list[str], references: list[list[str]], words: int) -> dict[str, dict[str, float]]:
    """Summaries that need no model, and the references themselves; `words` is how long a summary is in the mean."""
    ways: dict[str, Callable[[str], str]] = {
        "lead: first sentence": lambda document: sentences_of(document)[0],
        f"lead: first {words} words": lambda document: " ".join(document.split()[:words]),
    }
    figures = {name: measure([way(document) for document in documents], references) for name, way in ways.items()}
    figures["reference"] = measure([several[0] for several in references], references)
    return figures


def write_table(folder: Path, fixed: dict[str, dict[str, float]], references: list[list[str]]) -> str:
    """The table of the baselines and of all runs in `folder`; several seeds as their mean."""
    results = dict(fixed)
    for row in ROWS:
        runs = sorted(path.parent for path in (folder / directory_of(row)).glob("*/results.json"))
        figures = []
        for run in runs:
            predictions = (run / "predictions.test.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
            minutes = json.loads((run / "results.json").read_text(encoding="utf-8"))["training_minutes"]
            figures.append({**measure(predictions, references), "minutes": minutes})
        if runs:
            results[row] = {name: statistics.mean(one[name] for one in figures) for name in figures[0]}
            results[row]["seeds"] = len(runs)
    lines = [f"| | {' | '.join((*FIGURES, 'minutes'))} |", "|---" * (len(FIGURES) + 2) + "|"]
    for row, figures in results.items():
        cells = [f"{figures[name]:.1f}" if name in figures else "" for name in (*FIGURES, "minutes")]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    train.write_whole(folder / "results.json", json.dumps(results, indent=2) + "\n")
    train.write_whole(folder / "table.md", table + "\n")
    return table


def main(words: list[str] | None = None) -> None:
    """Trains what is missing and writes the table after each training."""
    try:
        (arguments,) = HfArgumentParser(TableArguments).parse_args_into_dataclasses(words)
        data = load_text_data(parse_recipe([str(RECIPE), *arguments.options()]).data)
    except ValueError as error:
        sys.exit(f"error: {error}")
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    length = round(statistics.mean(len(target.split()) for target in data.train["target"]))
    references = data.tests["test"]["references"][:]
    fixed = baselines(data.tests["test"]["source"][:], references, length)
    print(write_table(folder, fixed, references), flush=True)
    for seed in arguments.seeds:
        for row in arguments.rows:
            run = folder / directory_of(row) / str(seed)
            if (run / "results.json").exists():
                continue
            options = {**ROWS[row], "seed": seed, "output_dir": run, "disable_tqdm": True}
            train.main([str(RECIPE), *arguments.options(), *words_of(options)])
            print(write_table(folder, fixed, references), flush=True)


if __name__ == "__main__":
    main()
