"""Where the time of a training step goes: in plain torch, and as it is done here."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import torch
from torch.nn import functional as F

from hf_attention_seq2seq import AttentionSeq2SeqConfig, decoders

from ..memory import keep_freed_memory
from .measure import CommonArguments, in_own_process, rounds, save, spread
from .peers import WARM_UP
from .texts import MULTI30K, batches, read
from .train import build, learn

# What the operators of torch that begin like this are for; the first that fits.
KINDS = {
    "products": (
        "aten::addmm",
        "aten::mm",
        "aten::bmm",
        "aten::addbmm",
        "aten::baddbmm",
        "mkldnn::_linear",
        "aten::dot",
    ),
    "encoder (recurrent layer)": ("aten::mkldnn_rnn_layer",),
    "packing of matrices": ("mkldnn::_reorder",),
    "optimiser and clipping": ("aten::_fused_adam", "aten::_foreach", "aten::linalg_vector_norm", "Optimizer"),
    "softmax and loss": (
        "aten::_softmax",
        "aten::_log_softmax",
        "aten::log",
        "aten::nll",
        "aten::amax",
    ),
    "gates": ("aten::sigmoid", "aten::tanh", "aten::_thnn", "aten::lstm_cell", "_LSTMCell"),
    "sums of gradients": ("aten::add", "aten::sum"),
    "zeros and copies": (
        "aten::zero",
        "aten::fill",
        "aten::copy",
        "aten::cat",
        "aten::clone",
        "aten::index",
        "aten::embedding",
    ),
}
OTHER, ALL = "everything else", "all"


@dataclass
class BreakdownArguments(CommonArguments):
    """What to measure."""

    hidden_size: int = field(default=256, metadata={"help": "units of the decoder, and of both encoder directions"})
    attention_type: str = field(default="general", metadata={"help": "the score"})
    steps: int = field(default=20, metadata={"help": "steps that are measured, after the warm-up"})
    batch_size: int = field(default=64, metadata={"help": "sentences in a batch"})

    def __post_init__(self):
        super().__post_init__()
        AttentionSeq2SeqConfig(attention_type=self.attention_type)  # says what is allowed


def kind_of(operator: str) -> str:
    """Which of `KINDS` an operator belongs to."""
    return next((kind for kind, starts in KINDS.items() if operator.startswith(starts)), OTHER)


def measure_case(plain: bool, steps: int, batch_size: int, **fields) -> dict[str, float]:
    """
    CPU milliseconds of a step by `KINDS`.

    Args:
        plain: do without what makes steps fast here: gradients of the weights are added up step by step, all logits
            exist at once, Adam is torch's default, and freed memory goes back to the system.
    """
    if not plain:
        keep_freed_memory()
    model = build(MULTI30K, **fields)
    optimizer = torch.optim.Adam(model.parameters(), fused=not plain)
    parts = batches(MULTI30K, WARM_UP + steps, batch_size)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if not plain:
            return model(**batch, output_logits=False).loss
        words = model.prepare_decoder_input_ids_from_labels(batch["labels"])
        logits = model(input_ids=batch["input_ids"], decoder_input_ids=words).logits
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    with patch.object(decoders, "shared_gradients", lambda inputs: nullcontext()) if plain else nullcontext():
        for batch in parts[:WARM_UP]:
            learn(loss_of(batch), model, optimizer)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for batch in parts[WARM_UP:]:
                learn(loss_of(batch), model, optimizer)
    times = dict.fromkeys((*KINDS, OTHER, ALL), 0.0)
    for event in profiler.key_averages():
        milliseconds = event.self_cpu_time_total / 1000 / steps
        times[kind_of(event.key)] += milliseconds
        times[ALL] += milliseconds
    return times


def run(arguments: BreakdownArguments) -> None:
    """Measures and prints."""
    options = {name: getattr(arguments, name) for name in ("hidden_size", "attention_type", "steps", "batch_size")}
    cases = {
        name: partial(in_own_process, "breakdown", arguments.threads, plain=name == "plain torch", **options)
        for name in ("plain torch", "here")
    }
    results = rounds(cases, arguments.repeats)
    print(f"sentences: {read(MULTI30K)[2]}; {options}")
    print(f"{'milliseconds of a step':<28}" + "".join(f"{name:>24}" for name in cases))
    for kind in (*KINDS, OTHER, ALL):
        columns = (spread((found[kind] for found in results[name]), 1) for name in cases)
        print(f"{kind:<28}" + "".join(f"{column:>24}" for column in columns))
    save(arguments.output, options=options, breakdown=results)
