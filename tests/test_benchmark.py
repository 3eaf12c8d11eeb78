"""The benchmarks' arithmetic, their sentences, and how other toolkits' reports are read."""

import json
import sys
from pathlib import Path

import pytest
import torch

from training import benchmark
from training.benchmarks import measure, peers, scaling, texts, train, translate

# Prints three reports, the way OpenNMT-py and eole do, and "translates" by writing its input twice.
PROGRAM = """#!{python}
import shutil, sys, time
if "--config" in sys.argv:
    for step, tokens, seconds in ((5, 100, 0.3), (10, 110, 0.1), (15, 130, 0.1)):
        time.sleep(seconds)
        print(f"INFO] Step {{step:2}}/   15; acc: 1; bsz:  894/ {{tokens}}/64;  57/ 60 tok/s; 79 sec", flush=True)
else:
    source, output = (sys.argv[sys.argv.index(name) + 1] for name in ("--src", "--output"))
    open(output, "w").write("".join(line.strip() + " " + line for line in open(source)))
"""


@pytest.fixture
def invented(monkeypatch):
    monkeypatch.delenv("ATTENTION_SEQ2SEQ_DATA", raising=False)
    monkeypatch.setattr(texts, "_INVENTED", {texts.MULTI30K: (500, 30), texts.FRENCH: (500, 30)})
    functions = (texts.read, texts.tokenizer)
    for function in functions:
        function.cache_clear()
    yield
    for function in functions:
        function.cache_clear()


@pytest.fixture
def eole(tmp_path, invented):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "eole"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (peer,) = peers.parse_peers([f"eole={tmp_path}"])
    yield peer
    peer.close()


def test_operations_of_a_training_step(monkeypatch):
    """Forward and twice as many backward, for each matrix and each position (Luong's step, by hand)."""
    hidden, vocabulary, rows, source, target = 16, 50, 3, 5, 4
    measured = []

    def record(function, operations):
        measured.append(operations)
        return {"tokens": function()}

    monkeypatch.setattr(scaling, "measure", record)
    result = scaling.measure_case("train", "general", rows, source, target, vocabulary, hidden)
    embedding = train.YARDSTICK["embedding_size"]
    half = hidden // 2
    encoder = source * 2 * 4 * half * (embedding + half)
    keys = source * hidden * hidden
    bridge = 2 * hidden * hidden
    step = 4 * hidden * (embedding + hidden + hidden) + 2 * source * hidden + 2 * hidden * hidden + hidden * vocabulary
    forward = 2 * rows * (encoder + keys + bridge + target * step)
    assert result["tokens"] == rows * target
    assert 2.7 * forward < measured[0] <= 3.01 * forward  # the embeddings' side of the first step has no gradient


def test_measure_and_its_limit(monkeypatch):
    monkeypatch.setattr(measure, "product_rate", lambda *shape: 1e9 if shape == measure.LARGE else 5e8)
    left = torch.randn(200, 200)

    def work() -> int:
        for _ in range(50):
            left @ left
        return 7

    operations = measure.count_operations(work)
    assert operations == 50 * 2 * 200**3
    result = measure.measure(work, operations)
    assert result["tokens"] == 7
    assert result["of_large"] == pytest.approx(operations / 1e9 / result["cpu"])
    assert result["of_skinny"] == pytest.approx(2 * result["of_large"])
    assert measure.product_rate(*measure.LARGE) == 1e9


def test_spread_and_rates():
    results = [{"tokens": 100, "cpu": 2.0, "wall": 4.0}, {"tokens": 90, "cpu": 1.0, "wall": 3.0}]
    assert measure.rates(results, "cpu") == [50, 90]
    assert measure.spread([3000.0, 1.0, 2.0]) == "2 (1-3,000)"


def test_cases_run_in_turn():
    order = []
    cases = {name: lambda name=name: order.append(name) or {} for name in "ab"}
    assert measure.rounds(cases, 2) == {"a": [{}, {}], "b": [{}, {}]}
    assert order == ["a", "b", "a", "b"]


def test_invented_sentences_say_so(invented):
    pairs, tests, origin = texts.read(texts.MULTI30K)
    assert origin.startswith("invented") and len(pairs) == 500 and len(tests) == 30
    mean = sum(len(source.split()) for source, _ in pairs) / len(pairs)
    assert 12 < mean < 14  # 13.0 words in Multi30k's English, counting the full stop


def test_batches_hold_each_pair_once(invented):
    parts = texts.batches(texts.FRENCH, 5, 16)
    assert sum(len(part["labels"]) for part in parts) == 80
    own = texts.tokenizer(texts.FRENCH)
    seen = set()
    for part in parts:
        for source, target in zip(part["input_ids"].tolist(), part["labels"].tolist()):
            letters = own.convert_ids_to_tokens([token for token in source if token > 2])
            phones = own.target_tokenizer.convert_ids_to_tokens([token for token in target if token > 2])
            seen.add(("".join(letters), " ".join(phones)))
    assert len(seen) > 75 and seen <= set(texts.read(texts.FRENCH)[0])


def test_a_peer_that_trains(eole):
    result = eole.train({"text": texts.MULTI30K, "attention_type": "additive"}, 10, 4, 1)
    assert result["tokens"] == 5 * (110 + 130)
    assert 0.15 < result["wall"] < 5 and 0 <= result["cpu"] < result["wall"] + 0.05
    config = json.dumps(peers.yaml.safe_load((eole.folder / "train.yaml").read_text()))
    assert '"global_attention": "mlp"' in config and '"train_steps": 15' in config
    lines = {name: (eole.folder / f"train.{name}").read_text().splitlines() for name in ("source", "target")}
    assert [len(lines[name]) for name in lines] == [80, 80]


def test_a_peer_that_translates(eole):
    result = eole.translate(20, beams=5, batch_size=4, threads=1)
    words = [len(line.split()) for line in eole._pieces(texts.MULTI30K, "test", 0)[:20]]
    assert result["tokens"] == sum(2 * number + 1 for number in words[2:])


def test_a_peer_that_fails(eole):
    Path(eole.command).write_text(f"#!{sys.executable}\nraise SystemExit('no such option')")
    with pytest.raises(RuntimeError, match="no such option"):
        eole.translate(2, beams=1, batch_size=1, threads=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: peers.parse_peers(["sockeye=/x"]), "'sockeye=/x'.*opennmt, eole"),
        (lambda: peers.parse_peers(["eole=/nowhere"]), "/nowhere has no bin/eole"),
        (lambda: train.TrainArguments(cases=["dot"]), "'dot' is unknown; allowed: general, additive, character"),
        (lambda: translate.TranslateArguments(variants=["int4"]), "'int4' is unknown; allowed: float32, int8"),
        (lambda: scaling.ScalingArguments(ladders=["depth"]), "'depth' is unknown; allowed: threads"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_benchmark(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark", "speed"])
    with pytest.raises(SystemExit, match="'speed'; allowed: train, translate, scaling, attention"):
        benchmark.main()


def test_a_case_in_its_own_process():
    result = measure.in_own_process("additive", 1, kind="recomputed", batch=1, source=10, target=5, size=8)
    assert result["peak_mib"] >= result["imports_mib"] > 50
