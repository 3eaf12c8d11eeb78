"""
A page that translates as one types and shows the alignment of each result; needs gradio.

    python -m hf_attention_seq2seq.demo_app MODEL [--example TEXT ...]
    python -m hf_attention_seq2seq.demo_app MODEL --space FOLDER

`MODEL` is a folder or a name on the Hub. The first command serves the page, where gradio's environment variables say
(`GRADIO_SERVER_PORT`, ...). The second writes a Space instead: the page's code and this package, what it requires, and
a model that is a folder here; `hf upload USER/NAME FOLDER --repo-type space` publishes it.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import SpaceCardData
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .alignment_page import AlignmentView
from .modeling_attention_seq2seq import AttentionSeq2SeqPreTrainedModel
from .pipelines import TranslationPipeline

if TYPE_CHECKING:
    import gradio

MOST_BEAMS, MOST_RESULTS = 10, 5
REQUIREMENTS = ("torch", "transformers", "tokenizers", "safetensors")

# The direction of each line of the text box follows from what is typed.
_STYLE = """
.source textarea { unicode-bidi: plaintext; text-align: start; font-size: 1.2rem; }
.result h3 { margin: 1.5rem 0 0.5rem; unicode-bidi: plaintext; text-align: start; }
"""
_README = """
# {title}

Type a text: it is translated as you type, and what the model attended to is shown below each result.
The model is {model}.
"""
_MODEL_HERE = 'Path(__file__).with_name("model")'
_APP = """\
from hf_attention_seq2seq.demo_app import build_app, load

