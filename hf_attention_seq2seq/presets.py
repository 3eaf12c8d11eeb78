"""The models of the papers, as fields of the configuration."""

from __future__ import annotations

from typing import Any

_LUONG_2015 = {
    "rnn_type": "lstm",
    "embedding_size": 1000,
    "hidden_size": 1000,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_bidirectional": False,
    "reverse_source": True,
    "bridge_type": "copy",
    "attention_query": "current_state",
    "input_feeding": True,
    "readout_type": "attentional",
    "dropout": 0.2,
    "initializer_range": 0.1,
}

_RAFFEL_2017 = {
    "rnn_type": "lstm",
    "embedding_size": 256,
    "hidden_size": 512,
    "attention_type": "mlp",
    "attention_query": "previous_state",
    "attention_selection": "monotonic",
    "monotonic_offset": -4.0,
}

_XU_2015 = {
    "rnn_type": "lstm",
    "embedding_size": 512,
    "hidden_size": 1000,
    "encoder_hidden_size": 512,
    "bridge_type": "mean",
    "attention_type": "mlp",
    "attention_size": 512,
    "attention_query": "previous_state",
    "context_gate": True,
    "readout_type": "deep",
    "output_dropout": 0.5,
}

_WU_2018 = {
    "rnn_type": "lstm",
    "embedding_size": 200,
    "hidden_size": 400,
    "encoder_hidden_size": 800,
    "encoder_layers": 2,
    "attention_type": "general",
    "attention_selection": "hard",
    "hard_attention_estimator": "marginal",
    "embedding_dropout": 0.4,
    "dropout": 0.4,
}

_SEE_2017 = {
    "rnn_type": "lstm",
    "embedding_size": 128,
    "hidden_size": 256,
    "encoder_hidden_size": 512,
    "attention_type": "mlp",
    "attention_size": 512,
    "input_feeding": True,
    "coverage_type": "accumulated",
    "coverage_loss_weight": 1.0,
}

PRESETS: dict[str, dict[str, Any]] = {
    # Sutskever, Vinyals, Le 2014, "Sequence to Sequence Learning with Neural Networks", section 3.4.
    "sutskever-2014": {
        "rnn_type": "lstm",
        "embedding_size": 1000,
        "hidden_size": 1000,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_bidirectional": False,
        "reverse_source": True,
        "bridge_type": "copy",
        "attention_type": "none",
        "attention_query": "current_state",
        "readout_type": "state",
        "dropout": 0.0,
        "initializer_range": 0.08,
    },
    # Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", appendix A.
    "cho-2014": {
        "rnn_type": "gru",
        "embedding_size": 100,
        "hidden_size": 1000,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_bidirectional": False,
        "bridge_type": "context",
        "attention_type": "none",
        "attention_query": "previous_state",
        "readout_type": "maxout",
        "readout_size": 500,
        "dropout": 0.0,
    },
    # Bahdanau, Cho, Bengio 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", A.2.
    "bahdanau-2014": {
        "rnn_type": "gru",
        "embedding_size": 620,
        "hidden_size": 1000,
        "encoder_hidden_size": 2000,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_bidirectional": True,
        "bridge_type": "backward",
        "attention_type": "additive",
        "attention_size": 1000,
        "attention_query": "previous_state",
        "readout_type": "maxout",
        "readout_size": 500,
        "dropout": 0.0,
    },
    # Luong, Pham, Manning 2015, "Effective Approaches to Attention-based NMT", sections 3.1, 3.3 and 4.1.
    "luong-2015-global-dot": {**_LUONG_2015, "attention_type": "dot"},
    "luong-2015-global-general": {**_LUONG_2015, "attention_type": "general"},
    "luong-2015-global-concat": {**_LUONG_2015, "attention_type": "concat"},
    "luong-2015-global-location": {**_LUONG_2015, "attention_type": "location"},
    # The same, section 3.2, with the window of section 4.1.
    "luong-2015-local-m": {**_LUONG_2015, "attention_type": "general", "attention_span": "local_m"},
    "luong-2015-local-p": {**_LUONG_2015, "attention_type": "general", "attention_span": "local_p"},
    # Xu et al. 2015, "Show, Attend and Tell", sections 3.1.2 and 4.2, over tokens in place of image regions.
    "xu-2015-soft": {**_XU_2015, "doubly_stochastic_weight": 1.0},
    # The same, section 4.1: one sampled position; the gate of section 4.2.1 belongs to soft attention.
    "xu-2015-hard": {
        **_XU_2015,
        "context_gate": False,
        "attention_selection": "hard",
        "hard_attention_estimator": "reinforce",
    },
    # Wu, Shapiro, Cotterell 2018, "Hard Non-Monotonic Attention for Character-Level Transduction", the large model.
    "wu-2018-exact-hard": _WU_2018,
    # Wu and Cotterell 2019, "Exact Hard Monotonic Attention for Character-Level Transduction", of order 0 and 1.
    "wu-2019-monotonic": {**_WU_2018, "hard_attention_order": 0},
    "wu-2019-monotonic-first-order": {**_WU_2018, "hard_attention_order": 1},
    # Deng et al. 2018, "Latent Alignment and Variational Attention", section 4, the enumerated bound.
    "deng-2018-variational": {
        "rnn_type": "lstm",
        "embedding_size": 512,
        "hidden_size": 768,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "attention_type": "general",
        "attention_selection": "hard",
        "hard_attention_estimator": "variational",
        "dropout": 0.3,
    },
    # Chorowski et al. 2015, "Attention-Based Models for Speech Recognition", eq. 8 and 9, over tokens;
    # when it attends and what it writes out are as in Bahdanau 2014.
    "chorowski-2015-location-aware": {
        "rnn_type": "gru",
        "embedding_size": 256,
        "hidden_size": 256,
        "encoder_hidden_size": 512,
        "attention_type": "mlp",
        "attention_size": 512,
        "attention_query": "previous_state",
        "coverage_type": "location_aware",
        "coverage_filters": 10,
        "coverage_kernel_size": 201,
        "readout_type": "maxout",
        "readout_size": 64,
    },
    # See, Liu, Manning 2017, "Get To The Point", attention and coverage (section 2.3)
    # without the pointer; the readout, with input feeding, is that of Luong 2015.
    "see-2017-coverage": _SEE_2017,
    # The same with the pointer (section 2.2), over the vocabulary extended by so many words of each source.
    "see-2017-pointer-generator": {**_SEE_2017, "copy_mechanism": "pointer_generator", "max_unknown_words": 100},
    # Raffel et al. 2017, "Online and Linear-Time Attention by Enforcing Monotonic Alignments", section 2;
    # the scale takes the place of the normalised `v`.
    "raffel-2017-monotonic": _RAFFEL_2017,
    # Chiu and Raffel 2018, "Monotonic Chunkwise Attention", section 2.
    "chiu-2018-mocha": {**_RAFFEL_2017, "monotonic_chunk_size": 4},
    # Peters, Niculae, Martins 2019, "Sparse Sequence-to-Sequence Models": sparse attention (the output is a softmax).
    "peters-2019-sparse": {
        "rnn_type": "lstm",
        "embedding_size": 300,
        "hidden_size": 300,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "attention_type": "general",
        "attention_normalizer": "entmax15",
        "input_feeding": True,
        "dropout": 0.3,
    },
}
