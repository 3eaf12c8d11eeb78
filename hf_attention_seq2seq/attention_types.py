"""Which attention a configuration asks for."""

from __future__ import annotations

from .attention import Attention, FixedContext
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .hierarchical_attention import HierarchicalAttention


def build_attention(config: AttentionSeq2SeqConfig) -> Attention | FixedContext:
    """The attention that the configuration asks for."""
    if config.attention_type == "none":
        return FixedContext(config)
    return HierarchicalAttention(config) if config.encoder_type == "hierarchical" else Attention(config)
