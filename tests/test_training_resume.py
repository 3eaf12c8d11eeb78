"""
Runs of `python -m training.train` that are killed at chosen moments and started again: the end must be, bit for bit,
that of a run which nobody disturbed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml
from transformers.utils import logging as transformers_logging

from training.train import main
from training.trainer import RecipeTrainer

ROOT = Path(__file__).parents[1]
RESULT = ("model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "target_tokenizer.json", "predictions.test.txt")

# Checkpoints in the middle of an epoch and of its end, of two batches a step; everything that draws or remembers.
STEPS = {
    "data": {"train_file": "train.tsv", "validation_file": "validation.tsv", "test_file": "test.tsv"},
    "tokenizer": {"source_unit": "char"},
    "model": {"embedding_size": 8, "hidden_size": 8, "embedding_dropout": 0.1, "output_dropout": 0.2},
    "training": {
        "num_train_epochs": 2.5,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "learning_rate": 2e-2,
        "lr_scheduler_type": "linear",
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 2,
        "metric_for_best_model": "loss",
        "early_stopping_patience": 4,
        "weight_average_decay": 0.6,
        "scheduled_sampling": 0.5,
        "use_cpu": True,
        "disable_tqdm": True,
    },
    "evaluation": {"num_beams": 2, "max_new_tokens": 8, "metrics": ["exact_match"], "samples": 1},
}


def recipe(folder: Path, **training) -> Path:
    """Writes a recipe and its data; `None` takes a field away, and `evaluation` and `data` change these sections."""
    sections = {name: dict(fields) for name, fields in STEPS.items()}
    sections["data"] |= {"data_dir": str(folder)} | training.pop("data", {})
    sections["evaluation"] |= training.pop("evaluation", {})
    merged = sections["training"] | training
    sections["training"] = {name: value for name, value in merged.items() if value is not None}
    letters = random.Random(0)
    for name, rows in {"train": 30, "validation": 6, "test": 6}.items():
        words = ["".join(letters.choices("abcdef", k=letters.randint(2, 7))) for _ in range(rows)]
        (folder / f"{name}.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


class Saboteur:
    """
    Names what a run does to its folder, and kills it when it is about to do `victim`. With `torn`, it is killed in
    the midst of writing this file, of which half is then there.
    """

    def __init__(self, folder: Path, victim: str | None = None, torn: bool = False):
        self.folder, self.victim, self.torn = str(folder), victim, torn
        self.names: list[str] = []
        self.tree = ""
        self.half_written = None

    def __call__(self, what: str, path: str = "") -> None:
        name = f"{what} {path.removeprefix(self.folder + os.sep)}".strip()
        if self.half_written is not None:
            self.kill()
        self.names.append(name)
        if name == self.victim:
            self.half_written = path if self.torn else None
            if not self.torn:
                self.kill()

    def kill(self) -> None:
        if self.half_written is not None:
            os.truncate(self.half_written, os.path.getsize(self.half_written) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, args: tuple) -> None:
        """Python's own operations on files."""
        if event == "shutil.rmtree":
            self.tree = str(args[0])
        elif event in ("os.remove", "os.rmdir") and args[1] != -1 and self.inside(self.tree):
            self("remove", os.path.join(self.tree, str(args[0])))
        elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax") and self.inside(args[0]):
            self("write", os.fspath(args[0]))
        elif event in ("os.remove", "os.rmdir", "os.rename") and self.inside(args[0]):
            self(event.removeprefix("os."), os.fspath(args[0]))

    def inside(self, path) -> bool:
        return isinstance(path, str | Path) and os.fspath(path).startswith(self.folder)

    def arm(self) -> None:
        def before(function, what, path_of=None):
            def wrapper(*args, **kwargs):
                if path_of is None:
                    self(f"{what} {args[0].state.global_step}")
                elif self.inside(path_of(*args)):
                    self(what, os.fspath(path_of(*args)))
                return function(*args, **kwargs)

            return wrapper

        sys.addaudithook(self.audit)
        torch.save = before(torch.save, "write", lambda values, file, *rest: file)
        to_file = safetensors.torch.serialize_file
        safetensors.torch.serialize_file = before(to_file, "write", lambda tensors, file, *rest: file)
        for name in ("training_step", "evaluate"):
            setattr(RecipeTrainer, name, before(getattr(RecipeTrainer, name), name))


def child(arguments: list[str], folder: Path, log: Path, victim: str | None, torn: bool) -> None:
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    saboteur = Saboteur(folder, victim, torn)
    saboteur.arm()
    main(arguments)
    if saboteur.half_written is not None:
        saboteur.kill()
    log.with_suffix(".json").write_text(json.dumps(saboteur.names))


@pytest.fixture(scope="module")
def server():
    """Processes with everything imported already, in which torch has not run yet."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")}
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    yield context
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def start(server):
    def run(path: Path, folder: Path, victim=None, torn=False, options=(), kill_after=None) -> list[str]:
        """One start; what it did if it was not killed."""
        log = folder.with_suffix(".log")
        arguments = [str(path), "--output_dir", str(folder), *options]
        process = server.Process(target=child, args=(arguments, folder, log, victim, torn))
        process.start()
        process.join(120 if kill_after is None else kill_after)
        if kill_after is not None:
            process.kill()
            process.join()
            return []
        printed = log.read_text()[-3000:] if log.exists() else ""
        assert process.exitcode == (0 if victim is None else -signal.SIGKILL), f"{victim}: {process.exitcode} {printed}"
        return json.loads(log.with_suffix(".json").read_text()) if victim is None else []

    return run


def assert_same_result(one: Path, other: Path) -> None:
    for name in RESULT:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in (one, other)]
    for name in ("global_step", "epoch", "best_metric", "best_global_step"):
        assert states[0][name] == states[1][name], name


KILLS = [
    ("write recipe.yaml", True),
    ("training_step 1", False),
    ("write checkpoint-2/averages.safetensors", True),
    ("write checkpoint-4/optimizer.pt", True),
    ("write checkpoint-6/trainer_state.json", True),
    ("write checkpoint-8/clock.json", True),
    ("evaluate 8", False),
    ("write checkpoint-10/rng_state.pth", True),
    ("write model.safetensors", True),
    ("write predictions.test.txt", True),
    ("write results.json", True),
    ("write README.md", True),
]


def test_one_run_killed_again_and_again(tmp_path, start):
    path = recipe(tmp_path)
    names = start(path, tmp_path / "whole")
    print("\n".join(names))
    for victim, torn in KILLS:
        start(path, tmp_path / "parts", victim, torn)
    start(path, tmp_path / "parts")
    assert_same_result(tmp_path / "whole", tmp_path / "parts")
