"""The benchmarks' arithmetic, their sentences, and how other toolkits' reports are read."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration
from training import benchmark
from training.benchmarks import breakdown, measure, peers, scaling, texts, train, translate

# Prints three reports, the way OpenNMT-py and eole do, leaves a model, and "translates" by writing its input twice.
PROGRAM = """#!{python}
import json, pathlib, shutil, sys, time
if "--config" in sys.argv:
    folder = pathlib.Path("model")
    folder.mkdir()
    pieces = [line.split()[0] for line in open("vocabulary")]
    (folder / "vocab.json").write_text(json.dumps({{"src": ["<unk>", "<blank>", "<s>", "</s>", *reversed(pieces)]}}))
    shutil.copy({weights!r}, folder / "model.00.safetensors")
    for step, tokens, seconds in ((5, 90, 0.3), (10, 100, 0.1), (15, 110, 0.1), (20, 130, 0.1)):
        time.sleep(seconds)
        print(f"INFO] Step {{step:2}}/   20; acc: 1; bsz:  894/ {{tokens}}/64;  57/ 60 tok/s; 79 sec", flush=True)
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
def model(tmp_path, invented):
    """A small one of the benchmark's configuration."""
    own = texts.tokenizer(texts.MULTI30K)
    fields = {**train.YARDSTICK, "attention_type": "general", "embedding_size": 6, "hidden_size": 8}
    fields["initializer_range"] = 0.5
    model = AttentionSeq2SeqForConditionalGeneration(AttentionSeq2SeqConfig(vocab_size=len(own), **fields))
    model.save_pretrained(tmp_path / "ours")
    own.save_pretrained(tmp_path / "ours")
    return model


@pytest.fixture
def eole(tmp_path, model):
    (tmp_path / "bin").mkdir()
    shapes = {
        **{
            f"encoder.rnn.{name}": tensor.shape
            for name, tensor in nn.LSTM(6, 4, bidirectional=True).named_parameters()
        },
        **{f"decoder.rnn.layers.0.{name}": tensor.shape for name, tensor in nn.LSTMCell(14, 8).named_parameters()},
        "src_emb.embeddings.weight": (model.config.vocab_size, 6),
        "decoder.attn.linear_in.weight": (8, 8),
        "decoder.attn.linear_out.weight": (8, 16),
        "generator.weight": (model.config.vocab_size, 8),
        "generator.bias": (model.config.vocab_size,),
    }
    weights = str(tmp_path / "eole.safetensors")
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, weights)
    program = tmp_path / "bin" / "eole"
    program.write_text(PROGRAM.format(python=sys.executable, weights=weights))
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
    monkeypatch.setattr(scaling, "keep_freed_memory", lambda: None)
    result = scaling.measure_case("train", "general", rows, source, target, vocabulary, hidden)
    embedding = train.YARDSTICK["embedding_size"]
    half = hidden // 2
    encoder = source * 2 * 4 * half * (embedding + half)
    keys = source * hidden * hidden
    step = 4 * hidden * (embedding + hidden + hidden) + 2 * source * hidden + 2 * hidden * hidden + hidden * vocabulary
    forward = 2 * rows * (encoder + keys + target * step)
    assert result["tokens"] == rows * target
    assert 2.98 * forward < measured[0] <= 3 * forward  # the first step's state has no gradient


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


def test_where_the_time_of_a_step_goes(invented, monkeypatch):
    monkeypatch.setattr(breakdown, "keep_freed_memory", lambda: None)
    losses = []
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: losses.append(loss.item()) or backward(loss))
    for plain in (False, True):
        times = breakdown.measure_case(plain, steps=2, batch_size=4, hidden_size=8, attention_type="dot")
        assert times["all"] == pytest.approx(sum(times[kind] for kind in times if kind != "all"))
        assert (
            min(times["products"], times["encoder (recurrent layer)"], times["softmax and loss"], times["gates"]) > 0
        )
    here, plain = losses[: breakdown.WARM_UP + 2], losses[breakdown.WARM_UP + 2 :]
    assert here == pytest.approx(plain, rel=1e-4)  # both ways are the same training


