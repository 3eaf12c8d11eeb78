"""
Runs of `python -m training.train` that are killed at chosen moments and started again: the end must be, bit for bit,
that of a run which nobody disturbed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import yaml
from transformers.utils import logging as transformers_logging

from training.arguments import parse_recipe
from training.averaging import checkpoints, is_complete, step_of
from training.train import check_recipe_of_run, main
from training.trainer import RecipeTrainer, checkpoint_to_continue

ROOT = Path(__file__).parents[1]
WEIGHTS = "model.safetensors"
RESULT = (WEIGHTS, "config.json", "generation_config.json", "tokenizer.json", "target_tokenizer.json")

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
    multiprocessing.set_start_method("fork", force=True)  # as where no server started the process
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
        """One start, killed at `victim` or after some seconds; if it came to its end, what it did."""
        log = folder.with_suffix(".log")
        arguments = [str(path), "--output_dir", str(folder), *options]
        process = server.Process(target=child, args=(arguments, folder, log, victim, torn))
        process.start()
        process.join(300 if kill_after is None else kill_after)
        if process.exitcode is None:
            process.kill()
            process.join()
        killed = victim is not None or (kill_after is not None and process.exitcode != 0)
        assert process.exitcode == (-signal.SIGKILL if killed else 0), f"{victim}: {log.read_text()[-3000:]}"
        return [] if killed else json.loads(log.with_suffix(".json").read_text())

    return run


def assert_same_result(one: Path, other: Path) -> None:
    for name in (*RESULT, "predictions.test.txt"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    states = [json.loads((folder / "trainer_state.json").read_text()) for folder in (one, other)]
    for name in ("global_step", "epoch", "best_metric", "best_global_step"):
        assert states[0][name] == states[1][name], name


def steps_of(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(("training_step", "evaluate"))]


EPOCHS = {
    **{"eval_strategy": "epoch", "eval_steps": None, "save_strategy": "epoch", "save_steps": None},
    **{"num_train_epochs": 4, "metric_for_best_model": None, "early_stopping_patience": None},
    **{"weight_average_decay": None, "save_total_limit": 3, "evaluation": {"average_last": 3}},
}
# No output is ever right, so that the first checkpoint stays the best one.
STOPPED = {"metric_for_best_model": "exact_match", "early_stopping_patience": 3, "num_train_epochs": 9}
# Eight batches are a pass; the fourth step reads into the second.
STREAM = {"data": {"streaming": True}, "max_steps": 10, "num_train_epochs": None}


def test_one_run_killed_again_and_again(tmp_path, start):
    path, whole, parts = recipe(tmp_path), tmp_path / "whole", tmp_path / "parts"
    done = start(path, whole)
    assert len(set(steps_of(done))) == 15 and "write checkpoint-10/trainer_state.json" in done
    for victim, torn in [
        ("write recipe.yaml.part", True),
        ("write checkpoint-2/averages.safetensors", True),
        ("training_step 3", False),
        ("write checkpoint-4/optimizer.pt", True),
        ("write checkpoint-6/trainer_state.json", True),
        ("remove checkpoint-4/trainer_state.json", False),
        ("evaluate 10", False),
        ("write checkpoint-10/rng_state.pth", True),
        ("write model.safetensors", True),
        ("write results.json.part", True),
    ]:
        start(path, parts, victim, torn)
    start(path, parts)
    assert_same_result(whole, parts)
    assert not steps_of(start(path, parts))
    assert_same_result(whole, parts)


def test_patience_and_the_best_checkpoint_are_not_forgotten(tmp_path, start):
    path, whole, parts = recipe(tmp_path, **STOPPED), tmp_path / "whole", tmp_path / "parts"
    start(path, whole)
    state = json.loads((whole / "trainer_state.json").read_text())
    assert (state["global_step"], state["best_global_step"]) == (8, 2)
    start(path, parts, "training_step 5")
    moved = parts.rename(tmp_path / "moved")
    start(path, moved, "write model.safetensors", torn=True)
    assert not steps_of(start(path, moved))
    assert_same_result(whole, moved)


def test_checkpoints_at_the_ends_of_epochs_and_their_average(tmp_path, start):
    path, whole, parts = recipe(tmp_path, **EPOCHS), tmp_path / "whole", tmp_path / "parts"
    start(path, whole)
    start(path, parts, "training_step 6")
    os.utime(parts / "checkpoint-4")
    start(path, parts, "remove checkpoint-4/clock.json", options=("--dataloader_num_workers", "2"))
    start(path, parts, "write averaged/model.safetensors", torn=True)
    start(path, parts)
    assert_same_result(whole, parts)


def test_a_stream_goes_on_in_its_second_pass(tmp_path, start):
    path, whole, parts = recipe(tmp_path, **STREAM), tmp_path / "whole", tmp_path / "parts"
    start(path, whole)
    start(path, parts, "training_step 3")
    start(path, parts, "training_step 7")
    start(path, parts)
    assert_same_result(whole, parts)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, EPOCHS, STOPPED, STREAM], ids=["steps", "epochs", "stopped", "stream"])
def test_every_moment(tmp_path, start, changes):
    path, whole, parts = recipe(tmp_path, **changes), tmp_path / "whole", tmp_path / "parts"
    for victim in dict.fromkeys(start(path, whole)):
        for torn in (False, True) if victim.startswith("write") else (False,):
            shutil.rmtree(parts, ignore_errors=True)
            start(path, parts, victim, torn)
            start(path, parts)
            assert_same_result(whole, parts)


@pytest.mark.slow
def test_any_time(tmp_path, start):
    path, whole, parts = recipe(tmp_path), tmp_path / "whole", tmp_path / "parts"
    began = time.monotonic()
    start(path, whole)
    seconds = time.monotonic() - began
    times = random.Random(1)
    for _ in range(20):
        shutil.rmtree(parts, ignore_errors=True)
        while not start(path, parts, kill_after=times.uniform(0.3, 1) * seconds):
            pass
        assert_same_result(whole, parts)


# The choice of a checkpoint, on files alone


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    safetensors.torch.save_file({"w": torch.zeros(50)}, path / WEIGHTS)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"w": torch.zeros(50)}, path / name)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def steps_in(folder: Path) -> list[int]:
    return [step_of(path) for path in checkpoints(folder)]


NEEDED = ("trainer_state.json", WEIGHTS, "optimizer.pt", "scheduler.pt", "rng_state.pth")


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("left", [None, 0, 0.5, 0.99], ids=["lacking", "empty", "half", "most"])
def test_checkpoints_that_are_not_whole_are_removed(tmp_path, name, left):
    for step in (5, 20, 100):
        checkpoint(tmp_path, step)
    for step in (5, 100):
        file = tmp_path / f"checkpoint-{step}" / name
        file.unlink() if left is None else os.truncate(file, int(left * file.stat().st_size))
    assert is_complete(tmp_path / "checkpoint-5") == (left is None and name not in NEEDED[:2])
    assert checkpoint_to_continue(tmp_path) == tmp_path / "checkpoint-20"
    assert steps_in(tmp_path) == [20]


def test_the_choice_of_a_checkpoint(tmp_path):
    assert checkpoint_to_continue(tmp_path / "none") is None
    for step in (9, 10, 100):
        checkpoint(tmp_path / "run", step)
    (tmp_path / "run" / "checkpoint-best").mkdir()
    elsewhere = checkpoint(tmp_path / "other", 50)
    with pytest.raises(ValueError, match=r"resume_from_checkpoint='gone' is not a complete checkpoint"):
        checkpoint_to_continue(tmp_path / "run", "gone")
    assert checkpoint_to_continue(tmp_path / "run") == tmp_path / "run" / "checkpoint-100"
    assert steps_in(tmp_path / "run") == [9, 10, 100]
    assert checkpoint_to_continue(tmp_path / "run", str(tmp_path / "run" / "checkpoint-10")).name == "checkpoint-10"
    assert steps_in(tmp_path / "run") == [9, 10]
    assert checkpoint_to_continue(tmp_path / "run", str(elsewhere)) == elsewhere
    assert steps_in(tmp_path / "run") == [] and elsewhere.exists()
    assert checkpoint_to_continue(tmp_path / "other", "none") is None
    assert steps_in(tmp_path / "other") == []
    assert (tmp_path / "run" / "checkpoint-best").exists()


def test_old_checkpoints_go_by_their_steps(tmp_path):
    """Whatever the times of their folders are; the best one stays."""
    for step in (5, 9, 10, 20, 100):
        checkpoint(tmp_path, step)
    os.utime(tmp_path / "checkpoint-9", (2e9, 2e9))
    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path), should_save=True),
        state=SimpleNamespace(best_model_checkpoint=f"{tmp_path}/../{tmp_path.name}/checkpoint-5"),
        _kept_checkpoints=2,
    )
    RecipeTrainer._remove_old_checkpoints(trainer)
    assert steps_in(tmp_path) == [5, 20, 100]


def test_a_run_of_another_recipe_is_not_continued(tmp_path):
    path, folder = recipe(tmp_path), tmp_path / "run"
    arguments = [str(path), "--output_dir", str(folder)]
    checkpoint(folder, 10)
    (folder / "recipe.yaml").write_text(parse_recipe(arguments).to_yaml())
    free = ["--num_train_epochs", "9", "--dataloader_num_workers", "2", "--early_stopping_patience", "7"]
    check_recipe_of_run(parse_recipe(arguments + free))
    with pytest.raises(SystemExit, match=r"holds a run with learning_rate=0.02, and now it is '0.1'.*--output_dir"):
        main([*arguments, "--learning_rate", "0.1"])
    with pytest.raises(SystemExit, match=r"hidden_size=8, and now it is '10'"):
        main([*arguments, "--hidden_size", "10"])
    with pytest.raises(SystemExit, match=r"seed=None, and now it is '1'"):
        main([*arguments, "--seed", "1"])
    assert steps_in(folder) == [10]
