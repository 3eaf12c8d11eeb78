"""
Averages of weights: of the last checkpoints of a training, and a moving average during training.

    average_checkpoints(last_checkpoints("runs/x", 5), "runs/x/average")

The uniform average of the last checkpoints is that of Junczys-Dowmunt et al. 2016 and Vaswani et al. 2017; the moving
average is the one of Polyak and Juditsky 1992 with exponential weights.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

AVERAGES_NAME = "averages.safetensors"
STATES = ("optimizer.*", "scheduler.pt", "rng_state*.pth")  # what `torch.save` writes: zip files
# What a checkpoint has besides configuration, tokenizer and generation settings: weights and states of the training.
NOT_COPIED = ("*.safetensors", "*.index.json", "*.bin", "*.pt", "*.pth", TRAINER_STATE_NAME)


def average_checkpoints(folders: Sequence[str | Path], output_folder: str | Path) -> None:
    """
    Writes a model whose weights are the mean of those in `folders`, summed in double precision.

    Configuration, tokenizer and generation settings are copied from the first folder. Weights are read from
    safetensors files only, whole or in shards; tensors of integers or truth values must be equal in all folders.

    Raises:
        FileNotFoundError: a folder without safetensors weights.
        ValueError: no folders, an output folder that is one of them, tensors that are missing somewhere or that differ
            in shape or dtype, or integers that differ; the message names them.
    """
    folders, output_folder = [Path(folder) for folder in folders], Path(output_folder)
    if not folders:
        raise ValueError("There must be at least one checkpoint to average, got none.")
    if output_folder.resolve() in [folder.resolve() for folder in folders]:
        raise ValueError(f"output_folder={str(output_folder)!r} is one of the checkpoints; give another folder.")
    checkpoints = [_open_weights(folder) for folder in folders]
    first = checkpoints[0]
    for folder, other in zip(folders[1:], checkpoints[1:]):
        where = f"{str(folder)!r} and {str(folders[0])!r}"
        if first.keys() != other.keys():
            raise ValueError(f"Only one of {where} has these weights: {sorted(first.keys() ^ other.keys())}.")
        unlike = [name for name in sorted(first) if _form(first, name) != _form(other, name)]
        if unlike:
            forms = [f"{name} {_form(other, name)} and {_form(first, name)}" for name in unlike]
            raise ValueError(f"Weights of {where} differ in dtype or shape: {', '.join(forms)}.")
    averages = {
        name: _average(name, [checkpoint[name].get_tensor(name) for checkpoint in checkpoints]) for name in first
    }
    output_folder.mkdir(parents=True, exist_ok=True)
    for file in folders[0].iterdir():
        if file.is_file() and not any(file.match(pattern) for pattern in NOT_COPIED):
            shutil.copy2(file, output_folder / file.name)
    save_file(averages, output_folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})


def last_checkpoints(output_dir: str | Path, number: int) -> list[Path]:
    """
    The newest complete `checkpoint-STEP` folders of a training, at most `number`, in the order of their steps.

    Raises:
        ValueError: `number` is below 1.
    """
    if number < 1:
        raise ValueError(f"number={number} is not possible; allowed: an integer from 1 up.")
    return [folder for folder in checkpoints(output_dir) if is_complete(folder)][-number:]


def checkpoints(output_dir: str | Path) -> list[Path]:
    """The `checkpoint-STEP` folders of a training in the order of their steps, complete or not."""
    folders = Path(output_dir).glob("checkpoint-*")
    numbered = [folder for folder in folders if folder.is_dir() and re.fullmatch(r"checkpoint-\d+", folder.name)]
    return sorted(numbered, key=step_of)


def step_of(checkpoint: str | Path) -> int:
    """STEP of a folder `checkpoint-STEP`."""
    return int(Path(checkpoint).name.removeprefix("checkpoint-"))


def is_complete(checkpoint: str | Path, to_continue: bool = False) -> bool:
    """
    Whether a checkpoint was written to its end: the Trainer writes `trainer_state.json` last, so that can be read, and
    nothing that is there besides is cut off. With `to_continue`, everything must be there that a training needs.
    """
    folder = Path(checkpoint)
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        _open_weights(folder)
    except (OSError, ValueError, SafetensorError):
        return False
    states = {pattern: list(folder.glob(pattern)) for pattern in STATES}
    if to_continue and not all(states.values()):
        return False
    return all(zipfile.is_zipfile(file) for files in states.values() for file in files)


def _open_weights(folder: Path) -> dict[str, safe_open]:
    """The opened file of each tensor's name."""
    names = [SAFE_WEIGHTS_NAME]
    if not (folder / SAFE_WEIGHTS_NAME).exists():
        index = folder / SAFE_WEIGHTS_INDEX_NAME
        if not index.exists():
            raise FileNotFoundError(
                f"{str(folder)!r} has neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}; other formats are "
                "not read."
            )
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    files = [safe_open(folder / name, framework="pt") for name in names]
    return {name: file for file in files for name in file.keys()}


def _form(checkpoint: dict[str, safe_open], name: str) -> str:
    """Dtype and shape of a tensor, without reading it."""
    tensor = checkpoint[name].get_slice(name)
    return f"{tensor.get_dtype()}{tensor.get_shape()}"


