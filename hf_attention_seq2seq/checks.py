"""Checks of what comes from outside, with messages that name the value and what is allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .cache import AttentionSeq2SeqCache

IGNORED_LABEL = -100


def first_given(*values: Any) -> Any:
    """The first value that is not `None`, or `None`."""
    return next((value for value in values if value is not None), None)


def check_not_exported() -> None:
    """Raises `NotImplementedError` inside `torch.export`."""
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            "torch.export of this model is not possible: it reads each sentence to its own length and checks its "
            "inputs, so what it computes depends on values, which an exported graph can not. torch.compile works."
        )


def check_one_of(first: str, first_value: Tensor | None, second: str, second_value: Tensor | None) -> None:
    """Raises `ValueError` unless exactly one of two arguments is given."""
    if (first_value is None) == (second_value is None):
        given = "neither" if first_value is None else "both"
        hint = ""
        if first == "decoder_input_ids" and given == "neither":
            hint = " Labels give them; the Trainer's label smoothing needs DataCollatorForSeq2Seq(model=model)."
        raise ValueError(f"Exactly one of {first} and {second} must be given, got {given}.{hint}")


def check_batch(name: str, ids: Tensor | None, embeddings: Tensor | None, embedding_size: int) -> None:
    """Raises `ValueError` for ids or embeddings that are empty or have a wrong shape."""
    tensor, dimensions = (ids, 2) if embeddings is None else (embeddings, 3)
    if tensor.dim() != dimensions:
        shape = "(batch, length)" if dimensions == 2 else "(batch, length, embedding_size)"
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}.")
    if embeddings is not None and embeddings.shape[-1] != embedding_size:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; its last size must be {embedding_size=}.")
    if 0 in tensor.shape:
        raise ValueError(
            f"{name} is empty: its shape is {tuple(tensor.shape)}; at least one row and token are needed."
        )


def check_tokens(name: str, ids: Tensor, size: int, field: str, unknown_words: int = 0) -> None:
    """Raises `ValueError` for ids of another dtype or outside of `0 <= id < size + unknown_words`."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} must have dtype int64 or int32, got {ids.dtype}.")
    smallest, largest = (int(value) for value in torch.aminmax(ids))
    field = f"{field}={size}"
    if unknown_words:
        size, field = size + unknown_words, f"{field} and max_unknown_words={unknown_words}"
    if smallest < 0 or largest >= size:
        wrong = smallest if smallest < 0 else largest
        row, column = (ids == wrong).nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}] is {wrong}, which is not a token: allowed are 0 to {size - 1} ({field})."
        )


def check_labels(labels: Tensor, size: int, decoder_inputs: Tensor | None, unknown_words: int = 0) -> None:
    """Raises `ValueError` for labels that do not fit the decoder inputs or are no tokens."""
    if labels.dim() != 2:
        raise ValueError(f"labels must have the shape (batch, target_length), got {tuple(labels.shape)}.")
    if 0 in labels.shape:
        raise ValueError(f"labels is empty: its shape is {tuple(labels.shape)}.")
    if decoder_inputs is not None and labels.shape != decoder_inputs.shape[:2]:
        raise ValueError(
            f"labels has the shape {tuple(labels.shape)}, but the decoder inputs {tuple(decoder_inputs.shape[:2])}."
        )
    if labels.device.type == "cpu":
        try:
            tokens = labels.masked_fill(labels == IGNORED_LABEL, 0)
            check_tokens("labels", tokens, size, "decoder_vocab_size", unknown_words)
        except ValueError as error:
            raise ValueError(f"{error} {IGNORED_LABEL} is allowed where there is nothing to predict.") from None


def as_mask(name: str, mask: Tensor | None, states: Tensor) -> Tensor:
    """`(batch, length)` bool for states `(batch, length, size)`."""
    if mask is None:
        return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
    if mask.shape != states.shape[:2]:
        raise ValueError(f"{name} has the shape {tuple(mask.shape)}, but its sentences {tuple(states.shape[:2])}.")
    if mask.dtype != torch.bool and mask.device.type == "cpu" and not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{name} has values other than 0 (padding) and 1 (token), such as {mask.min().item()}.")
    return mask.to(device=states.device, dtype=torch.bool)


def as_decoder_mask(mask: Tensor | None, rows: int, length: int, cache: AttentionSeq2SeqCache | None) -> Tensor | None:
    """The part of the mask for the `length` new tokens, or `None` if it lets all of them through."""
    if mask is None:
        return None
    consumed = 0 if cache is None else cache.get_seq_length()
    if mask.dim() != 2 or mask.shape[0] != rows or mask.shape[1] not in (length, consumed + length):
        raise ValueError(
            f"decoder_attention_mask has the shape {tuple(mask.shape)}; allowed: {(rows, length)}, or "
            f"{(rows, consumed + length)} with the {consumed} tokens of the cache in front."
        )
    mask = mask[:, -length:].bool()
    return None if bool(mask.all()) else mask


def check_cache(past_key_values: Any, cache: Any) -> AttentionSeq2SeqCache | None:
    """The cache under either of its names; raises `ValueError` for both or for another kind of cache."""
    if past_key_values is not None and cache is not None:
        raise ValueError("past_key_values and cache are two names of one argument; give one of them.")
    given = past_key_values if cache is None else cache
    if given is not None and not isinstance(given, AttentionSeq2SeqCache):
        raise ValueError(
            f"The cache of a recurrent decoder is an AttentionSeq2SeqCache, got {type(given).__name__}; "
            "pass none to start, and then the one that the model returned."
        )
    return given
