"""Alignments: attention with the tokens on both axes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import ModelOutput

Span = tuple[int, int]
Link = tuple[int, int]


@dataclass
class Alignment(ModelOutput):
    """
    A soft alignment: the attention of one layer over one pair of texts. Fields are read by name and by key.

    Attributes:
        source: the source text.
        target: the target text, an unknown word of an output written as `<unk>`.
        source_tokens: the tokens across, special ones included, padding left out.
        target_tokens: the tokens down, without the start token.
        weights: `(heads, target_length, source_length)`, fp32 on the CPU, for one head too. Row `i` is the attention
            that predicted target token `i`.
        source_offsets, target_offsets: where each token stands in its text, `(start, end)` in code points, white
            space around it left out; `None` for a special token. No list at all (`None`) if the tokenizer can not
            tell.
    """

    source: str
    target: str = None
    source_tokens: list[str] = None
    target_tokens: list[str] = None
    weights: Tensor = None
    source_offsets: list[Span | None] | None = None
    target_offsets: list[Span | None] | None = None
