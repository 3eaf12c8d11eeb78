"""Saved models as repositories: with the package, without it, by other versions, and from those who mean harm."""

import copy
import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, dynamic_module_utils, pipeline

import hf_attention_seq2seq
from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqModel,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    publishing,
)
from hf_attention_seq2seq.compat import CACHE_NAME

from .helpers import source_batch, target_batch, tiny_config, tiny_model
from .pipeline_helpers import NATIVE
from .published_script import outcome

PROJECT = Path(__file__).parent.parent
SOURCES = ["a man sleeps", "two dogs run", "the woman reads a book"]
TARGETS = ["ein Mann schläft", "zwei Hunde rennen", "die Frau liest ein Buch"]
MODELS = {
    "additive-lstm": {},
    "local-p-gru": {"rnn_type": "gru", "attention_type": "general", "attention_span": "local_p"},
    "hard-marginal": {"attention_selection": "hard", "attention_type": "general"},
    "hard-in-order": {"attention_selection": "hard", "hard_attention_order": 1},
    "hard-reinforce": {"attention_selection": "hard", "hard_attention_estimator": "reinforce"},
    "monotonic": {"attention_selection": "monotonic", "attention_query": "previous_state"},
    "multi-head-entmax": {"attention_type": "scaled_dot", "attention_heads": 4, "attention_normalizer": "entmax15"},
    "pointer": {"copy_mechanism": "pointer_generator", "max_unknown_words": 2},
    "separate-vocabularies": {"input_feeding": True},
    "self-attention-encoder": {"encoder_type": "rnn_self_attention"},
}
SHARED = AttentionSeq2SeqTokenizer.train_from_iterator(SOURCES + TARGETS, model="char")
TOKENIZERS = {
    "separate-vocabularies": AttentionSeq2SeqTokenizer.train_from_iterator(SOURCES, TARGETS, model="char"),
    "pointer": AttentionSeq2SeqTokenizer.train_from_iterator(SOURCES + TARGETS, model="char", max_unknown_words=2),
}


def make_model(name: str) -> tuple[AttentionSeq2SeqForConditionalGeneration, AttentionSeq2SeqTokenizer]:
    tokenizer = TOKENIZERS.get(name, SHARED)
    vocabularies = {"vocab_size": len(tokenizer), "decoder_vocab_size": None}
    if tokenizer.separate_vocabs:
        vocabularies["decoder_vocab_size"] = tokenizer.target_vocab_size
    return tiny_model(**vocabularies, **MODELS[name]), tokenizer


def save(name: str, directory: Path) -> AttentionSeq2SeqForConditionalGeneration:
    model, tokenizer = make_model(name)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def change(file: Path, **fields) -> None:
    file.write_text(json.dumps({**read(file), **fields}), encoding="utf-8")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "repositories"
    for name in MODELS:
        if name != "multi-head-entmax" or importlib.util.find_spec("entmax"):
            save(name, folder / name)
    return folder


