"""Translation: output tokens per second, greedily and with a beam, in batches and one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_attention_seq2seq import quantize_int8

from .measure import (
    CommonArguments,
    count_operations,
    in_own_process,
    measure,
    print_ratios,
    print_speeds,
    rounds,
    save,
)
from .peers import MAX_LENGTH, PEERS, Peer, parse_peers
from .texts import MULTI30K, PAD, read, tokenizer
from .train import build

SEARCHES = {"greedy, batch": (1, 64), "beam 5, batch": (5, 64), "greedy, single": (1, 1), "beam 5, single": (5, 1)}
# Each variant: whether the weights are int8, and whether the library's own search is used.
VARIANTS = {"float32": (False, False), "int8": (True, False), "float32, library's search": (False, True)}


@dataclass
class TranslateArguments(CommonArguments):
    """What to measure."""

    model: str | None = field(default=None, metadata={"help": "folder of a trained model; default: random weights"})
    searches: list[str] = field(
        default_factory=lambda: list(SEARCHES), metadata={"help": f"of {', '.join(map(repr, SEARCHES))}"}
    )
    variants: list[str] = field(default_factory=lambda: list(VARIANTS), metadata={"help": f"of {', '.join(VARIANTS)}"})
    sentences: int = field(default=256, metadata={"help": "in batches of 64; one by one, a quarter of it"})
    peer: list[str] = field(
        default_factory=list, metadata={"help": f"NAME=FOLDER of a virtual environment with it; of {', '.join(PEERS)}"}
    )
    peer_steps: int = field(default=100, metadata={"help": "steps for which a peer is trained before it translates"})

    def __post_init__(self):
        for name, allowed in (("searches", SEARCHES), ("variants", VARIANTS)):
            for value in getattr(self, name):
                if value not in allowed:
                    raise ValueError(f"{name}: {value!r} is unknown; allowed: {', '.join(allowed)}")


def measure_case(model: str | None, variant: str, beams: int, batch_size: int, sentences: int) -> dict:
    """One measurement of `generate` over the first test sentences, the longest first; tokenization does not count."""
    if model is None:
        own, network = tokenizer(MULTI30K), build(MULTI30K, attention_type="general").eval()
        network.lm_head.bias.data[network.config.eos_token_id] = -100.0  # all sentences get the same length
        length = 14
    else:
        own, network = AutoTokenizer.from_pretrained(model), AutoModelForSeq2SeqLM.from_pretrained(model).eval()
        length = MAX_LENGTH
    is_int8, library_search = VARIANTS[variant]
    sources = [pair[0] for pair in read(MULTI30K)[1][:sentences]]
    encoded = sorted((torch.tensor(ids) for ids in own(sources)["input_ids"]), key=len, reverse=True)
    parts = [pad_sequence(encoded[start : start + batch_size], True, PAD) for start in range(0, sentences, batch_size)]
    ending = network.config.eos_token_id

    def translate(batch: torch.Tensor) -> int:
        outputs = network.generate(
            input_ids=batch,
            attention_mask=(batch != PAD).long(),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=length,
        )
        made = outputs[:, 1:]
        behind_end = (made == ending).cumsum(dim=1) - (made == ending).long() > 0
        return int((~behind_end & (made != PAD)).sum())

    def translate_all() -> int:
        return sum(map(translate, parts))

    operations = count_operations(translate_all)
    if is_int8:
        network = quantize_int8(network)
    network.use_library_search = library_search
    translate(parts[0])
    return measure(translate_all, operations)


def _peer_case(peer: Peer, arguments: TranslateArguments, sentences: int, beams: int, batch_size: int) -> dict:
    return peer.translate(sentences, beams, batch_size, arguments.threads)


def run(arguments: TranslateArguments) -> None:
    """Measures and prints."""
    peers = parse_peers(arguments.peer)
    for peer in peers:
        if not peer.can_translate:
            raise ValueError(f"peer: {peer.name} is compared in training only")
        started = time.perf_counter()
        peer.prepare("general", arguments.peer_steps, 64, arguments.threads)
        print(f"{peer.name}: trained for {arguments.peer_steps} steps in {time.perf_counter() - started:.0f} s")
    cases = {}
    for search in arguments.searches:
        beams, batch_size = SEARCHES[search]
        sentences = arguments.sentences if batch_size > 1 else max(1, arguments.sentences // 4)
        options = {"beams": beams, "batch_size": batch_size, "sentences": sentences, "model": arguments.model}
        for variant in arguments.variants:
            cases[f"{search}, {variant}"] = partial(
                in_own_process, "translate", arguments.threads, variant=variant, **options
            )
        for peer in peers:
            cases[f"{search}, {peer.name}"] = partial(_peer_case, peer, arguments, sentences, beams, batch_size)
    print(f"sentences: {read(MULTI30K)[2]}; model: {arguments.model or 'random weights, 14 tokens each'}")
    results = rounds(cases, arguments.repeats)
    print_speeds("translation, output tokens", results)
    for search in arguments.searches:
        own = [f"{search}, {variant}" for variant in arguments.variants]
        print_ratios(results, own[1:], own[:1])
        print_ratios(results, own, [f"{search}, {peer.name}" for peer in peers])
    save(arguments.output, model=arguments.model, translate=results)
    for peer in peers:
        peer.close()
