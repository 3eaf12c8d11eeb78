"""Model cards: what a reader and the Hub find in them, and the example runs as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import pipeline

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqTokenizer, TranslationPipeline
from tests.helpers import tiny_config, tiny_model
from training.card import describe_machine, write_model_card

ROOT = Path(__file__).parents[1]
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
RECIPE = "model:\n  attention_type: general\nnote: |\n  ```\n  a fence\n  ```\n"
RESULTS = {
    "test 2016": {"bleu": 30.12345678, "bleu_signature": SIGNATURE, "chrf": 50.0},
    "test/2017": {"bleu": 20.5, "bleu_signature": SIGNATURE, "bleu/flickr": 21.0, "bleu/coco a|b": 20.0},
}


def write(folder: Path, **changes) -> Path:
    arguments = {
        "title": "Multi30k: English to German",
        "recipe_text": RECIPE,
        "config": tiny_config(attention_type="general", input_feeding=True),
        "results": RESULTS,
        "command": "python -m training.train training/recipes/x.yaml",
        "minutes": 12.34,
        "machine": "one core of a machine",
        **changes,
    }
    return write_model_card(folder, **arguments)


def section(card: ModelCard, heading: str) -> str:
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", card.text, re.DOTALL | re.MULTILINE).group(1)


def rows(markdown: str) -> list[list[str]]:
    """The cells of all tables."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_metadata(tmp_path):
    card = ModelCard.load(
        write(
            tmp_path,
            languages=("en", "no"),
            license="apache-2.0",
            datasets=("owner/multi30k", "pairs of our own"),
            task="translation",
        )
    )
    data = card.data.to_dict()
    assert data["library_name"] == "transformers" and data["pipeline_tag"] == "translation"
    assert data["tags"] == ["attention_seq2seq", "general"]
    assert data["language"] == ["en", "no"] and data["license"] == "apache-2.0"
    assert data["datasets"] == ["owner/multi30k"] and data["metrics"] == ["bleu", "chrf"]
    assert "owner/multi30k, pairs of our own" in card.text


def test_the_model_index(tmp_path):
    card = ModelCard.load(write(tmp_path))
    assert card.data.model_name == "Multi30k: English to German"
    found = {(result.dataset_name, result.metric_type): result for result in card.data.eval_results}
    expected = {
        ("test 2016", "bleu"): (30.1235, SIGNATURE, "test-2016"),
        ("test 2016", "chrf"): (50.0, None, "test-2016"),
        ("test/2017", "bleu"): (20.5, SIGNATURE, "test-2017"),
    }
    assert expected == {
        key: (result.metric_value, result.metric_config, result.dataset_type) for key, result in found.items()
    }
    assert all(result.task_type == "translation" for result in card.data.eval_results)


def test_the_test_sets_of_one_data_set_stay_apart(tmp_path):
    results = ModelCard.load(write(tmp_path, datasets="owner/multi30k")).data.eval_results
    assert {(result.dataset_type, result.dataset_name, result.dataset_split) for result in results} == {
        ("owner/multi30k", "test 2016", "test 2016"),
        ("owner/multi30k", "test/2017", "test/2017"),
    }
    assert len(results) == 3


def test_the_tables_of_figures(tmp_path):
    text = section(ModelCard.load(write(tmp_path)), "Results")
    assert rows(text) == [
        ["test set", "bleu", "chrf"],
        ["test 2016", "30.12", "50.00"],
        ["test/2017", "20.50", ""],
        ["group", "bleu"],
        ["flickr", "21.00"],
        ["coco a|b", "20.00"],
    ]
    assert text.count(f"`{SIGNATURE}`") == 2


@pytest.mark.parametrize("changes", [{}, {"attention_type": "none"}, {"tie_word_embeddings": True, "readout_size": 6}])
def test_the_model(tmp_path, changes):
    model = tiny_model(**changes)
    card = ModelCard.load(write(tmp_path, config=model.config))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert f"{parameters:,} parameters" in card.text
    fields = dict(rows(section(card, "Model"))[1:])
    for name in ("attention_type", "rnn_type", "encoder_layers", "hidden_size", "vocab_size", *changes):
        assert fields[f"`{name}`"] == f"`{getattr(model.config, name)}`"
    assert "`attention_heads`" not in fields
    assert ("no attention" if changes.get("attention_type") == "none" else "additive attention") in card.text


