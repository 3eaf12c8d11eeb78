"""Alignments as a page to explore in a browser or notebook: one file, no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from .alignment import Alignment
from .visualization import read_alignment

# Larger heat maps are folded up, and drawn when unfolded.
LARGEST_OPEN_TABLE = 2500

_STYLE = """
:root { color-scheme: light dark; --shade: 255 158 27; --edge: #999; }
@media (prefers-color-scheme: dark) { :root { --shade: 166 84 0; --edge: #777; } }
body { font: 1rem/1.6 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: .5rem 1rem; }
h1 { font-size: 1.3rem; }
section { border-top: 1px solid var(--edge); padding: .5rem 0; }
section:first-of-type { border-top: 0; }
label { margin-inline-end: 1rem; }
p { margin: .4rem 0; }
.text { font-size: 1.25rem; white-space: pre-wrap; overflow-wrap: anywhere; }
/* No padding and no border here: Arabic letters would no longer join across tokens. */
[role=option], td { background: rgb(var(--shade) / var(--weight, 0)); }
[role=option] { cursor: default; border-radius: .2em; }
[role=option].active, th.active { outline: 2px solid; outline-offset: 1px; }
.apart { font-size: .8em; opacity: .8; margin-inline: .3em; }
.status { min-height: 1.6em; font-size: .9rem; }
.scroll { overflow: auto; max-height: 80vh; }
table { border-collapse: collapse; font-size: .85rem; line-height: 1.3; }
th { font-weight: normal; white-space: pre; text-align: end; padding: .15rem .3rem; background: Canvas; }
thead th { vertical-align: bottom; }
thead th bdi { writing-mode: vertical-rl; }
th.active { outline-offset: -2px; }
td { border: 1px solid rgb(128 128 128 / .25); min-width: 1.6rem; height: 1.6rem; padding: 0; text-align: center; }
tbody th { position: sticky; left: 0; }
"""

_SCRIPT = """
"use strict";
for (const pair of document.querySelectorAll("section")) {
  const weights = JSON.parse(pair.querySelector("script").textContent); // [layer][head][target][source]
  const source = [...pair.querySelectorAll(".source [role=option]")];
  const target = [...pair.querySelectorAll(".target [role=option]")];
  const layer = pair.querySelector("[name=layer]"), head = pair.querySelector("[name=head]");
  const map = pair.querySelector("details"), table = pair.querySelector("table");
  const status = pair.querySelector("[role=status]");
  const columns = [], rows = [], cells = []; // of the table, once it is drawn
  let matrix; // [target][source] of the layer and head chosen
  let shown = []; // what is outlined now

  const isolated = (text) => {
    const element = document.createElement("bdi");
    element.textContent = text;
    return element;
  };

  function choose() {
    const heads = weights[layer ? layer.value : 0];
    matrix = head && head.value !== "mean" ? heads[head.value] : heads[0].map((row, t) =>
      row.map((_, s) => heads.reduce((sum, one) => sum + one[t][s], 0) / heads.length));
    if (map.open) drawTable();
    rest();
  }

  function rest() {
    const token = pair.querySelector("[role=option]:hover") || pair.querySelector("[role=option]:focus");
    show(token ? [token] : []);
  }

  function drawTable() {
    if (!cells.length) {
      const top = table.createTHead().insertRow();
      top.append(document.createElement("td"));
      const heading = (token, scope) => {
        const cell = document.createElement("th");
        cell.scope = scope;
        cell.append(isolated(token.textContent));
        return cell;
      };
      source.forEach((token) => top.append(columns[columns.length] = heading(token, "col")));
      const body = table.createTBody();
      target.forEach((token, t) => {
        const row = body.insertRow();
        row.append(rows[t] = heading(token, "row"));
        cells.push(source.map(() => row.insertCell()));
      });
    }
    cells.forEach((row, t) => row.forEach((cell, s) => {
      cell.style.setProperty("--weight", matrix[t][s]);
      cell.textContent = matrix[t][s] ? Math.round(100 * matrix[t][s]) : "";
    }));
  }

  // Outlines these tokens and shades the other text by the weights of the first; no tokens: clears everything.
  function show(tokens) {
    const s = source.indexOf(tokens[0]), t = target.indexOf(tokens[0]);
    const shades = (text, weight) => text.forEach((token, i) => token.style.setProperty("--weight", weight(i)));
    shades(source, (i) => t < 0 ? 0 : matrix[t][i]);
    shades(target, (i) => s < 0 ? 0 : matrix[i][s]);
    shown.forEach((element) => element.classList.remove("active"));
    [...source, ...target].forEach((token) => token.setAttribute("aria-selected", token === tokens[0]));
    shown = [...tokens, ...tokens.map((token) => columns[source.indexOf(token)] || rows[target.indexOf(token)])]
      .filter(Boolean);
    shown.forEach((element) => element.classList.add("active"));
    status.replaceChildren();
    if (!tokens.length) return;
    let partners = (s < 0 ? source : target).map((token, i) => [token, s < 0 ? matrix[t][i] : matrix[i][s]]);
    if (tokens.length > 1) partners = partners.filter(([token]) => token === tokens[1]);
    partners = partners.sort((a, b) => b[1] - a[1]).slice(0, 3);
    status.append(isolated(tokens[0].textContent), " \u2194 ");
    partners.forEach(([token, weight], i) =>
      status.append(i ? ", " : "", isolated(token.textContent), " " + weight.toFixed(3)));
  }

  pair.addEventListener("pointerover", (event) => {
    const token = event.target.closest("[role=option]"), cell = event.target.closest("tbody td");
    if (token) show([token]);
    else if (cell) show([target[cell.parentNode.rowIndex - 1], source[cell.cellIndex - 1]]);
    else rest();
  });
  pair.addEventListener("pointerleave", rest);
  pair.addEventListener("focusin", (event) => {
    if (event.target.matches("[role=option]")) show([event.target]);
  });
  pair.addEventListener("focusout", () => show([]));
  for (const text of [source, target]) {
    text.forEach((token, i) => token.addEventListener("keydown", (event) => {
      const step = getComputedStyle(token.closest("[role=listbox]")).direction === "rtl" ? -1 : 1;
      const next = { ArrowRight: i + step, ArrowLeft: i - step, Home: 0, End: text.length - 1 }[event.key];
      if (!text[next]) return;
      event.preventDefault();
      token.tabIndex = -1; // the tab key enters a text at the token it was left from
      text[next].tabIndex = 0;
      text[next].focus();
    }));
  }
  for (const choice of [layer, head]) if (choice) choice.addEventListener("change", choose);
  map.addEventListener("toggle", choose);
  choose();
}
"""


def _escape(text: str) -> str:
    """Text for HTML; control characters and halves of surrogate pairs, which HTML cannot hold, are replaced."""
    return html.escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text))


def _text(name: str, alignment: Mapping[str, Any], tokens: list[str], language: str | None) -> str:
    """
    One side as a list box of tokens: the text itself where the alignment has it with offsets, else the tokens with
    spaces between them. Tokens without a place in the text, such as `</s>`, stand apart.
    """
    text, offsets = alignment.get(name), alignment.get(f"{name}_offsets")
    parts = []

    def add(token: str, apart: bool) -> None:
        # dir="auto" looks past <bdi>, so that "</s>" does not make a Hebrew sentence run from left to right.
        tag, kind = ("bdi", ' class="apart"') if apart else ("span", "")
        tab = -1 if parts else 0
        parts.append(f'<{tag} role="option" aria-selected="false" tabindex="{tab}"{kind}>{_escape(token)}</{tag}>')

    if text is None or offsets is None:
        for token in tokens:
            add(token or "\u2205", bool(re.fullmatch(r"<[^<>]+>|\[[^\[\]]+\]", token)))
        content = " ".join(parts)
    else:
        if len(offsets) != len(tokens):
            raise ValueError(f"{name}_offsets has {len(offsets)} entries for {len(tokens)} tokens.")
        position = 0
        for token, offset in zip(tokens, offsets):
            start, end = offset or (position, position)
            if not 0 <= start <= end <= len(text):
                raise ValueError(f"{name}_offsets has {(start, end)}; the text has {len(text)} characters.")
            gap, start = text[position:start], max(start, position)
            # Several tokens may be pieces of one character: the first stands for it in the text, the others apart.
            add(text[start:end] or token, apart=start >= end)
            if start < end:
                parts[-1] = _escape(gap) + parts[-1]
                position = end
        content = "".join(parts) + _escape(text[position:])
    return (
        f'<p class="text {name}" role="listbox" aria-orientation="horizontal" aria-label="{name}" dir="auto" '
        f'lang="{_escape(language or "")}">{content}</p>'
    )


def _choice(name: str, options: list[tuple[Any, str]], chosen: Any) -> str:
    """A labelled choice, or nothing where there is nothing to choose from."""
    if len(options) < 2:
        return ""
    lines = (f'<option value="{value}"{" selected" * (value == chosen)}>{text}</option>' for value, text in options)
    return f'<label>{name.capitalize()} <select name="{name}">{"".join(lines)}</select></label>'


def _section(alignment: Mapping[str, Any], source_language: str | None, target_language: str | None) -> str:
    source, target, weights = read_alignment(alignment)
    layers, heads = ([(index, index + 1) for index in range(length)] for length in weights.shape[:2])
    if len(heads) > 1:
        heads.insert(0, ("mean", "mean"))
    choices = _choice("layer", layers, len(layers) - 1) + _choice("head", heads, "mean")
    values = json.dumps(weights.double().round(decimals=4).tolist(), separators=(",", ":"))
    unfolded = " open" * (len(source) * len(target) <= LARGEST_OPEN_TABLE)
    return f"""<section aria-label="alignment">
{f"<p>{choices}</p>" if choices else ""}
{_text("source", alignment, source, source_language)}
{_text("target", alignment, target, target_language)}
<p class="status" role="status"></p>
<details{unfolded}><summary>Heat map in percent: source across, target down</summary>
<div class="scroll"><table></table></div></details>
<script type="application/json">{values}</script>
</section>"""


def alignment_html(
    alignments: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    title: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> str:
    """
    A page of HTML that stands alone and loads nothing: pointing at a token, or moving to it with the tab and arrow
    keys, shades the other text by the attention between them; below is the whole matrix as a table.

    The order of its columns is that of the sentence, from left to right, in every language; the texts above it run as
    their language does. It has light and dark colours, by what the browser asks for.

    Args:
        alignments: one or several: `Alignment`s, or mappings with `source_tokens`, `target_tokens` and `weights`,
            `(target_length, source_length)`, `(heads, target_length, source_length)`, or `(layers, heads,
            target_length, source_length)`; heads and layers can be chosen, at first the mean of the heads of the last
            layer. With `source` and `source_offsets` (`(start, end)` in code points for each token, `None` or an
            empty span for one that is not in the text), the text itself is shown in place of its tokens; likewise
            `target`.
        title: the heading.
        source_language, target_language: language tags such as `"zh-Hant"`, by which browsers choose the shapes of
            characters, and screen readers a voice.

    Raises:
        ValueError: no alignments; or one in which something is missing, the weights do not fit the tokens or are not
            finite, or the offsets do not fit tokens and text.
    """
    alignments = [alignments] if isinstance(alignments, Mapping) else list(alignments)
    if not alignments:
        raise ValueError("alignments is empty; a page needs at least one.")
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (_STYLE, _SCRIPT)
    )
    heading = _escape(title or "Attention")
    sections = "\n".join(_section(alignment, source_language, target_language) for alignment in alignments)
    # Tokens are escaped; should one get through all the same, the policy forbids it to run or load anything.
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'">
<meta name="viewport" content="width=device-width">
<title>{heading}</title>
<style>{_STYLE}</style>
</head>
<body>
{f'<h1 dir="auto">{heading}</h1>' if title else ""}
<noscript>The shading needs JavaScript.</noscript>
{sections}
<script>{_SCRIPT}</script>
</body>
</html>
"""


def save_alignment_html(
    alignments: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    path: str | PathLike,
    title: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> None:
    """Writes the page of `alignment_html`, with the same arguments and errors, to a file, in UTF-8."""
    page = alignment_html(alignments, title, source_language, target_language)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


class AlignmentView:
    """
    The page of `alignment_html` in a notebook: `AlignmentView(alignments)` as the last line of a cell.

    Each view is a frame of its own, so that several in one notebook know nothing of each other, nor of the notebook's
    style. Its lower corner can be dragged to another height.

    Args, errors: see `alignment_html`.
    """

    def __init__(
        self,
        alignments: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        title: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ):
        self.html = alignment_html(alignments, title, source_language, target_language)

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" title="attention" '
            'style="width: 100%; height: 32em; border: 0; resize: vertical; overflow: auto"></iframe>'
        )


# An alignment shows itself in notebooks. Given here, for its own module is published with models and this one is not.
Alignment._repr_html_ = lambda alignment: AlignmentView(alignment)._repr_html_()

__all__ = ["AlignmentView", "alignment_html", "save_alignment_html"]
