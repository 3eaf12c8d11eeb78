"""
What attention costs.

The time of one decoding step by source length for global and local attention (a step of a local span should not know
how long the sentence is), and the memory and time of a training step of additive attention against the straightforward
implementation. All comparisons are made in one run, in turns; the machine's noise shows in the spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil
import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq.additive import additive_energies
from hf_attention_seq2seq.compat import CACHE_NAME

from .measure import PositiveNumbers, in_own_process, peak_memory

SPANS = {
    "global": {},
    "local_m": {"attention_span": "local_m", "attention_window": 10},
    "local_p": {"attention_span": "local_p", "attention_window": 10},
}


@dataclass
class AttentionArguments(PositiveNumbers):
    """What to measure."""

    score: str = field(default="general", metadata={"help": "attention_type of the decoding steps"})
    batch_size: int = field(default=8, metadata={"help": "sentences that are decoded together"})
    hidden_size: int = field(default=512, metadata={"help": "units of the decoder"})
    source_lengths: list[int] = field(default_factory=lambda: [200, 1000, 4000], metadata={"help": "in tokens"})
    steps: int = field(default=50, metadata={"help": "decoding steps in one measurement"})
    repeats: int = field(default=5, metadata={"help": "measurements, of which the median is shown"})
    threads: int = field(default=1, metadata={"help": "CPU threads"})


def decoding_step(fields: dict, arguments: AttentionArguments, length: int) -> Callable[[], float]:
    """A measurement of milliseconds for one decoding step, the sentence being encoded and prepared already."""
    torch.manual_seed(0)
    config = AttentionSeq2SeqConfig(
        vocab_size=1000, hidden_size=arguments.hidden_size, attention_type=arguments.score, **fields
    )
    model = AttentionSeq2SeqForConditionalGeneration(config).eval()
    source = torch.randint(3, 1000, (arguments.batch_size, length))
    token = torch.ones(arguments.batch_size, 1, dtype=torch.long)
    with torch.inference_mode():
        encoded = model.get_encoder()(source)
        first = model(encoder_outputs=encoded, decoder_input_ids=token, use_cache=True)

    def measure() -> float:
        cache = first[CACHE_NAME]
        with torch.inference_mode():
            started = time.perf_counter()
            for _ in range(arguments.steps):
                model(encoder_outputs=encoded, decoder_input_ids=token, use_cache=True, **{CACHE_NAME: cache})
            return 1000 * (time.perf_counter() - started) / arguments.steps

    return measure


def straightforward_energies(queries: torch.Tensor, keys: torch.Tensor, energy: torch.Tensor) -> torch.Tensor:
    """The additive energies as one expression, whose intermediate autograd keeps."""
    return (torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) @ energy[:, None, :, None]).squeeze(-1)


def additive_step(kind: str, batch: int = 16, source: int = 400, target: int = 100, size: int = 512) -> dict:
    """The peak memory in MB above what was there before, and the seconds, of one forward and backward pass."""
    torch.manual_seed(0)
    queries = torch.randn(batch, 1, target, size, requires_grad=True)
    keys = torch.randn(batch, 1, source, size, requires_grad=True)
    energy = torch.randn(1, size, requires_grad=True)
    function = additive_energies if kind == "recomputed" else straightforward_energies
    before = psutil.Process().memory_info().rss / 2**20
    started = time.perf_counter()
    function(queries, keys, energy).softmax(dim=-1).square().sum().backward()
    seconds = time.perf_counter() - started
    return {"megabytes": peak_memory() - before, "seconds": seconds}


def run(arguments: AttentionArguments) -> None:
    """Both tables."""
    torch.set_num_threads(arguments.threads)
    print(
        f"milliseconds for a decoding step, {arguments.score} score, {arguments.batch_size} sentences, median (spread)"
    )
    print("span      " + "".join(f"{length:>22} tokens" for length in arguments.source_lengths) + "   last/first")
    for name, fields in SPANS.items():
        measures = [decoding_step(fields, arguments, length) for length in arguments.source_lengths]
        rounds = [[measure() for measure in measures] for _ in range(arguments.repeats + 1)][1:]
        columns = list(zip(*rounds))
        cells = "".join(
            f"{statistics.median(column):>12.2f} ({min(column):.2f}-{max(column):.2f})".rjust(29) for column in columns
        )
        ratio = statistics.median(row[-1] / row[0] for row in rounds)
        print(f"{name:<10}{cells}{ratio:>13.2f}")
    print("\nadditive energies, forward and backward, batch 16, source 400, target 100, size 512")
    results = {}
    for kind in ("straightforward", "recomputed"):
        results[kind] = in_own_process("additive", arguments.threads, kind=kind)
        print(f"{kind:<16}{results[kind]['megabytes']:>8.0f} MB{results[kind]['seconds']:>8.2f} s")
    memory, seconds = (
        results["recomputed"][unit] / results["straightforward"][unit] for unit in ("megabytes", "seconds")
    )
    print(f"ratio           {memory:>8.2f}   {seconds:>8.2f}")