@pytest.fixture
def repository(tmp_path):
    save("additive-lstm", tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def modules_cache(tmp_path, monkeypatch):
    """A folder of its own for the remote code that is imported, and nothing imported from another one."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "transformers_modules").exists()])
    forget_remote_code()
    yield
    forget_remote_code()


def forget_remote_code():
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        del sys.modules[name]


# --- with the package, without it, with neither


def test_with_the_package(repositories, modules_cache):
    for repository in sorted(repositories.iterdir()):
        model, tokenizer = make_model(repository.name)
        expected = outcome(model, tokenizer, TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu"))
        loaded = AutoModelForSeq2SeqLM.from_pretrained(repository), AutoTokenizer.from_pretrained(repository)
        assert [type(thing) for thing in loaded] == [type(model), type(tokenizer)]
        assert type(AutoConfig.from_pretrained(repository)) is AttentionSeq2SeqConfig
        assert type(AutoModel.from_pretrained(repository)) is AttentionSeq2SeqModel
        translate = pipeline("translation", model=str(repository), device="cpu")
        assert type(translate) is (NATIVE["translation"] or TranslationPipeline)
        result = outcome(*loaded, translate)
        torch.testing.assert_close(result["logits"], expected["logits"], rtol=0, atol=1e-6)
        assert result["texts"] == expected["texts"]
        trusting = pipeline("translation", model=str(repository), device="cpu", trust_remote_code=True)
        assert outcome(*loaded, trusting)["texts"] == expected["texts"]
        assert not hasattr(loaded[0].config, "auto_map")


def run_without_the_package(python: str, repositories: Path, folder: Path, *arguments: str) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(HF_HOME=str(folder / "home"), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    script = Path(__file__).with_name("published_script.py").read_text(encoding="utf-8")
    (folder / "script.py").write_text(script, encoding="utf-8")  # its folder is on Python's path, this one must not be
    results = folder / "results.pt"
    command = [python, str(folder / "script.py"), str(repositories), str(results), *arguments]
    done = subprocess.run(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(results)


def check_without_the_package(results: dict, repositories: Path, has_entmax: bool) -> None:
    for name, result in results.items():
        repository = repositories / name
        if "entmax" in name and not has_entmax:
            assert result == {
                "missing": "attention_normalizer='entmax15' needs the package entmax: pip install entmax."
            }
            continue
        loaded = AutoModelForSeq2SeqLM.from_pretrained(repository), AutoTokenizer.from_pretrained(repository)
        expected = outcome(*loaded, pipeline("translation", model=str(repository), device="cpu"))
        for again in (result, result["again"]):
            assert torch.equal(again["logits"], expected["logits"])
            assert again["texts"] == expected["texts"]
        assert len(result["messages"]) == 5
        for message in result["messages"]:
            assert "trust_remote_code=True" in message


def test_without_the_package(repositories, tmp_path):
    """Through the code of the repository, with everything else that is installed here."""
    few = tmp_path / "repositories"
    for name in ("local-p-gru", "separate-vocabularies"):
        shutil.copytree(repositories / name, few / name)
    check_without_the_package(run_without_the_package(sys.executable, few, tmp_path, "hide"), few, has_entmax=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.24.0", "4.57.6"])
def test_in_a_fresh_environment(repositories, tmp_path, version):
    """
    Nothing but torch and transformers is installed.

    ATTENTION_SEQ2SEQ_BARE_ENVIRONMENTS names a folder with environments `venv-VERSION`; else pip makes one.
    """
    given = os.environ.get("ATTENTION_SEQ2SEQ_BARE_ENVIRONMENTS")
    environment = Path(given or tmp_path) / f"venv-{version}"
    python = environment / "bin" / "python"
    if not python.exists():
        requirements = [f"torch=={torch.__version__}", f"transformers=={version}"]
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        done = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *requirements], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"pip can not install {' '.join(requirements)}: {done.stderr[-200:]}")
    found = subprocess.run(
        [str(python), "-c", "import transformers; print(transformers.__version__)"], capture_output=True, text=True
    )
    assert found.stdout.strip() == version, found.stderr
    check_without_the_package(
        run_without_the_package(str(python), repositories, tmp_path), repositories, has_entmax=False
    )


def test_the_entry_names_every_module_and_needs_nothing_else():
    entry = Path(publishing.__file__).with_name("remote_code.py")
    files = {entry, *map(Path, dynamic_module_utils.get_relative_import_files(entry))}
    named = set(dynamic_module_utils.get_relative_imports(entry))
    assert {file.stem for file in files} == named | {"remote_code"}
    for file in files:
        packages = set(dynamic_module_utils.get_imports(file)) - sys.stdlib_module_names
        assert packages <= {"torch", "transformers", "tokenizers"}, file


def test_the_code_is_written_once_and_not_into_the_checkpoints_of_a_training(tmp_path):
    model, tokenizer = make_model("additive-lstm")
    for folder, has_code in (("model", True), ("checkpoint-12", False), ("last-checkpoint", True)):
        model.save_pretrained(tmp_path / folder)
        written = {file: file.stat().st_mtime_ns for file in (tmp_path / folder).glob("*.py")}
        assert ("remote_code.py" in {file.name for file in written}) == has_code == bool(written)
        tokenizer.save_pretrained(tmp_path / folder)
        assert {file: file.stat().st_mtime_ns for file in (tmp_path / folder).glob("*.py")} == written
        assert ("auto_map" in read(tmp_path / folder / "config.json")) == has_code
        assert ("auto_map" in read(tmp_path / folder / "tokenizer_config.json")) == has_code
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert (tmp_path / "tokenizer" / "remote_code.py").exists()
    AutoTokenizer.from_pretrained(tmp_path / "tokenizer").save_pretrained(tmp_path / "checkpoint-3")
    assert "auto_map" not in read(tmp_path / "checkpoint-3" / "tokenizer_config.json")
    assert type(AutoTokenizer.from_pretrained(tmp_path / "checkpoint-3")) is AttentionSeq2SeqTokenizer
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-12")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_remote_code_beside_the_package(repository, modules_cache, tmp_path):
    """Two copies of the classes: neither gets in the other's way, and each saves what the other loads."""
    remote_model, remote_tokenizer = (
        dynamic_module_utils.get_class_from_dynamic_module(f"remote_code.{name}", str(repository))
        for name in ("AttentionSeq2SeqForConditionalGeneration", "AttentionSeq2SeqTokenizer")
    )
    model, tokenizer = remote_model.from_pretrained(repository), remote_tokenizer.from_pretrained(repository)
    assert type(model).__module__.startswith("transformers_modules.")
    assert not isinstance(model, AttentionSeq2SeqForConditionalGeneration)
    remote_model.register_for_auto_class("AutoModelForSeq2SeqLM")
    again = tmp_path / "again"
    model.save_pretrained(again)
    tokenizer.save_pretrained(again)
    names = {file.name for file in repository.iterdir() if file.suffix == ".py"} | {"config.json", "model.safetensors"}
    for name in sorted(names):
        assert (again / name).read_bytes() == (repository / name).read_bytes(), name
    assert read(again / "tokenizer_config.json")["auto_map"] == read(repository / "tokenizer_config.json")["auto_map"]
    local = AutoModelForSeq2SeqLM.from_pretrained(again)
    assert type(local) is AttentionSeq2SeqForConditionalGeneration
    batch = tokenizer(SOURCES, padding=True, return_tensors="pt")
    assert torch.equal(local.generate(**batch, num_beams=2), model.generate(**batch, num_beams=2))
    texts = TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu")(SOURCES, max_new_tokens=5)
    assert texts == pipeline("translation", model=str(again), device="cpu")(SOURCES, max_new_tokens=5)


def test_what_pipeline_does_to_a_configuration_is_not_saved(repository, modules_cache, tmp_path):
    """It puts classes into `custom_pipelines`, which no file can hold."""
    remote_config = dynamic_module_utils.get_class_from_dynamic_module(
        "remote_code.AttentionSeq2SeqConfig", str(repository)
    )
    config, other = (remote_config.from_pretrained(repository) for _ in range(2))
    config.custom_pipelines["translation"]["pt"] = (AutoModelForSeq2SeqLM,)
    for saved in (config, other):
        saved.save_pretrained(tmp_path / "again")
        assert (tmp_path / "again" / "config.json").read_text() == (repository / "config.json").read_text()


def test_a_derived_class_saves_its_own_code(tmp_path, monkeypatch):
    (tmp_path / "own_translation_model.py").write_text(
        "from hf_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration\n\n\n"
        "class OwnModel(AttentionSeq2SeqForConditionalGeneration):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = importlib.import_module("own_translation_model").OwnModel
    own.register_for_auto_class("AutoModelForSeq2SeqLM")
    own(tiny_config()).save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    expected = {
        "AutoConfig": "remote_code.AttentionSeq2SeqConfig",
        "AutoModel": "remote_code.AttentionSeq2SeqModel",
        "AutoModelForSeq2SeqLM": "own_translation_model.OwnModel",
        "AutoModelForSequenceClassification": "remote_code.AttentionSeq2SeqForSequenceClassification",
    }
    assert read(config)["auto_map"] == expected
    assert (tmp_path / "model" / "own_translation_model.py").exists()
    AutoConfig.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "again")
    assert read(tmp_path / "again" / "config.json")["auto_map"] == expected


# --- versions


def test_the_version_is_recorded_and_is_the_packages(repository):
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert read(repository / "config.json")["plugin_version"] == hf_attention_seq2seq.__version__ == project["version"]


@pytest.mark.parametrize(
    ("saved_by", "read_by", "is_read"),
    [
        ("0.1.0", "0.1.0", True),
        ("0.1.9", "0.1.0", True),
        ("0.1.0", "0.2.0", True),
        ("0.1.0", "1.0.0", True),
        ("0.9.0", "0.10.0", True),
        ("1.4.3.dev1", "1.4.0", True),
        ("0.2.0", "0.1.9", False),
        ("0.10.0", "0.9.0", False),
        ("1.0.0", "0.9.0", False),
        ("1.5.0rc1", "1.4.7", False),
    ],
)
def test_versions(repository, monkeypatch, saved_by, read_by, is_read):
    change(repository / "config.json", plugin_version=saved_by)
    monkeypatch.setattr(publishing, "VERSION", read_by)
    if is_read:
        AutoConfig.from_pretrained(repository)
        return
    for loader in (AutoConfig, AutoModelForSeq2SeqLM):
        with pytest.raises(ValueError, match=f"{saved_by}, and this is hf_attention_seq2seq {read_by}"):
            loader.from_pretrained(repository)


@pytest.mark.parametrize("version", ["", "new", "1", None, 1.0, "9" * 5000 + ".1", ["0.1.0"]])
def test_what_is_no_version(repository, version):
    change(repository / "config.json", plugin_version=version)
    with pytest.raises(ValueError, match="plugin_version=.* is not possible"):
        AutoConfig.from_pretrained(repository)


def test_a_repository_from_before_versions_were_recorded(repository):
    fields = read(repository / "config.json")
    for name in ("plugin_version", "auto_map", "custom_pipelines"):
        del fields[name]
    (repository / "config.json").write_text(json.dumps(fields))
    AutoModelForSeq2SeqLM.from_pretrained(repository)


# --- from those who mean harm


def test_only_safetensors_is_read_and_written(repository, tmp_path):
    weights = repository / "model.safetensors"
    pickled = repository / "pytorch_model.bin"
    torch.save(load_file(weights), pickled)
    AutoModelForSeq2SeqLM.from_pretrained(repository)
    for options in ({"use_safetensors": False}, {"gguf_file": "model.gguf"}, {"from_tf": True}):
        with pytest.raises(ValueError, match="is not possible. This package reads and writes weights as safetensors"):
            AttentionSeq2SeqForConditionalGeneration.from_pretrained(repository, **options)
    with pytest.raises(ValueError, match="use_safetensors=False is not possible"):
        AutoModelForSeq2SeqLM.from_pretrained(repository, use_safetensors=False)
    weights.unlink()
    for loader in (AutoModelForSeq2SeqLM, AutoModel, AttentionSeq2SeqForConditionalGeneration):
        with pytest.raises(ValueError, match="has pickled weights .* and no model.safetensors"):
            loader.from_pretrained(repository)
    with pytest.raises(ValueError, match="pytorch_model.bin' is no safetensors file"):
        AttentionSeq2SeqForConditionalGeneration.from_pretrained(pickled, config=repository)
    pickled.unlink()
    with pytest.raises(OSError, match="model.safetensors"):
        AutoModelForSeq2SeqLM.from_pretrained(repository)
    with pytest.raises(ValueError, match="safe_serialization=False"):
        tiny_model().save_pretrained(tmp_path / "other", safe_serialization=False)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/elsewhere.safetensors", "weights.bin"])
def test_an_index_can_not_lead_out_of_the_repository(repository, name):
    weights = repository / "model.safetensors"
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), name)}
    weights.rename(repository.parent / "elsewhere.safetensors")
    (repository / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="out of the repository|no safetensors file"):
        AutoModelForSeq2SeqLM.from_pretrained(repository)


