"""The encoders by their names."""

from __future__ import annotations

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import Encoder, RecurrentEncoder
from .hierarchical import HierarchicalEncoder
from .pyramidal import PyramidalEncoder
from .self_attention import RecurrentSelfAttentionEncoder, SelfAttentionEncoder

ENCODERS: dict[str, type[Encoder]] = {
    "rnn": RecurrentEncoder,
    "pyramidal": PyramidalEncoder,
    "self_attention": SelfAttentionEncoder,
    "rnn_self_attention": RecurrentSelfAttentionEncoder,
    "hierarchical": HierarchicalEncoder,
}


def build_encoder(config: AttentionSeq2SeqConfig) -> Encoder:
    """The encoder that the configuration asks for."""
    return ENCODERS[config.encoder_type](config)
