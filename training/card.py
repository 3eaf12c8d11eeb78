"""
The model card of a trained recipe: a `README.md` whose metadata the Hub can read and whose example runs as printed.

Everything in it comes from the arguments of `write_model_card`; the same arguments give the same card.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration

# What the example calls the pipeline, and the key of its output.
TASKS = {
    "translation": ("translate", "translation_text"),
    "summarization": ("summarize", "summary_text"),
    "text2text-generation": ("generate", "generated_text"),
}
# Shown for every model; other fields are shown where they are not the default.
MAIN_FIELDS = (
    "attention_type",
    "attention_query",
    "input_feeding",
    "rnn_type",
    "encoder_layers",
    "encoder_bidirectional",
    "decoder_layers",
    "embedding_size",
    "hidden_size",
    "vocab_size",
)
HUB_NAME = re.compile(r"([\w-]+/)?[\w.-]+")  # what the Hub takes as the name of a data set


def write_model_card(
    folder: str | os.PathLike,
    *,
    title: str,
    recipe_text: str,
    config: AttentionSeq2SeqConfig,
    results: Mapping[str, Mapping[str, float | str]],
    languages: str | Iterable[str] = (),
    license: str | None = None,
    datasets: str | Iterable[str] = (),
    task: str = "translation",
    examples: Sequence[Sequence[str]] = (),
    alignment_pictures: Sequence[str | os.PathLike] = (),
    command: str,
    minutes: float,
    machine: str,
    limitations: str = "",
    model_id: str = ".",
) -> Path:
    """
    Writes `README.md` into `folder`.

    Args:
        folder: where the model is saved.
        title: name of the model.
        recipe_text: the recipe, YAML.
        config: the model's configuration.
        results: for each test set what `training.metrics.compute_metrics` returns. Figures named `FIGURE/GROUP` go to
            a table of groups; the others to the metadata as well, with their `FIGURE_signature`.
        languages: ISO 639 codes.
        license: a licence as the Hub calls it, such as `"apache-2.0"`.
        datasets: what it was trained on. Names the Hub can take (`owner/name`) go to the metadata as well.
        task: one of `TASKS`.
        examples: `(source, output)` or `(source, output, reference)` of each; the first is the example of the code, so
            its output should be what the pipeline gives without options.
        alignment_pictures: paths of pictures inside `folder`, given with or without `folder`.
        command: what was run.
        minutes: how long it took.
        machine: on what; see `describe_machine`.
        limitations: Markdown.
        model_id: what the example loads: the model's name on the Hub, or `"."`, the folder of the card.

    Returns:
        the path of the card.

    Raises:
        ValueError: an unknown task, a result that is no finite number, an example without output, or a picture that
            is not inside `folder`.
    """
    if task not in TASKS:
        raise ValueError(f"Unknown task {task!r}; allowed: {', '.join(TASKS)}.")
    for example in examples:
        if isinstance(example, str) or len(example) not in (2, 3):
            raise ValueError(f"The example {example!r} is not possible; it must be (source, output[, reference]).")
    languages, datasets = _several(languages), _several(datasets)
    figures, signatures, grouped = _split(results)
    data = ModelCardData(
        language=languages or None,
        license=license,
        library_name="transformers",
        pipeline_tag=task,
        tags=["attention_seq2seq", "no_attention" if config.attention_type == "none" else config.attention_type],
        datasets=[name for name in datasets if HUB_NAME.fullmatch(name)] or None,
        metrics=list(dict.fromkeys(name for row in figures.values() for name in row)) or None,
        model_name=title,
        eval_results=_eval_results(figures, signatures, task, datasets) or None,
    )
    examples = [tuple(example) for example in examples]
    sections = {
        f"# {title}": _introduction(config, datasets),
        "## Model": _table(("field", "value"), _fields(config)),
        "## Results": _results(figures, signatures, grouped),
        "## Use": _use(task, examples, model_id),
        "## Examples": _table(("source", "output", "reference")[: max(map(len, examples), default=0)], examples),
        "## Alignment": _pictures(Path(folder), alignment_pictures),
        "## Training": f"Trained in {minutes:.1f} minutes ({machine}), with\n\n{_fenced(command, 'bash')}\n\n"
        f"where the recipe is\n\n{_fenced(recipe_text, 'yaml')}",
        "## Limitations": limitations.strip(),
    }
    body = "\n\n".join(f"{heading}\n\n{text}" for heading, text in sections.items() if text)
    path = Path(folder) / "README.md"
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}\n").save(path)
    return path


def describe_machine() -> str:
    """Processor, threads in use and versions, in one line for `write_model_card`; no names of hosts or users."""
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        information = ""
    model = re.search(r"^model name\s*:\s*(.+)$", information, re.MULTILINE)
    processor = model.group(1).strip() if model else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    parts = [f"{processor} ({threads} core{'s' if threads > 1 else ''} used)"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"torch {torch.__version__}", f"transformers {transformers.__version__}"])


def _several(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _split(results: Mapping[str, Mapping[str, float | str]]) -> tuple[dict, dict, dict]:
    """Figures, signatures, and figures of groups, each by test set; groups as `{group: {figure: value}}`."""
    figures: dict[str, dict[str, float]] = {}
    signatures: dict[str, dict[str, str]] = {}
    grouped: dict[str, dict[str, dict[str, float]]] = {}
    for test_set, row in results.items():
        figures[test_set], signatures[test_set], grouped[test_set] = {}, {}, {}
        for name, value in row.items():
            figure, slash, group = name.partition("/")
            if name.endswith("_signature"):
                signatures[test_set][name.removesuffix("_signature")] = str(value)
            elif isinstance(value, str) or not math.isfinite(value):
                raise ValueError(f"{test_set}: {name}={value!r} is not possible; a figure is a finite number.")
            elif slash:
                grouped[test_set].setdefault(group, {})[figure] = float(value)
            else:
                figures[test_set][name] = float(value)
    return figures, signatures, grouped


def _eval_results(figures: dict, signatures: dict, task: str, datasets: list[str]) -> list[EvalResult]:
    def dataset_type(test_set: str) -> str:
        known = len(datasets) == 1 and HUB_NAME.fullmatch(datasets[0])
        return datasets[0] if known else re.sub(r"[^\w.-]+", "-", test_set).strip("-") or "test"

    return [
        EvalResult(
            task_type=task,
            dataset_type=dataset_type(test_set),
            dataset_name=test_set,
            dataset_split=test_set,  # tells test sets of one data set apart, which would be merged otherwise
            metric_type=name,
            metric_name=name,
            metric_value=round(value, 4),
            metric_config=signatures[test_set].get(name),
        )
        for test_set, row in figures.items()
        for name, value in row.items()
    ]


def _introduction(config: AttentionSeq2SeqConfig, datasets: list[str]) -> str:
    with torch.device("meta"):  # counts the parameters without making them
        parameters = AttentionSeq2SeqForConditionalGeneration(config).num_parameters()
    attention = "no" if config.attention_type == "none" else config.attention_type
    trained = f" It was trained on {', '.join(datasets)}." if datasets else ""
    return (
        f"An encoder-decoder ({config.rnn_type.upper()}) with {attention} attention and {parameters:,} parameters, "
        f"of the package `hf_attention_seq2seq`, a plugin of Hugging Face Transformers.{trained}"
    )


def _fields(config: AttentionSeq2SeqConfig) -> list[tuple[str, str]]:
    """The main fields of the configuration, and those that are not the default."""
    parameters = inspect.signature(type(config).__init__).parameters
    changed = [
        name
        for name, parameter in parameters.items()
        if hasattr(config, name) and getattr(config, name) != parameter.default and not name.endswith("_token_id")
    ]
    return [(f"`{name}`", f"`{getattr(config, name)}`") for name in dict.fromkeys((*MAIN_FIELDS, *changed))]


def _results(figures: dict, signatures: dict, grouped: dict) -> str:
    parts = [_figure_table("test set", figures)]
    lines = [
        f"- {name}, {test_set}: `{signature}`"
        for test_set, row in signatures.items()
        for name, signature in row.items()
    ]
    if lines:
        parts.append("Signatures:\n\n" + "\n".join(lines))
    for test_set, groups in grouped.items():
        if groups:
            parts.append(f"The groups of {test_set}; their plain mean is above.\n\n{_figure_table('group', groups)}")
    return "\n\n".join(part for part in parts if part)


def _figure_table(head: str, rows: dict[str, dict[str, float]]) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [(first, *(f"{row[name]:.2f}" if name in row else "" for name in names)) for first, row in rows.items()]
    return _table((head, *names), cells) if names else ""


def _use(task: str, examples: list[tuple[str, ...]], model_id: str) -> str:
    function, key = TASKS[task]
    source, output = examples[0][:2] if examples else ("a text", None)
    comment = "" if output is None else f"  # {[{key: output}]}"
    where = "; `.` is the folder of this card" if model_id == "." else ""
    code = (
        "import hf_attention_seq2seq  # makes the model known to transformers\n"
        "from transformers import pipeline\n\n"
        f"{function} = pipeline({_quoted(task)}, model={_quoted(model_id)})\n"
        f"print({function}({_quoted(source)})){comment}"
    )
    return f"With `hf_attention_seq2seq` installed{where}:\n\n{_fenced(code, 'python')}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _pictures(folder: Path, pictures: Sequence[str | os.PathLike]) -> str:
    lines = []
    for picture in pictures:
        path = Path(picture)
        if path.is_relative_to(folder):
            path = path.relative_to(folder)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"The picture {str(picture)!r} is not inside {str(folder)!r}; the card can not show it.")
        lines.append(f"![alignment]({quote(path.as_posix())})")
    return "\n\n".join(["Source across, output down; white is all of the attention.", *lines]) if lines else ""


def _fenced(text: str, language: str) -> str:
    """A code block; its fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled up. Nothing if there are no rows."""
    if not rows:
        return ""

    def line(cells: Sequence[str]) -> str:
        cells = [re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells]
        return f"| {' | '.join([*cells, *[''] * (len(head) - len(cells))])} |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])
