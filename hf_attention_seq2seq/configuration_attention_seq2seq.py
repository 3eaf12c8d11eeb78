"""The configuration: every choice of the model is one field, every paper a named preset of them."""

from __future__ import annotations

import copy
import difflib
import math
import os
from typing import Any

from .compat import PreTrainedConfig
from .encoder_fields import ENCODER_TYPES, POOLING_TYPES, validate_encoder
from .presets import PRESETS
from .publishing import (
    IS_REMOTE,
    VERSION,
    Published,
    check_version,
    config_entries,
    has_code,
    without_own_entries,
    write_code,
)

RNN_TYPES = ("lstm", "gru", "rnn")
ATTENTION_TYPES = [
    "additive",
    "none",
    "dot",
    "scaled_dot",
    "general",
    "concat",
    "mlp",
    "cosine",
    "location",
]  # a list: `scoring.register_score` appends to it
UNPARAMETRISED_SCORES = ("dot", "scaled_dot", "cosine")  # need queries and keys of one width
ATTENTION_QUERIES = ("current_state", "previous_state")
ATTENTION_VALUES = ("shared", "projected")
ATTENTION_SPANS = ("global", "local_m", "local_p")
ATTENTION_NORMALIZERS = ("softmax", "sparsemax", "entmax15")
ATTENTION_SELECTIONS = ("soft", "hard", "monotonic")
HARD_ATTENTION_ESTIMATORS = ("marginal", "reinforce", "straight_through", "variational")
HARD_ATTENTION_ORDERS = (None, 0, 1)
HARD_ATTENTION_INFERENCES = (None, "argmax", "marginal", "sample")
HARD_ATTENTION_BOUNDS = ("enumerated", "sampled")
COVERAGE_TYPES = (None, "accumulated", "location_aware")
BRIDGE_TYPES = ("linear", "copy", "mean", "zeros", "backward", "context")
COPY_MECHANISMS = (None, "pointer_generator")
READOUT_TYPES = ("attentional", "maxout", "deep", "state")
QUANTIZATIONS = (None, "int8")
# No model needs more, and a configuration from elsewhere could otherwise ask for any amount of memory and time.
LARGEST_SIZE = 2**24
MOST_LAYERS = 256

# What other libraries call our fields.
NAMES_ELSEWHERE = {
    "attn_type": "attention_type",
    "bidirectional": "encoder_bidirectional",
    "d_model": "hidden_size",
    "dropout_rate": "dropout",
    "embed_dim": "embedding_size",
    "embedding_dim": "embedding_size",
    "global_attention": "attention_type",
    "hidden_dim": "hidden_size",
    "input_feed": "input_feeding",
    "num_heads": "attention_heads",
    "num_layers": "encoder_layers and decoder_layers",
    "target_vocab_size": "decoder_vocab_size",
    "tgt_vocab_size": "decoder_vocab_size",
}