@pytest.mark.parametrize(
    "fields",
    [
        {"validate_fields": "yes"},
        {"save_pretrained": 1},
        {"_attn_implementation": "somebody/kernel"},
        {"transformers_weights": "../elsewhere.safetensors"},
        {"transformers_weights": "adapter_model.bin"},
        {"vocab_size": 10**12},
        {"vocab_size": 10**400},
        {"hidden_size": 10**9},
        {"encoder_layers": 10**9},
        {"decoder_layers": 10**9},
        {"attention_window": 10**12},
        {"coverage_kernel_size": 10**12 + 1},
        {"max_source_positions": 10**12},
        {"embedding_size": 1e300},
    ],
    ids=str,
)
def test_a_configuration_can_not_reach_beyond_itself(repository, fields):
    change(repository / "config.json", **fields)
    with pytest.raises(ValueError, match=next(iter(fields))):
        AutoModelForSeq2SeqLM.from_pretrained(repository)


@pytest.mark.parametrize(
    "fields",
    [
        {"vocab_size": 10**7, "embedding_size": 2**14},
        {"hidden_size": 2**20, "encoder_hidden_size": 8},
        {"attention_type": "location", "max_source_positions": 2**24, "hidden_size": 2**12, "encoder_hidden_size": 8},
        {"encoder_layers": 256, "encoder_hidden_size": 2**16},
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"ignore_mismatched_sizes": True}], ids=["strict", "mismatched"])
def test_a_configuration_that_would_exhaust_the_memory(repository, fields, options):
    change(repository / "config.json", **fields)
    for loader in (AutoModelForSeq2SeqLM, AutoModel):
        with pytest.raises(ValueError, match="The configuration asks for a model of .* bytes"):
            loader.from_pretrained(repository, **options)


