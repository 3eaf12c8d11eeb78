"""
What makes a saved model a repository that loads anywhere.

`save_pretrained`, and with it `push_to_hub` and the Trainer, writes beside the weights

- the modules of this package that loading needs, unchanged, and in `config.json` and `tokenizer_config.json` the
  entries (`auto_map`, `custom_pipelines`) by which transformers finds them with `trust_remote_code=True`;
- in `config.json`, as `plugin_version`, the version of this package that wrote it.

Where the package is imported, its own classes load the repository, and the entries are left aside. The checkpoints
that the Trainer writes during training (`checkpoint-500`) go without code: they load where the package is imported.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

VERSION = "0.1.0"

ENTRY = "remote_code"  # the module that transformers imports; it names all others
IS_REMOTE = __name__.startswith(f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}.")  # this is a copy, out of a repository
_CHECKPOINT = re.compile(r"checkpoint-\d+")


def check_version(written_by: Any) -> None:
    """
    Checks the version that wrote a repository against this one.

    What an older version wrote can always be read. New fields come with a new minor (or major) version, and an older
    one would ignore what it does not know of; so it refuses the repository. Patch versions (`1.2.x`) read each other.

    Raises:
        ValueError: the repository was written by a newer minor or major version, or `written_by` is no version.
    """
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?![\d])", written_by) if isinstance(written_by, str) else None
    if match is None:
        raise ValueError(f"plugin_version={written_by!r} is not possible; allowed: a version such as {VERSION!r}.")
    own = tuple(int(number) for number in VERSION.split(".")[:2])
    if tuple(int(number) for number in match.groups()) > own:
        raise ValueError(
            f"The model was saved by hf_attention_seq2seq {written_by}, and this is hf_attention_seq2seq {VERSION}, "
            "which may not know all that it needs; update with: pip install --upgrade hf-attention-seq2seq."
        )


class Published:
    """Mixin of the classes whose code goes into a repository."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str | type | None = None) -> None:
        """
        Accepted, and without effect for the classes of this package: their code is saved under all their Auto classes.

        A class derived from them is registered, and its own module saved, as in the library.
        """
        if cls.__module__.rpartition(".")[0] != __package__:
            super().register_for_auto_class(*([] if auto_class is None else [auto_class]))


def has_code(directory: str | os.PathLike) -> bool:
    """Whether what is saved in `directory` gets its code: not in the checkpoints of a training."""
    return _CHECKPOINT.fullmatch(os.path.basename(os.path.normpath(directory))) is None


def write_code(directory: str | os.PathLike) -> None:
    """Copies this package's modules for remote loading into `directory`; what is there already stays untouched."""
    entry = Path(__file__).with_name(f"{ENTRY}.py")
    for module in {entry, *map(Path, get_relative_import_files(entry))}:
        target = Path(directory) / module.name
        if not target.exists() or target.read_bytes() != module.read_bytes():
            shutil.copyfile(module, target)


def config_entries() -> dict[str, Any]:
    """What `config.json` says about the code; a new dictionary each time, for `pipeline()` changes it."""
    classes = {
        "AutoConfig": "AttentionSeq2SeqConfig",
        "AutoModel": "AttentionSeq2SeqModel",
        "AutoModelForSeq2SeqLM": "AttentionSeq2SeqForConditionalGeneration",
        "AutoModelForSequenceClassification": "AttentionSeq2SeqForSequenceClassification",
    }
    pipelines = {
        "text2text-generation": "Text2TextGenerationPipeline",
        "translation": "TranslationPipeline",
        "summarization": "SummarizationPipeline",
    }
    return {
        "auto_map": {name: f"{ENTRY}.{cls}" for name, cls in classes.items()},
        "custom_pipelines": {
            task: {"impl": f"{ENTRY}.{cls}", "pt": ["AutoModelForSeq2SeqLM"]} for task, cls in pipelines.items()
        },
    }


def tokenizer_entries() -> dict[str, Any]:
    """What `tokenizer_config.json` says about the code, for the slow and the fast class, which are one."""
    reference = f"{ENTRY}.AttentionSeq2SeqTokenizer"
    return {"auto_map": {"AutoTokenizer": [reference, reference]}}


def without_own_entries(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` of a loaded file without the entries above; those of other code, by a derived class say, stay."""
    fields = dict(fields)
    for name in ("auto_map", "custom_pipelines"):
        if isinstance(fields.get(name), dict):
            fields[name] = {key: value for key, value in fields[name].items() if not _is_own(value)}
        if name in fields and not fields[name]:
            del fields[name]
    return fields


def _is_own(entry: Any) -> bool:
    reference = entry.get("impl") if isinstance(entry, dict) else entry
    reference = reference[-1] if isinstance(reference, (list, tuple)) and reference else reference
    # From the Hub it comes as "user/model--module.Class".
    return isinstance(reference, str) and reference.rpartition("--")[2].startswith(f"{ENTRY}.")
