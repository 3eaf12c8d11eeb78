"""From the encoder's final states to the decoder's first state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .attention import PreparedMemory
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import EncoderOutput
from .recurrent import STATE_TENSORS

# Each state tensor of the first decoder state is one number of values per sentence: what is it computed from?
# `final` is the encoder's final hidden or cell states `(batch, encoder_layers, memory_size)`.
_SUMMARIES: dict[str, Callable[[Tensor | None, EncoderOutput, PreparedMemory], Tensor]] = {
    "linear": lambda final, encoder, memory: final.flatten(1),
    "backward": lambda final, encoder, memory: final.unflatten(-1, (2, -1))[:, :, 1].flatten(1),
    "mean": lambda final, encoder, memory: _mean(encoder.last_hidden_state, memory.mask),
    "context": lambda final, encoder, memory: memory.values.flatten(1),
}


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    """Average over a sentence's tokens; encoder states are zero at padding."""
    return states.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


class LinearBridge(nn.Module):
    """
    One affine map for all decoder layers, of whatever the bridge type reads, with tanh for hidden states
    (Bahdanau 2014, A.2.2: `s_0 = tanh(W_s h_1)` of the backward direction; Cho 2014, A.1.2; Xu 2015, 3.1.2). LSTM
    cell states, which are not bounded, get an affine map of their own without tanh.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.bridge_type = config.bridge_type
        self.reads_final = config.bridge_type in ("linear", "backward")
        self.layers = config.decoder_layers
        width = config.memory_size
        if config.bridge_type == "linear":
            width = config.encoder_layers * config.memory_size
        elif config.bridge_type == "backward":
            width = config.encoder_layers * config.memory_size // 2
        self.maps = nn.ModuleList(
            nn.Linear(width, config.decoder_layers * config.hidden_size) for _ in range(STATE_TENSORS[config.rnn_type])
        )

    def forward(self, encoder: EncoderOutput, memory: PreparedMemory) -> tuple[tuple[Tensor, ...], ...]:
        """The first state, per decoder layer a tuple of `(batch, hidden_size)`."""
        finals = (encoder.final_hidden, encoder.final_cell)
        summarize = _SUMMARIES[self.bridge_type]
        tensors = [mapping(summarize(final, encoder, memory)) for mapping, final in zip(self.maps, finals)]
        tensors[0] = torch.tanh(tensors[0])
        return tuple(zip(*(tensor.chunk(self.layers, dim=1) for tensor in tensors)))


class CopyBridge(nn.Module):
    """
    Final encoder states as they are (Sutskever 2014). Counted from the first layer; the top encoder state serves
    all decoder layers above it, and a deeper encoder gives its top `decoder_layers` layers.
    """

    reads_final = True

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        skipped = max(config.encoder_layers - config.decoder_layers, 0)
        self.sources = [min(skipped + layer, config.encoder_layers - 1) for layer in range(config.decoder_layers)]

    def forward(self, encoder: EncoderOutput, memory: PreparedMemory) -> tuple[tuple[Tensor, ...], ...]:
        """See `LinearBridge.forward`."""
        finals = [tensor for tensor in (encoder.final_hidden, encoder.final_cell) if tensor is not None]
        return tuple(tuple(tensor[:, source] for tensor in finals) for source in self.sources)


class ZeroBridge(nn.Module):
    """The decoder starts from zeros and knows the source through attention only."""

    reads_final = False

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.shape = (config.decoder_layers, STATE_TENSORS[config.rnn_type], config.hidden_size)

    def forward(self, encoder: EncoderOutput, memory: PreparedMemory) -> tuple[tuple[Tensor, ...], ...]:
        """See `LinearBridge.forward`."""
        layers, tensors, size = self.shape
        zeros = encoder.last_hidden_state.new_zeros(memory.rows, size)
        return tuple((zeros,) * tensors for _ in range(layers))


def build_bridge(config: AttentionSeq2SeqConfig) -> LinearBridge | CopyBridge | ZeroBridge:
    """The bridge that the configuration asks for."""
    return {"copy": CopyBridge, "zeros": ZeroBridge}.get(config.bridge_type, LinearBridge)(config)
