"""Text classification: attention pooling over any of the encoders, without a decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from .checks import first_given
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .losses import with_auxiliary_loss
from .modeling_attention_seq2seq import AttentionSeq2SeqEncoder, AttentionSeq2SeqPreTrainedModel
from .pooling import AttentionPooling, disagreement_penalty


@dataclass
class AttentionSeq2SeqClassifierOutput(SequenceClassifierOutput):
    """
    As `SequenceClassifierOutput` (`attentions` are those of self-attention layers), and with `output_attentions`:

    Attributes:
        pooling_attentions: `(batch, hops, source_length)`, what part each encoder state has in the text's vector; with
            `pooling_type="hierarchical"`, each word in its sentence's vector.
        sentence_attentions: `(batch, sentences)`, with `pooling_type="hierarchical"` what part each sentence has.
    """

    pooling_attentions: Tensor | None = None
    sentence_attentions: Tensor | None = None


class AttentionSeq2SeqForSequenceClassification(AttentionSeq2SeqPreTrainedModel):
    """
    An encoder, attention over its states that makes them one vector or several (`pooling_type`), and a linear layer.

    The weights of a translation model's encoder can be a start: they have the same names.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.is_hierarchical = config.pooling == "hierarchical"
        self.model = nn.ModuleDict({"encoder": AttentionSeq2SeqEncoder(config)})
        size = config.memory_size if config.pooling_size is None else config.pooling_size
        hops = config.pooling_hops if config.pooling == "self_attentive" else 1
        self.pooling = AttentionPooling(config.memory_size, size, hops, bias=config.pooling != "self_attentive")
        self.classifier = nn.Linear(hops * config.memory_size, config.num_labels)
        self.post_init()

    def get_encoder(self, *args, **kwargs) -> AttentionSeq2SeqEncoder:
        """The encoder with its embedding."""
        return self.model["encoder"]

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding."""
        return self.get_encoder().embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the embedding."""
        self.get_encoder().embed_tokens = value

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """A small valid batch."""
        return {name: value for name, value in super().dummy_inputs.items() if name != "decoder_input_ids"}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> AttentionSeq2SeqClassifierOutput | tuple:
        """
        Args:
            labels: `(batch,)` int64, or `(batch, num_labels)` float for several labels at once; `(batch,)` float for a
                regression (`num_labels=1`). Which it is, says `config.problem_type`, or else the labels.

            For the others see `AttentionSeq2SeqEncoder.forward`.

        Returns:
            `loss`, with the penalty that `pooling_penalty_weight` adds; `logits` `(batch, num_labels)`; the weights,
            see `AttentionSeq2SeqClassifierOutput`.

        Raises:
            ValueError: labels of another number or class; see also `AttentionSeq2SeqEncoder.forward`.
        """
        output_attentions = bool(first_given(output_attentions, self.config.output_attentions))
        encoded = self.get_encoder()(
            input_ids,
            attention_mask,
            inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        if self.is_hierarchical:
            states, mask = encoded.sentence_states, encoded.sentence_mask
        else:
            states, mask = encoded.last_hidden_state, encoded.attention_mask
        pooled, weights = self.pooling(states, mask)
        logits = self.classifier(F.dropout(pooled.flatten(1), self.config.output_dropout, self.training))
        loss = None
        if labels is not None:
            self._check_labels(labels, len(logits))
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        if self.config.pooling_penalty_weight and (labels is not None or self.training):
            penalty = self.config.pooling_penalty_weight * disagreement_penalty(weights, mask)
            if labels is not None:
                loss = loss + penalty
            else:  # the Trainer computes the loss from the logits, for label smoothing
                logits = with_auxiliary_loss(logits, penalty)
        output = AttentionSeq2SeqClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )
        if output_attentions:
            output["pooling_attentions"] = encoded.word_weights.unsqueeze(1) if self.is_hierarchical else weights
            if self.is_hierarchical:
                output["sentence_attentions"] = weights.squeeze(1)
        return output if first_given(return_dict, self.config.return_dict, True) else output.to_tuple()

    def _check_labels(self, labels: Tensor, rows: int) -> None:
        """Raises `ValueError` for labels that do not fit the texts or are no classes."""
        if len(labels) != rows:
            raise ValueError(f"labels has the shape {tuple(labels.shape)}, but there are {rows} texts.")
        is_class = not torch.is_floating_point(labels) and self.num_labels > 1
        if is_class and self.config.problem_type in (None, "single_label_classification"):
            if labels.dim() != 1:
                raise ValueError(
                    f"labels has the shape {tuple(labels.shape)}; classes have the shape (batch,), and several labels "
                    f"at once are float, (batch, {self.num_labels})."
                )
            wrong = (labels >= self.num_labels) | ((labels < 0) & (labels != -100))
            if labels.device.type == "cpu" and wrong.any():
                raise ValueError(
                    f"labels has the class {labels[wrong][0].item()}; allowed are 0 to {self.num_labels - 1} "
                    f"(num_labels={self.num_labels}), and -100 for a text that does not count."
                )


__all__ = ["AttentionSeq2SeqForSequenceClassification"]
