"""Pictures of what attention looked at; `alignment_page.py` makes interactive ones."""

from __future__ import annotations

import contextlib
import functools
import math
import unicodedata
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches, and points of text. Long sequences have smaller cells: LARGEST_SIDE is without labels.
CELL, LARGEST_SIDE, LARGEST_TEXT, SMALLEST_TEXT = 0.32, 20.0, 10.0, 5.0
PANELS_IN_A_ROW = 4
CHARACTERS_IN_A_LINE = 100


def read_alignment(alignment: Mapping[str, Any]) -> tuple[list[str], list[str], torch.Tensor]:
    """
    Returns:
        source tokens, target tokens, and float32 weights `(layers, heads, target_length, source_length)`, where
        dimensions that the alignment lacks have the length 1.

    Raises:
        ValueError: something is missing or empty, the weights do not fit the tokens, or are not finite.
    """
    missing = [name for name in ("source_tokens", "target_tokens", "weights") if alignment.get(name) is None]
    if missing:
        raise ValueError(f"An alignment needs source_tokens, target_tokens and weights; this one lacks {missing}.")
    source, target = list(alignment["source_tokens"]), list(alignment["target_tokens"])
    if not source or not target:
        raise ValueError(
            f"An alignment without tokens cannot be drawn: {len(source)} source and {len(target)} target tokens."
        )
    weights = torch.as_tensor(alignment["weights"]).detach().float().cpu()
    if weights.dim() not in (2, 3, 4) or weights.shape[-2:] != (len(target), len(source)) or not weights.numel():
        raise ValueError(
            f"weights has the shape {tuple(weights.shape)}; for these tokens it must be "
            f"({len(target)}, {len(source)}), or (heads, {len(target)}, {len(source)}), "
            f"or (layers, heads, {len(target)}, {len(source)})."
        )
    if not weights.isfinite().all():
        raise ValueError("weights contains values that are not finite.")
    return source, target, weights[(None,) * (4 - weights.dim())]


@functools.cache
def _installed_fonts() -> list[Any]:
    """The fonts that matplotlib can draw with, plain ones first."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    # Matplotlib keeps its list of fonts in a file, which does not know those installed since.
    for path in set(findSystemFonts()) - {entry.fname for entry in fontManager.ttflist}:
        with contextlib.suppress(Exception):  # bitmap fonts and broken files, each with an error of its own
            fontManager.addfont(path)

    def preference(entry):
        plain = entry.style == "normal" and entry.stretch == "normal" and str(entry.weight) in ("400", "normal")
        return not plain, "Sans" not in entry.name, entry.name

    # The "last resort" fonts have a box for every character there is.
    fonts = (entry for entry in fontManager.ttflist if not entry.name.replace(" ", "").startswith("LastResort"))
    return sorted(fonts, key=preference)


def _fonts_for(characters: set[str]) -> tuple[list[str], set[str]]:
    """The families that have these characters, in the order of trying, and the characters that no family has."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontPath, FontProperties, findfont, get_font

    def lacking(font, characters):
        return {character for character in characters if not font.get_char_index(ord(character))}

    families = list(rcParams["font.family"])
    # Control characters, halves of surrogate pairs and private use have no shape to agree on, whatever a font has.
    shapeless = {character for character in characters if unicodedata.category(character) in ("Cc", "Cs", "Co")}
    missing = lacking(get_font(findfont(FontProperties())), characters - shapeless)
    found = {}
    for entry in _installed_fonts() if missing else ():
        with contextlib.suppress(OSError, RuntimeError):  # removed since, or broken
            found.setdefault(entry.name, missing - lacking(get_font(FontPath(entry.fname, entry.index)), missing))
    while missing:
        family = max(found, key=lambda name: len(found[name] & missing), default=None)
        if family is None or not found[family] & missing:
            break
        families.append(family)
        missing = missing - found[family]
    return families, missing | shapeless


def _label(token: str, missing: set[str]) -> str:
    """The token as it can be drawn: `[U+4E2D]` for a character without a font, a circle below a lone accent."""
    lone = token and unicodedata.category(token[0]).startswith("M") and "\u25cc" not in missing
    return "\u25cc" * bool(lone) + "".join(f"[U+{ord(c):04X}]" if c in missing else c for c in token)


