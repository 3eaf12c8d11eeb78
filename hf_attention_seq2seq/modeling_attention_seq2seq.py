"""The models: encoder, attention and decoder behind the interface of transformers."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput

from .attention import restore_weights
from .cache import AttentionSeq2SeqCache
from .checks import (
    IGNORED_LABEL,
    as_decoder_mask,
    as_mask,
    check_batch,
    check_cache,
    check_labels,
    check_not_exported,
    check_one_of,
    check_tokens,
    first_given,
)
from .compat import CACHE_NAME, LABEL_SMOOTHER_COUNTS_ITEMS, tied_weights
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .decoders import RecurrentDecoder
from .encoder_types import build_encoder
from .encoders import EncoderOutput
from .generation import RecurrentGenerationMixin
from .hard_attention import Choice, HardSelection, reinforce_loss
from .loading import ONLY_SAFETENSORS, check_source, check_weights
from .losses import (
    counted_mean,
    doubly_stochastic_loss,
    linear_sequence_loss,
    sequence_loss,
    with_auxiliary_loss,
    with_scaled_gradient,
)
from .mixtures import Mixture
from .monotonic import MonotonicAlignment
from .pointer import Copying, copying_logits, copying_loss, known_tokens
from .publishing import Published
from .quantization import quantize_int8, take_quantization, use_int8_modules
from .ragged import decode_ragged
from .scoring import Score
from .step_products import step_projection

DEFAULT_MAX_LENGTH = 256  # the library's own default, 20 tokens, would cut translations without a word


class AttentionSeq2SeqPreTrainedModel(Published, PreTrainedModel):
    """Weight initialisation, saving and loading of all models of this package."""

    config: AttentionSeq2SeqConfig
    config_class = AttentionSeq2SeqConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False
    _no_split_modules = ["AttentionSeq2SeqEncoder", "RecurrentDecoder"]
    _is_stateful = True
    _can_compile_fullgraph = False

    def __init__(self, config: AttentionSeq2SeqConfig, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        config.validate_fields()  # a field may have been set since the configuration was made

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike | None, *args, **kwargs) -> Self:
        """
        As in the library, from safetensors only; with `quantization="int8"` as `quantize_int8` makes it.

        Raises:
            ValueError: pickled or other weights; a configuration that asks for far more memory than the weights have.
        """
        check_source(pretrained_model_name_or_path, kwargs)
        kwargs["use_safetensors"] = True
        to_be_quantized = take_quantization(cls.config_class, pretrained_model_name_or_path, kwargs)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model, *info = loaded if isinstance(loaded, tuple) else (loaded,)
        if to_be_quantized:
            model = quantize_int8(model)
        elif model.config.quantization is not None:
            model.requires_grad_(False)
        return (model, *info) if info else model

    def post_init(self) -> None:
        """The end of construction."""
        if self.config.quantization is not None:
            use_int8_modules(self)
        super().post_init()

    @classmethod
    def get_init_context(cls, *args, **kwargs) -> list:
        """While weights are loaded, the model is built without memory, from its first moment (before 5.x as well)."""
        contexts = super().get_init_context(*args, **kwargs)
        return contexts if is_deepspeed_zero3_enabled() else [*contexts, torch.device("meta")]

    @classmethod
    def _load_pretrained_model(cls, model, state_dict, checkpoint_files, *args, **kwargs):
        check_weights(model, checkpoint_files)
        return super()._load_pretrained_model(model, state_dict, checkpoint_files, *args, **kwargs)

    def _load_and_finalize_distributed_pretrained_model(self, checkpoint_dir, *args, **kwargs):
        files = [file.path for file in os.scandir(checkpoint_dir) if file.name.endswith(".safetensors")]
        check_weights(self, files)
        return super()._load_and_finalize_distributed_pretrained_model(checkpoint_dir, *args, **kwargs)

    def save_pretrained(
        self, save_directory: str | os.PathLike, *args, safe_serialization: bool = True, **kwargs
    ) -> None:
        """As in the library, as safetensors only; with the code that loads it anywhere, see `publishing`."""
        if not safe_serialization:
            raise ValueError(f"{safe_serialization=} is not possible. {ONLY_SAFETENSORS}.")
        super().save_pretrained(save_directory, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights uniform, biases zero, except forget gates which start open (Jozefowicz 2015, section 2.2)."""
        if isinstance(module, (Score, MonotonicAlignment)):
            module.init_parameters(self._initialize_parameter)
            if getattr(module, "feature_weights", None) is not None:
                self._initialize_parameter(module.feature_weights)
            return
        if isinstance(module, HardSelection):
            module.init_buffers()
        for name, parameter in module.named_parameters(recurse=False):
            self._initialize_parameter(parameter, 0.0 if name.startswith("bias") else None)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            self._initialize_parameter(module.weight, 0.0, slice(module.padding_idx, module.padding_idx + 1))
        elif isinstance(module, nn.LayerNorm):
            self._initialize_parameter(module.weight, 1.0)
        elif isinstance(module, nn.LSTM):
            forget_gate = slice(module.hidden_size, 2 * module.hidden_size)
            for name, parameter in module.named_parameters(recurse=False):
                if name.startswith("bias_ih"):
                    self._initialize_parameter(parameter, 1.0, forget_gate)

    def _initialize_parameter(self, parameter: Tensor, value: float | None = None, part: slice = slice(None)) -> None:
        """Fills with `value`, or uniformly; not what has just been loaded from a checkpoint."""
        if getattr(parameter, "_is_hf_initialized", False):
            return
        with torch.no_grad():
            if value is not None:
                parameter[part].fill_(value)
                return
            bound = self.config.initializer_range
            bound = math.sqrt(3 / parameter.shape[-1]) if bound is None else bound
            parameter[part].uniform_(-bound, bound)

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """A small valid batch."""
        input_ids = torch.tensor([[3, 3, 3, 2], [3, 2, 0, 0]], device=self.device) % self.config.vocab_size
        mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], device=self.device)
        return {"input_ids": input_ids, "attention_mask": mask, "decoder_input_ids": input_ids[:, :3]}

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> nn.Embedding:
        """
        Changes the number of source tokens; with one vocabulary (`decoder_vocab_size=None`) also of target tokens.

        Arguments and result as in `PreTrainedModel.resize_token_embeddings`.
        """
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        self.config.vocab_size = embeddings.num_embeddings
        return embeddings


