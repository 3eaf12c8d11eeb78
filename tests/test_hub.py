"""Pushing to and loading from a Hub: the real client against the server of `hub_server.py`, by its own protocol."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .hub_server import HubServer

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        yield server
    assert server.unknown == []


def run_client(hub, folder, *functions, token=None):
    """The results of functions of `hub_client.py`, run in a new process without files, settings or a network."""
    names = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    environment = names | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HTTP_PROXY": "http://127.0.0.1:9",  # nothing listens there
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        **({"HF_TOKEN": token} if token else {}),
    }
    results = folder / "results.json"
    command = [sys.executable, "-m", "tests.hub_client", str(results), *functions]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=300)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(results.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def published(hub, tmp_path_factory):
    return run_client(hub, tmp_path_factory.mktemp("author"), "push", "train", token="hf_write")


def test_what_lies_in_the_repository(hub, published):
    model = hub.repositories["user/model"]
    assert set(model.refs) == {"refs/heads/main", "refs/heads/experiment", "refs/tags/first"}
    assert not model.private and hub.repositories["user/secret"].private
    assert published["push"]["commit"] == published["push"]["pushed again"] == model.refs["refs/heads/main"]
    assert model.messages[model.refs["refs/tags/first"]] == "The first"
    for name in ("user/model", "user/trained"):
        repository = hub.repositories[name]
        files = repository.commits[repository.resolve("main")]
        needed = {"README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
        assert needed <= set(files)
        config = json.loads(hub.objects[files["config.json"]])
        assert config["architectures"] == ["AttentionSeq2SeqForConditionalGeneration"]
        assert not [path for path in files if path.endswith((".pt", ".pth", ".pkl", "pytorch_model.bin"))]


def test_everybody_loads_the_same_models(hub, published, tmp_path):
    found = run_client(hub, tmp_path, "load")["load"]
    expected = published["push"] | {"trained": published["train"]}
    assert found == {name: expected[name] for name in ("first", "main", "experiment", "trained")}
    assert len({str(version) for version in found.values()}) == 4


def test_wrong_tokens_and_interrupted_uploads(hub, published, tmp_path):
    run_client(hub, tmp_path, "wrong_tokens", "interrupted", token="hf_write")
    assert not {"user/refused", "somebody/model"} & set(hub.repositories)
    assert len(hub.repositories["user/interrupted"].commits) == 2  # the first, made with the repository, and one push
