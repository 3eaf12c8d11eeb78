"""From decoder state and context to the vector that the output layer reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig


class AttentionalReadout(nn.Module):
    """The attentional vector `tanh(W [c; s])` (Luong 2015, eq. 5)."""

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__()
        self.projection = nn.Linear(context_size + config.hidden_size, config.readout_width, bias=False)

    def forward(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """
        Args:
            states: `(..., hidden_size)` of the last decoder layer.
            contexts: `(..., context_size)`.
            embeddings: `(..., embedding_size)` of the previous words.

        Returns:
            `(..., readout_width)`.
        """
        return torch.tanh(self.projection(torch.cat((contexts, states), dim=-1)))


class MaxoutReadout(nn.Module):
    """
    Deep output with the previous word (Pascanu 2014): `max` over pairs of `U s + V E y + C c` (Cho 2014, A.1.2;
    Bahdanau 2014, A.2.2, with the state `s_i` of its equation 4).
    """

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__()
        inputs = config.hidden_size + config.embedding_size + context_size
        self.projection = nn.Linear(inputs, 2 * config.readout_width)

    def forward(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `AttentionalReadout.forward`."""
        pairs = self.projection(torch.cat((states, embeddings, contexts), dim=-1))
        return pairs.unflatten(-1, (-1, 2)).amax(dim=-1)


class DeepReadout(nn.Module):
    """
    Deep output `E y + L_h s + L_z c` (Xu 2015, eq. 7), whose width is that of the embeddings; the output layer is the
    paper's `L_o`.
    """

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__()
        self.projection = nn.Linear(config.hidden_size + context_size, config.embedding_size)

    def forward(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `AttentionalReadout.forward`."""
        return embeddings + self.projection(torch.cat((states, contexts), dim=-1))


class StateReadout(nn.Module):
    """The decoder state itself (Sutskever 2014)."""

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__()

    def forward(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `AttentionalReadout.forward`."""
        return states


READOUTS = {"attentional": AttentionalReadout, "maxout": MaxoutReadout, "deep": DeepReadout, "state": StateReadout}
