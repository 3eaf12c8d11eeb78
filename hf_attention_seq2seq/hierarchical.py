"""The hierarchical encoder: documents as sentences of words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import Encoder, EncoderOutput, RecurrentEncoder
from .layout import PaddingLayout
from .pooling import AttentionPooling


@dataclass(frozen=True)
class SentenceLayout:
    """
    Where the sentences of a batch of documents are, whose words stand in front.

    Attributes:
        index: `(batch, length)` int64, the number of each word's sentence; at padding some number.
        lengths: `(batch, sentences)` int64, the words of each sentence, zero behind the last one. A document without
            words has one sentence, of one word of padding.
    """

    index: Tensor
    lengths: Tensor

    @classmethod
    def from_breaks(cls, breaks: Tensor, mask: Tensor) -> SentenceLayout:
        """
        Args:
            breaks: `(batch, length)` int64, how many separators stand before each word; a sentence without words does
                not count.
            mask: `(batch, length)` bool, true at words.
        """
        first = mask.clone()
        first[:, 1:] &= breaks[:, 1:] != breaks[:, :-1]
        index = (first.cumsum(dim=1) - 1).clamp(min=0)
        lengths = index.new_zeros(len(index), int(index.max()) + 1).scatter_add(1, index, mask.to(index.dtype))
        lengths[:, 0].clamp_(min=1)
        return cls(index, lengths)

    @property
    def mask(self) -> Tensor:
        """`(batch, sentences)` bool, true at sentences."""
        return self.lengths > 0

    def groups(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """
        The sentences in groups of similar length, so that their padding never takes more than their words.

        Of each group come the places of its sentences in `(batch * sentences)`, `(number,)`, those of its words in
        `(batch * length)`, `(number, longest)`, and which of the latter are words, bool.
        """
        batch, length = self.index.shape
        rows, numbers = self.mask.nonzero(as_tuple=True)
        sentence_places = rows * self.lengths.shape[1] + numbers
        lengths = self.lengths.flatten()[sentence_places]
        starts = (self.lengths.cumsum(dim=1) - self.lengths).flatten()[sentence_places] + rows * length
        exponents = torch.ceil(torch.log2(lengths.double())).long()
        for exponent in exponents.unique().tolist():
            chosen = (exponents == exponent).nonzero().squeeze(1)
            offsets = torch.arange(min(2**exponent, length), device=lengths.device)
            inside = offsets < lengths[chosen, None]
            places = torch.where(inside, starts[chosen, None] + offsets, starts[chosen, None])
            yield sentence_places[chosen], places, inside


class HierarchicalEncoder(Encoder):
    """
    A word encoder that reads each sentence by itself, attention over its words that makes them a sentence vector, and
    a sentence encoder over the sentence vectors of a document (Yang 2016, section 2.2). Each has `encoder_layers`
    recurrent layers.

    The words end up in the memory, with zeros at separators, which no attention looks at; sentences without words do
    not count. The final states are those of the sentence encoder.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.words = RecurrentEncoder(config)
        self.pooling = AttentionPooling(config.memory_size, config.memory_size)
        self.sentences = RecurrentEncoder(config, input_size=config.memory_size)

    def forward(
        self,
        embeddings: Tensor,
        mask: Tensor,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        separators: Tensor | None = None,
    ) -> EncoderOutput:
        """
        See `Encoder.forward`; `hidden_states` are those of the word encoder.

        Args:
            separators: `(batch, source_length)` bool, true at the tokens that separate sentences.
        """
        words = mask & ~separators
        layout = PaddingLayout.from_mask(words)
        breaks = layout.compact((separators & mask).cumsum(dim=1).unsqueeze(-1)).squeeze(-1)
        sentences = SentenceLayout.from_breaks(breaks, layout.front_mask)
        flat = layout.compact(embeddings).flatten(0, 1)

        parts = []
        for sentence_places, places, inside in sentences.groups():
            output = self.words(flat[places], inside, output_hidden_states)
            vectors, weights = self.pooling(output.last_hidden_state, inside)
            of_words = [weights.transpose(1, 2), output.last_hidden_state, *(output.hidden_states or ())[1:]]
            of_words = [tensor[inside] for tensor in of_words]
            parts.append((sentence_places, places[inside], vectors.squeeze(1), *of_words))
        sentence_places, places, vectors, *of_words = (torch.cat(tensors) for tensors in zip(*parts))

        def by_document(values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
            spread = values.new_zeros(shape.numel(), values.shape[-1]).index_copy(0, places, values)
            return layout.without_empty(spread.unflatten(0, shape))

        of_words = [layout.restore(by_document(values, places, words.shape)) for values in of_words]
        vectors = by_document(vectors, sentence_places, sentences.lengths.shape)
        document = self.sentences(vectors, sentences.mask)
        return EncoderOutput(
            last_hidden_state=of_words[1],
            final_hidden=layout.without_empty(document.final_hidden),
            final_cell=None if document.final_cell is None else layout.without_empty(document.final_cell),
            hidden_states=(embeddings, *of_words[2:]) if output_hidden_states else None,
            attention_mask=words,
            sentence_states=layout.without_empty(document.last_hidden_state),
            sentence_mask=sentences.mask & words.any(dim=1, keepdim=True),
            sentence_index=layout.restore(sentences.index.unsqueeze(-1)).squeeze(-1),
            word_weights=of_words[0].squeeze(-1) if output_attentions else None,
        )
