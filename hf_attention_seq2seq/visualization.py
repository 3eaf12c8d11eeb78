"""Pictures of what attention looked at."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_alignment(alignment: dict[str, Any], path: str | PathLike | None = None, title: str | None = None) -> Figure:
    """
    Draws a soft alignment as in figure 3 of Bahdanau 2014: source words across, target words down, white is weight 1.

    Args:
        alignment: what the pipelines add with `return_alignments=True`: `source_tokens`, `target_tokens` and
            `weights`, `(target_length, source_length)`, or `(heads, target_length, source_length)`, which gives one
            panel for each head.
        path: where to save the picture; the format follows from its ending.
        title: written above.

    Returns:
        the matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the weights do not fit the tokens.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures of alignments need matplotlib: pip install matplotlib.") from error
    source, target = alignment["source_tokens"], alignment["target_tokens"]
    weights = torch.as_tensor(alignment["weights"]).float()
    panels = weights.unsqueeze(0) if weights.dim() == 2 else weights
    if panels.dim() != 3 or panels.shape[1:] != (len(target), len(source)):
        raise ValueError(
            f"weights has the shape {tuple(weights.shape)}; for these tokens it must be "
            f"({len(target)}, {len(source)}), or (heads, {len(target)}, {len(source)})."
        )
    size = (1.5 + 0.32 * max(len(source), 4) * len(panels), 1.2 + 0.32 * max(len(target), 4))
    figure = Figure(figsize=size, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        axes.imshow(panel.numpy(), cmap="gray", vmin=0.0, vmax=1.0, aspect="equal")
        axes.set_xticks(range(len(source)), source, rotation=90)
        axes.set_yticks(range(len(target)), target)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_parse_math(False)  # tokens with dollar signs are no formulas
    if title:
        figure.suptitle(title).set_parse_math(False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


__all__ = ["plot_alignment"]