def test_new_layers_are_not_taken_for_an_attack(repository):
    """A new vocabulary on top of old weights."""
    config = AutoConfig.from_pretrained(repository, vocab_size=20000)
    model = AutoModelForSeq2SeqLM.from_pretrained(repository, config=config, ignore_mismatched_sizes=True)
    assert model.lm_head.weight.shape[0] == 20000


@pytest.mark.parametrize(
    "fields",
    [
        {"tokenizer_file": "../elsewhere.json"},
        {"target_tokenizer_file": "/elsewhere.json"},
        {"init_inputs": [None, "/elsewhere.json"]},
    ],
    ids=str,
)
def test_a_tokenizer_can_not_read_other_files(repository, fields):
    change(repository / "tokenizer_config.json", **fields)
    with pytest.raises(ValueError, match=f"tokenizer_config.json has {next(iter(fields))}="):
        AutoTokenizer.from_pretrained(repository)


def test_code_runs_for_nobody_who_does_not_trust_it(repository):
    (repository / "remote_code.py").write_text("raise SystemExit('executed')")
    change(repository / "config.json", auto_map={"AutoConfig": "remote_code.X", "AutoModelForSeq2SeqLM": "bad.X"})
    AutoModelForSeq2SeqLM.from_pretrained(repository)
    AutoTokenizer.from_pretrained(repository)
    pipeline("translation", model=str(repository), device="cpu")