def test_kinds_of_operators():
    found = [
        breakdown.kind_of(name) for name in ("aten::addmm_", "mkldnn::_reorder_linear_weight", "aten::tanh_", "x")
    ]
    assert found == ["products", "packing of matrices", "gates", "everything else"]


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
    assert '"global_attention": "mlp"' in config and '"train_steps": 20' in config
    lines = {name: (eole.folder / f"train.{name}").read_text().splitlines() for name in ("source", "target")}
    assert [len(lines[name]) for name in lines] == [100, 100]


def test_a_peer_gets_our_weights(eole, model, tmp_path):
    """eole's equations, written out, with what it finds in its files."""
    eole.prepare(str(tmp_path / "ours"), threads=1)
    pieces = json.loads((eole.folder / "model" / "vocab.json").read_text())["src"]
    weights = load_file(eole.folder / "model" / "model.00.safetensors")
    source, target = pieces.index(eole.sources[3].split()[0]), pieces.index(eole.sources[4].split()[1])
    embedded = weights["src_emb.embeddings.weight"]
    encoder, cell = nn.LSTM(6, 4, bidirectional=True), nn.LSTMCell(14, 8)
    encoder.load_state_dict(
        {name.removeprefix("encoder.rnn."): w for name, w in weights.items() if "encoder." in name}
    )
    cell.load_state_dict({name.rsplit(".")[-1]: w for name, w in weights.items() if "layers.0" in name})
    memory, last = encoder(embedded[[source, target, pieces.index("</s>")]])
    state, feed = tuple(tensor.flatten()[None] for tensor in last), torch.zeros(1, 8)
    for piece in (pieces.index("<s>"), target):
        state = cell(torch.cat((embedded[piece][None], feed), dim=1), state)
        scores = memory @ weights["decoder.attn.linear_in.weight"] @ state[0][0]
        context = scores.softmax(dim=0) @ memory
        feed = torch.tanh(torch.cat((context[None], state[0]), dim=1) @ weights["decoder.attn.linear_out.weight"].T)
    expected = feed @ weights["generator.weight"].T + weights["generator.bias"]

    own = texts.tokenizer(texts.MULTI30K)
    ours = own.convert_tokens_to_ids([pieces[source], pieces[target]])
    special = {"<unk>": own.unk_token, "<blank>": own.pad_token, "<s>": own.bos_token, "</s>": own.eos_token}
    order = own.convert_tokens_to_ids([special.get(piece, piece) for piece in pieces])
    inputs = {"input_ids": [[*ours, own.eos_token_id]], "decoder_input_ids": [[own.bos_token_id, ours[1]]]}
    logits = model.eval()(**{name: torch.tensor(ids) for name, ids in inputs.items()}).logits[:, -1]
    assert order != sorted(order)
    torch.testing.assert_close(logits[:, order], expected)


def test_a_peer_that_translates(eole, tmp_path):
    eole.prepare(str(tmp_path / "ours"), threads=1)
    result = eole.translate(20, beams=5, batch_size=1, threads=1)
    words = [len(line.split()) for line in eole.sources[:20]]  # with the end of the sentence
    assert result["tokens"] == sum(2 * number + 1 for number in words[2:])
    assert len(result["texts"]) == 20
    assert result["texts"][7] == f"{eole.sources[7].strip()} {eole.sources[7].strip()}"


def test_a_peer_that_fails(eole, tmp_path):
    Path(eole.command).write_text(f"#!{sys.executable}\nraise SystemExit('no such option')")
    with pytest.raises(RuntimeError, match="no such option"):
        eole.prepare(str(tmp_path / "ours"), threads=1)


