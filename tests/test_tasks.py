"""Summaries, dialogues and document classification from files to pipelines, and what these commands are made of."""

import json
import random

import pytest
import yaml
from transformers import pipeline

from hf_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration, AttentionSeq2SeqTokenizer, plot_document
from training import classification, summaries
from training.arguments import parse_recipe
from training.data import DataArguments, DataError, load_text_data, sentences_of
from training.train import main

RECIPES = sorted(summaries.RECIPE.parent.glob("*.yaml"))
PACKAGES = {"games": "puzzle", "net": "browser", "math": "solver"}


@pytest.fixture(scope="module")
def descriptions(tmp_path_factory):
    """Data in the form of Debian's; the second sentence of each document tells what it is."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "debian_synopsis").mkdir()
    choose = random.Random(0)
    for name, number in (("train", 96), ("valid", 12), ("test", 24)):
        rows = []
        for index in range(number):
            section = list(PACKAGES)[index % 3]
            title = f"{name}{index}"
            document = (
                f"The package {title} is {choose.choice(['small', 'new', 'old'])}. It is a {PACKAGES[section]}. Enjoy!"
            )
            rows.append({"document": document, "summary": f"a {PACKAGES[section]} {title}", "section": section})
        lines = (json.dumps(row) + "\n" for row in rows)
        (folder / "debian_synopsis" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_read(path):
    assert parse_recipe([str(path)]).given["data"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("One only", ["One only"]),
        ("It runs. It stops! Does it? Yes.", ["It runs.", "It stops!", "Does it?", "Yes."]),
        (
            'He said "stop." Then (he left.) 3 came... and went.',
            ['He said "stop."', "Then (he left.)", "3 came... and went."],
        ),
        ("version 2.0 of e.g. this", ["version 2.0 of e.g. this"]),
        ("Written:\nhere.\n * A list.", ["Written:\nhere.", "* A list."]),
    ],
)
def test_where_sentences_end(text, sentences):
    assert sentences_of(text) == sentences


def test_turns_and_sentences_are_joined_by_the_separator(tmp_path):
    rows = [{"turns": ["Hello.", " ", "Hi. Who is it?"], "response": "me"}, {"turns": "Alone.", "response": "yes"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"data_dir": str(tmp_path), "train_file": "train.jsonl", "validation_rows": 0}
    options |= {"source_column": "turns", "target_column": "response", "source_separator": "<sep>"}
    data = load_text_data(DataArguments(**options))
    assert data.train["source"][:] == ["Hello. <sep> Hi. Who is it?", "Alone."]
    assert data.tags == ["<sep>"]
    data = load_text_data(DataArguments(**options, split_sentences=True))
    assert data.train["source"][:] == ["Hello. <sep> Hi. <sep> Who is it?", "Alone."]


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (
            {"turns": ["a"], "response": "b"},
            {},
            "'turns' is no string but list; a source that is a list of texts needs",
        ),
        ({"turns": ["a"], "response": ["b"]}, {"source_separator": "<sep>"}, "'response' is no string but list$"),
        ({"turns": ["a", 1], "response": "b"}, {"source_separator": "<sep>"}, "'turns' is no string but list"),
        ({"turns": ["a <sep>"], "response": "b"}, {"source_separator": "<sep>"}, "has <sep> in it"),
        ({"turns": [" "], "response": "b"}, {"source_separator": "<sep>"}, "empty source"),
        ({"turns": "a", "response": "b"}, {"source_separator": "|"}, r"source_separator='\|' is not allowed"),
        ({"turns": "a", "response": "b"}, {"split_sentences": True}, "needs a source_separator"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path, row, options, message):
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    columns = {"source_column": "turns", "target_column": "response"}
    with pytest.raises(DataError, match=message):
        load_text_data(DataArguments(data_dir=str(tmp_path), train_file="train.jsonl", **columns, **options))


def test_punctuation_around_words_is_tokens_of_its_own():
    text = '(a real-time game). "It\'s 2.0," ... <sep> e.g. this!'
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator([text], model="text_word", special_tokens=["<sep>"])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    words = ["(", "a", "real-time", "game", ").", '"', "It's", "2.0", ',"', "...", "<sep>", "e.g", ".", "this", "!"]
    assert tokens == [*words, "</s>"]


def test_repeated_trigrams():
    assert summaries.repeated_trigrams(["a b c a b c", "A b c", "x"]) == 100 * 1 / 5  # abc bca cab abc, abc
    assert summaries.repeated_trigrams(["a b"]) == 0


def test_lead_baselines():
    figures = summaries.baselines(["A red fox runs. It stops."], [["a red fox stops"]], words=3)
    assert figures["lead: first sentence"]["rouge1"] == pytest.approx(100 * 3 / 4)
    assert figures["lead: first 3 words"]["rouge1"] == pytest.approx(100 * 2 * 3 / (3 + 4))
    assert figures["reference"]["rougeL"] == pytest.approx(100)


def test_table_of_summaries_and_pipelines_on_long_and_empty_documents(descriptions, tmp_path, capsys):
    words = ["--data_dir", str(descriptions), "--output_dir", str(tmp_path), "--max_steps", "2", "--rows"]
    summaries.main([*words, "pointer, coverage"])
    before = (tmp_path / "pointer_coverage/1/results.json").stat().st_mtime_ns
    rows = ["pointer, coverage", "hierarchical, pointer"]
    summaries.main([*words, *rows])
    assert (tmp_path / "pointer_coverage/1/results.json").stat().st_mtime_ns == before
    table = (tmp_path / "table.md").read_text()
    for row in (*rows, "lead: first sentence", "lead: first 3 words", "reference"):
        assert f"| {row} |" in table
    for name in ("pointer_coverage", "hierarchical_pointer"):
        folder = tmp_path / name / "1"
        assert "test" in json.loads((folder / "results.json").read_text())
        metadata = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
        assert metadata["pipeline_tag"] == "summarization"
        long = " <sep> ".join(["a puzzle that is called Zyx ."] * 60)
        for task, key in (("summarization", "summary_text"), ("text2text-generation", "generated_text")):
            pipe = pipeline(task, model=str(folder), device="cpu")
            outputs = pipe([long, "", "a puzzle"], max_new_tokens=5, batch_size=3)
            assert all(isinstance(output[key], str) for output in outputs)
            assert pipe("a puzzle", max_new_tokens=5)[0][key] == outputs[2][key]
    model = AttentionSeq2SeqForConditionalGeneration.from_pretrained(folder)
    tokenizer = AttentionSeq2SeqTokenizer.from_pretrained(folder)
    assert model.config.sentence_separator_token_id == tokenizer.convert_tokens_to_ids("<sep>") >= 4
    with pytest.raises(SystemExit):
        summaries.main(["--rows", "bag of words"])


def test_a_hierarchical_recipe_needs_a_separator():
    with pytest.raises(ValueError, match="needs a source_separator, in the section data"):
        parse_recipe([str(summaries.RECIPE), "--encoder_type", "hierarchical"])


def test_dialogues_are_answered(tmp_path):
    recipe = str(summaries.RECIPE.parent / "dialogue.yaml")
    options = ["--data_dir", str(summaries.RECIPE.parent), "--output_dir", str(tmp_path / "run")]
    main([recipe, *options, "--disable_tqdm", "true"])
    answer = pipeline("text2text-generation", model=str(tmp_path / "run"), device="cpu")
    turns = ["anna lives in oslo and drinks tea .", "where does anna live ?", "in oslo .", "and what does she drink ?"]
    assert answer(" <sep> ".join(turns))[0]["generated_text"].strip() == "tea ."
    assert answer(" <sep> ".join(turns[:2]))[0]["generated_text"].strip() == "in oslo ."


def test_accuracy_and_macro_f1():
    gold, guesses = list("aaabbc"), list("aabbcd")
    figures = classification.accuracy_and_f1(guesses, gold)
    assert figures["accuracy"] == pytest.approx(100 * 3 / 6)
    assert figures["macro_f1"] == pytest.approx(100 * (2 * 2 / 5 + 2 * 1 / 4 + 0) / 3)  # a, b, c; d is in no text
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    assert figures["macro_f1"] == pytest.approx(
        100 * metrics.f1_score(gold, guesses, labels=list("abc"), average="macro")
    )


def test_classification_finds_the_sentence_that_tells(descriptions, tmp_path):
    words = ["--data_dir", str(descriptions), "--output_dir", str(tmp_path), "--max_steps", "60"]
    words += ["--embedding_size", "16", "--encoder_hidden_size", "16", "--learning_rate", "0.01", "--dropout", "0"]
    classification.main([*words, "--baseline", "false"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["hierarchical attention"]["accuracy"] > 95
    assert "| hierarchical attention |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "document.png").stat().st_size > 1000
    text = "The package x is old. <sep> It is a solver. <sep> Enjoy!"
    assert pipeline("text-classification", model=str(tmp_path), device="cpu")(text)[0]["label"] == "math"
    model = classification.AttentionSeq2SeqForSequenceClassification.from_pretrained(tmp_path)
    tokenizer = AttentionSeq2SeqTokenizer.from_pretrained(tmp_path)
    name, sentences, word_weights, sentence_weights = classification.read_document(model, tokenizer, text)
    assert name == "math" and sentences[1] == ["It", "is", "a", "solver", "."]
    for weights in (*word_weights, sentence_weights):
        assert sum(weights) == pytest.approx(1, abs=1e-5)
    assert max(range(5), key=word_weights[1].__getitem__) == 3


def test_classification_beside_a_bag_of_words(descriptions):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    data = classification.ClassificationArguments(data_dir=str(descriptions)).load()
    assert classification.bag_of_words(data)["accuracy"] == 100


def test_picture_of_a_document(tmp_path):
    sentences, words = [["a", "b"], ["c"]], [[0.25, 0.75], [1.0]]
    figure = plot_document(sentences, words, [0.64, 0.36], tmp_path / "document.png", title="x$y")
    assert [text.get_text() for text in figure.axes[0].texts] == ["a", "b", "c"]
    strengths = [patch.get_facecolor()[-1] for patch in figure.axes[0].patches]
    assert strengths == pytest.approx([0.64, 0.25 * 0.8, 0.75 * 0.8, 0.36, 1 * 0.6])
    assert (tmp_path / "document.png").exists()


@pytest.mark.parametrize(
    ("sentences", "words", "weights"), [([["a"]], [[0.5, 0.5]], [1.0]), ([["a"]], [[1.0]], []), ([[]], [[]], [1.0])]
)
def test_pictures_that_are_not_possible(sentences, words, weights):
    with pytest.raises(ValueError, match="there must be words, and a weight for each"):
        plot_document(sentences, words, weights)
