"""
Alignments: attention with the tokens on both axes, from a pair of texts or from `generate`, and links of words.

    alignments = align(model, tokenizer, ["a dog runs"], ["ein Hund rennt"])
    to_pharaoh(alignments[0].merge("word").links())  # "0-0 1-1 2-2"

Which word a row speaks of. In every configuration, step `i` of the decoder computes its attention and with it
predicts token `i`, and the weights here are arranged by that: row `i` belongs to the token predicted. Where the
decoder has read token `i - 1` before it asks (`attention_query="current_state"`), Luong 2015 takes the weights of a
content score for those of the word just read, and of a location score for those of the word predicted. `offset=1`
gives that reading: row `i` is then the one of the step that had just read token `i`. The default is the word
predicted, for all scores: it is what the context vector is used for, with and without input feeding, and where
trained content scores are found to look (the model card of NETtalk). With `attention_query="previous_state"` the
attention comes before the last word is read, so that `offset=1` has no meaning there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, pre_tokenizers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import ModelOutput

from .compat import eager_attention
from .layout import spread_over_tokens

Span = tuple[int, int]
Link = tuple[int, int]

LINK_METHODS = ("argmax", "threshold")
UNITS = ("token", "word", "character")
SYMMETRIZATIONS = ("intersection", "union", "grow-diag-final-and")
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
_CLUSTERS = pre_tokenizers.Split(Regex(r"\X"), "isolated")


@dataclass
class Alignment(ModelOutput):
    """
    A soft alignment: the attention of one layer over one pair of texts. Fields are read by name and by key.

    Attributes:
        source: the source text.
        target: the target text; an unknown word that was generated is in it as the unknown token.
        source_tokens: the tokens across, special ones included, padding left out.
        target_tokens: the tokens down, without the start token.
        weights: `(heads, target_length, source_length)`, fp32 on the CPU, for one head too. Row `i` is the attention
            that predicted target token `i`; see the module for other readings.
        source_offsets, target_offsets: where each token stands in its text, `(start, end)` in code points, white
            space around it left out; `None` for a special token. No list at all (`None`) if the tokenizer can not
            tell.

    Raises:
        ValueError: `weights` does not fit the tokens.
    """

    source: str
    target: str = None
    source_tokens: list[str] = None
    target_tokens: list[str] = None
    weights: Tensor = None
    source_offsets: list[Span | None] | None = None
    target_offsets: list[Span | None] | None = None

    def __post_init__(self):
        lengths = (len(self.target_tokens), len(self.source_tokens))
        if self.weights.dim() != 3 or self.weights.shape[1:] != lengths:
            raise ValueError(
                f"weights has the shape {tuple(self.weights.shape)}; for {lengths[0]} target tokens and {lengths[1]} "
                f"source tokens it must be (heads, {lengths[0]}, {lengths[1]})."
            )
        super().__post_init__()

    @property
    def matrix(self) -> Tensor:
        """The mean over the heads, `(target_length, source_length)`."""
        return self.weights.mean(dim=0)

    def shift(self, offset: int) -> Alignment:
        """
        The alignment read another way: 0, the word predicted, is this alignment itself; with 1, the word read, row `i`
        is the one of the step that had just read token `i`. There is none for the last token, which is left out.

        Raises:
            ValueError: another offset.
        """
        if offset not in (0, 1):
            raise ValueError(f"offset={offset!r} is not possible; allowed: 0 (the word predicted), 1 (the word read).")
        if offset == 0:
            return self
        offsets = self.target_offsets
        return self._with(
            target_tokens=self.target_tokens[:-1],
            target_offsets=None if offsets is None else offsets[:-1],
            weights=self.weights[:, 1:],
        )

    def merge(
        self,
        unit: str | Sequence[Span] = "word",
        target_unit: str | Sequence[Span] | None = None,
        special: bool = False,
    ) -> Alignment:
        """
        The alignment of larger or other units than tokens: the weights of a source unit's pieces are summed, the rows
        of a target unit's pieces averaged. The tokens of the result are parts of the texts.

        A source token that reaches over several units is shared out by code points, a target token counts for each.
        White space goes with the unit behind it, as subwords have it.

        Args:
            unit: `"word"`, what stands between white space; `"character"`, grapheme clusters other than white space;
                `"token"`, tokens as they are; or the spans of the units, `(start, end)` in code points, in order.
            target_unit: the same for the target, if it is another one.
            special: whether special tokens such as `</s>` stay as units of their own; else they are left out with
                what weight they have, so that rows may sum to less than 1.

        Raises:
            ValueError: an unknown unit; spans that are not in order or not in the text; tokens whose place in the
                text is not known.
        """
        target_unit = unit if target_unit is None else target_unit
        sides = {}
        for side, chosen in (("source", unit), ("target", target_unit)):
            sides[side] = _group(side, self[side], self[f"{side}_tokens"], getattr(self, f"{side}_offsets"), chosen)
        source, target = (side if special else side.without_special() for side in sides.values())
        shares = source.overlaps / source.overlaps.sum(dim=0).clamp(min=1)
        members = (target.overlaps > 0).float()
        means = members / members.sum(dim=1, keepdim=True).clamp(min=1)
        return self._with(
            source_tokens=source.tokens,
            source_offsets=source.offsets,
            target_tokens=target.tokens,
            target_offsets=target.offsets,
            weights=means @ self.weights @ shares.T,
        )

    def links(self, method: str = "argmax", threshold: float | None = None) -> list[Link]:
        """
        Hard links between source and target tokens by the mean over the heads, sorted pairs `(source, target)`.

        All tokens count, special ones too; `merge("token")` is without those.

        Args:
            method: `"argmax"`, for each target token the source token with the largest weight (the first of several),
                none if all weights are zero; `"threshold"`, all pairs with at least the weight `threshold`.
            threshold: above 0 and at most 1.

        Raises:
            ValueError: an unknown method, a threshold that is missing, out of range, or given for `"argmax"`.
        """
        if method not in LINK_METHODS:
            raise ValueError(f"method={method!r} is not possible; allowed: {', '.join(map(repr, LINK_METHODS))}.")
        if method == "argmax":
            if threshold is not None:
                raise ValueError(f"threshold={threshold!r} has no meaning with method='argmax'; leave it at None.")
            weights = self.matrix
            chosen = weights.new_zeros(weights.shape, dtype=torch.bool)
            if weights.numel():
                chosen.scatter_(1, weights.argmax(dim=1, keepdim=True), True)
            chosen &= weights > 0
        else:
            if threshold is None or not 0 < threshold <= 1:
                raise ValueError(f"threshold={threshold!r} is not possible; it must be above 0 and at most 1.")
            chosen = self.matrix >= threshold
        return sorted((source, target) for target, source in chosen.nonzero().tolist())

    def _with(self, **changes: Any) -> Alignment:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Alignment(**{**fields, **changes})


# --- Units of a text -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Units:
    """
    The units of one side.

    Attributes:
        tokens: what they are called.
        offsets: their spans, `None` for a special token.
        overlaps: `(units, tokens)`, with how many code points a token reaches into a unit.
    """

    tokens: list[str]
    offsets: list[Span | None]
    overlaps: Tensor

    def without_special(self) -> _Units:
        kept = [index for index, span in enumerate(self.offsets) if span is not None]
        return _Units([self.tokens[i] for i in kept], [self.offsets[i] for i in kept], self.overlaps[kept])


def _group(
    side: str, text: str, tokens: list[str], offsets: list[Span | None] | None, unit: str | Sequence[Span]
) -> _Units:
    if offsets is None:
        raise ValueError(f"The {side} tokens can not be merged: their tokenizer does not tell where they stand.")
    if isinstance(unit, str) and unit == "token":
        return _Units(tokens, offsets, torch.eye(len(tokens)))
    spans = _unit_spans(side, text, unit)
    reach, end = [], 0
    for span in spans:
        reach.append((end if text[end : span[0]].isspace() else span[0], span[1]))
        end = span[1]
    bounds = torch.tensor([span or (0, 0) for span in offsets]).reshape(-1, 2)
    reach = torch.tensor(reach).reshape(-1, 2)
    overlaps = torch.minimum(reach[:, 1:], bounds[:, 1]) - torch.maximum(reach[:, :1], bounds[:, 0])
    # Special tokens stand behind what is before them, and so before a unit that begins there.
    places = [(start, 1) for start, _ in spans]
    names = [text[start:end] for start, end in spans]
    rows, place, identity = [*overlaps.clamp(min=0).float()], 0, torch.eye(len(tokens))
    for index, (token, span) in enumerate(zip(tokens, offsets)):
        if span is not None:
            place = span[1]
            continue
        places.append((place, 0))
        names.append(token)
        spans.append(None)
        rows.append(identity[index])
    order = sorted(range(len(places)), key=places.__getitem__)
    overlaps = torch.stack([rows[i] for i in order]) if order else torch.zeros(0, len(tokens))
    return _Units([names[i] for i in order], [spans[i] for i in order], overlaps)


def _unit_spans(side: str, text: str, unit: str | Sequence[Span]) -> list[Span]:
    if isinstance(unit, str):
        if unit == "word":
            return [found.span() for found in re.finditer(r"\S+", text)]
        if unit == "character":
            return [span for piece, span in _CLUSTERS.pre_tokenize_str(text) if not piece.isspace()]
        raise ValueError(f"unit={unit!r} is not possible; allowed: {', '.join(map(repr, UNITS))}, or a list of spans.")
    spans, last = [(start, end) for start, end in unit], 0
    for start, end in spans:
        if not last <= start < end <= len(text):
            raise ValueError(
                f"The span {(start, end)} of the {side} is not possible: spans must not be empty, come in order, not "
                f"overlap, and lie within the {len(text)} code points of the text."
            )
        last = end
    return spans


# --- Alignments of pairs ---------------------------------------------------------------------------------------------


def align(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    batch_size: int = 32,
    layer: int = -1,
    offset: int = 0,
) -> list[Alignment]:
    """
    The attention of a model while it is made to write each target for its source (teacher forcing).

    Args:
        model: any sequence-to-sequence model that has cross-attention; it is run in evaluation mode.
        tokenizer: for both sides (`text_target=`).
        sources, targets: as many texts of each; nothing is cut off.
        batch_size: pairs at a time; the result does not depend on it.
        layer: which layer of the decoder.
        offset: 0 for the word predicted, 1 for the word read; see the module and `Alignment.shift`.

    Raises:
        TypeError: a single text in place of a list.
        ValueError: different numbers of sources and targets; a text without tokens; a model without attention.
    """
    for name, texts in (("sources", sources), ("targets", targets)):
        if isinstance(texts, str):
            raise TypeError(f"{name} is one text, {texts!r:.60}; it must be a list of texts.")
    if len(sources) != len(targets):
        raise ValueError(f"There are {len(sources)} sources but {len(targets)} targets; each source needs one.")
    alignments = []
    for start in range(0, len(sources), batch_size):
        pairs = slice(start, start + batch_size)
        source_sides = _encode_side("source", tokenizer, sources[pairs])
        target_sides = _encode_side("target", tokenizer, targets[pairs])
        source_ids, target_ids = ([torch.tensor(ids) for ids, _ in sides] for sides in (source_sides, target_sides))
        input_ids = pad_sequence(source_ids, batch_first=True)
        mask = pad_sequence([torch.ones_like(ids) for ids in source_ids], batch_first=True)
        starts = torch.full((len(target_ids), 1), _start_token_id(model))
        decoder_input_ids = torch.cat((starts, pad_sequence(target_ids, batch_first=True)[:, :-1]), dim=1)
        was_training = model.training
        model.eval()
        try:
            inputs = (tensor.to(model.device) for tensor in (input_ids, mask, decoder_input_ids))
            weights = forced_attention(model, *inputs, layer=layer).float().cpu()
        finally:
            model.train(was_training)
        for row, (source, target) in enumerate(zip(source_sides, target_sides)):
            own = weights[row, :, : len(target[0]), : len(source[0])].clone()
            alignments.append(Alignment(weights=own, **source[1], **target[1]).shift(offset))
    return alignments


@torch.no_grad()
def forced_attention(
    model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, layer: int = -1
) -> Tensor:
    """
    The cross-attention of one decoder layer.

    Args:
        input_ids, attention_mask: `(batch, source_length)`.
        decoder_input_ids: `(batch, target_length)`, beginning with the start token.

    Returns:
        `(batch, heads, target_length, source_length)`.

    Raises:
        ValueError: the model has no attention, or does not give it.
    """
    with eager_attention(model):
        output = model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            output_attentions=True,
            use_cache=False,
            return_dict=True,
        )
    layers = getattr(output, "cross_attentions", None)
    if not layers or layers[0] is None:
        config = model.config
        reason = (
            "its configuration has attention_type='none'"
            if getattr(config, "attention_type", None) == "none"
            else f"with attn_implementation={config._attn_implementation!r} it returns no cross_attentions; "
            "if it has any, load it with attn_implementation='eager'"
        )
        raise ValueError(f"Alignments are not possible for {type(model).__name__}: {reason}.")
    return spread_over_tokens(_layer(layers, layer), attention_mask)


def _layer(layers: Sequence[Tensor], layer: int) -> Tensor:
    if not -len(layers) <= layer < len(layers):
        raise ValueError(f"layer={layer!r} is not possible: the decoder gives attention in {len(layers)} layers.")
    return layers[layer]


def _start_token_id(model: PreTrainedModel) -> int:
    for config in (model.generation_config, model.config):
        if getattr(config, "decoder_start_token_id", None) is not None:
            return config.decoder_start_token_id
    raise ValueError(f"{type(model).__name__} does not say how a target starts: set config.decoder_start_token_id.")


# --- Alignments of generated texts -----------------------------------------------------------------------------------


def alignments_from_generate(
    output: ModelOutput,
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Tensor],
    sources: Sequence[str] | None = None,
    *,
    eos_token_id: int | list[int] | None = None,
    pad_token_id: int | None = None,
    layer: int = -1,
    offset: int = 0,
) -> list[Alignment]:
    """
    The attention that generated each returned sequence, without decoding again.

        inputs = tokenizer(sources, padding=True, return_tensors="pt")
        output = model.generate(
            **inputs, num_beams=5, num_return_sequences=3, output_attentions=True, return_dict_in_generate=True
        )
        alignments = alignments_from_generate(output, tokenizer, inputs, sources)

    A hypothesis of beam search has changed its row from step to step; its weights are gathered along `beam_indices`,
    up to its end.

    Args:
        output: of `generate` with `output_attentions=True` and `return_dict_in_generate=True`.
        inputs: what `generate` was given: `input_ids` and `attention_mask`, `(batch, source_length)`; without a mask
            there is no padding.
        sources: the texts behind `inputs`; if not given, they are decoded.
        eos_token_id, pad_token_id: where the sequences end; if not given, the tokenizer's.
        layer: which layer of the decoder.
        offset: 0 for the word predicted, 1 for the word read; see the module and `Alignment.shift`.

    Returns:
        one alignment for each row of `output.sequences`, those of one source consecutive.

    Raises:
        ValueError: `output` has no attention; inputs of another batch; texts that are not those of `inputs`.
    """
    weights = _generated_attention(output, layer).float().cpu()
    sequences = output.sequences.cpu()
    beam_indices = getattr(output, "beam_indices", None)
    if beam_indices is None:
        end = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        lengths = generated_lengths(sequences, end, tokenizer.pad_token_id if pad_token_id is None else pad_token_id)
    else:
        prefix = sequences.shape[1] - 1 - beam_indices.shape[1]
        lengths = prefix + (beam_indices >= 0).sum(dim=1)
    input_ids = inputs["input_ids"].cpu()
    mask = inputs["attention_mask"].cpu().bool() if "attention_mask" in inputs else torch.ones_like(input_ids).bool()
    returned, left_over = divmod(len(sequences), len(input_ids))
    try:
        if left_over:
            raise ValueError
        weights = spread_over_tokens(weights, mask.repeat_interleave(returned, dim=0))
    except ValueError:
        raise ValueError(
            f"inputs has {tuple(input_ids.shape)} tokens, but there are {len(sequences)} sequences of "
            f"{weights.shape[-1]} source positions; inputs must be the batch that generate was given."
        ) from None
    rows = [ids[own].tolist() for ids, own in zip(input_ids, mask)]
    if sources is None:
        sides = [alignment_side("source", tokenizer, ids) for ids in rows]
    else:
        encoded = _encode_side("source", tokenizer, sources)
        if [ids for ids, _ in encoded] != rows:
            raise ValueError("The tokens of sources are not those of inputs; give the same texts, or leave them out.")
        sides = [side for _, side in encoded]
    alignments = []
    for row, length in enumerate(lengths.tolist()):
        reader = tokenizer
        if sources is not None and hasattr(tokenizer, "with_source"):  # it can write copied words
            reader = tokenizer.with_source(sources[row // returned])
        target = alignment_side("target", reader, sequences[row, 1 : 1 + length].tolist())
        own = weights[row, :, :length, mask[row // returned]]
        alignments.append(Alignment(weights=own, **sides[row // returned], **target).shift(offset))
    return alignments


def _generated_attention(output: ModelOutput, layer: int) -> Tensor:
    """`(returned, heads, target_length - 1, source_length)`; the rows behind the end of a hypothesis mean nothing."""
    steps = getattr(output, "cross_attentions", None)
    if not steps or not steps[0] or steps[0][0] is None:
        raise ValueError(
            "The output has no cross_attentions: call generate with output_attentions=True and "
            "return_dict_in_generate=True, on a model that has attention (with attn_implementation='eager')."
        )
    # A prefix has all its rows in the first step; without a cache, later steps repeat the earlier ones.
    steps = [_layer(step, layer)[:, :, -1 if index else 0 :] for index, step in enumerate(steps)]
    beam_indices = getattr(output, "beam_indices", None)
    if beam_indices is not None:
        chosen = beam_indices.clamp(min=0).T.to(steps[0].device)
        steps = [step[rows] for step, rows in zip(steps, chosen)]
    elif len(steps[0]) != len(output.sequences):
        raise ValueError(
            f"There are attentions of {len(steps[0])} rows, but {len(output.sequences)} sequences and no beam_indices "
            "that would tell which are whose."
        )
    return torch.cat(steps, dim=2)


def generated_lengths(sequences: Tensor, eos_token_id: Any, pad_token_id: int | None) -> Tensor:
    """
    The number of tokens after the start token: to the first end token, else to the last token that is no padding.

    Args:
        sequences: `(rows, target_length)`, `torch.long`, beginning with the start token.

    Returns:
        `(rows,)`, `torch.long`.
    """
    tokens = sequences[:, 1:]
    positions = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    end_ids = torch.as_tensor([] if eos_token_id is None else eos_token_id, dtype=torch.long, device=tokens.device)
    is_end = torch.isin(tokens, end_ids)
    is_token = torch.ones_like(is_end) if pad_token_id is None else tokens != pad_token_id
    is_before_end = is_end.long().cumsum(dim=1) - is_end.long() == 0
    is_kept = is_before_end & (is_token | is_end)
    return (positions * is_kept).amax(dim=1) if tokens.shape[1] else positions.new_zeros(len(tokens))


# --- Texts with the places of their tokens ---------------------------------------------------------------------------


def alignment_side(
    side: str,
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    text: str | None = None,
    offsets: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """
    The fields of an `Alignment` for one of its sides.

    Args:
        side: `"source"` or `"target"`.
        ids: the tokens, without padding.
        text: what they stand for; if not given, it is decoded.
        offsets: as the tokenizer gives them for `text`; not known if there are none.
    """
    own = getattr(tokenizer, f"{side}_tokenizer", tokenizer)  # with two vocabularies, see AttentionSeq2SeqTokenizer
    tokens = own.convert_ids_to_tokens(ids)
    if side == "source" and own is tokenizer and getattr(tokenizer, "separate_vocabs", False):
        # Marian's tokenizer converts by the target vocabulary, but `get_vocab` is the source one.
        names = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        tokens = [names[token_id] for token_id in ids]
    named = {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    special = set(tokenizer.all_special_ids) - ({tokenizer.unk_token_id} - named)
    if text is None:
        text, offsets = _decode(own, ids, special)
    spans = None
    if offsets is not None:
        spans = _spans(text, [None if token in special else tuple(span) for token, span in zip(ids, offsets)])
    return {side: text, f"{side}_tokens": tokens, f"{side}_offsets": spans}


def _encode_side(
    side: str, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> list[tuple[list[int], dict[str, Any]]]:
    """For each text its tokens and `alignment_side`."""
    texts = list(texts)
    given = {"text": texts} if side == "source" else {"text_target": texts}
    encoded = tokenizer(**given, return_offsets_mapping=tokenizer.is_fast)
    encodings = []
    for index, (text, ids) in enumerate(zip(texts, encoded["input_ids"])):
        if not ids:
            raise ValueError(f"The {side} {text!r} has no tokens; an alignment needs some on both sides.")
        offsets = encoded["offset_mapping"][index] if tokenizer.is_fast else None
        encodings.append((ids, alignment_side(side, tokenizer, ids, text, offsets)))
    return encodings


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int], special: set[int]) -> tuple[str, list[Span]]:
    """The text without special tokens, and what each token adds to the text before it."""

    def decode(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, clean_up_tokenization_spaces=False)

    kept = [token for token in ids if token not in special]
    text, before, start, spans = decode(kept), [], 0, []
    for token in ids:
        if token in special:
            spans.append((start, start))
            continue
        before.append(token)
        end = max(start, len(os.path.commonprefix((text, decode(before)))))
        spans.append((start, end))
        start = end
    return text, spans


def _spans(text: str, spans: list[Span | None]) -> list[Span | None]:
    """
    Without the white space around tokens, if there is anything else. A token that adds nothing by itself (a byte of a
    character, a word's mark) is a piece of what comes next.
    """
    result, next_end = [], None
    for span in reversed(spans):
        if span is not None:
            start, end = span
            end = next_end if start == end and next_end is not None else end
            next_end = end
            piece = text[start:end]
            if piece.strip():
                end = start + len(piece.rstrip())
                start += len(piece) - len(piece.lstrip())
            span = (start, end)
        result.append(span)
    return result[::-1]


# --- Links -----------------------------------------------------------------------------------------------------------


def to_pharaoh(links: Iterable[Link]) -> str:
    """Links `(source, target)` in Pharaoh's format, sorted: `"0-0 1-2"`."""
    return " ".join(f"{source}-{target}" for source, target in sorted(set(links)))


def parse_pharaoh(text: str) -> list[Link]:
    """
    The links of a line in Pharaoh's format, `"0-0 1-2"`, as sorted pairs `(source, target)`, counted from 0.

    Raises:
        ValueError: anything else is in the line.
    """
    links = set()
    for item in text.split():
        found = re.fullmatch(r"([0-9]+)-([0-9]+)", item)
        if found is None:
            raise ValueError(f"{item!r} is no link of the form SOURCE-TARGET, such as 0-2.")
        links.add((int(found[1]), int(found[2])))
    return sorted(links)


def symmetrize(forward: Iterable[Link], backward: Iterable[Link], method: str = "grow-diag-final-and") -> list[Link]:
    """
    One alignment from the links of two directions.

    Args:
        forward: links `(source, target)` of a model from source to target; they come first where both can not be had.
        backward: those of a model from target to source, as pairs `(source, target)` of the same pair of texts; what
            `links` says of that model is turned by `[(j, i) for i, j in links]`.
        method: `"intersection"`; `"union"`; `"grow-diag-final-and"` (Koehn 2005): the intersection, grown to
            neighbouring links of the union of which one word has none yet, then links of either direction between
            words which both have none.

    Returns:
        sorted pairs `(source, target)`.

    Raises:
        ValueError: an unknown method.
    """
    if method not in SYMMETRIZATIONS:
        raise ValueError(f"method={method!r} is not possible; allowed: {', '.join(map(repr, SYMMETRIZATIONS))}.")
    forward, backward = set(forward), set(backward)
    if method == "union":
        return sorted(forward | backward)
    links = forward & backward
    if method == "intersection":
        return sorted(links)

    def by_target(some: set[Link]) -> list[Link]:
        return sorted(some, key=lambda link: link[::-1])

    sources, targets = {i for i, _ in links}, {j for _, j in links}
    candidates = (forward | backward) - links

    def add(link: Link) -> None:
        links.add(link)
        candidates.discard(link)
        sources.add(link[0])
        targets.add(link[1])

    grown = True
    while grown:
        grown = False
        for i, j in by_target(forward | backward):  # links that are added on the way are grown from when they come
            if (i, j) not in links:
                continue
            for down, across in _NEIGHBOURS:
                link = (i + across, j + down)
                if link in candidates and (link[0] not in sources or link[1] not in targets):
                    add(link)
                    grown = True
    for direction in (forward, backward):
        for link in by_target(direction):
            if link[0] not in sources and link[1] not in targets:
                add(link)
    return sorted(links)


__all__ = [
    "Alignment",
    "align",
    "alignments_from_generate",
    "parse_pharaoh",
    "symmetrize",
    "to_pharaoh",
]