# --- ways of loading


def logits_of(model) -> torch.Tensor:
    input_ids, mask = source_batch()
    with torch.no_grad():
        return model(input_ids=input_ids, attention_mask=mask, decoder_input_ids=input_ids[:, :3] % 13).logits.float()


@pytest.mark.parametrize(
    ("saving", "loading", "tolerance"),
    [
        ({"max_shard_size": "1KB"}, {}, 1e-6),
        ({}, {"low_cpu_mem_usage": True}, 1e-6),
        ({}, {"device_map": "auto"}, 1e-6),
        ({}, {"device_map": {"": "cpu"}}, 1e-6),
        ({}, {"dtype": torch.bfloat16}, 5e-2),
        ({}, {"dtype": "float64"}, 1e-5),
        ({"max_shard_size": "1KB"}, {"device_map": "auto", "dtype": torch.bfloat16}, 5e-2),
    ],
    ids=str,
)
def test_ways_of_loading(tmp_path, saving, loading, tolerance):
    if "device_map" in loading:
        pytest.importorskip("accelerate")
    model = tiny_model(tie_word_embeddings=True, input_feeding=True, encoder_layers=2)
    model.save_pretrained(tmp_path, **saving)
    assert len(list(tmp_path.glob("*.safetensors"))) > (1 if saving else 0)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, **loading)
    wanted = loading.get("dtype", torch.float32)
    assert loaded.dtype == (getattr(torch, wanted) if isinstance(wanted, str) else wanted)
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=tolerance)


