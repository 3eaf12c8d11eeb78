"""Checks before weights are read: safetensors only, files of the repository only, no more memory than they explain."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)

ONLY_SAFETENSORS = (
    "This package reads and writes weights as safetensors only, because reading a pickle can execute code"
)
_OTHER_FORMATS = ("from_tf", "from_flax", "gguf_file")
# A model may be larger than the weights it starts from (a new output layer, say), but not by any size.
_LARGEST_GROWTH = 16
_ALWAYS_ALLOWED = 2**30  # bytes
REPOSITORY_OPTIONS = ("cache_dir", "local_files_only", "proxies", "revision", "subfolder", "token")


def check_source(name_or_path: str | os.PathLike | None, options: dict[str, Any]) -> None:
    """
    Refuses the arguments of `from_pretrained` with which something other than safetensors would be read.

    Raises:
        ValueError: `use_safetensors=False` or another format is asked for, or the repository (or file) holds pickled
            weights and no safetensors.
    """
    if options.get("use_safetensors") is False:
        raise ValueError(f"use_safetensors=False is not possible. {ONLY_SAFETENSORS}.")
    for name in _OTHER_FORMATS:
        if options.get(name):
            raise ValueError(f"{name}={options[name]!r} is not possible. {ONLY_SAFETENSORS}.")
    if name_or_path is None:
        return
    if os.path.isfile(name_or_path):
        _check_names([os.fspath(name_or_path)])
        return
    where = {name: options[name] for name in REPOSITORY_OPTIONS if options.get(name) is not None}
    variant = options.get("variant")

    def find(name: str) -> str | None:
        stem, _, ending = name.partition(".")
        name = f"{stem}.{variant}.{ending}" if variant else name
        try:
            return cached_file(name_or_path, name, _raise_exceptions_for_missing_entries=False, **where)
        except OSError:  # transformers says what is wrong when it looks for the weights itself
            return None

    if find(SAFE_WEIGHTS_NAME):
        return
    if index := find(SAFE_WEIGHTS_INDEX_NAME):
        with open(index, encoding="utf-8") as file:
            shards = set(json.load(file)["weight_map"].values())
        _check_names(shards)
        for shard in shards:
            if os.path.basename(shard) != shard:
                raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME} names {shard!r}, which is out of the repository.")
    elif find(WEIGHTS_NAME) or find(WEIGHTS_INDEX_NAME):
        raise ValueError(
            f"{os.fspath(name_or_path)!r} has pickled weights ({WEIGHTS_NAME}) and no {SAFE_WEIGHTS_NAME}. "
            f"{ONLY_SAFETENSORS}; if you trust the file, convert it with safetensors.torch.save_file."
        )


def check_weights(model: nn.Module, files: Iterable[str] | None) -> None:
    """
    Checks what is about to be loaded, while `model` has no memory yet (its parameters are on the meta device).

    Args:
        model: as its configuration wants it.
        files: the files with the weights, `None` if the caller passed a state dictionary.

    Raises:
        ValueError: a file that is no safetensors; a model that takes far more memory than the weights in the files.
    """
    if files is None:
        return
    files = list(files)
    _check_names(files)
    wanted = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    stored = sum(os.path.getsize(file) for file in files)
    allowed = _LARGEST_GROWTH * stored + _ALWAYS_ALLOWED
    if wanted > allowed:
        raise ValueError(
            f"The configuration asks for a model of {wanted:,} bytes, but the weights here have {stored:,}; "
            f"allowed are {_LARGEST_GROWTH} times as many and {_ALWAYS_ALLOWED:,} more. The configuration does not "
            "belong to these weights, or it is there to exhaust the memory."
        )


def _check_names(files: Iterable[str]) -> None:
    for file in files:
        if not file.endswith(".safetensors"):
            raise ValueError(f"{file!r} is no safetensors file. {ONLY_SAFETENSORS}.")
