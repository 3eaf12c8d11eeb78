"""
The test suites of the installed transformers, out of its own source distribution.

They are not part of the wheel and never committed here: the archive is downloaded at test time into a cache directory
(the environment variable `ATTENTION_SEQ2SEQ_CACHE`, or one in the user's home) and unpacked for the duration.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import transformers

PACKAGE = "transformers_library_tests"  # the name `tests` is this project's own

# Modules that the suites import and the source distribution lacks. Of the first two, only the names are needed; the
# common arguments of configurations are values unlike the defaults, which a configuration must keep.
STAND_INS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": """
from transformers import PretrainedConfig

candidates = dict(
    add_cross_attention=True, architectures=["AnyModel"], bos_token_id=4, chunk_size_feed_forward=2,
    cross_attention_hidden_size=16, decoder_start_token_id=5, dtype="float16", eos_token_id=6,
    finetuning_task="any task", id2label={0: "any label"}, is_decoder=True, label2id={"any label": 0},
    output_attentions=True, output_hidden_states=True, pad_token_id=7, prefix="any prefix",
    problem_type="regression", return_dict=False, sep_token_id=8, task_specific_params={"any task": "any value"},
    tokenizer_class="AnyTokenizer",
)
config_common_kwargs = {name: value for name, value in candidates.items() if hasattr(PretrainedConfig(), name)}
""",
}


class Unavailable(Exception):
    """The source distribution can not be had; the message says why."""


def load(name: str) -> ModuleType | None:
    """
    The module `name` of the library's tests, such as `test_modeling_common`, or `None` if this version has no such.

    Raises:
        Unavailable: the source distribution could not be downloaded.
    """
    if not (_folder() / PACKAGE / f"{name}.py").exists():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.PytestUnknownMarkWarning)  # the suites' marks are the library's
        return importlib.import_module(f"{PACKAGE}.{name}")


@functools.cache
def _folder() -> Path:
    """Where the package with the suites is, unpacked and on Python's path."""
    archive = _archive()
    folder = Path(_unpacked.name)
    _unpack(archive, folder / PACKAGE)
    sys.path.append(str(folder))
    return folder


_unpacked = tempfile.TemporaryDirectory(prefix="transformers-tests-")  # removed when Python ends


def _archive() -> Path:
    given = os.environ.get("ATTENTION_SEQ2SEQ_CACHE")
    cache = Path(given) if given else Path.home() / ".cache" / "hf_attention_seq2seq"
    archive = cache / f"transformers-{transformers.__version__}.tar.gz"
    if not archive.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            # Downloaded aside and moved into place as a whole: an interrupted or a parallel run leaves no half.
            with tempfile.TemporaryDirectory(dir=cache) as aside:
                _download(Path(aside)).replace(archive)
        except OSError as error:
            raise Unavailable(f"The cache directory {cache} can not be used: {error}") from error
    return archive


def _download(folder: Path) -> Path:
    requirement = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--retries", "1"]
    command += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip did not finish downloading the source of {requirement} within 300 seconds.") from None
    archives = list(folder.glob("transformers-*.tar.gz"))
    if done.returncode or not archives:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            f"exit {done.returncode}"
        ]
        raise Unavailable(f"pip could not download the source of {requirement}: {reasons[-1]}")
    return archives[0]


def _unpack(archive: Path, package: Path) -> None:
    package.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            root, _, path = member.name.partition("/tests/")
            if member.isfile() and path.endswith(".py") and "/" not in root and ".." not in path:
                target = package / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with tar.extractfile(member) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    for path, text in STAND_INS.items():
        target = package / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    for folder in {package, *(path.parent for path in package.rglob("*.py"))}:
        (folder / "__init__.py").touch()
