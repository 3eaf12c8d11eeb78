"""Recipes: one YAML file with the sections `data`, `tokenizer`, `model`, `training` and `evaluation`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.utils import parse_flag_from_env
from transformers import HfArgumentParser, Seq2SeqTrainingArguments

from hf_attention_seq2seq import PRESETS, AttentionSeq2SeqConfig

from .card import TASKS
from .data import DataArguments
from .metrics import METRICS, greater_is_better

UNITS = ("char", "codepoint", "phone", "word", "text_word", "bpe", "unigram")
# Fields of the configuration that the tokenizer or the task decides.
DECIDED_ELSEWHERE = {
    *("self", "kwargs", "vocab_size", "decoder_vocab_size", "max_unknown_words", "use_cache", "is_encoder_decoder")
}


FIRST_TAG = 4  # what is no padding, beginning, end or unknown word, in a vocabulary that is not there yet


@dataclass
class TokenizerArguments:
    """How each side is cut into tokens."""

    source_unit: str = field(
        default="bpe",
        metadata={
            "help": "char, codepoint, phone (symbols between spaces), word (the same), text_word (and punctuation), "
            "bpe or unigram",
            "choices": UNITS,
        },
    )
    target_unit: str | None = field(
        default=None, metadata={"help": "the same for the target; as the source if absent"}
    )
    shared_vocabulary: bool = field(default=False, metadata={"help": "one vocabulary for both sides"})
    vocab_size: int = field(default=8000, metadata={"help": "most entries of a vocabulary"})
    target_vocab_size: int | None = field(default=None, metadata={"help": "the same for the target side"})
    min_frequency: int = field(default=1, metadata={"help": "how often a word or a merged pair must occur"})
    lowercase: bool = field(default=False, metadata={"help": "lower-case both sides"})
    source_normalization: str | None = field(
        default=None, metadata={"help": "Unicode form of the source: NFC, NFD (takes Hangul apart), NFKC, NFKD"}
    )
    target_normalization: str | None = field(default=None, metadata={"help": "the same for the target"})
    max_unknown_words: int = field(
        default=0, metadata={"help": "unknown words of a source that a model with a copy_mechanism can copy"}
    )
    tokenizer_rows: int = field(default=1_000_000, metadata={"help": "rows of a streamed data set to learn from"})

    def __post_init__(self):
        for name in ("source_unit", "target_unit"):
            if getattr(self, name) not in (*UNITS, *([None] if name == "target_unit" else [])):
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown; allowed: {', '.join(UNITS)}")
        if self.shared_vocabulary and self.target_unit not in (None, self.source_unit):
            raise ValueError(
                f"shared_vocabulary=True needs one unit for both sides, but source_unit={self.source_unit!r} and "
                f"target_unit={self.target_unit!r}"
            )


@dataclass
class EvaluationArguments:
    """What to measure and how to search."""

    metrics: list[str] = field(default_factory=list, metadata={"help": "names of `training.metrics.METRICS`"})
    bleu_tokenize: str = field(default="13a", metadata={"help": "sacreBLEU's tokenizer: 13a, zh, char, ja-mecab, ..."})
    num_beams: int = field(default=5, metadata={"help": "beam width for test sets and predictions"})
    length_penalty: float = field(default=1.0, metadata={"help": "exponent of the length in beam search"})
    max_new_tokens: int = field(default=200, metadata={"help": "longest output in tokens"})
    length_buckets: list[int] = field(
        default_factory=list, metadata={"help": "figures also by source words: below 10, 10 to 12, ... for 10 13 ..."}
    )
    replace_unknown: bool = field(
        default=False,
        metadata={"help": "figures also with unknown words replaced: copied, and by a lexicon of the training data"},
    )
    average_last: int = field(
        default=0, metadata={"help": "after training, average the weights of so many last checkpoints"}
    )
    ensemble: list[str] = field(default_factory=list, metadata={"help": "more model folders that decode together"})
    predict_file: str | None = field(default=None, metadata={"help": "text file, one source a line, to translate"})
    predict_output: str | None = field(default=None, metadata={"help": "where the translations go; else to stdout"})
    samples: int = field(default=3, metadata={"help": "validation sentences shown, with alignments, at evaluations"})
    title: str | None = field(default=None, metadata={"help": "title of the model card"})
    task: str = field(
        default="translation", metadata={"help": f"task of the model card: {', '.join(TASKS)}", "choices": list(TASKS)}
    )
    source_language: list[str] = field(default_factory=list, metadata={"help": "language codes for the card"})
    license: str | None = field(default=None, metadata={"help": "licence for the card"})
    data_name: list[str] = field(default_factory=list, metadata={"help": "names of the data for the card"})
    limitations: str = field(default="", metadata={"help": "what the card says about limits"})

    def __post_init__(self):
        for name in self.metrics:
            if name not in METRICS:
                raise ValueError(f"metrics: {name!r} is unknown; allowed: {', '.join(METRICS)}")


@dataclass
class RecipeTrainingArguments(Seq2SeqTrainingArguments):
    """Everything of `Seq2SeqTrainingArguments`, with defaults for small recurrent models, and:"""

    output_dir: str | None = field(default=None, metadata={"help": "where everything goes; runs/RECIPE if absent"})
    do_train: bool = field(default=True, metadata={"help": "train (continuing what is there)"})
    do_predict: bool = field(default=True, metadata={"help": "score the test sets and write the model card"})
    per_device_train_batch_size: int = field(default=64, metadata={"help": "sentences in a batch, of each process"})
    per_device_eval_batch_size: int = field(default=128, metadata={"help": "the same in evaluation"})
    learning_rate: float = field(default=2e-3, metadata={"help": "highest learning rate"})
    optim: str = field(default="adamw_torch_fused", metadata={"help": "optimiser"})
    max_grad_norm: float = field(default=1.0, metadata={"help": "gradients are scaled down to this norm"})
    predict_with_generate: bool = field(default=True, metadata={"help": "metrics by generation at evaluations"})
    generation_num_beams: int | None = field(default=1, metadata={"help": "beam width at evaluations in training"})
    eval_strategy: str = field(default="epoch", metadata={"help": "when to evaluate: no, steps, epoch"})
    save_strategy: str = field(default="epoch", metadata={"help": "when to write a checkpoint"})
    save_total_limit: int | None = field(default=3, metadata={"help": "checkpoints to keep, the best apart"})
    logging_steps: float = field(default=100, metadata={"help": "steps between loss lines"})
    report_to: None | str | list[str] = field(default="none", metadata={"help": "tensorboard, none, ..."})
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "pinned memory; only for GPUs"}
    )
    group_by_length: bool = field(default=True, metadata={"help": "batches of sentences of like length"})
    resume_from_checkpoint: str | None = field(
        default="auto", metadata={"help": "auto: the newest complete one in output_dir; none; or a folder"}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "stop after so many evaluations without a better one"}
    )
    weight_average_decay: float | None = field(
        default=None, metadata={"help": "exponential moving average of the weights, such as 0.999"}
    )
    use_cache: bool = field(
        default=True, metadata={"help": "kept in the configuration; the Trainer of transformers 5 would switch it off"}
    )
    scheduled_sampling: float = field(
        default=0.0, metadata={"help": "how often, at the end of training, the model reads its own last word"}
    )

    def __post_init__(self):
        if self.group_by_length and hasattr(self, "train_sampling_strategy"):
            self.train_sampling_strategy = "group_by_length"  # transformers 5; in 4 the field has the name of ours
        if not 0 <= self.scheduled_sampling <= 1:
            raise ValueError(f"scheduled_sampling={self.scheduled_sampling} is not possible; allowed: 0 to 1")
        if self.metric_for_best_model is not None:
            self.load_best_model_at_end = True
            if self.greater_is_better is None:
                self.greater_is_better = greater_is_better(self.metric_for_best_model)
        elif self.early_stopping_patience is not None:
            raise ValueError(
                f"early_stopping_patience={self.early_stopping_patience} needs a metric_for_best_model to go by"
            )
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # a model has only the parameters that its configuration uses
        if not torch.accelerator.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU"):
            self.use_cpu = True
        if self.use_cpu and self.ddp_backend is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self.ddp_backend = "gloo"
        if self.accelerator_config is None:  # each process reads streamed data itself: batches differ in length
            self.accelerator_config = {"dispatch_batches": False}
        super().__post_init__()


def _as_dataclass(config: type[AttentionSeq2SeqConfig]) -> type:
    """A dataclass of the configuration's fields, `None` where a recipe does not give one."""
    types = {"int": int, "bool": bool, "float": float, "str": str}
    fields: list[tuple] = [
        (
            "preset",
            str | None,
            field(default=None, metadata={"help": f"a paper's model: {', '.join(PRESETS)}"}),
        ),
        (
            "model_name_or_path",
            str | None,
            field(default=None, metadata={"help": "start from this trained model, with its tokenizer"}),
        ),
    ]
    for name, parameter in inspect.signature(config.__init__).parameters.items():
        if name in DECIDED_ELSEWHERE or name.endswith("_token_id"):
            continue
        kind = types[str(parameter.annotation).removesuffix(" | None")]
        help_text = f"field of the configuration (default there: {parameter.default!r})"
        fields.append((name, kind | None, field(default=None, metadata={"help": help_text})))
    return dataclasses.make_dataclass("ModelArguments", fields, namespace={"__doc__": "The model."})


