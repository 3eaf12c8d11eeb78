"""Several trained models that decode together."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

from .attention import PreparedMemory
from .cache import AttentionSeq2SeqCache, DecoderState
from .checks import check_cache, first_given
from .compat import CACHE_NAME
from .encoders import EncoderOutput
from .generation import RecurrentGenerationMixin
from .modeling_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration, AttentionSeq2SeqPreTrainedModel

AVERAGES = ("probabilities", "log_probabilities")
# What has to agree, so that a token means the same to every member.
COMMON_FIELDS = (
    "vocab_size",
    "target_vocab_size",
    "max_unknown_words",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
)


@dataclass
class EnsembleEncoderOutput(ModelOutput):
    """
    Attributes:
        last_hidden_state: the first member's, `(batch, source_length, memory_size)`; `generate` reads the batch size.
        members: what the encoder of each member returned.
    """

    last_hidden_state: Tensor | None = None
    members: tuple[EncoderOutput, ...] | None = None


class EnsembleEncoder(nn.Module):
    """The encoders of all members as one; what `AttentionSeq2SeqEnsemble.get_encoder()` returns."""

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> EnsembleEncoderOutput:
        """
        Args:
            input_ids, attention_mask: as for the encoder of one model, `(batch, source_length)`.
            output_attentions, return_dict: accepted for the library's sake.

        Raises:
            ValueError: hidden states are asked for; also see `AttentionSeq2SeqEncoder.forward`.
        """
        _refuse_hidden_states(output_hidden_states)
        members = tuple(
            encoder(input_ids, attention_mask, output_hidden_states=False, return_dict=True)
            for encoder in self.encoders
        )
        return EnsembleEncoderOutput(last_hidden_state=members[0].last_hidden_state, members=members)


class AttentionSeq2SeqEnsembleCache(AttentionSeq2SeqCache):
    """The cache of each member; whatever is done to it is done to all of them."""

    def __init__(self, size: int):
        self.members = tuple(AttentionSeq2SeqCache() for _ in range(size))

    @property
    def state(self) -> DecoderState:
        """Refused: there is one in each of `members`, and a single model must not continue them all."""
        raise ValueError("The cache of an ensemble continues that ensemble only; each member's own is in `members`.")

    @property
    def memory(self) -> PreparedMemory:
        """Refused as `state`."""
        return self.state

    @property
    def consumed_tokens(self) -> int:
        """Number of decoder tokens consumed so far."""
        return self.members[0].consumed_tokens

    @property
    def layers(self) -> list:
        """Empty: there are no key-value layers."""
        return []

    def __len__(self) -> int:
        return sum(len(member) for member in self.members)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(members={len(self.members)}, consumed_tokens={self.consumed_tokens})"

    @property
    def batch_size(self) -> int | None:
        """Number of hypotheses, `None` before the first step."""
        return self.members[0].batch_size

    def reset(self) -> None:
        """Forgets everything."""
        for member in self.members:
            member.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row `i` continues hypothesis `beam_idx[i]`; `beam_idx` is `(rows,)` int64."""
        for member in self.members:
            member.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every hypothesis `repeats` times."""
        for member in self.members:
            member.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps the hypotheses `indices`, `(rows,)` int64 or a boolean mask."""
        for member in self.members:
            member.batch_select_indices(indices)

    def select_sentences(self, indices: Tensor) -> None:
        """Keeps the sentences `indices`, `(sentences,)` int64."""
        for member in self.members:
            member.select_sentences(indices)