def test_the_training(tmp_path):
    text = section(ModelCard.load(write(tmp_path, limitations="Never *seen* Latin.")), "Training")
    assert "12.3 minutes (one core of a machine)" in text
    assert "```bash\npython -m training.train training/recipes/x.yaml\n```" in text
    recipe = re.search(r"^(`{4,})yaml\n(.*?)^\1$", text, re.DOTALL | re.MULTILINE).group(2)
    assert recipe == RECIPE and yaml.safe_load(recipe)["model"] == {"attention_type": "general"}
    assert "Never *seen* Latin." in section(ModelCard.load(tmp_path / "README.md"), "Limitations")


def test_the_alignment_picture(tmp_path):
    for picture in (tmp_path / "an alignment.png", "an alignment.png"):
        card = ModelCard.load(write(tmp_path, alignment_pictures=[picture]))
        assert "![alignment](an%20alignment.png)" in section(card, "Alignment")
    for outside in (tmp_path.parent / "x.png", "../x.png"):
        with pytest.raises(ValueError, match="x.png' is not inside"):
            write(tmp_path, alignment_pictures=[outside])


def test_what_is_not_given_is_left_out(tmp_path):
    card = ModelCard.load(write(tmp_path, results={}))
    assert "model-index" not in card.data.to_dict() and "None" not in card.content
    assert re.findall("^## (.*)", card.text, re.MULTILINE) == ["Model", "Use", "Training"]


def test_the_same_card_for_the_same_arguments(tmp_path):
    first, second = (write(tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first == second and str(tmp_path).encode() not in first


def test_the_example_runs_as_printed(tmp_path):
    source, target = ['a "b" | c', "c a"], ["x 'y'", "z"]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(source, target, model="char")
    model = tiny_model(vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size)
    model.generation_config.max_new_tokens = 8
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    translate = pipeline("translation", model=str(tmp_path), pipeline_class=TranslationPipeline)
    output = translate(source[0])[0]["translation_text"]
    assert output
    card = ModelCard.load(write(tmp_path, config=model.config, examples=[(source[0], output, target[0]), ["c", "d"]]))
    assert rows(section(card, "Examples")) == [
        ["source", "output", "reference"],
        [source[0], output.strip(), target[0]],
        ["c", "d", ""],
    ]
    code = re.search(r"```python\n(.*?)```", section(card, "Use"), re.DOTALL).group(1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=120
    )
    assert run.returncode == 0, run.stderr[-3000:]
    printed = run.stdout.strip().splitlines()[-1]
    assert printed == str([{"translation_text": output}])
    assert code.rstrip().endswith(f"# {printed}")


def test_other_tasks_and_places(tmp_path):
    card = ModelCard.load(write(tmp_path, task="summarization", examples=[("a", "b")], model_id="owner/model"))
    assert card.data.pipeline_tag == "summarization" and card.data.eval_results[0].task_type == "summarization"
    code = section(card, "Use")
    assert 'pipeline("summarization", model="owner/model")' in code and "# [{'summary_text': 'b'}]" in code


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "transliteration"}, "'transliteration'; allowed: translation, summarization"),
        ({"results": {"test": {"bleu": float("nan")}}}, "test: bleu=nan is not possible"),
        ({"results": {"test": {"bleu": "30"}}}, "test: bleu='30' is not possible"),
        ({"examples": ["ab"]}, "'ab' is not possible"),
        ({"examples": [("a",)]}, r"\('a',\) is not possible"),
    ],
)
def test_mistakes(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path, **changes)
    assert not (tmp_path / "README.md").exists()


def test_the_machine():
    text = describe_machine()
    assert re.search(r"\(\d+ cores? used\).*, torch \d.*, transformers \d", text) and "\n" not in text
    assert os.uname().nodename not in text


def test_every_attention_can_be_described(tmp_path):
    for name in ("bahdanau-2014", "luong-2015-local-p", "chorowski-2015-location-aware", "chiu-2018-mocha"):
        config = AttentionSeq2SeqConfig.from_preset(name)
        assert f"`{config.attention_type}`" in section(ModelCard.load(write(tmp_path, config=config)), "Model")
