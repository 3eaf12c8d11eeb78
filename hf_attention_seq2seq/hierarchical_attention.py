"""Attention to sentences and to their words."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .attention import Attended, Attention, PreparedMemory
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import EncoderOutput
from .layout import PaddingLayout
from .normalizers import softmax
from .scoring import SCORES
from .spans import Window


class HierarchicalAttention(Attention):
    """
    Attention to the words of a document, each rescaled by the attention to its sentence and normalised again:
    `a(j) = a_word(j) a_sentence(s(j)) / sum_k a_word(k) a_sentence(s(k))` (Nallapati 2016, section 2.4; without the
    embeddings of sentence positions, which the sentence encoder makes up for).

    The two levels have scores of the same kind and parameters of their own. Since both weights are softmaxes, `a` is
    the softmax of the sum of the scores, in which form nothing underflows.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.sentence_score = SCORES[config.attention_type](config)

    def prepare(self, memory: Tensor, layout: PaddingLayout, encoder: EncoderOutput) -> PreparedMemory:
        """See `Attention.prepare`."""
        return replace(
            super().prepare(memory, layout, encoder),
            sentence_keys=self.sentence_score.project_keys(encoder.sentence_states),
            sentence_mask=encoder.sentence_mask,
            sentence_index=layout.compact(encoder.sentence_index.unsqueeze(-1)).squeeze(-1),
        )

    def forward(
        self,
        states: Tensor,
        memory: PreparedMemory,
        steps: Tensor,
        history: tuple[Tensor, ...] = (),
        with_weights: bool = True,
    ) -> Attended:
        """See `Attention.forward`."""
        attended = super().forward(states, memory, steps, history, with_weights)
        if not with_weights:
            return attended
        by_sentence = states.reshape(memory.rows, -1, states.shape[-1])
        scores = self._sentence_scores(by_sentence, memory)
        weights = softmax(scores, memory.sentence_mask[:, None, None, :])
        weights = weights.unflatten(2, (-1, states.shape[1])).transpose(1, 2).flatten(0, 1)
        return replace(attended, sentence_weights=weights)

    def _scores(
        self, states: Tensor, memory: PreparedMemory, window: Window | None, features: Tensor | None
    ) -> Tensor:
        scores = super()._scores(states, memory, window, features)
        of_sentences = self._sentence_scores(states, memory)
        index = memory.sentence_index[:, None, None, :].expand_as(scores)
        return scores + of_sentences.gather(-1, index)

    def _sentence_scores(self, states: Tensor, memory: PreparedMemory) -> Tensor:
        """`(documents, heads, queries, sentences)`."""
        return self.sentence_score(self.sentence_score.project_queries(states), memory.sentence_keys)