class AttentionSeq2SeqEnsemble(AttentionSeq2SeqPreTrainedModel, RecurrentGenerationMixin):
    """
    Several models decode together: each next word is predicted by the average of what they predict.

    The members may differ in everything but their vocabularies. Configuration, generation settings and tokenizer are
    those of the first; all members are put in evaluation mode. `generate` and the pipelines work as for one model.

    Args:
        models: at least one `AttentionSeq2SeqForConditionalGeneration`.
        average: `"probabilities"` for the arithmetic mean, `"log_probabilities"` for the geometric mean, which is
            normalised to be a distribution again.

    Raises:
        ValueError: no models, a model of another kind, an unknown average, or members whose vocabulary sizes or
            special tokens differ.
    """

    def __init__(self, models: Sequence[AttentionSeq2SeqForConditionalGeneration], average: str = "probabilities"):
        if average not in AVERAGES:
            raise ValueError(f"average={average!r} is not possible; allowed: {', '.join(map(repr, AVERAGES))}.")
        models = list(models)
        _check_members(models)
        super().__init__(copy.deepcopy(models[0].config))
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self.members = nn.ModuleList(models)
        self.average = average
        self.eval()

    @classmethod
    def from_pretrained(
        cls, folders: Sequence[str | os.PathLike], average: str = "probabilities", **options
    ) -> AttentionSeq2SeqEnsemble:
        """
        Loads the members.

        Args:
            folders: a folder or model name for each member.
            average: see the class.
            options: for the `from_pretrained` of each member, such as `dtype`.
        """
        if isinstance(folders, (str, os.PathLike)):
            raise ValueError(f"An ensemble is loaded from a list of folders, got {str(folders)!r} alone.")
        load = AttentionSeq2SeqForConditionalGeneration.from_pretrained
        return cls([load(folder, **options) for folder in folders], average)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Refused: members are saved each by itself."""
        raise ValueError("An ensemble is not saved as one model; save each of `members`, and load it from the list.")

    def get_encoder(self, *args, **kwargs) -> EnsembleEncoder:
        """The encoders of all members as one."""
        return EnsembleEncoder([member.get_encoder() for member in self.members])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: EnsembleEncoderOutput | None = None,
        past_key_values: AttentionSeq2SeqEnsembleCache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache: AttentionSeq2SeqEnsembleCache | None = None,
    ) -> Seq2SeqLMOutput | tuple:
        """
        Args:
            encoder_outputs: what `get_encoder()` returned, in place of encoding.
            past_key_values, cache: the `AttentionSeq2SeqEnsembleCache` to continue.

            For the others see `AttentionSeq2SeqModel.forward`.

        Returns:
            `logits` `(rows, target_length, target_vocab_size)`, the normalised log-probabilities of the ensemble in
            single precision or better; `cross_attentions`, if asked for, the mean of the members', a tuple with one
            tensor `(rows, heads, target_length, source_length)`; the cache.

        Raises:
            ValueError: a cache or encoder outputs of another kind; hidden states are asked for; attentions are asked
                for, but a member has none, or members differ in the number of heads. See also
                `AttentionSeq2SeqModel.forward`.
        """
        _refuse_hidden_states(output_hidden_states)
        output_attentions = bool(first_given(output_attentions, self.config.output_attentions))
        if output_attentions:
            self._check_heads()
        use_cache = first_given(use_cache, self.config.use_cache) and not any(m.training for m in self.members)
        cache = self._check_cache(check_cache(past_key_values, cache))
        if cache is None and use_cache:
            cache = AttentionSeq2SeqEnsembleCache(len(self.members))
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        elif len(getattr(encoder_outputs, "members", None) or ()) != len(self.members):
            raise ValueError(
                "encoder_outputs must be what get_encoder() of the ensemble returns, with one output for each of its "
                f"{len(self.members)} members; got {type(encoder_outputs).__name__}."
            )
        outputs = [
            member(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                encoder_outputs=encoded,
                use_cache=use_cache,
                output_attentions=output_attentions,
                output_hidden_states=False,
                return_dict=True,
                **{CACHE_NAME: None if cache is None else cache.members[index]},
            )
            for index, (member, encoded) in enumerate(zip(self.members, encoder_outputs.members))
        ]
        attentions = None
        if output_attentions:
            attentions = (torch.stack([output.cross_attentions[0] for output in outputs]).mean(dim=0),)
        output = Seq2SeqLMOutput(
            logits=self._average([output.logits for output in outputs]),
            cross_attentions=attentions,
            **{CACHE_NAME: cache if use_cache else None},
        )
        return output if first_given(return_dict, self.config.return_dict, True) else output.to_tuple()

    def next_logits(self, words: Tensor, cache: AttentionSeq2SeqEnsembleCache) -> Tensor:
        """See `AttentionSeq2SeqForConditionalGeneration.next_logits`."""
        return self._average([member.next_logits(words, own) for member, own in zip(self.members, cache.members)])

    def _average(self, logits: list[Tensor]) -> Tensor:
        """Log-probabilities of the ensemble from the logits of its members."""
        scores = [scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1) for scores in logits]
        if self.average == "probabilities":
            return torch.stack(scores).logsumexp(dim=0) - math.log(len(scores))
        return torch.stack(scores).mean(dim=0).log_softmax(-1)

    def _check_heads(self) -> None:
        heads, positions = {}, {}
        for index, member in enumerate(self.members):
            if member.config.attention_type == "none":
                raise ValueError(
                    f"output_attentions=True is not possible: member {index} has attention_type='none', and the "
                    "attention of an ensemble is the mean of all of its members'."
                )
            heads[member.config.attention_heads] = index
            positions[member.config.tokens_per_position] = index
        if len(heads) > 1:
            (one, first), (other, second) = list(heads.items())[:2]
            raise ValueError(
                f"output_attentions=True is not possible: the mean of attentions needs as many heads in each member, "
                f"but member {first} has attention_heads={one} and member {second} attention_heads={other}."
            )
        if len(positions) > 1:
            (one, first), (other, second) = list(positions.items())[:2]
            raise ValueError(
                f"output_attentions=True is not possible: the mean of attentions needs as many positions in each "
                f"member, but member {first} has one for {one} tokens and member {second} one for {other}."
            )

    def _check_cache(self, cache: AttentionSeq2SeqCache | None) -> AttentionSeq2SeqEnsembleCache | None:
        if cache is not None and len(getattr(cache, "members", ())) != len(self.members):
            raise ValueError(
                f"The cache of this ensemble is an AttentionSeq2SeqEnsembleCache of {len(self.members)} members, got "
                f"{cache!r}."
            )
        return cache


def _refuse_hidden_states(output_hidden_states: bool | None) -> None:
    if output_hidden_states:
        raise ValueError(
            "output_hidden_states=True is not possible: an ensemble has no states of its own; ask its members."
        )


def _check_members(models: list) -> None:
    if not models:
        raise ValueError("An ensemble needs at least one model, got none.")
    for index, model in enumerate(models):
        if not isinstance(model, AttentionSeq2SeqForConditionalGeneration):
            raise ValueError(
                "The members of an ensemble are AttentionSeq2SeqForConditionalGeneration models; number "
                f"{index} is a {type(model).__name__}."
            )
        for name in COMMON_FIELDS:
            first, value = getattr(models[0].config, name), getattr(model.config, name)
            if value != first:
                raise ValueError(
                    f"The members of an ensemble must agree in {name}: member 0 has {name}={first}, member {index} "
                    f"{name}={value}."
                )


__all__ = ["AttentionSeq2SeqEnsemble", "AttentionSeq2SeqEnsembleCache"]