demo = build_app(*load({model}), title={title!r}, examples={examples!r})
demo.launch()
"""


def load(name: str | os.PathLike) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """
    Args:
        name: a folder, or a name on the Hub.

    Raises:
        OSError, ValueError: there is no model of this package, or no tokenizer, that can be loaded.
    """
    model = AutoModelForSeq2SeqLM.from_pretrained(name)
    if not isinstance(model, AttentionSeq2SeqPreTrainedModel):
        raise ValueError(f"{str(name)!r} holds a {type(model).__name__}; the page is for models of this package.")
    return model, AutoTokenizer.from_pretrained(name)


def build_app(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    title: str = "Translate and align",
    examples: Sequence[str] = (),
) -> gradio.Blocks:
    """
    The page; `launch()` serves it.

    Args:
        model: one of this package; with `attention_type="none"` it shows texts only.
        tokenizer: the model's own.
        title: shown above.
        examples: texts to choose from.

    Raises:
        ImportError: gradio is not installed.
    """
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError("The page needs gradio: pip install 'gradio>=6'.") from error
    translate = TranslationPipeline(model=model, tokenizer=tokenizer, task="translation")
    has_attention = model.config.attention_type != "none"
    beams = model.generation_config.to_diff_dict().get("num_beams", 4)

    def show(text: str, num_beams: float, num_results: float, replace_unknown: bool) -> str:
        options = {"num_beams": int(num_beams), "num_return_sequences": int(num_results)}
        if has_attention:
            options.update(return_alignments=True, replace_unknown=replace_unknown)
        return results_html(translate, text, **options)

    with gr.Blocks(title=title, analytics_enabled=False) as app:
        gr.HTML(f"<style>{_STYLE}</style><h1>{escape(title)}</h1>")
        text = gr.Textbox(label="Text", lines=2, autofocus=True, elem_classes="source")
        if examples:
            gr.Examples([[example] for example in examples], text)
        with gr.Row():
            choices = [
                gr.Slider(1, max(MOST_BEAMS, beams), beams, step=1, label="Beams"),
                gr.Slider(1, MOST_RESULTS, 1, step=1, label="Results"),
                gr.Checkbox(
                    label="Replace unknown words",
                    info="by the source words that got most attention",
                    visible=has_attention,
                ),
            ]
        if not has_attention:
            gr.Markdown("This model has no attention, so there are no alignments.")
        results = gr.HTML()
        inputs = [text, *choices]
        # While one text is translated, only the last of those typed since waits.
        gr.on(
            [component.change for component in inputs],
            show,
            inputs,
            results,
            show_progress="hidden",
            trigger_mode="always_last",
            api_name="translate",
        )
    return app


def results_html(translate: Callable[..., list[dict[str, Any]]], text: str, **options: Any) -> str:
    """
    The results of a text as a fragment of HTML, each followed by the page of its alignment in a frame of its own.

    Args:
        translate: a `TranslationPipeline`.
        text: if there is nothing in it but white space, there are no results.
        options: of the pipeline; the frames need `return_alignments=True`.

    Returns:
        the fragment; a message in it, if the text can not be translated.
    """
    if not text.strip():
        return ""
    if options["num_return_sequences"] > options["num_beams"]:
        wanted = options["num_return_sequences"]
        return _message(f"{wanted} results need at least {wanted} beams; now there are {options['num_beams']}.")
    try:
        records = translate(text.strip(), **options)
        return "".join(map(_result, records))
    except ValueError as error:
        return _message(str(error))


def _result(record: dict[str, Any]) -> str:
    shown = escape(record["translation_text"]) or "<em>(an empty text)</em>"
    # Scripts in the HTML of gradio do not run; those of a frame do.
    frame = AlignmentView(record["alignment"])._repr_html_() if "alignment" in record else ""
    return f'<section class="result"><h3>{shown}</h3>{frame}</section>'


def _message(text: str) -> str:
    return f'<p role="alert">{escape(text)}</p>'


def write_space(
    name: str | os.PathLike, folder: str | os.PathLike, title: str | None = None, examples: Sequence[str] = ()
) -> None:
    """
    Writes the files of a Space that serves the page.

    Args:
        name: the model. A folder is copied into the Space; a name on the Hub stays where it is.
        folder: where to; it must be empty or not be there.
        title: shown above; the last part of the name if not given.
        examples: texts to choose from.

    Raises:
        OSError, ValueError: the model cannot be loaded, or the folder is not empty.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"The folder {str(folder)!r} is not empty; a Space is written into an empty or a new one.")
    model, tokenizer = load(name)
    is_here = os.path.isdir(name)
    title = title or _title(name)
    imports, place = ("from pathlib import Path\n\n", _MODEL_HERE) if is_here else ("", repr(str(name)))
    needed = REQUIREMENTS if model.config.attention_normalizer == "softmax" else (*REQUIREMENTS, "entmax")
    settings = SpaceCardData(
        title=title,
        sdk="gradio",
        sdk_version=version("gradio"),
        python_version=platform.python_version().rpartition(".")[0],
        app_file="app.py",
        license="apache-2.0",
        models=None if is_here else [str(name)],
    )
    where = "in the folder `model`" if is_here else f"[{name}](https://huggingface.co/{name})"
    texts = {
        "README.md": f"---\n{settings.to_yaml()}\n---\n{_README.format(title=title, model=where)}",
        "requirements.txt": "".join(f"{library}=={version(library).partition('+')[0]}\n" for library in needed),
        "app.py": imports + _APP.format(model=place, title=title, examples=list(examples)),
    }
    package = Path(__file__).parent
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    if is_here:
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")


def _title(name: str | os.PathLike) -> str:
    return os.path.basename(os.path.normpath(name))


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the page, or writes a Space; see the module."""
    parser = argparse.ArgumentParser(description="Translate as you type, and see the alignment.")
    parser.add_argument("model", help="a folder or a name on the Hub")
    parser.add_argument("--title", help="shown above the page; the name of the model if not given")
    parser.add_argument("--example", action="append", default=[], help="a text to choose; may be given several times")
    parser.add_argument("--space", metavar="FOLDER", help="write the files of a Space there, and serve nothing")
    options = parser.parse_args(arguments)
    title = options.title or _title(options.model)
    try:
        if options.space:
            return write_space(options.model, options.space, title, options.example)
        app = build_app(*load(options.model), title, options.example)
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    app.launch()


if __name__ == "__main__":
    main()
