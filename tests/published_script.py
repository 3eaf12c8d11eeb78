"""
Loads saved repositories where only transformers and torch are; run by `test_publishing`.

    python published_script.py REPOSITORIES RESULTS.pt [hide]

`hide` makes an installed package invisible. The results are a dictionary of one entry for each repository.
"""

import pickle
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

TEXTS = ["a man sleeps", "two dögs", "the woman reads a book"]
OPTIONS = {"num_beams": 3, "max_new_tokens": 12}


def outcome(model, tokenizer, translate):
    """Logits of given targets, and translations."""
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch, decoder_input_ids=torch.arange(3, 9).repeat(len(TEXTS), 1)).logits
    return {"logits": logits, "texts": [record["translation_text"] for record in translate(TEXTS, **OPTIONS)]}


def refusal(load, *arguments, **options):
    """The message with which transformers refuses to load without trust."""
    try:
        load(*arguments, **options)
    except ValueError as error:
        return str(error)
    return ""


def load(repository):
    """Everything of a repository through its own code, and once more after it was saved by that code."""
    loaders = (AutoConfig, AutoTokenizer, AutoModel, AutoModelForSeq2SeqLM)
    messages = [refusal(loader.from_pretrained, repository) for loader in loaders]
    messages.append(refusal(pipeline, "translation", model=repository))
    config, tokenizer, base, model = (loader.from_pretrained(repository, trust_remote_code=True) for loader in loaders)
    assert type(config) is type(model.config) and isinstance(model.model, type(base))
    translate = pipeline("translation", model=repository, trust_remote_code=True, device="cpu")
    for thing in (config, tokenizer, model, translate):
        assert type(thing).__module__.startswith("transformers_modules."), type(thing)
    results = {"messages": messages, **outcome(model, tokenizer, translate)}
    again = f"{repository}_again"
    translate.save_pretrained(again)
    model = AutoModelForSeq2SeqLM.from_pretrained(again, trust_remote_code=True)
    tokenizer = pickle.loads(pickle.dumps(AutoTokenizer.from_pretrained(again, trust_remote_code=True)))
    assert type(pickle.loads(pickle.dumps(model))) is type(model)
    translate = pipeline("translation", model=again, trust_remote_code=True, device="cpu")
    return {**results, "again": outcome(model, tokenizer, translate)}


def load_all(repositories, results, hide=""):
    if hide:
        sys.modules["hf_attention_seq2seq"] = None
    try:
        import hf_attention_seq2seq  # noqa: F401

        raise SystemExit("hf_attention_seq2seq can be imported here")
    except ImportError:
        pass
    loaded = {}
    for repository in sorted(Path(repositories).iterdir()):
        try:
            loaded[repository.name] = load(str(repository))
        except ImportError as error:
            loaded[repository.name] = {"missing": str(error)}
    torch.save(loaded, results)


if __name__ == "__main__":
    load_all(*sys.argv[1:])
