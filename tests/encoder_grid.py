"""The encoders that the tests go through, and what they are combined with."""

import itertools
import random

from hf_attention_seq2seq.configuration_attention_seq2seq import BRIDGE_TYPES

from .helpers import alignment_grid, is_legal

ENCODERS = [
    {"encoder_type": "pyramidal", "encoder_layers": 2},
    {"encoder_type": "pyramidal", "encoder_layers": 3, "encoder_bidirectional": False},
    {"encoder_type": "self_attention", "encoder_layers": 2},
    {"encoder_type": "rnn_self_attention", "encoder_layers": 1},
    {"encoder_type": "rnn_self_attention", "encoder_attention_layers": 2, "encoder_hidden_size": 8, "residual": True},
    {"encoder_type": "hierarchical", "sentence_separator_token_id": 4},
]


def grid():
    """Of each type of encoder a few cases, in which it meets each value of every choice within attention."""
    chosen = random.Random(0).sample(alignment_grid(), 500)
    for encoder_type in dict.fromkeys(encoder["encoder_type"] for encoder in ENCODERS):
        encoders = itertools.cycle([encoder for encoder in ENCODERS if encoder["encoder_type"] == encoder_type])
        alignments = [case for case in chosen if is_legal({**next(encoders), **case})]
        missing = set().union(*(alignment.items() for alignment in alignments))
        while missing:
            best = max(alignments, key=lambda alignment: len(alignment.items() & missing))
            missing -= best.items()
            yield {**next(encoders), **best}


def frames():
    cells = itertools.cycle(["lstm", "gru"])
    for encoder in ENCODERS:
        for bridge_type in BRIDGE_TYPES:
            for attention in (
                {"attention_type": "none"},
                {"attention_type": "none", "attention_query": "previous_state"},
                {},
            ):
                case = {**encoder, "bridge_type": bridge_type, **attention, "rnn_type": next(cells)}
                if is_legal(case):
                    yield case