def test_offloading_to_disk(tmp_path):
    pytest.importorskip("accelerate")
    model = tiny_model(attention_query="previous_state")
    model.save_pretrained(tmp_path)
    places = {"model.encoder": "disk", "model.decoder_embed_tokens": "cpu", "model.decoder": "cpu", "lm_head": "disk"}
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "offloaded")
    assert loaded.lm_head.weight.device.type == "meta"
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("targets", ["all-linear", r".*\.(query|key|value)_projection"])
def test_adapters_of_peft(tmp_path, targets):
    peft = pytest.importorskip("peft")
    input_ids, mask = source_batch()
    batch = {"input_ids": input_ids, "attention_mask": mask}
    sizes = {"attention_size": 8, "attention_values": "projected"}
    tiny_model(attention_type="general", **sizes).save_pretrained(tmp_path / "base")
    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    before = logits_of(base)
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", r=2, target_modules=targets))
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=0.05)
    for _ in range(5):
        loss = model(**batch, labels=target_batch()).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
        optimizer.step()
    model.eval()
    trained = logits_of(model)
    assert (trained - before).abs().max() > 1e-3
    translated = model.generate(**batch, num_beams=2, max_new_tokens=6)
    model.save_pretrained(tmp_path / "adapter")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "adapter").eval()  # finds its base by itself
    torch.testing.assert_close(logits_of(loaded), trained, rtol=0, atol=1e-6)
    assert torch.equal(loaded.generate(**batch, num_beams=2, max_new_tokens=6), translated)
    torch.testing.assert_close(logits_of(model.merge_and_unload()), trained, rtol=0, atol=1e-5)


def test_torch_compile_of_the_encoder_and_of_the_step():
    """What is compiled gives what the model gives; the compiler's first half, which captures graphs, decides that."""
    model = tiny_model(rnn_type="gru", attention_type="general", input_feeding=True)
    input_ids, mask = source_batch()
    try:
        with torch.no_grad():
            memory = model.get_encoder()(input_ids, mask)
            compiled = torch.compile(model.get_encoder(), backend="eager")(input_ids, mask)
            assert torch.equal(compiled.last_hidden_state, memory.last_hidden_state)
            start = {"encoder_outputs": memory, "attention_mask": mask, "use_cache": True}
            cache = model(**start, decoder_input_ids=torch.ones(4, 1, dtype=torch.long))[CACHE_NAME]
            step = {**start, "decoder_input_ids": torch.full((4, 1), 5)}
            compiled = torch.compile(model, backend="eager")(**step, **{CACHE_NAME: copy.deepcopy(cache)})
            assert torch.equal(compiled.logits, model(**step, **{CACHE_NAME: cache}).logits)
    finally:
        torch._dynamo.reset()


def test_torch_export_is_refused():
    model = tiny_model()
    for module in (model, model.get_encoder()):
        with pytest.raises(NotImplementedError, match="torch.export of this model is not possible"):
            torch.export.export(module, source_batch(), strict=False)