class AttentionSeq2SeqEncoder(AttentionSeq2SeqPreTrainedModel):
    """Source embeddings and the encoder over them; what `get_encoder()` returns."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.layers = build_encoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding."""
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the source embedding."""
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> EncoderOutput | tuple:
        """
        Args:
            input_ids: `(batch, source_length)` int64.
            attention_mask: `(batch, source_length)`, 1 at tokens and 0 at padding, which may be on either side; if it
                is not given, `pad_token_id` is padding.
            inputs_embeds: `(batch, source_length, embedding_size)` in place of `input_ids`.
            output_attentions: whether the weights of self-attention layers are wanted.

        Raises:
            ValueError: both or neither input, an empty batch or source, a token out of range, a mask of another
                shape.
        """
        check_not_exported()
        check_one_of("input_ids", input_ids, "inputs_embeds", inputs_embeds)
        check_batch(
            "input_ids" if inputs_embeds is None else "inputs_embeds",
            input_ids,
            inputs_embeds,
            self.config.embedding_size,
        )
        if inputs_embeds is None:
            size = self.embed_tokens.num_embeddings
            check_tokens("input_ids", input_ids, size, "vocab_size", self.config.max_unknown_words)
            inputs_embeds = self.embed_tokens(known_tokens(input_ids, size, self.config))
        if attention_mask is None and input_ids is not None:
            attention_mask = input_ids != self.config.pad_token_id
        mask = as_mask("attention_mask", attention_mask, inputs_embeds)
        options = {}
        if self.config.sentence_separator_token_id is not None:
            if input_ids is None:
                raise ValueError(
                    "encoder_type='hierarchical' needs input_ids, which have the separators of sentences."
                )
            options["separators"] = input_ids == self.config.sentence_separator_token_id
        output = self.layers(
            F.dropout(inputs_embeds, self.config.embedding_dropout, self.training),
            mask,
            bool(first_given(output_hidden_states, self.config.output_hidden_states)),
            bool(first_given(output_attentions, self.config.output_attentions)),
            **options,
        )
        if self.config.copy_mechanism is not None:
            output = replace(output, source_ids=input_ids)  # in its place among the fields, for tuples
        return output if first_given(return_dict, self.config.return_dict, True) else output.to_tuple()


@dataclass
class AttentionSeq2SeqModelOutput(Seq2SeqModelOutput):
    """
    As `Seq2SeqModelOutput`, and:

    Attributes:
        coverage_loss: `(rows, target_length)`, if the configuration has a `coverage_loss_weight`.
        source_mask: `(rows, source_length)` bool, if the configuration has a `doubly_stochastic_weight`.
        choice: how a hard attention came to its weights.
        mixture: the words' distributions where they are summed over hard alignments.
        copying: what the output has of the source, if the configuration has a `copy_mechanism`.
        sentence_attentions: as `cross_attentions`, the weights of the sentences, `(rows, heads, target_length,
            sentences)`, with `encoder_type="hierarchical"`.
    """

    coverage_loss: Tensor | None = None
    source_mask: Tensor | None = None
    choice: Choice | None = None
    mixture: Mixture | None = None
    copying: Copying | None = None
    sentence_attentions: tuple[Tensor, ...] | None = None


@dataclass
class AttentionSeq2SeqLMOutput(Seq2SeqLMOutput):
    """As `Seq2SeqLMOutput`, and `sentence_attentions` as in `AttentionSeq2SeqModelOutput`."""

    sentence_attentions: tuple[Tensor, ...] | None = None


class AttentionSeq2SeqModel(AttentionSeq2SeqPreTrainedModel):
    """Encoder and decoder without an output layer; `last_hidden_state` is the readout vector of each step."""

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__(config)
        self.encoder = AttentionSeq2SeqEncoder(config)
        if not config.share_encoder_decoder_embeddings:
            self.decoder_embed_tokens = nn.Embedding(
                config.target_vocab_size, config.embedding_size, config.pad_token_id
            )
        self.decoder = RecurrentDecoder(config)
        self.post_init()

    # Embeddings

    def get_encoder(self, *args, **kwargs) -> AttentionSeq2SeqEncoder:
        """The encoder with its embedding."""
        return self.encoder

    def get_decoder(self) -> RecurrentDecoder:
        """The decoder; embeddings are looked up outside of it."""
        return self.decoder

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding (of both sides if they share it)."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the source embedding."""
        self.encoder.embed_tokens = value

    def get_decoder_input_embeddings(self) -> nn.Embedding:
        """The target embedding (the source's if they share it)."""
        return self.encoder.embed_tokens if self.config.share_encoder_decoder_embeddings else self.decoder_embed_tokens

    def set_decoder_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the target embedding."""
        if self.config.share_encoder_decoder_embeddings:
            self.encoder.embed_tokens = value
        else:
            self.decoder_embed_tokens = value

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """Source embedding; the target's as well where there is one vocabulary."""
        new = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.set_input_embeddings(new)
        if self.config.decoder_vocab_size is None and not self.config.share_encoder_decoder_embeddings:
            resize_decoder_embeddings(self, new.num_embeddings, mean_resizing)
        return new

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """
        Changes the number of target tokens of a model with two vocabularies.

        Raises:
            ValueError: the model has one vocabulary; `resize_token_embeddings` is for both sides then.
        """
        return _resize_decoder_vocabulary(self, new_num_tokens)

    # Forward

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: EncoderOutput | tuple | None = None,
        past_key_values: AttentionSeq2SeqCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache: AttentionSeq2SeqCache | None = None,
        targets: Tensor | None = None,
        decoder_lengths: Tensor | None = None,
    ) -> Seq2SeqModelOutput | tuple:
        """
        Args:
            input_ids: `(batch, source_length)` int64.
            attention_mask: `(batch, source_length)`, 1 at tokens, 0 at padding on either side; if it is not given,
                `pad_token_id` in `input_ids` is padding.
            decoder_input_ids: `(rows, target_length)` int64, the previous words. `rows` is `batch`, or a multiple of
                it: then each sentence has that many consecutive rows (as beams), which share its memory.
            decoder_attention_mask: `(rows, target_length)` or with the cached tokens in front; the decoder's state
                passes over a 0 unchanged.
            encoder_outputs: what `get_encoder()` returned, in place of encoding.
            past_key_values, cache: an `AttentionSeq2SeqCache` to continue; the name is `cache` from transformers
                5.24 on, both are understood everywhere.
            inputs_embeds, decoder_inputs_embeds: embeddings in place of ids.
            targets: `(rows, target_length)` int64, the words to predict, -100 where there is none, which only the
                inference network of variational attention reads, in training.
            decoder_lengths: `(rows,)` int64 on the CPU, how many tokens of each row count; what is returned for
                others has no meaning, and no cache is made. Saves the time of decoding padding.

        Returns:
            `last_hidden_state` `(rows, target_length, readout_width)`; `cross_attentions`, if asked for, a tuple
            with one tensor `(rows, heads, target_length, source_length)`, `None` with `attention_type="none"`;
            `encoder_attentions` likewise, one tensor `(batch, heads, source_length, source_length)` for each
            self-attention layer of the encoder, and `sentence_attentions`; `decoder_hidden_states` the embeddings and
            each layer's states. Where words are summed over hard alignments, `last_hidden_state` is the readout of
            the expected contexts, and `mixture` is what an output layer computes their distributions from; the model
            has none, so with `hard_attention_order` the attentions are those of each step alone.

        Raises:
            ValueError: see `AttentionSeq2SeqEncoder.forward`; also for a cache of another kind.
        """
        check_not_exported()
        output_hidden_states = first_given(output_hidden_states, self.config.output_hidden_states)
        output_attentions = bool(first_given(output_attentions, self.config.output_attentions))
        return_dict = first_given(return_dict, self.config.return_dict, True)
        use_cache = first_given(use_cache, self.config.use_cache) and not self.training
        source_mask = None
        cache = check_cache(past_key_values, cache)

        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask,
                inputs_embeds,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
                return_dict=True,
            )
        encoder_outputs = self._as_encoder_output(encoder_outputs)

        embeddings = self._embed_target(decoder_input_ids, decoder_inputs_embeds)
        rows, length, _ = embeddings.shape
        sentences = encoder_outputs.last_hidden_state.shape[0]
        if rows % sentences:
            raise ValueError(
                f"The decoder has {rows} rows, but the encoder {sentences} sentences; "
                "allowed is the same number, or a multiple of it (several hypotheses for each sentence)."
            )
        if cache is not None and cache.memory is not None:
            memory, state = cache.memory, cache.state
            if state.rows != rows:
                raise ValueError(f"The cache holds {state.rows} hypotheses, but the decoder inputs have {rows} rows.")
        else:
            mask = self._memory_mask(attention_mask, encoder_outputs)
            memory = self.decoder.prepare(encoder_outputs, mask)
            state = self.decoder.first_state(encoder_outputs, memory, rows)
            if self.config.doubly_stochastic_weight:
                source_mask = mask.repeat_interleave(rows // sentences, dim=0)

        mask = as_decoder_mask(decoder_attention_mask, rows, length, cache)
        known = {}
        if targets is not None and self.training and hasattr(self.decoder, "inference_network"):
            known["counted"] = targets != IGNORED_LABEL
            known["targets"] = self.get_decoder_input_embeddings()(targets.masked_fill(~known["counted"], 0))
        # What hard attention and copying give of each step is not put together again.
        is_plain = self.config.attention_selection != "hard" and self.decoder.pointer is None
        if decoder_lengths is not None and mask is None and rows == sentences and is_plain:
            use_cache = False
            decoded = decode_ragged(self.decoder, embeddings, memory, state, decoder_lengths, output_attentions)
        else:
            decoded = self.decoder(embeddings, memory, state, mask, with_weights=output_attentions, **known)

        if use_cache:
            cache = AttentionSeq2SeqCache() if cache is None else cache
            cache.memory = memory
            cache.update_state(decoded.state, length)
        output = AttentionSeq2SeqModelOutput(
            last_hidden_state=decoded.readouts,
            decoder_hidden_states=(embeddings, *decoded.layer_states) if output_hidden_states else None,
            cross_attentions=None if decoded.weights is None else (decoded.weights,),
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            coverage_loss=decoded.coverage_loss,
            source_mask=source_mask,
            choice=decoded.choice,
            mixture=decoded.mixture,
            copying=decoded.copying,
            sentence_attentions=None if decoded.sentence_weights is None else (decoded.sentence_weights,),
            **{CACHE_NAME: cache if use_cache else None},
        )
        return output if return_dict else output.to_tuple()

    def _embed_target(self, decoder_input_ids: Tensor | None, decoder_inputs_embeds: Tensor | None) -> Tensor:
        check_one_of("decoder_input_ids", decoder_input_ids, "decoder_inputs_embeds", decoder_inputs_embeds)
        name = "decoder_input_ids" if decoder_inputs_embeds is None else "decoder_inputs_embeds"
        check_batch(name, decoder_input_ids, decoder_inputs_embeds, self.config.embedding_size)
        if decoder_inputs_embeds is None:
            table = self.get_decoder_input_embeddings()
            if decoder_input_ids.device.type == "cpu":  # elsewhere it would wait for the device in every step
                extra = self.config.max_unknown_words
                check_tokens("decoder_input_ids", decoder_input_ids, table.num_embeddings, "decoder_vocab_size", extra)
            decoder_inputs_embeds = table(known_tokens(decoder_input_ids, table.num_embeddings, self.config))
        return F.dropout(decoder_inputs_embeds, self.config.embedding_dropout, self.training)

    def _memory_mask(self, attention_mask: Tensor | None, encoder_outputs: EncoderOutput) -> Tensor:
        """What the decoder may attend to, `(batch, memory_length)` bool."""
        mask, states = encoder_outputs.attention_mask, encoder_outputs.last_hidden_state
        mask = None if mask is None else as_mask("encoder_outputs.attention_mask", mask, states)
        if attention_mask is None and mask is not None:
            return mask
        if attention_mask is not None:
            attention_mask = self.encoder.layers.memory_mask(attention_mask)
        given = as_mask("attention_mask", attention_mask, states)
        return given if mask is None else given & mask

    def _as_encoder_output(self, encoder_outputs: ModelOutput | tuple) -> EncoderOutput:
        encoder_outputs = EncoderOutput.from_any(encoder_outputs)
        if encoder_outputs.sentence_states is None and self.config.encoder_type == "hierarchical":
            raise ValueError(
                "encoder_outputs has no sentence states, which encoder_type='hierarchical' needs; pass what "
                "get_encoder() returns."
            )
        if encoder_outputs.final_hidden is None and self.decoder.reads_final_states:
            raise ValueError(
                f"encoder_outputs has no final states, which bridge_type={self.config.bridge_type!r} with "
                f"attention_type={self.config.attention_type!r} needs; pass what get_encoder() returns, with "
                "return_dict=True."
            )
        if encoder_outputs.source_ids is None and self.config.copy_mechanism is not None:
            raise ValueError(
                f"copy_mechanism={self.config.copy_mechanism!r} copies source tokens, whose ids are not known: give "
                "input_ids rather than inputs_embeds, and as encoder_outputs what get_encoder() returns for them."
            )
        return encoder_outputs


class AttentionSeq2SeqForConditionalGeneration(AttentionSeq2SeqPreTrainedModel, RecurrentGenerationMixin):
    """Encoder, decoder and output layer: training with `labels`, translation with `generate`."""

    accepts_loss_kwargs = True  # the Trainer passes num_items_in_batch

    def __init__(self, config: AttentionSeq2SeqConfig):
        if config.tie_word_embeddings:
            shared = config.share_encoder_decoder_embeddings
            table = "model.encoder.embed_tokens.weight" if shared else "model.decoder_embed_tokens.weight"
            self._tied_weights_keys = tied_weights("lm_head.weight", table)
        super().__init__(config)
        self.model = AttentionSeq2SeqModel(config)
        self.lm_head = nn.Linear(config.readout_width, config.target_vocab_size)
        if self.generation_config.max_length in (None, 20):  # not set by the configuration
            self.generation_config.max_length = DEFAULT_MAX_LENGTH
        self.post_init()

    # Embeddings

    def get_encoder(self, *args, **kwargs) -> AttentionSeq2SeqEncoder:
        """See `AttentionSeq2SeqModel.get_encoder`."""
        return self.model.get_encoder()

    def get_decoder(self) -> RecurrentDecoder:
        """See `AttentionSeq2SeqModel.get_decoder`."""
        return self.model.get_decoder()

    def get_input_embeddings(self) -> nn.Embedding:
        """The source embedding."""
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the source embedding."""
        self.model.set_input_embeddings(value)

    def get_decoder_input_embeddings(self) -> nn.Embedding:
        """The target embedding."""
        return self.model.get_decoder_input_embeddings()

    def set_decoder_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the target embedding."""
        self.model.set_decoder_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        """The output layer."""
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replaces the output layer."""
        self.lm_head = value

    def tie_embeddings_and_encoder_decoder(self) -> None:
        """Ties the output layer to the target embedding; called before transformers 5 only."""
        if self.config.tie_word_embeddings:
            self._tie_or_clone_weights(self.lm_head, self.get_decoder_input_embeddings())

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """Source embedding; with one vocabulary also the target's and the output layer."""
        new = self.model._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.decoder_vocab_size is None:
            self.lm_head = self._get_resized_lm_head(self.lm_head, new.num_embeddings, mean_resizing=mean_resizing)
        return new

    def resize_decoder_token_embeddings(self, new_num_tokens: int) -> nn.Embedding:
        """Target embedding and output layer; see `AttentionSeq2SeqModel.resize_decoder_token_embeddings`."""
        new = _resize_decoder_vocabulary(self.model, new_num_tokens)
        self.lm_head = self._get_resized_lm_head(self.lm_head, new_num_tokens)
        self.tie_weights()
        return new

    # Forward

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: EncoderOutput | tuple | None = None,
        past_key_values: AttentionSeq2SeqCache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        smoothing: float = 0.0,
        output_logits: bool = True,
        cache: AttentionSeq2SeqCache | None = None,
    ) -> Seq2SeqLMOutput | tuple:
        """
        Args:
            labels: `(batch, target_length)` int64, the words to predict; -100 is ignored. Without
                `decoder_input_ids`, those are the labels shifted to the right behind `decoder_start_token_id`.
            num_items_in_batch: divide the summed loss by this number of labels (of all accumulated and parallel
                batches) in place of this batch's own.
            smoothing: this part of each label is expected evenly over the vocabulary (label smoothing, Szegedy 2016);
                with `max_unknown_words`, over all columns of `logits`. Those which stand for no word of the row have
                the constant log-probability -64: they add to the loss, but not to its gradient.
            output_logits: with `False` the output has a loss only, which takes less memory and time: nothing is
                computed for ignored labels, and only a part of the logits at a time.

            For the others see `AttentionSeq2SeqModel.forward`.

        Returns:
            `loss`, the mean negative log-likelihood of the labels, plus the losses that the configuration adds for the
            attention (`coverage_loss_weight`, `doubly_stochastic_weight`); `logits` `(rows, target_length,
            target_vocab_size)`, with a `copy_mechanism` log-probabilities in fp32 with `max_unknown_words` more
            columns; the rest as `AttentionSeq2SeqModel.forward`.
        """
        if labels is None and not output_logits:
            raise ValueError("output_logits=False leaves nothing to compute without labels.")
        wants_attentions = bool(first_given(output_attentions, self.config.output_attentions))
        output_hidden_states = first_given(output_hidden_states, self.config.output_hidden_states)
        return_dict = first_given(return_dict, self.config.return_dict, True)
        samples = 1
        if labels is not None:
            size, decoder_inputs = self.lm_head.weight.shape[0], first_given(decoder_input_ids, decoder_inputs_embeds)
            check_labels(labels, size, decoder_inputs, self.config.max_unknown_words)
            source = first_given(input_ids, inputs_embeds)
            if source is not None and len(source) != len(labels):
                raise ValueError(f"labels has {len(labels)} rows, but there are {len(source)} source sentences.")
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            if self.training and self.config.hard_attention_samples > 1:
                samples = self.config.hard_attention_samples
                labels, decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds = (
                    None if tensor is None else tensor.repeat_interleave(samples, dim=0)
                    for tensor in (labels, decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds)
                )
                num_items_in_batch = None if num_items_in_batch is None else num_items_in_batch * samples
        targets = labels
        if targets is None and self._trains_positions:
            targets = self._targets_of(decoder_input_ids)
        # An adapter has its own forward, and rewards need every word's likelihood.
        output_logits = output_logits or type(self.lm_head) is not nn.Linear
        output_logits = output_logits or (self.training and self.config.uses_score_function)
        lengths = None
        if not (output_logits or wants_attentions or output_hidden_states) and labels.device.type == "cpu":
            places = torch.arange(1, labels.shape[1] + 1)
            lengths = ((labels != IGNORED_LABEL) * places).amax(dim=1)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            output_attentions=wants_attentions or bool(self.config.doubly_stochastic_weight),
            output_hidden_states=output_hidden_states,
            return_dict=True,
            cache=cache,
            decoder_lengths=lengths,
            targets=targets,
        )
        evidence = None
        if outputs.mixture is not None and outputs.mixture.order is not None:
            evidence = self._follow_chain(outputs, decoder_input_ids)
        logits = self._logits(outputs) if output_logits else None
        loss = likelihoods = None
        if labels is not None:
            loss, likelihoods = self._likelihood(
                outputs, logits, labels, decoder_input_ids, num_items_in_batch, smoothing, evidence
            )
        if self._trains_positions or self.config.coverage_loss_weight or self.config.doubly_stochastic_weight:
            if labels is not None:
                counted = labels != IGNORED_LABEL
                loss = loss + self._attention_loss(outputs, counted, num_items_in_batch, likelihoods)
            elif self.training:
                counted = self._predicted_positions(decoder_input_ids, logits[..., 0])
                if targets is not None:
                    likelihoods = _picked(logits, targets)
                extra = self._attention_loss(outputs, counted, num_items_in_batch, likelihoods)
                if outputs.mixture is not None and outputs.mixture.posterior is not None:
                    # What normalising the expected log-probabilities will add to the loss is taken off again.
                    extra = extra - counted_mean(logits.logsumexp(dim=-1), counted, num_items_in_batch)
                logits = with_auxiliary_loss(logits, extra, over_processes=num_items_in_batch is not None)
        if labels is None and self.training and num_items_in_batch is not None and not LABEL_SMOOTHER_COUNTS_ITEMS:
            # The Trainer takes the mean of this batch for a part of the mean of all accumulated ones.
            predicted = self._predicted_positions(decoder_input_ids, logits[..., 0])
            logits = with_scaled_gradient(logits, predicted.sum() / num_items_in_batch)
        passed_on = {
            name: value
            for name, value in outputs.items()
            if name not in ("last_hidden_state", "coverage_loss", "source_mask", "choice", "mixture", "copying")
        }
        if not wants_attentions:
            for name in ("cross_attentions", "sentence_attentions", "encoder_attentions"):
                passed_on.pop(name, None)
        if samples > 1:  # the first of each sentence's alignments
            logits = None if logits is None else logits[::samples]
            for name in {"cross_attentions", "decoder_hidden_states"} & passed_on.keys():
                passed_on[name] = tuple(tensor[::samples] for tensor in passed_on[name])
        output = AttentionSeq2SeqLMOutput(loss=loss, logits=logits, **passed_on)
        return output if return_dict else output.to_tuple()

    def _logits(self, outputs: AttentionSeq2SeqModelOutput) -> Tensor:
        """`(rows, target_length, output_size)`; log-probabilities where words are summed over alignments or copied."""
        if outputs.copying is not None:
            logits = step_projection(self.lm_head, outputs.last_hidden_state)
            return copying_logits(logits, outputs.copying, self.config.max_unknown_words)
        if outputs.mixture is None:
            return step_projection(self.lm_head, outputs.last_hidden_state)
        return outputs.mixture.log_probabilities(self.lm_head)

    @property
    def _trains_positions(self) -> bool:
        """Whether the words to predict are needed to train what attention chooses."""
        if not self.training or self.config.attention_selection != "hard":
            return False
        return self.config.hard_attention_estimator in ("reinforce", "variational")

    def _follow_chain(self, outputs: AttentionSeq2SeqModelOutput, words: Tensor | None) -> Tensor:
        """Replaces each step's distribution over positions by that given all words before; gives what words say."""
        if words is None:
            raise ValueError(
                "decoder_inputs_embeds is not possible with hard_attention_order: each word says where attention may "
                "have been; give decoder_input_ids."
            )
        outputs.mixture, chain, evidence = outputs.mixture.along_chain(self.lm_head, words)
        cache = outputs.get(CACHE_NAME)
        if cache is not None:
            cache.state = replace(cache.state, chain=chain)
        if outputs.cross_attentions is not None:
            outputs.cross_attentions = (restore_weights(outputs.mixture.weights(), outputs.mixture.memory),)
        return evidence

    def _likelihood(
        self,
        outputs: AttentionSeq2SeqModelOutput,
        logits: Tensor | None,
        labels: Tensor,
        words_before: Tensor | None,
        num_items_in_batch: Tensor | int | None,
        smoothing: float,
        evidence: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The mean negative log-likelihood, and that of each word `(rows, length)` if positions are rewarded."""
        mixture, counted = outputs.mixture, labels != IGNORED_LABEL
        if mixture is None:
            if logits is not None:
                loss = sequence_loss(logits, labels, num_items_in_batch, smoothing)
                return loss, _picked(logits.detach(), labels) if self._trains_positions else None
            states = outputs.last_hidden_state
            if outputs.copying is not None:
                extra, copying = self.config.max_unknown_words, outputs.copying
                loss = copying_loss(states, self.lm_head, copying, labels, num_items_in_batch, smoothing, extra)
                return loss, None
            return linear_sequence_loss(states, self.lm_head, labels, num_items_in_batch, smoothing), None
        words = labels.masked_fill(~counted, 0)
        if logits is not None or (smoothing and mixture.posterior is None):
            logits = mixture.log_probabilities(self.lm_head) if logits is None else logits
            likelihoods = logits.gather(-1, words.unsqueeze(-1)).squeeze(-1)
            if smoothing:
                likelihoods = (1 - smoothing) * likelihoods + smoothing * logits.mean(dim=-1)
        elif evidence is not None and mixture.mask is None and _continue_with(words_before, words, counted):
            last = mixture.at_steps(torch.full_like(words[:, -1:], words.shape[1] - 1))
            by_place = torch.cat((evidence, last.log_likelihoods(self.lm_head, words[:, -1:])), dim=1)
            likelihoods = mixture.sum_places(by_place)
        else:
            likelihoods = mixture.sum_places(mixture.log_likelihoods(self.lm_head, words, smoothing))
        return counted_mean(-likelihoods, counted, num_items_in_batch), likelihoods

    def next_logits(self, words: Tensor, cache: AttentionSeq2SeqCache) -> Tensor:
        """
        What search asks in each step: the logits `(rows, target_vocab_size)` that `forward` gives for one more word.
        Search may write over them.

        Args:
            words: `(rows,)` int64, the last word of each hypothesis; it is not checked.
            cache: with the words before; it has read this one as well afterwards.
        """
        table = self.get_decoder_input_embeddings()
        known = known_tokens(words, table.num_embeddings, self.config)
        decoded = self.get_decoder()(table(known.unsqueeze(1)), cache.memory, cache.state, with_weights=False)
        cache.update_state(decoded.state, 1)
        outputs = AttentionSeq2SeqModelOutput(
            last_hidden_state=decoded.readouts, mixture=decoded.mixture, copying=decoded.copying, **{CACHE_NAME: cache}
        )
        if decoded.mixture is not None and decoded.mixture.order is not None:
            self._follow_chain(outputs, words.unsqueeze(1))
        return self._logits(outputs).squeeze(1)

    def _attention_loss(
        self,
        outputs: AttentionSeq2SeqModelOutput,
        counted: Tensor,
        num_items_in_batch: Tensor | int | None,
        likelihoods: Tensor | None,
    ) -> Tensor:
        """
        What the configuration adds to the likelihood for the attention; `counted` as in `counted_mean`, and the
        log-likelihood of each word `(rows, target_length)`, where positions are rewarded with it.
        """
        loss = outputs.last_hidden_state.new_zeros(())
        if self.config.coverage_loss_weight:
            # (See 2017, eq. 12 and 13)
            extra = counted_mean(outputs.coverage_loss, counted, num_items_in_batch)
            loss = loss + self.config.coverage_loss_weight * extra
        if self.config.doubly_stochastic_weight:
            weights, mask = outputs.cross_attentions[0], outputs.source_mask
            extra = doubly_stochastic_loss(weights, mask, counted, num_items_in_batch)
            loss = loss + self.config.doubly_stochastic_weight * extra
        choice, mixture = outputs.choice, outputs.mixture
        if self.training and mixture is not None and mixture.divergence is not None:
            loss = loss + counted_mean(mixture.divergence, counted, num_items_in_batch)
            choice = Choice(log_probability=mixture.log_probability, entropy=torch.zeros_like(mixture.divergence))
        if self.training and self.config.uses_score_function and likelihoods is not None:
            decoder = self.model.decoder
            gains = decoder.attention.hard.advantage(likelihoods, counted, to_the_end=not decoder.runs_at_once)
            surrogate = reinforce_loss(choice, gains, self.config.hard_attention_entropy_weight)
            loss = loss + counted_mean(surrogate, counted, num_items_in_batch)
        return loss

    def _targets_of(self, decoder_input_ids: Tensor | None) -> Tensor | None:
        """
        The words that follow decoder inputs `(rows, target_length)`, -100 where there is none; behind the last one
        the end is taken for granted.

        Raises:
            ValueError: several alignments are to be drawn for each sentence.
        """
        if self.config.hard_attention_samples > 1:
            raise ValueError(
                f"hard_attention_samples={self.config.hard_attention_samples} needs labels in training; in place of "
                "the Trainer's label_smoothing_factor give `smoothing` to the model."
            )
        if decoder_input_ids is None:
            return None
        end = self.config.eos_token_id
        end = end[0] if isinstance(end, list) else first_given(end, IGNORED_LABEL)
        following = torch.cat((decoder_input_ids[:, 1:], torch.full_like(decoder_input_ids[:, :1], end)), dim=1)
        return following.masked_fill(~self._predicted_positions(decoder_input_ids, following), IGNORED_LABEL)

    def _predicted_positions(self, decoder_input_ids: Tensor | None, like: Tensor) -> Tensor:
        """
        Where the decoder inputs predict a word, `(rows, target_length)` bool: not behind padding or an end.

        The Trainer's label smoothing takes the labels out, but losses on top of the likelihood need their places.
        """
        if decoder_input_ids is None:
            return torch.ones_like(like, dtype=torch.bool)
        predicted = decoder_input_ids != self.config.pad_token_id
        ends = self.config.eos_token_id
        for end in ends if isinstance(ends, list) else [ends]:
            predicted &= decoder_input_ids != end
        predicted[:, 0] = True  # the start, whichever token it is
        return predicted

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels `(batch, target_length)` shifted to the right behind `decoder_start_token_id`, -100 as padding."""
        start = self.config.decoder_start_token_id
        shifted = torch.cat((labels.new_full((labels.shape[0], 1), start), labels[:, :-1]), dim=1)
        return shifted.masked_fill(shifted == IGNORED_LABEL, self.config.pad_token_id)


def resize_decoder_embeddings(model: AttentionSeq2SeqModel, new_num_tokens: int, mean_resizing: bool = True) -> None:
    """Resizes the target embedding alone."""
    old = model.get_decoder_input_embeddings()
    model.set_decoder_input_embeddings(model._get_resized_embeddings(old, new_num_tokens, mean_resizing=mean_resizing))


def _picked(logits: Tensor, words: Tensor) -> Tensor:
    """Log-likelihoods `(rows, length)` of words, anything where they are -100."""
    words = words.masked_fill(words == IGNORED_LABEL, 0).unsqueeze(-1)
    return logits.float().log_softmax(dim=-1).gather(-1, words).squeeze(-1)


def _continue_with(inputs: Tensor, words: Tensor, counted: Tensor) -> bool:
    """Whether the decoder inputs are the words to predict, one step later."""
    return bool(((inputs[:, 1:] == words[:, :-1]) | ~counted[:, :-1]).all())


def _resize_decoder_vocabulary(model: AttentionSeq2SeqModel, new_num_tokens: int) -> nn.Embedding:
    if model.config.decoder_vocab_size is None:
        raise ValueError(
            "decoder_vocab_size=None: source and target have one vocabulary; resize it with resize_token_embeddings."
        )
    resize_decoder_embeddings(model, new_num_tokens)
    model.config.decoder_vocab_size = new_num_tokens
    return model.get_decoder_input_embeddings()


__all__ = [
    "AttentionSeq2SeqForConditionalGeneration",
    "AttentionSeq2SeqModel",
    "AttentionSeq2SeqPreTrainedModel",
]
