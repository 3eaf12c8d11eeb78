"""From decoder state and context to the vector that the output layer reads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .step_products import step_projection


class Readout(nn.Module):
    """
    Base of the readouts: a linear map of state, context and previous word, `join`, then `finish`, element by element.

    What contexts and states give to the linear map can be had apart, `context_part` and `state_part`; their sum, in
    which both broadcast, is what `finish` takes. Hard attention needs many contexts for one state.
    """

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__()
        self.sizes = (config.hidden_size, context_size, config.embedding_size)

    def join(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """The linear map; shapes as in `forward`."""
        raise NotImplementedError(f"{type(self).__name__} must define join(states, contexts, embeddings).")

    def finish(self, joined: Tensor) -> Tensor:
        """From what `join` gives to `(..., readout_width)`."""
        return joined

    def forward(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """
        Args:
            states: `(..., hidden_size)` of the last decoder layer.
            contexts: `(..., context_size)`.
            embeddings: `(..., embedding_size)` of the previous words.

        Returns:
            `(..., readout_width)`.
        """
        return self.finish(self.join(states, contexts, embeddings))

    def context_part(self, contexts: Tensor) -> Tensor:
        """What contexts `(..., context_size)` add to `join`."""
        state, _, embedding = (contexts.new_zeros(*contexts.shape[:-1], size) for size in self.sizes)
        constant = self.join(*(contexts.new_zeros(size) for size in self.sizes))
        return self.join(state, contexts, embedding) - constant

    def state_part(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """What states `(..., hidden_size)` and embeddings `(..., embedding_size)` add to `join`, with the constant."""
        return self.join(states, states.new_zeros(*states.shape[:-1], self.sizes[1]), embeddings)


class AttentionalReadout(Readout):
    """The attentional vector `tanh(W [c; s])` (Luong 2015, eq. 5)."""

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__(config, context_size)
        self.projection = nn.Linear(context_size + config.hidden_size, config.readout_width, bias=False)

    def join(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `Readout.join`."""
        return step_projection(self.projection, torch.cat((contexts, states), dim=-1))

    def finish(self, joined: Tensor) -> Tensor:
        """See `Readout.finish`."""
        return torch.tanh(joined)


class MaxoutReadout(Readout):
    """
    Deep output with the previous word (Pascanu 2014): `max` over pairs of `U s + V E y + C c` (Cho 2014, A.1.2;
    Bahdanau 2014, A.2.2, with the state `s_i` of its equation 4).
    """

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__(config, context_size)
        inputs = config.hidden_size + config.embedding_size + context_size
        self.projection = nn.Linear(inputs, 2 * config.readout_width)

    def join(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `Readout.join`."""
        return step_projection(self.projection, torch.cat((states, embeddings, contexts), dim=-1))

    def finish(self, joined: Tensor) -> Tensor:
        """See `Readout.finish`."""
        return joined.unflatten(-1, (-1, 2)).amax(dim=-1)


class DeepReadout(Readout):
    """
    Deep output `E y + L_h s + L_z c` (Xu 2015, eq. 7), whose width is that of the embeddings; the output layer is the
    paper's `L_o`.
    """

    def __init__(self, config: AttentionSeq2SeqConfig, context_size: int):
        super().__init__(config, context_size)
        self.projection = nn.Linear(config.hidden_size + context_size, config.embedding_size)

    def join(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `Readout.join`."""
        return embeddings + step_projection(self.projection, torch.cat((states, contexts), dim=-1))


class StateReadout(Readout):
    """The decoder state itself (Sutskever 2014)."""

    def join(self, states: Tensor, contexts: Tensor, embeddings: Tensor) -> Tensor:
        """See `Readout.join`."""
        return states


READOUTS = {"attentional": AttentionalReadout, "maxout": MaxoutReadout, "deep": DeepReadout, "state": StateReadout}
