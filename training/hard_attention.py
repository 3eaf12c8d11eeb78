"""
Soft or hard attention, and which estimator? The same small model with each, for the same number of epochs.

    python -m training.hard_attention --task inflection --languages turkish finnish --seeds 1 2 3
    python -m training.hard_attention --task cmudict --epochs 2
    python -m training.hard_attention --task cost

`inflection` and `cmudict` train by `training/recipes/hard_attention_TASK.yaml`, into
`OUTPUT_DIR/TASK/LANGUAGE/ROW/SEED`; what is there already is not repeated, and the table of all that is there goes to
`OUTPUT_DIR/TASK/table.md`. `cost` measures the time and the memory of a training step of each, in one run.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from transformers import HfArgumentParser

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration

from . import train
from .benchmarks.measure import peak_memory
from .tables import directory_of, words_of

HARD = {"attention_selection": "hard"}
ROWS: dict[str, dict] = {
    "soft": {},
    "soft, input feeding": {"input_feeding": True},
    "marginal": HARD,
    "reinforce": {**HARD, "hard_attention_estimator": "reinforce", "hard_attention_samples": 2},
    "straight-through": {
        **HARD,
        "hard_attention_estimator": "straight_through",
        "hard_attention_final_temperature": 0.5,
        "hard_attention_annealing_steps": 2000,
    },
    "variational": {**HARD, "hard_attention_estimator": "variational"},
    "monotonic, order 0": {**HARD, "hard_attention_order": 0},
    "monotonic, order 1": {**HARD, "hard_attention_order": 1},
}
RECIPES = Path(__file__).parent / "recipes"
FIGURES = {"inflection": "accuracy", "cmudict": "wer"}


@dataclass
class TableArguments:
    """What to compare."""

    task: str = field(default="inflection", metadata={"help": "inflection, cmudict or cost"})
    rows: list[str] = field(default_factory=lambda: list(ROWS), metadata={"help": "some of the rows only"})
    languages: list[str] = field(default_factory=lambda: ["turkish"], metadata={"help": "of the inflection task"})
    seeds: list[int] = field(default_factory=lambda: [1], metadata={"help": "one training for each"})
    epochs: int = field(default=20, metadata={"help": "passes over the training data"})
    output_dir: str = field(default="runs/hard_attention", metadata={"help": "where everything goes"})
    repetitions: int = field(default=7, metadata={"help": "of the cost measurement; the median counts"})

    def __post_init__(self):
        if self.task not in (*FIGURES, "cost"):
            raise ValueError(f"task={self.task!r} is unknown; allowed: inflection, cmudict, cost")
        unknown = [row for row in self.rows if row not in ROWS]
        if unknown:
            raise ValueError(f"rows: {unknown[0]!r} is unknown; allowed: {', '.join(map(repr, ROWS))}")


def train_rows(arguments: TableArguments) -> None:
    """Trains what is missing, one seed of all rows after the other, and writes the table after each training."""
    folder = Path(arguments.output_dir, arguments.task)
    recipe = RECIPES / f"hard_attention_{arguments.task}.yaml"
    for seed in arguments.seeds:
        for language in arguments.languages if arguments.task == "inflection" else ["english"]:
            for row in arguments.rows:
                run = folder / language / directory_of(row) / str(seed)
                if (run / "results.json").exists():
                    continue
                options = {**ROWS[row], "seed": seed, "num_train_epochs": arguments.epochs, "output_dir": run}
                if arguments.task == "inflection":
                    options["languages"] = language
                train.main([str(recipe), *words_of({**options, "disable_tqdm": True})])
                write_table(folder, FIGURES[arguments.task])
    print(write_table(folder, FIGURES[arguments.task]))


def write_table(folder: Path, figure: str) -> str:
    """The table of all runs in `folder`: the mean of the seeds, and their standard deviation if there are several."""
    languages = sorted(path.name for path in folder.iterdir() if path.is_dir())
    lines = [f"| attention | {' | '.join(languages)} |", "|---" * (len(languages) + 1) + "|"]
    for row in ROWS:
        cells = []
        for language in languages:
            files = sorted((folder / language / directory_of(row)).glob("*/results.json"))
            values = [json.loads(file.read_text())["test"][figure] for file in files]
            spread = f" ± {statistics.stdev(values):.1f} ({len(values)} seeds)" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{spread}" if values else "")
        if any(cells):
            lines.append(f"| {row} | {' | '.join(cells)} |")
    table = "\n".join(lines)
    train.write_whole(folder / "table.md", table + "\n")
    return table


class TrainingStep:
    """One row's training step on random words of the size of inflection: 64 of 18 tokens, 14 to write."""

    def __init__(self, row: str):
        torch.manual_seed(0)
        recipe = yaml.safe_load((RECIPES / "hard_attention_inflection.yaml").read_text(encoding="utf-8"))
        config = AttentionSeq2SeqConfig(vocab_size=100, **{**recipe["model"], **ROWS[row]})
        self.model = AttentionSeq2SeqForConditionalGeneration(config).train()
        self.words = {"input_ids": torch.randint(3, 100, (64, 18)), "labels": torch.randint(3, 100, (64, 14))}

    def __call__(self) -> float:
        """Forward and backward; the seconds of this process."""
        started = time.process_time()
        self.model(**self.words, output_logits=False).loss.backward()
        return time.process_time() - started


def memory_of(row: str) -> float:
    """MB that a process has to have at most for steps, above what the library and the model take."""
    step = TrainingStep(row)
    before = peak_memory()
    for _ in range(3):
        step()
    return peak_memory() - before


def measure_cost(arguments: TableArguments) -> str:
    """Time (the repetitions of all rows alternate) and memory (each row in a process of its own; Linux only)."""
    steps = {row: TrainingStep(row) for row in arguments.rows}
    times = {row: [] for row in steps}
    for repetition in range(arguments.repetitions + 1):
        for row, step in steps.items():
            seconds = step()
            if repetition:  # the first is for warming up
                times[row].append(seconds)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        memory = dict(zip(steps, pool.map(memory_of, steps)))
    first = statistics.median(times[arguments.rows[0]])
    lines = ["| attention | ms a step (least to most) | relative | MB |", "|---|---|---|---|"]
    for row, values in times.items():
        middle, least, most = (1000 * value for value in (statistics.median(values), min(values), max(values)))
        lines.append(
            f"| {row} | {middle:.0f} ({least:.0f} to {most:.0f}) | {middle / 1000 / first:.2f} | {memory[row]:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    try:
        (arguments,) = HfArgumentParser(TableArguments).parse_args_into_dataclasses()
    except ValueError as error:
        sys.exit(f"error: {error}")
    print(measure_cost(arguments)) if arguments.task == "cost" else train_rows(arguments)


if __name__ == "__main__":
    main()
