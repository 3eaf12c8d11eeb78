"""Everything that depends on the version of transformers (4.57.6 up to 5.24), asked by feature where possible."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedModel
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
from transformers.trainer_pt_utils import LabelSmoother

try:
    from transformers import PreTrainedConfig
except ImportError:  # the name before transformers 5
    from transformers import PretrainedConfig as PreTrainedConfig  # noqa: F401

# The decoder's cache is called `past_key_values` up to 5.23 and `cache` from 5.24 on, as argument and as output field.
CACHE_NAME = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"

# The checkpoints that version 4 used when a task was asked without a model.
_T5_BASE = ("google-t5/t5-base", "a9723ea")
_DEFAULT_CHECKPOINTS = {
    "text2text-generation": {"model": _T5_BASE},
    "translation": {("en", language): {"model": _T5_BASE} for language in ("fr", "de", "ro")},
    "summarization": {"model": ("sshleifer/distilbart-cnn-12-6", "a4f8f3e")},
}


def transformers_version() -> str:
    """The version of transformers in use, for messages."""
    return transformers.__version__


# Whether the Trainer's label smoothing divides by the items of all accumulated batches (not yet in 4.57).
LABEL_SMOOTHER_COUNTS_ITEMS = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters


def tied_weights(target: str, source: str) -> dict[str, str] | list[str]:
    """`_tied_weights_keys` for one tied parameter: `{target: source}` from transformers 5 on, a list before."""
    return {target: source} if int(transformers_version().split(".")[0]) >= 5 else [target]


def name_text_classifier(model_type: str, class_name: str) -> None:
    """Names the class that pipeline("text-classification") may have for `model_type`; else it logs an error."""
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[model_type] = class_name


def register_pipeline_tasks(pipeline_classes: dict[str, type], model_class: type) -> None:
    """
    Registers those of the tasks in `pipeline_classes` that transformers does not have (4.57 has them, 5.x not).

    From 5.19 on, `REMOVED_TASKS` is asked before the registry. `translation_XX_to_YY` needs a resolver of its own.

    Raises:
        Exception: of any kind, if the internals of transformers are not the ones known here.
    """
    from transformers import pipelines

    registry = pipelines.PIPELINE_REGISTRY
    missing = {task: cls for task, cls in pipeline_classes.items() if task not in registry.supported_tasks}
    for task, pipeline_class in missing.items():
        registry.register_pipeline(task, pipeline_class, pt_model=model_class, type="text")
        if "_registered_impl" in vars(pipeline_class):  # makes `save_pretrained` save pipelines as remote code
            del pipeline_class._registered_impl
        registry.supported_tasks[task]["default"] = _DEFAULT_CHECKPOINTS[task]
        getattr(pipelines, "REMOVED_TASKS", {}).pop(task, None)
    if "translation" in missing:
        _resolve_language_pairs(registry)
    for task in missing:
        pipelines.check_task(task)
    if "translation" in missing:
        pipelines.check_task("translation_en_to_de")


def _resolve_language_pairs(registry: Any) -> None:
    check_task = registry.check_task

    def check_task_or_language_pair(task: str) -> tuple[str, dict[str, Any], Any]:
        words = task.split("_")
        if words[0] != "translation" or len(words) == 1:
            return check_task(task)
        if len(words) != 4 or words[2] != "to":
            raise KeyError(f"Invalid translation task {task!r}; allowed is the form 'translation_XX_to_YY'.")
        return "translation", registry.supported_tasks["translation"], (words[1], words[3])

    registry.check_task = check_task_or_language_pair


@contextlib.contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Inside, `model` computes attention weights; fused implementations such as sdpa return none of them."""
    configs = [module.config for module in model.modules() if isinstance(module, PreTrainedModel)]
    before = [(config, config._attn_implementation) for config in configs]
    try:
        # Each by itself: up to 5.19 `set_attn_implementation` misses the encoder and decoder of T5.
        for config, implementation in before:
            if implementation is not None:
                config._attn_implementation = "eager"
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation = implementation