ModelArguments = _as_dataclass(AttentionSeq2SeqConfig)
SECTIONS = {
    "data": DataArguments,
    "tokenizer": TokenizerArguments,
    "model": ModelArguments,
    "training": RecipeTrainingArguments,
    "evaluation": EvaluationArguments,
}
SECTION_OF = {
    entry.name: section for section, kind in SECTIONS.items() for entry in dataclasses.fields(kind) if entry.init
}


@dataclass(frozen=True)
class Recipe:
    """A recipe with everything filled in; `given` is what the file and the command line said, by section."""

    data: DataArguments
    tokenizer: TokenizerArguments
    model: Any
    training: RecipeTrainingArguments
    evaluation: EvaluationArguments
    given: dict[str, dict[str, Any]]

    def configuration(self, **decided: Any) -> AttentionSeq2SeqConfig:
        """The configuration, with what the tokenizer decides."""
        fields = {name: value for name, value in vars(self.model).items() if value is not None}
        preset = fields.pop("preset", None)
        fields.pop("model_name_or_path", None)
        if fields.get("encoder_type") == "hierarchical":
            if self.data.source_separator is None:
                raise ValueError("encoder_type='hierarchical' needs a source_separator, in the section data.")
            decided.setdefault("sentence_separator_token_id", FIRST_TAG)
        if preset is None:
            return AttentionSeq2SeqConfig(**fields, **decided)
        return AttentionSeq2SeqConfig.from_preset(preset, **fields, **decided)

    def to_yaml(self) -> str:
        """What was given, as a recipe file."""
        return yaml.safe_dump({k: v for k, v in self.given.items() if v}, allow_unicode=True, sort_keys=False)


