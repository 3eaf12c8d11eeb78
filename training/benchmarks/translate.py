"""Translation: output tokens per second, greedily and with a beam, in batches and one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_attention_seq2seq import quantize_int8

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
from .peers import MAX_LENGTH, PEERS, Peer, parse_peers
from .texts import MULTI30K, PAD, read, test_sources, tokenizer
from .train import build

SEARCHES = {"greedy, batch": (1, 64), "beam 5, batch": (5, 64), "greedy, single": (1, 1), "beam 5, single": (5, 1)}
# Each variant: whether the weights are int8, and whether the library's own search is used.
VARIANTS = {"float32": (False, False), "int8": (True, False), "float32, library's search": (False, True)}

TRANSLATING = [name for name, peer in PEERS.items() if peer.can_translate]


@dataclass
class TranslateArguments(CommonArguments):
    """What to measure."""

    model: str | None = field(default=None, metadata={"help": "folder of a trained model; default: random weights"})
    searches: list[str] = field(
        default_factory=lambda: list(SEARCHES), metadata={"help": f"of {', '.join(map(repr, SEARCHES))}"}
    )
    variants: list[str] = field(
        default_factory=lambda: list(VARIANTS), metadata={"help": f"of {', '.join(map(repr, VARIANTS))}"}
    )
    sentences: int = field(
        default=256, metadata={"help": "how many, in whole batches of 64; one by one a quarter of it, at least 10"}
    )
    peer: list[str] = field(
        default_factory=list,
        metadata={
            "help": "NAME=FOLDER of a virtual environment with it, to translate with the weights of `model`; of "
            + ", ".join(TRANSLATING)
        },
    )

    def __post_init__(self):
        super().__post_init__()
        check_names("searches", self.searches, SEARCHES)
        check_names("variants", self.variants, VARIANTS)
        if self.model is not None and not Path(self.model, "config.json").is_file():
            raise ValueError(f"model: {self.model!r} is not a folder with a model; it has no config.json")
        if self.peer and self.model is None:
            raise ValueError("peer: give --model too; the other toolkit translates with its weights")


def measure_case(model: str | None, variant: str, beams: int, batch_size: int, sentences: int) -> dict:
    """One measurement from test sentences to the pieces of their translations, `texts`."""
    if model is None:
        own, network = tokenizer(MULTI30K), build(MULTI30K, attention_type="general").eval()
        network.lm_head.bias.data[network.config.eos_token_id] = -100.0  # all sentences get the same length
        length = 14
    else:
        own, network = AutoTokenizer.from_pretrained(model), AutoModelForSeq2SeqLM.from_pretrained(model).eval()
        length = MAX_LENGTH
    is_int8, library_search = VARIANTS[variant]
    sources = [source for source, _ in read(MULTI30K)[1]]
    rows = test_sources([len(ids) for ids in own(sources)["input_ids"]], sentences, batch_size)
    sources = [sources[row] for row in rows]
    ending = network.config.eos_token_id
    texts: list[str] = []

    def translate(sources: list[str]) -> int:
        encoded = [torch.tensor(ids) for ids in own(sources)["input_ids"]]
        tokens = 0
        for start in range(0, len(encoded), batch_size):
            batch = pad_sequence(encoded[start : start + batch_size], True, PAD)
            outputs = network.generate(
                input_ids=batch,
                attention_mask=(batch != PAD).long(),
                num_beams=beams,
                do_sample=False,
                max_new_tokens=length,
            )
            lines = []
            for _, *made in outputs.tolist():
                words = made[: made.index(ending)] if ending in made else made
                tokens += min(len(words) + 1, len(made))
                lines.append(" ".join(own.target_tokenizer.convert_ids_to_tokens(words)))
            texts[start : start + batch_size] = lines
        return tokens

    operations = count_operations(lambda: translate(sources))
    if is_int8:
        network = quantize_int8(network)
    network.use_library_search = library_search
    translate(sources[:batch_size])
    result = measure(lambda: translate(sources), operations)
    return {**result, "texts": texts}


def _peer_case(peer: Peer, arguments: TranslateArguments, sentences: int, beams: int, batch_size: int) -> dict:
    return peer.translate(sentences, beams, batch_size, arguments.threads)


def run(arguments: TranslateArguments) -> None:
    """Measures and prints."""
    peers = parse_peers(arguments.peer, TRANSLATING)
    for peer in peers:
        peer.prepare(arguments.model, arguments.threads)
    cases = {}
    for search in arguments.searches:
        beams, batch_size = SEARCHES[search]
        sentences = arguments.sentences if batch_size > 1 else max(10, arguments.sentences // 4)
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
        others = [f"{search}, {peer.name}" for peer in peers]
        print_ratios(results, own[1:], own[:1])
        print_ratios(results, own, others)
        for name in (*own[1:], *others):
            pairs = zip(results[own[0]][0]["texts"], results[name][0]["texts"])
            same = sum(ours == other for ours, other in pairs)
            print(f"{name}: {same} of {len(results[name][0]['texts'])} texts equal to {own[0]}")
    for result in itertools.chain(*results.values()):
        del result["texts"]
    save(arguments.output, model=arguments.model, translate=results)
    for peer in peers:
        peer.close()
