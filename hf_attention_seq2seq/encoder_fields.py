"""Which encoders there are, and which fields of the configuration have a meaning for which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .configuration_attention_seq2seq import AttentionSeq2SeqConfig

ENCODER_TYPES = ("rnn", "pyramidal", "self_attention", "rnn_self_attention", "hierarchical")
_WITH_SELF_ATTENTION = ("self_attention", "rnn_self_attention")
POOLING_TYPES = (None, "attention", "self_attentive", "hierarchical")
# The fields of some encoders only: the default and the encoders.
_OWN_FIELDS = {
    "encoder_attention_heads": (4, _WITH_SELF_ATTENTION),
    "encoder_feedforward_size": (None, _WITH_SELF_ATTENTION),
    "encoder_attention_layers": (1, ("rnn_self_attention",)),
    "sentence_separator_token_id": (None, ("hierarchical",)),
}
# What an encoder needs of other fields, and why.
_NEEDS = {
    "pyramidal": (
        ("residual", False, "its layers read twice as many values as they give, so nothing can be added"),
        ("reverse_source", False, "its positions count from the beginning of a sentence"),
        ("copy_mechanism", None, "a position of its attention is no single token that could be copied"),
    ),
    "self_attention": (
        ("encoder_bidirectional", True, "each position sees all others"),
        ("reverse_source", False, "each position sees all others"),
    ),
    "hierarchical": (
        ("attention_span", "global", "a window would not know where sentences begin"),
        ("attention_normalizer", "softmax", "the product of sparse weights of both levels may be zero everywhere"),
        ("attention_selection", "soft", "the weights of words are rescaled by those of their sentences"),
    ),
}


def validate_encoder(config: AttentionSeq2SeqConfig) -> None:
    """Checks the fields of the encoder and what it needs of others. Raises `ValueError`."""
    kind = config.encoder_type
    for name, (default, kinds) in _OWN_FIELDS.items():
        if kind not in kinds and getattr(config, name) != default:
            config._reject(name, f"it needs encoder_type={' or '.join(map(repr, kinds))}; leave it at {default!r}")
    for name, needed, reason in _NEEDS.get(kind, ()):
        if getattr(config, name) != needed:
            config._reject(name, f"with encoder_type={kind!r} it must be {needed!r}: {reason}")
    if (config.pooling == "hierarchical") != (kind == "hierarchical"):
        config._reject(
            "pooling_type",
            f"'hierarchical' is for encoder_type='hierarchical', and nothing else is; encoder_type is {kind!r}",
        )
    for name, default in (("pooling_hops", 4), ("pooling_penalty_weight", 0)):
        if config.pooling != "self_attentive" and getattr(config, name) != default:
            config._reject(name, f"it needs pooling_type='self_attentive'; leave it at {default!r}")
    if kind == "hierarchical":
        if config.attention_type in ("none", "location"):
            config._reject("attention_type", "with encoder_type='hierarchical' it must look at the sentences")
        separator = config.sentence_separator_token_id
        if isinstance(separator, bool) or not isinstance(separator, int) or not 0 <= separator < config.vocab_size:
            config._reject(
                "sentence_separator_token_id",
                f"encoder_type='hierarchical' needs the token between sentences, 0 to {config.vocab_size - 1}",
            )
        if separator == config.pad_token_id:
            config._reject("sentence_separator_token_id", "this is pad_token_id, which is never read")
    if kind == "pyramidal" and config.encoder_layers < 2:
        config._reject(
            "encoder_layers",
            "encoder_type='pyramidal' halves the length in each layer after the first; allowed: from 2",
        )
    if kind == "self_attention" and config.bridge_type == "backward":
        config._reject(
            "bridge_type", "encoder_type='self_attention' has no backward direction; use 'mean', 'linear' or 'zeros'"
        )
    if kind == "rnn_self_attention" and config.attention_type == "none" and config.bridge_type != "mean":
        config._reject(
            "bridge_type",
            "with attention_type='none' it must be 'mean': final states are those of the recurrent layers, and "
            "nothing would read the self-attention layers over them",
        )
    if kind in _WITH_SELF_ATTENTION and config.memory_size % config.encoder_attention_heads:
        config._reject(
            "encoder_attention_heads", f"it must divide the width of the encoder states, {config.memory_size}"
        )