def parse_recipe(arguments: list[str]) -> Recipe:
    """
    Reads `RECIPE.yaml [--field value ...]`; the file may be left out.

    Raises:
        ValueError: no such file, no YAML, an unknown section or field (the message names what is near), a value of
            the wrong kind.
    """
    path = None
    if arguments and not arguments[0].startswith("-"):
        path, arguments = Path(arguments[0]), arguments[1:]
    given = {name: {} for name in SECTIONS}
    if path is not None:
        given = _read_sections(path)
    parser = HfArgumentParser(list(SECTIONS.values()), prog="python -m training.train RECIPE.yaml", allow_abbrev=False)
    # A field of the command line replaces the file's, in the section that it belongs to.
    overrides: dict[str, list[str]] = {}
    name = None
    for word in arguments:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            if name not in SECTION_OF and name != "help":
                raise ValueError(_unknown(name))
            overrides[name] = [value] if value else []
        elif name is None:
            parser.error(f"{word!r} stands before any --field")
        else:
            overrides[name].append(word)
    if "help" in overrides:
        parser.parse_args(["--help"])
    for name, values in overrides.items():
        given[SECTION_OF[name]][name] = values if len(values) > 1 else values[0] if values else True
    flat = {name: value for section in given.values() for name, value in section.items() if value is not None}
    if flat.get("output_dir") is None:
        flat["output_dir"] = f"runs/{path.stem if path else 'recipe'}"
    words = []
    for name, value in flat.items():
        words.append(f"--{name}")
        values = value if isinstance(value, list) else [value]
        words += [json.dumps(item) if isinstance(item, dict) else str(item) for item in values]
    recipe = Recipe(*parser.parse_args_into_dataclasses(args=words), given=given)
    kept = recipe.training.save_total_limit
    if kept is not None and recipe.evaluation.average_last > kept:
        raise ValueError(
            f"average_last={recipe.evaluation.average_last} needs as many checkpoints, but save_total_limit={kept} "
            "keeps fewer."
        )
    if recipe.model.model_name_or_path is None:
        recipe.configuration()  # so that what is not possible is told before any data are read
    return recipe


def _read_sections(path: Path) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        raise ValueError(f"There is no recipe {path}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a YAML file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold the sections {', '.join(SECTIONS)}, but it holds {content!r:.60}.")
    for section, fields in content.items():
        if section not in SECTIONS:
            raise ValueError(f"{path}: unknown section {section!r}; allowed: {', '.join(SECTIONS)}.")
        if not isinstance(fields, dict | None):
            raise ValueError(f"{path}: section {section!r} must hold fields, but it holds {fields!r:.60}.")
        for name in fields or {}:
            if SECTION_OF.get(name) != section:
                raise ValueError(f"{path}, section {section!r}: {_unknown(name)}")
    for name, value in (content.get("training") or {}).items():
        if value is False and name.endswith("_strategy"):
            content["training"][name] = "no"  # which YAML reads as false
    return {section: dict(content.get(section) or {}) for section in SECTIONS}


def _unknown(name: str) -> str:
    if name in SECTION_OF:
        return f"field {name!r} belongs to the section {SECTION_OF[name]!r}."
    near = difflib.get_close_matches(name, SECTION_OF, n=3)
    hint = f"did you mean {' or '.join(f'{other} (section {SECTION_OF[other]})' for other in near)}?" if near else ""
    return f"unknown field {name!r}; {hint or 'see python -m training.train --help'}"