class AttentionSeq2SeqConfig(Published, PreTrainedConfig):
    r"""
    Configuration of an RNN encoder-decoder with attention.

    Args:
        vocab_size (`int`): number of source tokens.
        decoder_vocab_size (`int`, *optional*): number of target tokens; `None` means one vocabulary for both sides.
        share_encoder_decoder_embeddings (`bool`, *optional*): one embedding matrix for source and target, which needs
            one vocabulary; `None` means that they share it if they can.
        tie_word_embeddings (`bool`): the output layer uses the target embedding matrix.
        embedding_size (`int`): width of both embeddings.
        hidden_size (`int`): units of each decoder layer.
        encoder_hidden_size (`int`, *optional*): width of the encoder states, both directions together; `None` means
            `hidden_size`. A bidirectional encoder has half of it in each direction.
        rnn_type (`str`): `"lstm"`, `"gru"` (the variant of `torch.nn.GRU`, with the reset gate after the recurrent
            product, as in the first version of Cho 2014) or `"rnn"` (tanh).
        encoder_type (`str`): `"rnn"`: recurrent layers; `"pyramidal"`: each after the first halves the length (Chan
            2016); `"self_attention"`: the Transformer's encoder (Vaswani 2017; under a recurrent decoder Chen 2018);
            `"rnn_self_attention"`: recurrent layers with self-attention layers over them; `"hierarchical"`: words to
            sentences to a document (Yang 2016), under attention to sentences and words (Nallapati 2016).
        encoder_layers, decoder_layers (`int`): number of layers, which may differ; recurrent ones but for
            `encoder_type="self_attention"`.
        encoder_attention_heads (`int`), encoder_feedforward_size (`int`, *optional*): of self-attention layers; `None`
            means four times the width of the encoder states.
        encoder_attention_layers (`int`): number of self-attention layers of `encoder_type="rnn_self_attention"`.
        sentence_separator_token_id (`int`, *optional*): the source token that stands between the sentences of a
            document, for `encoder_type="hierarchical"`.
        encoder_bidirectional (`bool`): read the source in both directions.
        reverse_source (`bool`): a unidirectional encoder reads each sentence from its end (Sutskever 2014, 3.3).
        residual (`bool`): add a layer's input to its output from the second layer on (Wu 2016, eq. 6).
        bridge_type (`str`): how the decoder's first state comes from the encoder: `"linear"` (all final states,
            affine, tanh on the hidden part), `"copy"` (final states as they are), `"mean"` (affine on the average
            encoder state, Xu 2015), `"zeros"`, `"backward"` (affine on the backward direction's final state,
            Bahdanau 2014), `"context"` (affine on the fixed context of Cho 2014; only without attention).
        attention_type (`str`): the score function; see the table in the README. With `"none"` the decoder knows the
            source through its first state only (`attention_query="current_state"`, Sutskever 2014), or gets the
            fixed context in every step (`attention_query="previous_state"`, Cho 2014).
        attention_size (`int`, *optional*): width of additive, concat and mlp scores (`None` means `hidden_size`),
            and of projected queries, keys and values (`None` means no projection unless it is needed).
        attention_heads (`int`): number of attention heads.
        attention_values (`str`): `"shared"`: the values are the encoder states; `"projected"`: a linear map of them.
        attention_span (`str`): `"global"`: the whole sentence; `"local_m"`, `"local_p"`: a window around the decoding
            step or around a predicted place (Luong 2015, 3.2). Only the window is ever looked at.
        attention_window (`int`): positions on each side of a local window's center (`D`).
        attention_normalizer (`str`): `"softmax"`, `"sparsemax"` (Martins and Astudillo 2016) or `"entmax15"` (Peters
            2019); the last two need the package entmax.
        attention_selection (`str`): `"soft"`: the weighted average; `"hard"`: one position, trained as
            `hard_attention_estimator` says; `"monotonic"`: attention that moves along the sentence and never back,
            expected in training and hard in evaluation mode (Raffel 2017).
        hard_attention_estimator (`str`): `"marginal"`: the exact likelihood, the sum over positions (Wu 2018);
            `"reinforce"`: sampled positions, trained by the score function (Xu 2015, 4.1); `"straight_through"`:
            sampled one-hot weights with the gradient of a Gumbel-softmax (Jang 2017); `"variational"`: a bound of the
            likelihood with an inference network that sees the target (Deng 2018).
        hard_attention_order (`int`, *optional*): `None`: each word's position is chosen for itself; `0`, `1`: exact
            alignments that never go back, whose transitions are the attention itself or learned (Wu and Cotterell
            2019); with `"marginal"` only.
        hard_attention_inference (`str`, *optional*): in evaluation mode read the most probable position (`"argmax"`),
            sum over all (`"marginal"`) or draw one (`"sample"`); `None` means `"marginal"` for the estimators that
            train with the sum, `"argmax"` for the others.
        hard_attention_positions (`int`, *optional*): sum over this number of the most probable positions only, for
            large vocabularies; `None` means all.
        hard_attention_jumps (`int`): the longest jump that transitions of order 1 tell apart from longer ones.
        hard_attention_samples (`int`): alignments that REINFORCE draws for each sentence.
        hard_attention_soft_probability (`float`): how often REINFORCE reads a sentence's expected contexts instead.
        hard_attention_entropy_weight, hard_attention_baseline_decay (`float`): weight of the entropy in REINFORCE's
            objective, and decay of the moving average that its reward is compared with.
        hard_attention_temperature (`float`): of the Gumbel-softmax.
        hard_attention_final_temperature (`float`, *optional*), hard_attention_annealing_steps (`int`): the temperature
            moves to the final one during this number of batches; `None` means that it stays.
        hard_attention_bound (`str`): the variational bound with the `"enumerated"` expectation, or one `"sampled"`
            position for each word, trained by the score function with REINFORCE's baseline.
        monotonic_chunk_size (`int`): positions that monotonic attention averages over where it stops; 1 is Raffel
            2017, more is MoChA (Chiu and Raffel 2018).
        monotonic_offset, monotonic_noise (`float`): the first offset of the scores, and the standard deviation of the
            noise before the sigmoid in training.
        coverage_type (`str`, *optional*): what the scores know of earlier alignments: `"accumulated"`, their sum (Tu
            2016, See 2017), or `"location_aware"`, the last one convolved (Chorowski 2015).
        coverage_loss_weight (`float`): weight of the coverage loss (See 2017, eq. 12 and 13), a mean over the target
            tokens, in the training loss.
        coverage_filters, coverage_kernel_size (`int`): of the convolution; the second is odd.
        doubly_stochastic_weight (`float`): weight of `sum_j (1 - sum_i a_ij)^2`, which asks for equal attention to all
            source positions (Xu 2015, eq. 14), in the training loss; divided by the target tokens, as the likelihood.
        context_gate (`bool`): the decoder state scales the context by a number from 0 to 1 (Xu 2015, 4.2.1).
        attention_query (`str`): `"current_state"`: update the decoder, then attend (Luong 2015); `"previous_state"`:
            attend, then update the decoder with the context (Bahdanau 2014).
        input_feeding (`bool`): the previous readout vector is an input of the next step (Luong 2015, 3.3).
        max_source_positions (`int`): positions that `attention_type="location"` can tell apart; source tokens beyond
            it get no attention, as in Luong 2015, 3.1. Other scores have no such limit.
        readout_type (`str`): what the output layer reads: `"attentional"`: `tanh(W [context; state])` (Luong 2015,
            eq. 5); `"maxout"`: deep output with the previous word (Bahdanau 2014, A.2.2); `"deep"`: the sum of the
            previous word's embedding and a linear map of state and context (Xu 2015, eq. 7); `"state"`: the decoder
            state alone.
        readout_size (`int`, *optional*): width of the readout vector; `None` means `embedding_size` for tied word
            embeddings and the deep readout, else `hidden_size`.
        copy_mechanism (`str`, *optional*): `"pointer_generator"`: each word is generated or copied from the source by
            the attention, and `logits` are the log-probabilities of this mixture (See 2017, eq. 8 and 9). It needs
            attention that is not hard, and one vocabulary for both sides.
        max_unknown_words (`int`): how many words of a source sentence that are not in the vocabulary can be copied.
            They have the ids from `vocab_size` on, in the order in which they come first in the sentence, as
            `AttentionSeq2SeqTokenizer` gives them if it has a `max_unknown_words` (not larger than this one), and
            `logits` have so many more columns. Both embeddings see `unk_token_id` in their place.
        pooling_type (`str`, *optional*): what makes one vector of a text for its classification: `"attention"` (one
            learned query, Yang 2016), `"self_attentive"` (`pooling_hops` of them, Lin 2017), `"hierarchical"` (words
            within sentences and sentences, Yang 2016; the only one over `encoder_type="hierarchical"`); `None` is
            `"attention"` or `"hierarchical"` by the encoder.
        pooling_size (`int`, *optional*): width of the queries; `None` means that of the encoder states.
        pooling_hops (`int`), pooling_penalty_weight (`float`): of self-attentive pooling, the second the weight of
            `|A A^T - I|^2` in the loss (Lin 2017, eq. 8).
        embedding_dropout, dropout, memory_dropout, output_dropout (`float`): dropout on embeddings, between recurrent
            layers, on the encoder states as attention sees them, and on the readout vector.
        initializer_range (`float`, *optional*): weights start uniform in `[-initializer_range, initializer_range]`;
            `None` means `sqrt(3 / inputs)` for each matrix, so that signals keep their size in narrow and wide models
            (LeCun 1998, section 4.6).
        quantization (`str`, *optional*): `"int8"`: the weights are 8-bit integers, for translation on a CPU (see
            `quantize_int8`); `None`: they are not.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): the last defaults to
            `bos_token_id`.
        unk_token_id (`int`): the unknown word; only `max_unknown_words` needs it.

    Raises:
        ValueError: a value or combination that has no meaning; the message names the field, the value and what is
            allowed.
    """

    model_type = "attention_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {"num_hidden_layers": "encoder_layers", "num_attention_heads": "attention_heads"}

    def __init__(
        self,
        vocab_size: int = 8000,
        decoder_vocab_size: int | None = None,
        share_encoder_decoder_embeddings: bool | None = None,
        tie_word_embeddings: bool = False,
        embedding_size: int = 256,
        hidden_size: int = 512,
        encoder_hidden_size: int | None = None,
        rnn_type: str = "lstm",
        encoder_type: str = "rnn",
        encoder_layers: int = 1,
        decoder_layers: int = 1,
        encoder_bidirectional: bool = True,
        encoder_attention_heads: int = 4,
        encoder_feedforward_size: int | None = None,
        encoder_attention_layers: int = 1,
        sentence_separator_token_id: int | None = None,
        reverse_source: bool = False,
        residual: bool = False,
        bridge_type: str = "linear",
        attention_type: str = "additive",
        attention_size: int | None = None,
        attention_heads: int = 1,
        attention_values: str = "shared",
        attention_span: str = "global",
        attention_window: int = 10,
        attention_normalizer: str = "softmax",
        attention_selection: str = "soft",
        hard_attention_estimator: str = "marginal",
        hard_attention_order: int | None = None,
        hard_attention_inference: str | None = None,
        hard_attention_positions: int | None = None,
        hard_attention_jumps: int = 5,
        hard_attention_samples: int = 1,
        hard_attention_soft_probability: float = 0.5,
        hard_attention_entropy_weight: float = 0.01,
        hard_attention_baseline_decay: float = 0.9,
        hard_attention_temperature: float = 1.0,
        hard_attention_final_temperature: float | None = None,
        hard_attention_annealing_steps: int = 10000,
        hard_attention_bound: str = "enumerated",
        monotonic_chunk_size: int = 1,
        monotonic_offset: float = -1.0,
        monotonic_noise: float = 1.0,
        coverage_type: str | None = None,
        coverage_loss_weight: float = 0.0,
        coverage_filters: int = 10,
        coverage_kernel_size: int = 15,
        doubly_stochastic_weight: float = 0.0,
        context_gate: bool = False,
        attention_query: str = "current_state",
        input_feeding: bool = False,
        max_source_positions: int = 512,
        readout_type: str = "attentional",
        readout_size: int | None = None,
        copy_mechanism: str | None = None,
        max_unknown_words: int = 0,
        pooling_type: str | None = None,
        pooling_size: int | None = None,
        pooling_hops: int = 4,
        pooling_penalty_weight: float = 0.0,
        embedding_dropout: float = 0.0,
        dropout: float = 0.0,
        memory_dropout: float = 0.0,
        output_dropout: float = 0.0,
        initializer_range: float | None = None,
        quantization: str | None = None,
        use_cache: bool = True,
        is_encoder_decoder: bool = True,
        pad_token_id: int = 0,
        bos_token_id: int = 1,
        eos_token_id: int = 2,
        decoder_start_token_id: int | None = None,
        unk_token_id: int = 3,
        **kwargs: Any,
    ):
        if share_encoder_decoder_embeddings is None:
            share_encoder_decoder_embeddings = decoder_vocab_size is None
        if share_encoder_decoder_embeddings and decoder_vocab_size == vocab_size:
            decoder_vocab_size = None  # one matrix is one vocabulary, also when it is resized
        self.vocab_size = vocab_size
        self.decoder_vocab_size = decoder_vocab_size
        self.share_encoder_decoder_embeddings = share_encoder_decoder_embeddings
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.encoder_hidden_size = encoder_hidden_size
        self.rnn_type = rnn_type
        self.encoder_type = encoder_type
        self.encoder_layers = encoder_layers
        self.decoder_layers = decoder_layers
        self.encoder_bidirectional = encoder_bidirectional
        self.encoder_attention_heads = encoder_attention_heads
        self.encoder_feedforward_size = encoder_feedforward_size
        self.encoder_attention_layers = encoder_attention_layers
        self.sentence_separator_token_id = sentence_separator_token_id
        self.reverse_source = reverse_source
        self.residual = residual
        self.bridge_type = bridge_type
        self.attention_type = attention_type
        self.attention_size = attention_size
        self.attention_heads = attention_heads
        self.attention_values = attention_values
        self.attention_span = attention_span
        self.attention_window = attention_window
        self.attention_normalizer = attention_normalizer
        self.attention_selection = attention_selection
        self.hard_attention_estimator = hard_attention_estimator
        self.hard_attention_order = hard_attention_order
        self.hard_attention_inference = hard_attention_inference
        self.hard_attention_positions = hard_attention_positions
        self.hard_attention_jumps = hard_attention_jumps
        self.hard_attention_samples = hard_attention_samples
        self.hard_attention_soft_probability = hard_attention_soft_probability
        self.hard_attention_entropy_weight = hard_attention_entropy_weight
        self.hard_attention_baseline_decay = hard_attention_baseline_decay
        self.hard_attention_temperature = hard_attention_temperature
        self.hard_attention_final_temperature = hard_attention_final_temperature
        self.hard_attention_annealing_steps = hard_attention_annealing_steps
        self.hard_attention_bound = hard_attention_bound
        self.monotonic_chunk_size = monotonic_chunk_size
        self.monotonic_offset = monotonic_offset
        self.monotonic_noise = monotonic_noise
        self.coverage_type = coverage_type
        self.coverage_loss_weight = coverage_loss_weight
        self.coverage_filters = coverage_filters
        self.coverage_kernel_size = coverage_kernel_size
        self.doubly_stochastic_weight = doubly_stochastic_weight
        self.context_gate = context_gate
        self.attention_query = attention_query
        self.input_feeding = input_feeding
        self.max_source_positions = max_source_positions
        self.readout_type = readout_type
        self.readout_size = readout_size
        self.copy_mechanism = copy_mechanism
        self.max_unknown_words = max_unknown_words
        self.unk_token_id = unk_token_id
        self.pooling_type = pooling_type
        self.pooling_size = pooling_size
        self.pooling_hops = pooling_hops
        self.pooling_penalty_weight = pooling_penalty_weight
        self.embedding_dropout = embedding_dropout
        self.dropout = dropout
        self.memory_dropout = memory_dropout
        self.output_dropout = output_dropout
        self.initializer_range = initializer_range
        self.quantization = quantization
        self.use_cache = use_cache
        if "plugin_version" in kwargs:
            check_version(kwargs.pop("plugin_version"))
        if not IS_REMOTE:
            kwargs = without_own_entries(kwargs)
        self._reject_dangerous_fields(kwargs)
        self._reject_misspelt_fields(kwargs)
        super().__init__(
            is_encoder_decoder=is_encoder_decoder,
            tie_word_embeddings=tie_word_embeddings,
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            decoder_start_token_id=bos_token_id if decoder_start_token_id is None else decoder_start_token_id,
            **kwargs,
        )
        # Assigned again: transformers 5 keeps some of these only as attributes of the models that define them.
        self.tie_word_embeddings = tie_word_embeddings
        self.validate_fields()

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> AttentionSeq2SeqConfig:
        """
        The model of a paper.

        Args:
            name: one of `PRESETS`.
            overrides: fields to change, such as the vocabulary and smaller sizes.

        Raises:
            ValueError: for an unknown name; the message lists the known ones.
        """
        if name not in PRESETS:
            raise ValueError(f"Unknown preset {name!r}; known presets: {', '.join(sorted(PRESETS))}.")
        return cls(**{**PRESETS[name], **overrides})

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """As in the library; the code that loads it without this package goes with it, see `publishing`."""
        published = copy.deepcopy(self)
        published.plugin_version = VERSION
        own = config_entries() if has_code(save_directory) else {}
        others = without_own_entries({name: getattr(self, name, None) for name in ("auto_map", "custom_pipelines")})
        for name in ("auto_map", "custom_pipelines"):
            entries = {**own.get(name, {}), **others.get(name, {})}
            if entries:
                setattr(published, name, entries)
            elif hasattr(published, name):
                delattr(published, name)
        super(AttentionSeq2SeqConfig, published).save_pretrained(save_directory)
        if own:
            write_code(save_directory)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(os.path.normpath(save_directory))), **kwargs)

    # Sizes that follow from the fields

    @property
    def target_vocab_size(self) -> int:
        """Number of target tokens."""
        return self.vocab_size if self.decoder_vocab_size is None else self.decoder_vocab_size

    @property
    def output_size(self) -> int:
        """Number of columns of `logits`: the target tokens and the unknown words that can be copied."""
        return self.target_vocab_size + self.max_unknown_words

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> AttentionSeq2SeqConfig:
        """
        The configuration of one side as `generate` asks for it: `vocab_size` is that of the output, and
        for the decoder alone, `num_hidden_layers` is the number of its layers.

        For the encoder, and where both sides agree, this is the configuration itself; else a copy.
        """
        if encoder and not decoder:
            return self
        layers = self.decoder_layers if decoder and not encoder else self.encoder_layers
        if self.output_size == self.vocab_size and layers == self.encoder_layers:
            return self
        view = copy.copy(self)
        view.vocab_size = self.output_size
        view.decoder_vocab_size = None
        view.max_unknown_words = 0
        view.num_hidden_layers = layers
        return view

    @property
    def memory_size(self) -> int:
        """Width of the encoder states that the decoder attends to."""
        return self.hidden_size if self.encoder_hidden_size is None else self.encoder_hidden_size

    @property
    def hard_attention_choice(self) -> str:
        """How hard attention chooses in evaluation mode: `hard_attention_inference`, or what follows from `None`."""
        if self.hard_attention_inference is not None:
            return self.hard_attention_inference
        return "marginal" if self.hard_attention_estimator in ("marginal", "variational") else "argmax"

    @property
    def sums_places(self) -> bool:
        """Whether words' distributions are summed over hard alignments, in training or in evaluation mode."""
        if self.attention_selection != "hard":
            return False
        return self.hard_attention_estimator in ("marginal", "variational") or self.hard_attention_choice == "marginal"

    @property
    def uses_score_function(self) -> bool:
        """Whether training draws positions and rewards them."""
        if self.attention_selection != "hard":
            return False
        if self.hard_attention_estimator == "variational":
            return self.hard_attention_bound == "sampled"
        return self.hard_attention_estimator == "reinforce"

    @property
    def pooling(self) -> str:
        """`pooling_type`, or the one that fits the encoder."""
        if self.pooling_type is not None:
            return self.pooling_type
        return "hierarchical" if self.encoder_type == "hierarchical" else "attention"

    @property
    def tokens_per_position(self) -> int:
        """How many source tokens one encoder state stands for."""
        return 2 ** (self.encoder_layers - 1) if self.encoder_type == "pyramidal" else 1

    @property
    def readout_width(self) -> int:
        """Width of the readout vector, the input of the output layer."""
        if self.readout_size is not None:
            return self.readout_size
        if self.readout_type == "state":
            return self.hidden_size
        if self.readout_type == "deep" or self.tie_word_embeddings:
            return self.embedding_size
        return self.hidden_size

    # Validation

    def validate_fields(self) -> None:
        """Checks every field and combination; called at construction. Raises `ValueError`."""
        for name, allowed in (
            ("rnn_type", RNN_TYPES),
            ("encoder_type", ENCODER_TYPES),
            ("pooling_type", POOLING_TYPES),
            ("bridge_type", BRIDGE_TYPES),
            ("attention_type", ATTENTION_TYPES),
            ("attention_query", ATTENTION_QUERIES),
            ("attention_values", ATTENTION_VALUES),
            ("attention_span", ATTENTION_SPANS),
            ("attention_normalizer", ATTENTION_NORMALIZERS),
            ("attention_selection", ATTENTION_SELECTIONS),
            ("hard_attention_estimator", HARD_ATTENTION_ESTIMATORS),
            ("hard_attention_order", HARD_ATTENTION_ORDERS),
            ("hard_attention_inference", HARD_ATTENTION_INFERENCES),
            ("hard_attention_bound", HARD_ATTENTION_BOUNDS),
            ("coverage_type", COVERAGE_TYPES),
            ("readout_type", READOUT_TYPES),
            ("copy_mechanism", COPY_MECHANISMS),
            ("quantization", QUANTIZATIONS),
        ):
            if getattr(self, name) not in allowed:
                hint = "; a score of your own must be registered first" if name == "attention_type" else ""
                self._reject(name, f"allowed: {', '.join(map(repr, allowed))}{hint}")
        for name in (
            "vocab_size",
            "embedding_size",
            "hidden_size",
            "encoder_attention_heads",
            "pooling_hops",
            "attention_heads",
            "attention_window",
            "hard_attention_jumps",
            "hard_attention_samples",
            "hard_attention_annealing_steps",
            "monotonic_chunk_size",
            "coverage_filters",
            "coverage_kernel_size",
            "max_source_positions",
        ):
            self._require_positive_integer(name)
        for name in (
            "decoder_vocab_size",
            "encoder_hidden_size",
            "encoder_feedforward_size",
            "pooling_size",
            "attention_size",
            "readout_size",
            "hard_attention_positions",
        ):
            if getattr(self, name) is not None:
                self._require_positive_integer(name)
        for name in ("encoder_layers", "encoder_attention_layers", "decoder_layers"):
            self._require_positive_integer(name, MOST_LAYERS)
        if self.max_unknown_words != 0:
            self._require_positive_integer("max_unknown_words")
        for name in (
            "share_encoder_decoder_embeddings",
            "tie_word_embeddings",
            "encoder_bidirectional",
            "reverse_source",
            "residual",
            "input_feeding",
            "context_gate",
        ):
            if not isinstance(getattr(self, name), bool):
                self._reject(name, "allowed: True, False")
        for name in (
            "embedding_dropout",
            "dropout",
            "memory_dropout",
            "output_dropout",
            "hard_attention_baseline_decay",
        ):
            if not _is_number(getattr(self, name)) or not 0 <= getattr(self, name) < 1:
                self._reject(name, "allowed: a number from 0 to below 1")
        if not _is_number(self.hard_attention_soft_probability) or not 0 <= self.hard_attention_soft_probability <= 1:
            self._reject("hard_attention_soft_probability", "allowed: a number from 0 to 1")
        for name in ("hard_attention_temperature", "hard_attention_final_temperature"):
            value = getattr(self, name)
            if value is None and name == "hard_attention_final_temperature":
                continue
            if not _is_number(value) or not 0 < value < math.inf:
                self._reject(name, "allowed: a number above 0")
        if not self.is_encoder_decoder:
            self._reject("is_encoder_decoder", "allowed: True")
        for name in (
            "initializer_range",
            "monotonic_noise",
            "coverage_loss_weight",
            "doubly_stochastic_weight",
            "hard_attention_entropy_weight",
            "pooling_penalty_weight",
        ):
            value = getattr(self, name)
            if value is None and name == "initializer_range":
                continue
            if not _is_number(value) or not 0 <= value < math.inf:
                self._reject(name, "allowed: a number from 0 up")
        if not isinstance(self.monotonic_offset, (int, float)) or not math.isfinite(self.monotonic_offset):
            self._reject("monotonic_offset", "allowed: a number")
        self._validate_token_ids()
        self._validate_sizes()
        validate_encoder(self)
        self._validate_combinations()

    def _reject_misspelt_fields(self, extra: dict[str, Any]) -> None:
        """Any further field is taken, as in transformers, but not one that plainly means a field of ours."""
        fields = [name for name in vars(self) if not name.startswith("_")]
        for name in extra:
            close = difflib.get_close_matches(name, fields, n=1, cutoff=0.88)
            if name in NAMES_ELSEWHERE:
                raise ValueError(f"Unknown field {name}={extra[name]!r}; here it is called {NAMES_ELSEWHERE[name]}.")
            if close and not name.endswith("_token_id") and name not in self.attribute_map:
                raise ValueError(f"Unknown field {name}={extra[name]!r}; did you mean {close[0]!r}?")

    def _reject_dangerous_fields(self, extra: dict[str, Any]) -> None:
        """Fields of the library by which a `config.json` could change how loading itself works."""
        for name, value in extra.items():
            if callable(getattr(type(self), name, None)):
                raise ValueError(f"Unknown field {name}={value!r}; this is the name of a method.")
            if name.strip("_") in ("attn_implementation", "attn_implementation_internal") and "/" in str(value):
                raise ValueError(f"{name}={value!r} is not possible; it would run a kernel of the Hub.")
        weights = extra.get("transformers_weights")
        if weights is not None and (os.path.basename(str(weights)) != weights or ".safetensors" not in weights):
            raise ValueError(
                f"transformers_weights={weights!r} is not possible; allowed: a safetensors file beside it."
            )

    def _reject(self, name: str, reason: str) -> None:
        raise ValueError(f"{name}={getattr(self, name)!r} is not possible; {reason}.")

    def _require_positive_integer(self, name: str, largest: int = LARGEST_SIZE) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            self._reject(name, f"allowed: an integer from 1 up to {largest}")

    def _validate_token_ids(self) -> None:
        limits = {
            "pad_token_id": min(self.vocab_size, self.target_vocab_size),
            "bos_token_id": self.target_vocab_size,
            "eos_token_id": self.target_vocab_size,
            "decoder_start_token_id": self.target_vocab_size,
        }
        if self.max_unknown_words:
            limits["unk_token_id"] = self.vocab_size
        for name, limit in limits.items():
            value = getattr(self, name)
            several = name == "eos_token_id" and isinstance(value, list) and value
            if value is None and name in ("bos_token_id", "eos_token_id"):
                continue
            for token_id in value if several else [value]:
                if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < limit:
                    self._reject(name, f"allowed: a token of the vocabulary, 0 to {limit - 1}")

    def _validate_sizes(self) -> None:
        if self.encoder_bidirectional and self.memory_size % 2:
            name = "hidden_size" if self.encoder_hidden_size is None else "encoder_hidden_size"
            self._reject(name, "a bidirectional encoder has half of it per direction, so it must be even")
        if self.share_encoder_decoder_embeddings and self.target_vocab_size != self.vocab_size:
            self._reject(
                "share_encoder_decoder_embeddings",
                f"it needs one vocabulary, but vocab_size={self.vocab_size} and "
                f"decoder_vocab_size={self.decoder_vocab_size}",
            )
        if self.tie_word_embeddings and self.readout_width != self.embedding_size:
            self._reject(
                "tie_word_embeddings",
                f"the readout vector has {self.readout_width} values (readout_type={self.readout_type!r}, "
                f"readout_size={self.readout_size}) and must have embedding_size={self.embedding_size}",
            )
        if self.readout_type == "state" and self.readout_width != self.hidden_size:
            self._reject("readout_size", f"readout_type='state' reads hidden_size={self.hidden_size} values")
        if self.readout_type == "deep" and self.readout_width != self.embedding_size:
            self._reject("readout_size", f"readout_type='deep' adds to embedding_size={self.embedding_size} values")
        if self.bridge_type == "copy" and self.memory_size != self.hidden_size:
            self._reject(
                "bridge_type",
                f"final states of width encoder_hidden_size={self.memory_size} do not fit hidden_size="
                f"{self.hidden_size}; use 'linear'",
            )

    def _validate_combinations(self) -> None:
        if self.reverse_source and self.encoder_bidirectional:
            self._reject("reverse_source", "encoder_bidirectional=True already reads both ways")
        if self.bridge_type == "backward" and not self.encoder_bidirectional:
            self._reject("bridge_type", "it needs encoder_bidirectional=True")
        if self.max_unknown_words and self.copy_mechanism is None:
            self._reject("max_unknown_words", "unknown words are copied, which needs a copy_mechanism")
        if self.attention_type == "none":
            self._validate_without_attention()
            return
        if self.bridge_type == "context":
            self._reject("bridge_type", "the fixed context exists only with attention_type='none'")
        if self.readout_type == "state" and self.attention_query == "current_state":
            self._reject(
                "readout_type",
                "with attention_query='current_state' the context would never be used; use 'attentional' or 'maxout'",
            )
        width = self.attention_size if self.attention_size is not None else self.hidden_size
        if width % self.attention_heads:
            name = "hidden_size" if self.attention_size is None else "attention_size"
            self._reject("attention_heads", f"it must divide {name}={width}")
        if self.attention_values == "shared" and self.memory_size % self.attention_heads:
            self._reject(
                "attention_heads",
                f"attention_values='shared' gives each head its part of the encoder state, so it must divide "
                f"{self.memory_size}",
            )
        self._validate_alignment()
        if self.copy_mechanism is not None and self.decoder_vocab_size is not None:
            self._reject(
                "copy_mechanism",
                "a source token is copied by its id, which needs one vocabulary for both sides, but "
                f"decoder_vocab_size={self.decoder_vocab_size}",
            )
        if self.copy_mechanism is not None and self.attention_selection == "hard":
            self._reject("copy_mechanism", "it needs attention_selection='soft' or 'monotonic'")
        if self.attention_type in UNPARAMETRISED_SCORES and self.attention_size is None:
            if self.memory_size != self.hidden_size:
                self._reject(
                    "attention_type",
                    f"it compares encoder states of width {self.memory_size} with decoder states of width "
                    f"{self.hidden_size}; give an attention_size to which both are projected",
                )
        if self.attention_type == "location" and self.attention_size is not None:
            if self.attention_values == "shared":
                self._reject("attention_size", "attention_type='location' with shared values projects nothing")

    def _validate_alignment(self) -> None:
        if self.coverage_kernel_size % 2 == 0:
            self._reject("coverage_kernel_size", "it must be odd, to be centred at a position")
        if self.coverage_loss_weight and self.coverage_type != "accumulated":
            self._reject("coverage_loss_weight", "the coverage loss needs coverage_type='accumulated'")
        if self.attention_selection == "hard":
            self._validate_hard_attention()
        elif self.hard_attention_order is not None or self.hard_attention_positions is not None:
            name = "hard_attention_order" if self.hard_attention_positions is None else "hard_attention_positions"
            self._reject(name, "it needs attention_selection='hard'")
        if self.attention_selection != "monotonic":
            if self.monotonic_chunk_size != 1:
                self._reject("monotonic_chunk_size", "chunks need attention_selection='monotonic'")
            return
        for name, allowed, reason in (
            ("attention_heads", 1, "one head moves along the sentence"),
            ("attention_span", "global", "monotonic attention has a place of its own to look at"),
            ("attention_normalizer", "softmax", "the probability of stopping is a sigmoid, and chunks have a softmax"),
            ("coverage_type", None, "monotonic attention never goes back, so nothing has to be remembered"),
        ):
            if getattr(self, name) != allowed:
                self._reject(name, f"with attention_selection='monotonic' it must be {allowed!r}: {reason}")

    def _validate_hard_attention(self) -> None:
        estimator = self.hard_attention_estimator
        if self.sums_places:
            for name, allowed, reason in (
                ("attention_heads", 1, "the sum is over one head's positions"),
                ("attention_query", "current_state", "the decoder's state would depend on the position"),
                ("input_feeding", False, "the decoder's state would depend on the position"),
                ("coverage_type", None, "there is no one position to remember"),
            ):
                if getattr(self, name) != allowed:
                    way = f"hard_attention_estimator={estimator!r} and {self.hard_attention_choice!r} inference"
                    self._reject(name, f"with {way}, which sum over positions, it must be {allowed!r}: {reason}")
        if self.hard_attention_positions is not None and (
            not self.sums_places or self.hard_attention_order is not None
        ):
            self._reject("hard_attention_positions", "nothing is summed over single positions here")
        if self.hard_attention_samples != 1 and estimator != "reinforce":
            self._reject("hard_attention_samples", "it needs hard_attention_estimator='reinforce'")
        if self.hard_attention_final_temperature is not None and estimator != "straight_through":
            self._reject("hard_attention_final_temperature", "it needs hard_attention_estimator='straight_through'")
        if self.hard_attention_bound != "enumerated" and estimator != "variational":
            self._reject("hard_attention_bound", "it needs hard_attention_estimator='variational'")
        if self.hard_attention_order is None:
            return
        if estimator != "marginal":
            self._reject("hard_attention_order", "it needs hard_attention_estimator='marginal'")
        if self.hard_attention_choice != "marginal":
            self._reject("hard_attention_inference", "alignments with an order are summed over; use 'marginal'")
        if self.attention_normalizer != "softmax":
            self._reject("attention_normalizer", "transitions are normalised by a softmax")

    def _validate_without_attention(self) -> None:
        for name, default in (
            ("attention_size", None),
            ("attention_heads", 1),
            ("attention_values", "shared"),
            ("attention_span", "global"),
            ("attention_normalizer", "softmax"),
            ("attention_selection", "soft"),
            ("monotonic_chunk_size", 1),
            ("coverage_type", None),
            ("coverage_loss_weight", 0.0),
            ("doubly_stochastic_weight", 0.0),
            ("context_gate", False),
            ("copy_mechanism", None),
        ):
            if getattr(self, name) != default:
                self._reject(name, f"attention_type='none' has no such thing; leave it at {default!r}")
        if self.attention_query == "current_state":
            if self.bridge_type in ("zeros", "context"):
                self._reject(
                    "bridge_type",
                    "with attention_type='none' and attention_query='current_state' the first state is all that "
                    "the decoder knows of the source; use 'linear', 'copy', 'mean' or 'backward'",
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


__all__ = ["ATTENTION_TYPES", "PRESETS", "AttentionSeq2SeqConfig"]