def _width(labels: list[str]) -> float:
    """About the width of the widest label, in units of the size of its text."""

    def of(character):
        if unicodedata.category(character) in ("Mn", "Me", "Cf"):
            return 0.0  # accents and marks without a place of their own
        return 1.0 if unicodedata.east_asian_width(character) in "WF" else 0.6

    return max(sum(map(of, label)) for label in labels)


def _draw(alignment: Mapping[str, Any], title: str | None) -> tuple[Figure, list[Axes], torch.Tensor]:
    """The figure, one axes for each head, and the weights `(heads, target_length, source_length)`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures of alignments need matplotlib: pip install matplotlib.") from error
    source, target, weights = read_alignment(alignment)
    if len(weights) != 1:
        raise ValueError(f"weights has {len(weights)} layers; choose one: weights[layer].")
    panels = weights[0]
    families, missing = _fonts_for({*"\u25cc", *"".join((*source, *target, title or ""))})
    source, target = ([_label(token, missing) for token in tokens] for tokens in (source, target))

    columns = min(len(panels), PANELS_IN_A_ROW)
    rows = math.ceil(len(panels) / columns)
    cell = min(CELL, LARGEST_SIDE / max(len(source) * columns, len(target) * rows))
    size = max(SMALLEST_TEXT, min(LARGEST_TEXT, 60 * cell))
    every = math.ceil(size / 72 / cell)  # labels that would overlap are left out
    margins = [0.4 + size / 72 * _width(labels) for labels in (target, source)]
    figure = Figure(
        figsize=(
            0.2 + columns * (margins[0] + cell * max(len(source), 4)),
            0.2 + 0.4 * bool(title) + rows * (margins[1] + 0.2 * (len(panels) > 1) + cell * max(len(target), 4)),
        ),
        layout="constrained",
    )
    text = {"fontfamily": families, "parse_math": False}  # tokens with dollar signs are no formulas
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[len(panels) :]:
        unused.remove()
    for index, (panel, axis) in enumerate(zip(panels, axes), start=1):
        # Without "nearest", hard alignments of long sequences would be blurred away.
        axis.imshow(panel.numpy(), cmap="gray", vmin=0.0, vmax=1.0, aspect="equal", interpolation="nearest")
        axis.set_xticks(range(0, len(source), every), source[::every], rotation=90, fontsize=size, **text)
        axis.set_yticks(range(0, len(target), every), target[::every], fontsize=size, **text)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        if len(panels) > 1:
            axis.set_title(f"head {index}", fontsize=LARGEST_TEXT)
    if title:
        figure.suptitle(_label(title, missing), **text)
    return figure, axes[: len(panels)], panels


def plot_alignment(
    alignment: Mapping[str, Any], path: str | PathLike | None = None, title: str | None = None
) -> Figure:
    """
    Draws a soft alignment as in figure 3 of Bahdanau 2014: source words across, target words down, white is weight 1.

    Characters that matplotlib's font lacks are drawn with any installed font that has them, else written `[U+4E2D]`.
    Hebrew, Arabic and the scripts of India are laid out as their readers expect within each word (by matplotlib from
    version 3.11 on); the order of the columns is that of the sentence, from left to right, in every language. Of very
    long sequences, only some tokens are named.

    Args:
        alignment: an `Alignment`, or what the pipelines add with `return_alignments=True`: `source_tokens`,
            `target_tokens` and `weights`, `(target_length, source_length)`, or `(heads, target_length,
            source_length)`, which gives one panel for each head.
        path: where to save the picture; the format follows from its ending.
        title: written above.

    Returns:
        the matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: something is missing, the weights do not fit the tokens, are not finite, or have several layers.
    """
    figure = _draw(alignment, title)[0]
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def animate_alignment(
    alignment: Mapping[str, Any],
    path: str | PathLike,
    title: str | None = None,
    steps_per_second: float = 2.0,
) -> None:
    """
    Saves the picture of `plot_alignment` as it grows while the target is written: an animated GIF with one frame for
    each target word, repeated for ever, the last frame standing for four steps.

    Args:
        alignment, title: see `plot_alignment`.
        path: where to save the film; it must end in .gif.
        steps_per_second: how fast it plays, at most 50.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: as for `plot_alignment`; or another ending; or a speed out of range.
    """
    if not fspath(path).lower().endswith(".gif"):
        raise ValueError(f"path is {fspath(path)!r}; an animated alignment is a GIF and must end in .gif.")
    if not 0 < steps_per_second <= 50:
        raise ValueError(f"steps_per_second is {steps_per_second}; it must be more than 0 and at most 50.")
    figure, axes, panels = _draw(alignment, title)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    figure.set_dpi(min(100.0, 1200 / max(figure.get_size_inches())))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")  # the rest is drawn where it stands now
    labels = [dict(zip(axis.get_yticks(), axis.get_yticklabels())) for axis in axes]
    for axis, panel, rows in zip(axes, panels, labels):
        axis.images[0].set_data(torch.zeros_like(panel).numpy())
        for label in rows.values():
            label.set_alpha(0.0)
    canvas.draw()

    def frame(step: int) -> Image.Image:
        """Adds what the step with this index gives to the frame before."""
        for axis, panel, rows in zip(axes, panels, labels):
            axis.images[0].set_data(torch.cat((panel[: step + 1], torch.zeros_like(panel[step + 1 :]))).numpy())
            axis.draw_artist(axis.images[0])
            if step in rows:
                rows[step].set_alpha(1.0)
                axis.draw_artist(rows[step])
        # A copy, for the next step draws on the same canvas.
        return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")

    step_time = round(1000 / steps_per_second)
    frame(0).save(
        path,
        save_all=True,
        append_images=(frame(step) for step in range(1, len(panels[0]))),
        duration=[step_time] * (len(panels[0]) - 1) + [4 * step_time],
        loop=0,
    )


def plot_document(
    sentences: Sequence[Sequence[str]],
    word_weights: Sequence[Sequence[float]],
    sentence_weights: Sequence[float],
    path: str | PathLike | None = None,
    title: str | None = None,
) -> Figure:
    """
    Draws what a hierarchical classifier attended to in a document, as in figure 5 of Yang 2016: red in front of each
    sentence is its weight, blue behind a word is its weight in the sentence times the square root of the sentence's,
    so that words of sentences that do not matter are pale.

    Args:
        sentences: the words of each sentence.
        word_weights: for each word its part of its sentence.
        sentence_weights: for each sentence its part of the document.
        path: where to save the picture; the format follows from its ending.
        title: written above.

    Returns:
        the matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no word, or the weights are not as many as the words or sentences.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise ImportError("Pictures of documents need matplotlib: pip install matplotlib.") from error
    lengths, weighted = [len(words) for words in sentences], [len(weights) for weights in word_weights]
    if not sum(lengths) or lengths != weighted or len(sentence_weights) != len(lengths):
        raise ValueError(
            f"There are sentences of {lengths} words, weights for {weighted} words and {len(sentence_weights)} "
            "weights for sentences; there must be words, and a weight for each."
        )
    text = "".join(word for words in sentences for word in words) + (title or "")
    families, missing = _fonts_for({*text, "\u25cc"})
    styles = {"fontfamily": ["monospace", *families], "parse_math": False, "va": "center", "fontsize": LARGEST_TEXT}
    figure = Figure(layout="constrained")
    axis = figure.subplots()
    left = column = 3.0
    line = 0
    for words, weights, sentence_weight in zip(sentences, word_weights, sentence_weights):
        axis.add_patch(Rectangle((0, line), 2, 0.9, color=(1.0, 0.0, 0.0, min(float(sentence_weight), 1.0))))
        for word, weight in zip(words, weights):
            label = _label(word, missing)
            width = _width([label]) / 0.6 + 1  # in letters
            if column + width > CHARACTERS_IN_A_LINE and column > left:
                line, column = line + 1, left
            strength = min(float(weight) * math.sqrt(float(sentence_weight)), 1.0)
            axis.add_patch(Rectangle((column, line), width, 0.9, color=(0.2, 0.4, 1.0, strength)))
            axis.text(column + 0.5, line + 0.45, label, **styles)
            column += width
        line, column = line + 1, left
    axis.set(xlim=(0, CHARACTERS_IN_A_LINE), ylim=(line, 0))
    axis.axis("off")
    figure.set_size_inches(CHARACTERS_IN_A_LINE * LARGEST_TEXT * 0.62 / 72, 0.5 + 0.25 * line)
    if title:
        figure.suptitle(_label(title, missing), fontfamily=families, parse_math=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


__all__ = ["animate_alignment", "plot_alignment", "plot_document", "read_alignment"]
