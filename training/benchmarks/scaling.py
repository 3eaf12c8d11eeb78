"""What happens to time and memory when one thing grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration

from ..memory import keep_freed_memory
from .measure import (
    CommonArguments,
    PositiveNumbers,
    check_names,
    count_operations,
    in_own_process,
    measure,
    print_speeds,
    rounds,
    save,
)
from .train import YARDSTICK

BASE = {"batch": 64, "source": 16, "target": 16, "vocabulary": 8000, "hidden": 512, "threads": 1}
LADDERS = {
    "threads": (1, 2),
    "batch": (1, 8, 64, 256),
    "source": (16, 128, 1000, 4000),
    "target": (16, 64, 256),
    "vocabulary": (1000, 8000, 32000),
    "hidden": (128, 256, 512, 1024),
}
WITH_FEWER_ROWS = {"source", "target"}  # long texts, in batches of 8


@dataclass
class ScalingArguments(PositiveNumbers):
    """What to measure; everything else stays as in the configuration of `train`."""

    ladders: list[str] = field(
        default_factory=lambda: list(LADDERS), metadata={"help": f"what grows: of {', '.join(LADDERS)}"}
    )
    tasks: list[str] = field(
        default_factory=lambda: ["train", "beam"], metadata={"help": "what is done: of train, beam"}
    )
    attention_type: str = field(default="general", metadata={"help": "the score"})
    repeats: int = field(default=CommonArguments.repeats, metadata={"help": "rounds"})
    output: str | None = field(default=None, metadata={"help": "JSON file for all measurements"})

    def __post_init__(self):
        super().__post_init__()
        check_names("ladders", self.ladders, LADDERS)
        check_names("tasks", self.tasks, ("train", "beam"))
        AttentionSeq2SeqConfig(attention_type=self.attention_type)  # says what is allowed


def measure_case(
    task: str, attention_type: str, batch: int, source: int, target: int, vocabulary: int, hidden: int
) -> dict:
    """One measurement on random tokens: a training step, or a beam of 5, after one that does not count."""
    torch.manual_seed(0)
    fields = {**YARDSTICK, "hidden_size": hidden, "attention_type": attention_type}
    model = AttentionSeq2SeqForConditionalGeneration(AttentionSeq2SeqConfig(vocab_size=vocabulary, **fields))
    input_ids = torch.randint(3, vocabulary, (batch, source))
    if task == "beam":
        model.eval()
        model.lm_head.bias.data[model.config.eos_token_id] = -100.0  # all sentences get the same length

        def call() -> int:
            return model.generate(input_ids, num_beams=5, max_new_tokens=target)[:, 1:].numel()

    else:
        keep_freed_memory()
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        labels = torch.randint(3, vocabulary, (batch, target))

        def call() -> int:
            model(input_ids=input_ids, labels=labels, output_logits=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return labels.numel()

    operations = count_operations(call)
    call()
    return measure(call, operations)


def run(arguments: ScalingArguments) -> None:
    """Measures and prints."""
    everything = {}
    for task in arguments.tasks:
        for ladder in arguments.ladders:
            cases = {}
            for value in LADDERS[ladder]:
                base = {**BASE, "batch": 8} if ladder in WITH_FEWER_ROWS else BASE
                options = {**base, ladder: value, "task": task, "attention_type": arguments.attention_type}
                cases[f"{ladder} {value}"] = partial(in_own_process, "scaling", **options)
            results = rounds(cases, arguments.repeats)
            print_speeds(f"{task}, {ladder}, tokens", results)
            everything[f"{task}, {ladder}"] = results
    save(arguments.output, scaling=everything)