def test_models_that_a_peer_does_not_have(eole, tmp_path):
    own = texts.tokenizer(texts.MULTI30K)
    config = AttentionSeq2SeqConfig(vocab_size=len(own), embedding_size=6, hidden_size=8, attention_type="additive")
    AttentionSeq2SeqForConditionalGeneration(config).save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="has no counterpart in eole.*multi30k_benchmark.yaml"):
        eole.prepare(str(tmp_path / "ours"), threads=1)


def test_batches_for_translation_have_one_length():
    lengths = [3, 5, 3, 4, 3, 5, 5, 3, 9, 5]
    assert texts.test_sources(lengths, 4, 2) == [4, 7, 6, 9]
    assert texts.test_sources(lengths, 8, 2) == [0, 2, 4, 7, 1, 5, 6, 9]
    assert texts.test_sources(lengths, 3, 1) == [0, 1, 2]
    assert texts.test_sources(lengths, 1, 2) == [1]
    with pytest.raises(ValueError, match="10 are too many; there are 4 batches of 2"):
        texts.test_sources(lengths, 10, 2)


def test_translations_are_measured(model, tmp_path):
    """Tokens with the ends, and the pieces that a plain `generate` gives."""
    options = {"variant": "float32", "beams": 2, "batch_size": 1, "sentences": 3}
    result = translate.measure_case(str(tmp_path / "ours"), **options)
    own = texts.tokenizer(texts.MULTI30K)
    expected, tokens = [], 0
    for source, _ in texts.read(texts.MULTI30K)[1][:3]:
        (_, *made) = model.generate(**own(source, return_tensors="pt"), num_beams=2, max_new_tokens=100)[0].tolist()
        tokens += len(made)
        expected.append(" ".join(own.convert_ids_to_tokens([token for token in made if token != own.eos_token_id])))
    assert result["texts"] == expected
    assert result["tokens"] == tokens


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: peers.parse_peers(["sockeye=/x"]), "'sockeye=/x'.*opennmt, eole"),
        (lambda: translate.TranslateArguments(peer=["eole=/nowhere"]), "give --model too"),
        (lambda: translate.TranslateArguments(model="/nowhere"), "'/nowhere' is not a folder with a model"),
        (lambda: translate.TranslateArguments(sentences=0), "sentences: 0 is not possible; it must be 1 or more"),
        (lambda: scaling.ScalingArguments(repeats=0), "repeats: 0 is not possible"),
        (lambda: peers.parse_peers(["opennmt=/x"], ["eole"]), "'opennmt=/x' is not possible; allowed:.*of eole$"),
        (lambda: peers.parse_peers(["eole=/nowhere"]), "/nowhere has no bin/eole"),
        (lambda: train.TrainArguments(cases=["dot"]), "'dot' is unknown; allowed: 'general', 'additive', 'character'"),
        (lambda: translate.TranslateArguments(variants=["int4"]), "'int4' is unknown; allowed: 'float32', 'int8'"),
        (lambda: scaling.ScalingArguments(ladders=["depth"]), "'depth' is unknown; allowed: 'threads'"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed"], "error: 'speed' is unknown; allowed: train, translate, scaling, attention, breakdown"),
        (["train", "--bogus", "1"], "error: --bogus 1: there is no such option"),
        (["breakdown", "--attention_type", "foo"], "error: attention_type='foo'"),
        (["scaling", "--attention_type", "foo"], "error: attention_type='foo'"),
        (["translate", "--repeats", "0"], "error: repeats: 0 is not possible"),
    ],
)
def test_wrong_command_lines(words, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    with pytest.raises(SystemExit, match=message):
        benchmark.main()


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_help(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    benchmark.main()
    assert "python -m training.benchmark train | translate" in capsys.readouterr().out


def test_a_case_in_its_own_process():
    result = measure.in_own_process("additive", 1, kind="recomputed", batch=1, source=10, target=5, size=8)
    assert result["peak_mib"] >= result["imports_mib"] > 50