def _average(name: str, tensors: Sequence[Tensor]) -> Tensor:
    if tensors[0].is_floating_point():
        total = torch.zeros(tensors[0].shape, dtype=torch.float64)
        for tensor in tensors:
            total += tensor
        return (total / len(tensors)).to(tensors[0].dtype)
    if tensors[0].dim() == 0:  # a counter
        return tensors[-1]
    if any(not torch.equal(tensor, tensors[0]) for tensor in tensors):
        raise ValueError(f"{name} holds {tensors[0].dtype}, which has no average, and differs between checkpoints.")
    return tensors[0]


class WeightAverageCallback(TrainerCallback):
    """
    Keeps an exponential moving average of the trainable parameters, `average += (1 - d) * (parameter - average)`
    after each optimizer step, with `d = min(decay, (1 + t) / (10 + t))` after `t` earlier steps.

    The model itself always has the raw weights while it is trained, and so have its checkpoints, which hold the
    averages in a file of their own: an interrupted training goes on exactly. A Trainer has no hook at the right
    places, so its subclass must

    - wrap `evaluate` and `predict` in `swapped_in(self.model)`;
    - before the checkpoint is complete, call `save(folder)` in one process;
    - call `load(folder)` in all processes when it resumes from a checkpoint;
    - after the training call `use_averages(self.model)`, or `load_averages(folder, self.model)` where
      `load_best_model_at_end` has loaded the raw weights of the best checkpoint.

    Every process of a data-parallel training has the same weights and thus computes the same averages. Parameters that
    are sharded over processes (FSDP, DeepSpeed ZeRO-3) are not supported.

    Args:
        decay: from 0 (no averaging) to below 1.

    Raises:
        ValueError: another decay.
    """

    def __init__(self, decay: float = 0.999):
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay} is not possible; allowed: a number from 0 to below 1.")
        self.decay = decay
        self.updates = 0
        self.averages: dict[str, Tensor] | None = None  # at least single precision, by parameter name

    def on_train_begin(self, args, state, control, model: nn.Module | None = None, **kwargs) -> None:
        """Starts from the weights as they are, or continues what `load` has read for a training that is resumed."""
        if self.averages is not None and state.global_step > 0:
            self._check(model)
            return
        self.updates = 0
        self.averages = {name: _precise(parameter).clone() for name, parameter in _trainable(model)}

    def on_step_end(self, args, state, control, model: nn.Module | None = None, **kwargs) -> None:
        """One update; the Trainer calls this once for each optimizer step, before it evaluates and saves."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in _trainable(model):
            average = self.averages[name].to(parameter.device)  # `load` reads to the CPU
            self.averages[name] = average.lerp_(_precise(parameter), 1 - decay)
        self.updates += 1

    @contextlib.contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Inside, `model` has the averages; afterwards its own weights. Before any training it is left alone."""
        if self.averages is None:
            yield
            return
        raw = {name: parameter.detach().clone() for name, parameter in _trainable(model)}
        try:
            self.use_averages(model)
            yield
        finally:
            _assign(model, raw)

    def use_averages(self, model: nn.Module) -> None:
        """
        Gives `model` the averages for good.

        Raises:
            ValueError: there are none yet, or they are those of another model.
        """
        self._check(model)
        _assign(model, self.averages)

    def save(self, folder: str | Path) -> None:
        """
        Writes the averages to `averages.safetensors` in `folder`, which is made if it does not exist.

        Raises:
            ValueError: there are none yet.
        """
        self._check_any()
        Path(folder).mkdir(parents=True, exist_ok=True)
        averages = {name: average.contiguous() for name, average in self.averages.items()}
        metadata = {"format": "pt", "updates": str(self.updates)}
        save_file(averages, Path(folder) / AVERAGES_NAME, metadata=metadata)

    def load(self, folder: str | Path) -> None:
        """
        Reads what `save` wrote.

        Raises:
            FileNotFoundError: the checkpoint was written without this callback.
        """
        file = Path(folder) / AVERAGES_NAME
        if not file.exists():
            raise FileNotFoundError(f"{str(folder)!r} has no {AVERAGES_NAME}: it was saved without averages.")
        with safe_open(file, framework="pt") as opened:
            self.updates = int(opened.metadata()["updates"])
        self.averages = load_file(file)

    def load_averages(self, folder: str | Path, model: nn.Module) -> None:
        """Gives `model` for good the averages of the checkpoint `folder`; see `load` and `use_averages`."""
        self.load(folder)
        self.use_averages(model)

    def _check_any(self) -> None:
        if self.averages is None:
            raise ValueError("There are no averages yet: they begin with the training, or are loaded.")

    def _check(self, model: nn.Module) -> None:
        self._check_any()
        shapes = {name: parameter.shape for name, parameter in _trainable(model)}
        averaged = {name: average.shape for name, average in self.averages.items()}
        unlike = sorted({name for name, _ in shapes.items() ^ averaged.items()})
        if unlike:
            raise ValueError(f"The averages are not those of this model's trainable parameters; unlike are {unlike}.")


def _trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Tied parameters come once."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _precise(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32))


@torch.no_grad()
def _assign(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in _trainable(model):
        parameter.copy_(values[name])
