"""Training: target tokens per second and memory of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn.utils import clip_grad_norm_

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration

from ..memory import keep_freed_memory
from .measure import (
    CommonArguments,
    check_names,
    count_operations,
    in_own_process,
    measure,
    print_ratios,
    print_speeds,
    rounds,
    save,
)
from .peers import PEERS, WARM_UP, Peer, parse_peers
from .texts import FRENCH, MULTI30K, batches, read, tokenizer

# The configuration of the yardsticks, and the character model.
YARDSTICK = {"embedding_size": 256, "hidden_size": 512, "input_feeding": True, "bridge_type": "copy"}
CASES = {
    "general": {"text": MULTI30K, "attention_type": "general"},
    "additive": {"text": MULTI30K, "attention_type": "additive"},
    "character": {"text": FRENCH, "attention_type": "general", "embedding_size": 128},
}


@dataclass
class TrainArguments(CommonArguments):
    """What to measure."""

    cases: list[str] = field(
        default_factory=lambda: list(CASES), metadata={"help": f"which models: of {', '.join(CASES)}"}
    )
    steps: int = field(default=30, metadata={"help": "steps that are measured, after the warm-up"})
    batch_size: int = field(default=64, metadata={"help": "sentences in a batch"})
    peer: list[str] = field(
        default_factory=list, metadata={"help": f"NAME=FOLDER of a virtual environment with it; of {', '.join(PEERS)}"}
    )

    def __post_init__(self):
        super().__post_init__()
        check_names("cases", self.cases, CASES)


def build(text: str, **fields) -> AttentionSeq2SeqForConditionalGeneration:
    """The model of a case, with random weights."""
    torch.manual_seed(0)
    own = tokenizer(text)
    separate = own.target_vocab_size if own.separate_vocabs else None
    config = AttentionSeq2SeqConfig(vocab_size=len(own), decoder_vocab_size=separate, **{**YARDSTICK, **fields})
    return AttentionSeq2SeqForConditionalGeneration(config)


def learn(loss: torch.Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The backward pass and the optimiser's part of a step, with clipped gradients."""
    loss.backward()
    clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    optimizer.zero_grad()


def measure_case(text: str, steps: int, batch_size: int, **fields) -> dict:
    """One measurement: `steps` steps of Adam with clipped gradients, in float32."""
    keep_freed_memory()
    model = build(text, **fields)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    parts = batches(text, WARM_UP + steps, batch_size)

    def step(batch: dict[str, torch.Tensor]) -> int:
        learn(model(**batch, output_logits=False).loss, model, optimizer)
        return int((batch["labels"] != -100).sum())

    for batch in parts[:WARM_UP]:
        step(batch)
    measured = parts[WARM_UP:]
    typical = sorted(measured, key=lambda batch: batch["labels"].numel())[len(measured) // 2]
    operations = count_operations(lambda: step(typical)) / int((typical["labels"] != -100).sum())
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in measured)
    return measure(lambda: sum(map(step, measured)), operations * tokens)


def _peer_case(peer: Peer, arguments: TrainArguments, case: str) -> dict:
    return peer.train(CASES[case], arguments.steps, arguments.batch_size, arguments.threads)


def run(arguments: TrainArguments) -> None:
    """Measures and prints."""
    peers = parse_peers(arguments.peer)
    cases = {}
    for name in arguments.cases:
        options = {"steps": arguments.steps, "batch_size": arguments.batch_size, **CASES[name]}
        cases[name] = partial(in_own_process, "train", arguments.threads, **options)
        for peer in peers:
            if peer.can_train(name):
                cases[f"{name}, {peer.name}"] = partial(_peer_case, peer, arguments, name)
    for name in arguments.cases:
        print(f"{name}: {read(CASES[name]['text'])[2]}")
    results = rounds(cases, arguments.repeats)
    print_speeds("training, target tokens", results)
    for name in arguments.cases:
        print_ratios(results, [name], [f"{name}, {peer.name}" for peer in peers if peer.can_train(name)])
    save(arguments.output, train=results)
    for peer in peers:
        peer.close()
