"""
What users of the Hub do. Each function runs in a process of its own, sent to the test's server by `HF_ENDPOINT`.

    python -m tests.hub_client FUNCTION
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from huggingface_hub import HfApi, get_session
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)

ENGLISH = ["a man sleeps", "a dog runs", "a woman runs"]
GERMAN = ["ein Mann schläft", "ein Hund rennt", "eine Frau rennt"]


def tokenizer_and_model(seed: int = 0):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(ENGLISH, GERMAN, model="word")
    torch.manual_seed(seed)
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=tokenizer.target_vocab_size,
        embedding_size=6,
        hidden_size=8,
        initializer_range=1.0,
    )
    return tokenizer, AttentionSeq2SeqForConditionalGeneration(config).eval()


def behaviour(tokenizer, model) -> dict:
    """Translations and logits, exact to the last bit."""
    batch = tokenizer(ENGLISH, padding=True, return_tensors="pt")
    labels = tokenizer(text_target=GERMAN, padding=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(**batch, labels=labels).logits
    ids = model.generate(**batch, num_beams=4, max_new_tokens=5)
    return {"texts": tokenizer.batch_decode(ids, skip_special_tokens=True), "logits": logits.tolist()}


def push() -> dict:
    """Two versions of a model; the first has the tag `first`. One on a branch, one in a private repository."""
    tokenizer, first = tokenizer_and_model()
    tokenizer.push_to_hub("user/model")
    first.push_to_hub("user/model", commit_message="The first")
    HfApi().create_tag("user/model", tag="first")
    _, second = tokenizer_and_model(seed=1)
    commit = second.push_to_hub("user/model")
    again = second.push_to_hub("user/model")
    _, third = tokenizer_and_model(seed=2)
    third.push_to_hub("user/model", revision="experiment")
    first.push_to_hub("user/secret", private=True)
    return {
        "first": behaviour(tokenizer, first),
        "main": behaviour(tokenizer, second),
        "experiment": behaviour(tokenizer, third),
        "commit": commit.oid,
        "pushed again": again.oid,
    }


def train() -> dict:
    """A short training that ends with a push."""
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    tokenizer, model = tokenizer_and_model()
    arguments = Seq2SeqTrainingArguments(
        "trained",
        max_steps=2,
        push_to_hub=True,
        hub_model_id="user/trained",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_steps=1,
    )
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict(dict(tokenizer(ENGLISH, text_target=GERMAN))),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.train()
    trainer.push_to_hub()
    return behaviour(tokenizer, trainer.model.eval())


def load() -> dict:
    """Everybody, without a token, in a process that has never seen the files."""
    found = {}
    for revision in ("first", "main", "experiment"):
        tokenizer = AutoTokenizer.from_pretrained("user/model", revision=revision)
        model = AutoModelForSeq2SeqLM.from_pretrained("user/model", revision=revision)
        found[revision] = behaviour(tokenizer, model)
        translate = pipeline("translation", model="user/model", revision=revision, device="cpu")
        outputs = translate(ENGLISH, num_beams=4, max_new_tokens=5)
        assert [output["translation_text"] for output in outputs] == found[revision]["texts"]
    commit = HfApi().model_info("user/model", revision="first").sha
    by_commit = AutoModelForSeq2SeqLM.from_pretrained("user/model", revision=commit)
    assert behaviour(tokenizer, by_commit) == found["first"]
    cached = AutoModelForSeq2SeqLM.from_pretrained("user/model", local_files_only=True)
    assert behaviour(tokenizer, cached) == found["main"]

    for repository, revision in (("user/secret", "main"), ("user/nothing", "main"), ("user/model", "nowhere")):
        with pytest.raises(OSError, match=repository if revision == "main" else revision):
            AutoModelForSeq2SeqLM.from_pretrained(repository, revision=revision)
    model = AutoModelForSeq2SeqLM.from_pretrained("user/secret", token="hf_read")
    assert behaviour(tokenizer, model) == found["first"]
    model = AutoModelForSeq2SeqLM.from_pretrained("user/trained")
    found["trained"] = behaviour(AutoTokenizer.from_pretrained("user/trained"), model)
    return found


def wrong_tokens() -> None:
    """Each is refused with a sentence that says so."""
    tokenizer, model = tokenizer_and_model()
    assert HfApi().whoami()["name"] == "user"
    for token, status, sentence in (
        ("hf_wrong", 401, "Invalid credentials"),
        ("hf_read", 403, "token with write access"),
        (False, 401, "Invalid username or password"),
    ):
        for pushed in (tokenizer, model):
            with pytest.raises(HfHubHTTPError, match=sentence) as error:
                pushed.push_to_hub("user/refused", token=token)
            assert error.value.response.status_code == status
    with pytest.raises(HfHubHTTPError, match="namespace 'somebody'"):
        model.push_to_hub("somebody/model")
    with pytest.raises(OSError, match="user/secret"):
        AutoModelForSeq2SeqLM.from_pretrained("user/secret", token="hf_wrong")


def interrupted() -> None:
    """Connections that end within an upload: once, until the client gives up, and within the commit."""
    _, model = tokenizer_and_model(seed=3)  # weights that the server has not got
    api = HfApi()

    def interrupt(method: str, path: str, times: int) -> None:
        get_session().post(f"{api.endpoint}/interrupt", json={"method": method, "path": path, "times": times})

    def files() -> set[str]:
        return set(api.list_repo_files("user/interrupted"))

    with mock.patch("time.sleep"):  # the client waits between its attempts
        interrupt("PUT", "/objects/", 1000)
        with pytest.raises(Exception, match="(?i)model.safetensors|connection|disconnected"):
            model.push_to_hub("user/interrupted")
        assert files() == {".gitattributes"}
        with pytest.raises((OSError, ValueError), match="user/interrupted"):  # it has no configuration
            AutoModelForSeq2SeqLM.from_pretrained("user/interrupted")

        interrupt("POST", "/commit/", 1)  # this the client does not repeat by itself: it may have been received
        with pytest.raises(Exception, match="(?i)connection|disconnected"):
            model.push_to_hub("user/interrupted")
        assert files() == {".gitattributes"}

        interrupt("PUT", "/objects/", 1)
        model.push_to_hub("user/interrupted")
    assert files() >= {".gitattributes", "README.md", "config.json", "generation_config.json", "model.safetensors"}
    loaded = AutoModelForSeq2SeqLM.from_pretrained("user/interrupted")
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())


if __name__ == "__main__":
    results = {name: globals()[name]() for name in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")
