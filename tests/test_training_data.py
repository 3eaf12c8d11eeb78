"""Raw files and Hub data sets become sets of text pairs; what is broken is named or left out, never guessed at."""

import gzip
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import pytest
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from transformers import HfArgumentParser

from training import data as training_data
from training.data import DataArguments, DataError, load_text_data

DATA = os.environ.get("ATTENTION_SEQ2SEQ_DATA", "")
needs_data = pytest.mark.skipif(not DATA, reason="ATTENTION_SEQ2SEQ_DATA does not name the folder of the data sets")


@pytest.fixture
def load(tmp_path):
    """Writes files (text or bytes, by name) and loads what the options say."""

    def load(files: dict[str, str | bytes], **options):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = content.encode() if isinstance(content, str) else content
            path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return load_text_data(DataArguments(data_dir=str(tmp_path), **{"validation_rows": 0, **options}))

    return load


def pairs(rows) -> list[tuple[str, str]]:
    return [(row["source"], row["target"]) for row in rows]


# Formats

# No character but \n ends a line, and a quotation mark in a TSV file is itself.
EXPECTED = [('say "no"', "sag, nein"), ("crème\u2028brûlée", "x\x85y\x0bz"), ("3", "drei")]
TSV = 'say "no"\tsag, nein\ncrème\u2028brûlée\tx\x85y\x0bz\n 3 \tdrei'
CSV = '"say ""no""","sag, nein"\ncrème\u2028brûlée,x\x85y\x0bz\n3,drei \n'
JSON = "\n".join(json.dumps({"en": source, "de": target}, ensure_ascii=False) for source, target in EXPECTED)
NAMED = {"source_column": "en", "target_column": "de"}


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("newline, bom", [("\n", ""), ("\r\n", "\ufeff")], ids=["unix", "windows"])
@pytest.mark.parametrize(
    "name, content, options",
    [
        ("a.tsv", TSV, {}),
        ("a.tsv", "en\tde\n" + TSV, NAMED),
        ("a.csv", CSV, {}),
        ("a.csv", "en,de\n" + CSV, NAMED),
        ("a.jsonl", JSON, NAMED),
        ("a.json", JSON, NAMED),
    ],
)
def test_each_format_gives_the_same_rows(load, name, content, options, newline, bom, ending):
    text = bom + content.replace("\n", newline)
    found = load({name + ending: text}, train_file=[name + ending], **options).train
    assert pairs(found) == EXPECTED
    assert found.column_names == ["source", "target", "group"]
    assert set(found["group"]) == {""}


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_parallel_text(load, ending):
    files = {"t.en" + ending: "\ufeff a\tb \r\n\ufeffc\u2028d\r\n", "t.de" + ending: "1\n2"}
    found = load(files, train_file="t.en" + ending, train_target_file="t.de" + ending).train
    assert pairs(found) == [("a\tb", "1"), ("\ufeffc\u2028d", "2")]  # a byte order mark is one at the beginning only


def test_columns_by_number_and_by_name_in_wider_tables(load):
    files = {"a.tsv": "x\ty\tz\n1\t2\t3\n", "b.jsonl": '{"n": 1, "t": {"de": "ja", "en": "yes"}, "a.b": "q"}\n'}
    assert pairs(load(files, train_file="a.tsv", source_column=2, target_column=0).train) == [("z", "x"), ("3", "1")]
    assert pairs(load(files, train_file="a.tsv", source_column="z", target_column="x").train) == [("3", "1")]
    assert pairs(load(files, train_file="b.jsonl", source_column="t.en", target_column="a.b").train) == [("yes", "q")]


def test_csv_text_of_several_lines_keeps_line_numbers_right(load):
    content = '"two\nlines",b\n,empty\n'
    assert pairs(load({"a.csv": content}, train_file="a.csv", bad_rows="skip").train) == [("two\nlines", "b")]
    with pytest.raises(DataError, match=r"a\.csv:3: empty source"):
        load({"a.csv": content}, train_file="a.csv")


# Broken rows

LONG = "x" * 100_001
BROKEN = {
    "column": ("a.tsv", "only one", "no column '1', the row has 1"),
    "blank line": ("a.tsv", "", "no column '1', the row has 1"),
    "empty source": ("a.tsv", " \tb", "empty source"),
    "empty target": ("a.tsv", "a\t\u3000", "empty target"),
    "utf-8": ("a.tsv", b"a\xff\tb", "invalid UTF-8"),
    "utf-8 elsewhere": ("a.tsv", b"a\tb\t\xc3", "invalid UTF-8"),
    "nul": ("a.tsv", "a\0\tb", "a NUL byte"),
    "long": ("a.tsv", f"a\t{LONG}", "longer than 100,000 characters"),
    "very long": ("a.tsv", f"a\t{'ü' * 1_000_000}", "longer than 100,000 characters"),
    "csv column": ("a.csv", "only one", "no column '1', the row has 1"),
    "csv blank line": ("a.csv", "", "no column '0', the row has 0"),
    "csv empty": ("a.csv", '"",b', "empty source"),
    "csv utf-8": ("a.csv", b"a,b\xff", "invalid UTF-8"),
    "csv nul": ("a.csv", "a,b\0", "a NUL byte"),
    "csv quotes": ("a.csv", '"a"b,c', "invalid CSV"),
    "csv long": ("a.csv", f"a,{LONG}", "longer than 100,000 characters"),
    "csv very long": ("a.csv", f"a,{LONG * 10}", "invalid CSV (field larger"),
    "json": ("a.jsonl", '{"0": "a", "1": "b"', "invalid JSON"),
    "json blank line": ("a.jsonl", "", "invalid JSON"),
    "json depth": ("a.jsonl", "[" * 50_000, "invalid JSON"),
    "json list": ("a.jsonl", '["a", "b"]', "no '0': there are no names"),
    "json column": ("a.jsonl", '{"0": "a", "x": "b"}', "no '1': there are 0, x"),
    "json number": ("a.jsonl", '{"0": "a", "1": 7}', "'1' is no string but int"),
    "json null": ("a.jsonl", '{"0": null, "1": "b"}', "'0' is no string but NoneType"),
    "json empty": ("a.jsonl", '{"0": "a", "1": " "}', "empty target"),
    "json utf-8": ("a.jsonl", b'{"0": "a\xff", "1": "b"}', "invalid UTF-8"),
    "json surrogate": ("a.jsonl", r'{"0": "a\ud800", "1": "b"}', "invalid UTF-8"),
    "json nul": ("a.jsonl", r'{"0": "a\u0000", "1": "b"}', "a NUL byte"),
    "json long": ("a.jsonl", json.dumps({"0": "a", "1": LONG}), "longer than 100,000 characters"),
}
GOOD = {"a.tsv": ("good\tgut", "bye\ttschüss"), "a.csv": ("good,gut", "bye,tschüss")}
GOOD["a.jsonl"] = ('{"0": "good", "1": "gut"}', '{"0": "bye", "1": "tschüss"}')
GOOD_ROWS = [("good", "gut"), ("bye", "tschüss")]


@pytest.mark.parametrize("split", ["train", "validation", "test", "stream"])
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_rows_are_named_or_left_out(load, caplog, kind, split):
    name, line, reason = BROKEN[kind]
    first, last = (row.encode() for row in GOOD[name])
    content = b"\n".join([first, line.encode() if isinstance(line, str) else line, last, b""])
    options = {"train_file" if split == "stream" else f"{split}_file": [name], "streaming": split == "stream"}
    with pytest.raises(DataError) as stopped:
        list(load({name: content}, **options).train)
    assert str(stopped.value).startswith('broken rows: 1 (bad_rows="skip" leaves them out)\n')
    assert f"{name}:2: {reason}" in str(stopped.value)

    caplog.set_level(logging.INFO, logger="training.data")
    found = load({name: content}, bad_rows="skip", **options)
    rows = {"train": found.train, "validation": found.validation, "test": found.tests.get("a"), "stream": found.train}
    texts = [(row["source"], row["target"] if "target" in row else row["references"][0]) for row in rows[split]]
    assert texts == GOOD_ROWS
    sentences = [record.getMessage() for record in caplog.records] if split == "stream" else found.report
    title = {"validation": "validation data", "test": "a"}.get(split, "training data")
    start = f"{title}: 1 of 3 rows skipped as broken: {name}:2: {reason}"
    assert any(sentence.startswith(start) for sentence in sentences)


@pytest.mark.parametrize("side", [0, 1])
def test_broken_line_of_parallel_text_is_named_in_its_own_file(load, side):
    lines = [b"a\nb\nc\n", b"1\n2\n3\n"]
    lines[side] = lines[side][:2] + b"\xff\n" + lines[side][4:]
    files = {"t.en": lines[0], "t.de": lines[1]}
    options = {"train_file": "t.en", "train_target_file": "t.de"}
    with pytest.raises(DataError, match=rf"t\.{('en', 'de')[side]}:2: invalid UTF-8"):
        load(files, **options)
    assert pairs(load(files, bad_rows="skip", **options).train) == [("a", "1"), ("c", "3")]


@pytest.mark.parametrize("bad_rows", ["stop", "skip"])
def test_parallel_files_of_different_lengths_always_stop(load, bad_rows):
    options = {"train_file": "t.en", "train_target_file": "t.de", "bad_rows": bad_rows}
    with pytest.raises(DataError, match=r"t\.en has 2 lines, but t\.de has 5"):
        load({"t.en": "a\nb\n", "t.de": "1\n2\n3\n4\n5\n"}, **options)
    with pytest.raises(DataError, match=r"t\.en has 3 lines, but t\.de has 2"):
        load({"t.en": "a\nb\n\n", "t.de": "1\n2\n"}, **options)


def test_message_has_the_first_ten_and_the_total_of_all_sets(load):
    files = {"a.tsv": "broken\n" * 1200 + "a\tb\n", "b.tsv": "\tb\n"}
    with pytest.raises(DataError) as stopped:
        load(files, train_file="a.tsv", test_file="b.tsv")
    lines = str(stopped.value).splitlines()
    assert lines[0].startswith("broken rows: 1,201 (")
    assert [line.split(": ")[0].strip() for line in lines[1:11]] == [f"a.tsv:{number}" for number in range(1, 11)]
    assert lines[11:] == ["  and 1,191 more"]
    report = load(files, train_file="a.tsv", test_file="a.tsv", bad_rows="skip").report
    assert "training data: 1,200 of 1,201 rows skipped as broken: a.tsv:1: no column '1', the row has 1; " in report[1]
    assert "a.tsv:3: " in report[1] and "a.tsv:4: " not in report[1] and report[1].endswith("; ...")


def test_set_without_rows(load):
    with pytest.raises(DataError, match="no rows are left\ntraining data: 0 rows read"):
        load({"a.tsv": ""}, train_file="a.tsv")
    with pytest.raises(DataError, match=r"no rows are left(.|\n)*a\.jsonl:1: no 'text': there are x"):
        load({"a.jsonl": '{"x": "y"}\n'}, train_file="a.jsonl", source_column="text", bad_rows="skip")


def test_damaged_gzip_file(load, tmp_path):
    whole = gzip.compress(os.urandom(3000))
    for content in (whole[:1000], b"a\tb\n"):
        (tmp_path / "a.tsv.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.tsv\.gz cannot be read: "):
            load({}, train_file="a.tsv.gz", bad_rows="skip")


# What goes into the texts


def test_languages_prefixes_and_tags(load):
    files = {
        "de/train.tsv": "gehen\tging\tV; PST\nHaus\tHaus\t\n",
        "fi/train.tsv": "mennä\tmenin\tV;PST;1\n",
        "de_test-2.tsv": "sehen\tsah\tV;PST\n",
        "fi_test-2.tsv": "olla\tolin\tNEW;PST\n",
    }
    found = load(
        files,
        train_file="{language}/train.tsv",
        test_file=["{language}_test-2.tsv", "{language}/train.tsv"],
        languages=["de", "fi"],
        tags_column="2",
        source_prefix="<{language}>",
        target_prefix="{{language}} <p>",
    )
    assert list(found.train) == [
        {"source": "<de><V><PST>gehen", "target": "{de} <p>ging", "group": "de"},
        {"source": "<de>Haus", "target": "{de} <p>Haus", "group": "de"},
        {"source": "<fi><V><PST><1>mennä", "target": "{fi} <p>menin", "group": "fi"},
    ]
    assert list(found.tests) == ["test-2", "train"]
    assert list(found.tests["test-2"]) == [
        {"source": "<de><V><PST>sehen", "references": ["{de} <p>sah"], "group": "de"},
        {"source": "<fi><NEW><PST>olla", "references": ["{fi} <p>olin"], "group": "fi"},
    ]
    assert found.tags == ["<1>", "<PST>", "<V>", "<de>", "<fi>", "<p>"]  # <NEW> is in no training text


def test_tags_separator(load):
    found = load({"a.tsv": "N+PL\ta\tb\n"}, train_file="a.tsv", source_column=1, target_column=2, tags_column=0)
    assert found.tags == ["<N+PL>"]
    columns = {"source_column": 1, "target_column": 2, "tags_column": 0}
    assert load({}, train_file="a.tsv", tags_separator="+", **columns).train[0]["source"] == "<N><PL>a"


@pytest.mark.parametrize(
    "name, title",
    [
        ("test.tsv", "test"),
        ("x/test_2016_flickr.tsv.gz", "test_2016_flickr"),
        ("{language}_test.tsv", "test"),
        ("test.{language}.tsv", "test"),
        ("{language}.tsv", "test"),
        ("new-{language}-hard.csv", "new_hard"),
        ("{language}/dev.jsonl", "dev"),
    ],
)
def test_names_of_test_sets(load, name, title):
    languages = ["xx"] if "{" in name else []
    line = '{"0": "a", "1": "b"}' if "json" in name else "a,b" if "csv" in name else "a\tb"
    assert list(load({name.replace("{language}", "xx"): line}, test_file=name, languages=languages).tests) == [title]


def test_filters_are_for_training_rows_and_are_counted(load):
    rows = [("a", "b"), ("aa", "bbb"), ("aaaa", "bbbb"), ("aa", "b"), ("aaa", "bbbb"), ("aaa", "b"), ("aaa", "bbb")]
    content = "\n".join(map("\t".join, rows))
    filters = {
        "min_source_characters": 2,
        "max_source_characters": 3,
        "min_target_characters": 2,
        "max_target_characters": 3,
    }
    found = load({"a.tsv": content}, train_file="a.tsv", test_file="a.tsv", source_prefix="long prefix ", **filters)
    assert pairs(found.train) == [("long prefix aa", "bbb"), ("long prefix aaa", "bbb")]
    assert len(found.tests["a"]) == 7
    assert sorted(found.report[1:5]) == [
        "training data: 1 of 7 rows dropped: source longer than 3 characters",
        "training data: 1 of 7 rows dropped: source shorter than 2 characters",
        "training data: 1 of 7 rows dropped: target longer than 3 characters",
        "training data: 2 of 7 rows dropped: target shorter than 2 characters",
    ]
    found = load({}, train_file="a.tsv", max_length_ratio=1.5)  # keeps 2:3 and 3:4, not 2:1 and 3:1
    assert pairs(found.train) == [row for row in rows if row not in (("aa", "b"), ("aaa", "b"))]
    assert "training data: 2 of 7 rows dropped: one side more than 1.5 times as long as the other" in found.report


def test_merge_references(load):
    files = {"x_a.tsv": "w\t1\nv\t1\nw\t2\nw\t1\n", "y_a.tsv": "w\t3\n"}
    options = {"test_file": "{language}_a.tsv", "languages": ["x", "y"]}
    merged = load(files, merge_references=True, **options).tests["a"]
    assert list(merged) == [
        {"source": "w", "references": ["1", "2"], "group": "x"},
        {"source": "v", "references": ["1"], "group": "x"},
        {"source": "w", "references": ["3"], "group": "y"},
    ]
    assert [row["references"] for row in load(files, **options).tests["a"]] == [["1"], ["1"], ["2"], ["1"], ["3"]]


# Held-out rows, fewer rows

SIZES = [("x", 5), ("y", 1), ("z", 4)]


def held_out(load, lines: list[str], **options):
    found = load({"a.tsv": "".join(line + "\n" for line in lines)}, train_file="a.tsv", **options)
    return pairs(found.train), found.validation and [
        (row["source"], target) for row in found.validation for target in row["references"]
    ]


def test_held_out_rows_never_share_a_source_with_training_rows(load):
    lines = [f"s{number % 40}\t{number}" for number in range(100)]  # 20 sources with 3 rows, 20 with 2
    train, validation = held_out(load, lines, validation_rows=25)
    assert len(train) == 75 and len(validation) == 25
    assert sorted(train + validation) == sorted(tuple(line.split("\t")) for line in lines)
    assert not {source for source, _ in train} & {source for source, _ in validation}
    again = held_out(load, lines, validation_rows=25)
    assert again == (train, validation)
    backwards = held_out(load, lines[::-1], validation_rows=25)
    assert set(backwards[1]) == set(validation)
    assert [row for row in (tuple(line.split("\t")) for line in lines) if row in train] == train  # order is kept
    merged = load({}, train_file="a.tsv", validation_rows=25, merge_references=True).validation
    assert Counter(map(len, merged["references"])).keys() <= {2, 3}
    assert sum(map(len, merged["references"])) == 25


@pytest.mark.parametrize("rows, held", [(10, None), (100, 5), (30_000, 1000)])
def test_default_number_of_held_out_rows(load, rows, held):
    train, validation = held_out(load, [f"s{number}\tt" for number in range(rows)], validation_rows=None)
    assert len(train) == rows - (held or 0)
    assert (validation and len(validation)) == held


def test_held_out_rows_are_chosen_all_over_the_file(load):
    _, validation = held_out(load, [f"s{number}\t{number}" for number in range(1000)], validation_rows=200)
    quarters = Counter(int(target) // 250 for _, target in validation)
    assert min(quarters[quarter] for quarter in range(4)) > 30  # 50 expected, standard deviation 5.5


def test_no_held_out_rows_where_there_are_validation_data(load):
    files = {"a.tsv": "a\tb\n" * 100, "v.tsv": "a\tc\n"}
    found = load(files, train_file="a.tsv", validation_file="v.tsv", validation_rows=None)
    assert len(found.train) == 100 and found.validation["references"][:] == [["c"]]


def test_fewer_rows_come_from_every_language(load):
    files = {f"{language}.tsv": "".join(f"{language}{row}\tt\n" for row in range(rows)) for language, rows in SIZES}
    options = {f"{split}_file": "{language}.tsv" for split in ("train", "validation", "test")}
    limits = {"max_train_rows": 7, "max_validation_rows": 3, "max_test_rows": 1000}
    found = load(files, languages=[language for language, _ in SIZES], **options, **limits)
    assert found.train["source"][:] == ["x0", "x1", "x2", "y0", "z0", "z1", "z2"]
    assert found.validation["source"][:] == ["x0", "y0", "z0"]
    assert len(found.tests["test"]) == 10
    assert "training data: 7 rows in use" in found.report


# Streams


def test_stream_of_files(load, caplog):
    caplog.set_level(logging.INFO, logger="training.data")
    files = {"a.tsv": "a\tb\nbroken\nlonglong\tx\n", "b.tsv": "c\td\n", "v.tsv": "e\tf\n"}
    options = {"train_file": ["a.tsv", "b.tsv"], "validation_file": "v.tsv", "streaming": True, "bad_rows": "skip"}
    found = load(files, max_source_characters=4, **options)
    assert isinstance(found.train, IterableDataset) and isinstance(found.validation, Dataset)
    assert not caplog.records  # nothing is read yet
    for _ in range(2):  # each epoch
        assert pairs(found.train) == [("a", "b"), ("c", "d")]
        logged = [record.getMessage() for record in caplog.records]
        assert "training data: 1 of 3 rows dropped: source longer than 4 characters" in logged
        assert any(line.startswith("training data: 1 of 3 rows skipped as broken: a.tsv:2: ") for line in logged)
        caplog.clear()
    assert sorted(pairs(found.train.shuffle(seed=0, buffer_size=10))) == [("a", "b"), ("c", "d")]
    assert found.train.column_names == ["source", "target", "group"]
    assert pairs(load({}, max_train_rows=1, **options).train) == [("a", "b")]


def test_stream_stops_at_the_first_broken_row(load):
    stream = iter(load({"a.tsv": "a\tb\nbroken\nc\td\nbroken\n"}, train_file="a.tsv", streaming=True).train)
    assert next(stream)["source"] == "a"
    with pytest.raises(DataError, match=r"a\.tsv:2: no column '1'"):
        next(stream)
    with pytest.raises(DataError, match=r"a\.tsv:2: "):
        list(load({"a.tsv": "a\tb\nbroken\n"}, train_file="a.tsv", streaming=True).train)


def test_tags_of_a_stream_are_known_before_training(load):
    columns = {"tags_column": "2", "streaming": True, "train_file": "a.tsv"}
    found = load({"a.tsv": "a\tb\tV;PST\nc\td\tN\n"}, **columns)
    assert found.tags == ["<N>", "<PST>", "<V>"]
    assert pairs(found.train) == [("<V><PST>a", "b"), ("<N>c", "d")]


# The Hub

TRANSLATIONS = [{"translation": {"de": f"de{row}", "en": f"en{row}"}, "id": row} for row in range(5)]
COLUMNS = {"source_column": "translation.de", "target_column": "translation.en"}


@pytest.fixture
def hub(monkeypatch):
    """Puts data sets in the place of the Hub's: a dictionary of rows by split."""

    def put(splits: dict[str, list[dict]]):
        def load_dataset(name, config, streaming):
            assert (name, config) == ("somebody/something", "de-en")
            sets = {split: Dataset.from_list(rows) for split, rows in splits.items()}
            streams = {split: rows.to_iterable_dataset() for split, rows in sets.items()}
            return IterableDatasetDict(streams) if streaming else DatasetDict(sets)

        monkeypatch.setattr(training_data, "load_dataset", load_dataset)

    return put


@pytest.mark.parametrize("streaming", [False, True])
def test_splits_of_a_hub_data_set(hub, streaming):
    hub({"train": TRANSLATIONS, "validation": TRANSLATIONS[:2], "test": TRANSLATIONS[2:3], "test_b": TRANSLATIONS[4:]})
    found = load_text_data(
        DataArguments(
            dataset_name="somebody/something",
            dataset_config_name="de-en",
            streaming=streaming,
            target_prefix=">",
            **COLUMNS,
        )
    )
    assert isinstance(found.train, IterableDataset if streaming else Dataset)
    assert list(found.train) == [{"source": f"de{row}", "target": f">en{row}", "group": ""} for row in range(5)]
    assert found.validation["references"][:] == [[">en0"], [">en1"]]
    assert {name: rows["source"][:] for name, rows in found.tests.items()} == {"test": ["de2"], "test_b": ["de4"]}


def test_broken_rows_and_columns_of_a_hub_data_set(hub):
    options = {"dataset_name": "somebody/something", "dataset_config_name": "de-en", "validation_rows": 0}
    rows = [*TRANSLATIONS, {"translation": {"de": None, "en": "x"}, "id": 7}]
    hub({"train": rows})
    with pytest.raises(DataError, match="something/train:6: 'translation.de' is no string but NoneType"):
        load_text_data(DataArguments(**options, **COLUMNS))
    assert len(load_text_data(DataArguments(**options, **COLUMNS, bad_rows="skip")).train) == 5
    with pytest.raises(DataError, match="has no column '1'; there are translation, id"):
        load_text_data(DataArguments(**options, source_column="id"))
    hub({"training": rows, "dev": rows})
    with pytest.raises(DataError, match=r"no split train, validation or test\*; there are training, dev"):
        load_text_data(DataArguments(**options, **COLUMNS))


@pytest.mark.parametrize("streaming", [False, True])
def test_folder_through_load_dataset(tmp_path, monkeypatch, streaming):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "folder"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.jsonl").write_text(json.dumps({"a": f"{split} a", "b": {"c": "d"}}) + "\n")
    columns = {"source_column": "a", "target_column": "b.c"}
    found = load_text_data(DataArguments(dataset_name=str(folder), streaming=streaming, **columns))
    assert pairs(found.train) == [("train a", "d")]
    assert found.validation["source"][:] == ["validation a"]
    assert found.tests["test"]["source"][:] == ["test a"]


# Options


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "but there is neither"),
        ({"dataset_name": "x/y", "train_file": "a.tsv"}, "there are dataset_name='x/y' and a.tsv"),
        ({"dataset_config_name": "x", "train_file": "a.tsv"}, "dataset_config_name='x' needs dataset_name"),
        ({"dataset_name": "x/y", "languages": ["de"]}, "languages are for file names"),
        (
            {"train_file": ["a.en", "b.en"], "train_target_file": "a.de"},
            "train_file has 2 files and train_target_file 1",
        ),
        ({"test_target_file": "a.de"}, "test_file has 0 files and test_target_file 1"),
        ({"train_file": "a.en", "train_target_file": "a.de", "tags_column": "2"}, "train_file is parallel text"),
        ({"train_file": "{language}.tsv"}, "train_file {language}.tsv"),
        ({"train_file": "a.tsv", "languages": ["de"]}, "languages=['de'] need each other"),
        ({"train_file": "{language}.tsv", "languages": ["de", "de"]}, "has one twice"),
        ({"train_file": "a.tsv", "source_prefix": "<{language}>"}, "source_prefix='<{language}>' needs languages"),
        ({"train_file": "a.tsv", "bad_rows": "ignore"}, "bad_rows='ignore' is not allowed"),
        ({"train_file": "a.tsv", "tags_separator": ""}, "tags_separator must not be empty"),
        ({"train_file": "a.tsv", "max_train_rows": 0}, "max_train_rows=0 is not allowed; it is a number from 1 on"),
        ({"train_file": "a.tsv", "max_test_rows": "7"}, "max_test_rows='7' is not allowed"),
        (
            {"train_file": "a.tsv", "validation_rows": -1},
            "validation_rows=-1 is not allowed; it is a number from 0 on",
        ),
        ({"train_file": "a.tsv", "max_length_ratio": 0.5}, "max_length_ratio=0.5 is not allowed"),
        ({"train_file": "a.tsv", "max_length_ratio": float("nan")}, "max_length_ratio=nan is not allowed"),
        (
            {"train_file": "a.tsv", "validation_file": "a.tsv", "validation_rows": 5},
            "validation_rows=5 is for training",
        ),
        ({"train_file": "a.tsv", "streaming": True, "validation_rows": 5}, "validation_rows=5 is for training"),
        ({"test_file": "a.tsv", "validation_rows": 5}, "validation_rows=5 is for training"),
        ({"train_file": "a.tsv", "validation_rows": 2}, "validation_rows=2 leaves none of 2 training rows"),
        ({"train_file": "a.txt"}, "parallel text needs train_target_file"),
        ({"train_file": "a.pdf"}, "must end in .tsv, .csv, .jsonl, .json"),
        ({"test_file": ["a.tsv", "x/a.tsv"]}, "two test files would be called 'a': the second is x/a.tsv"),
        (
            {"train_file": "h.tsv", "source_column": "word", "target_column": "x"},
            "h.tsv has no column 'word'; there are x, y",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(load, options, message):
    files = {"a.tsv": "a\tb\nc\td\n", "h.tsv": "x\ty\na\tb\n"}
    with pytest.raises(DataError) as refused:
        load(files, **options)
    assert message in str(refused.value)


def test_missing_files_are_named_in_full(load, tmp_path):
    with pytest.raises(DataError) as refused:
        load({"a.tsv": "a\tb\n"}, train_file="a.tsv", validation_file="x/b.tsv", test_file="/nowhere/c.tsv")
    message = str(refused.value)
    assert str(tmp_path / "x" / "b.tsv") in message and "\n  /nowhere/c.tsv\n" in message
    assert "a.tsv" not in message and "data_dir" in message and "ATTENTION_SEQ2SEQ_DATA" in message


def test_command_line_and_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ATTENTION_SEQ2SEQ_DATA", "/somewhere")
    line = "--train_file a.tsv b.tsv --languages de fi --bad_rows skip --max_length_ratio 1.5 --max_train_rows 7"
    (found,) = HfArgumentParser(DataArguments).parse_args_into_dataclasses(
        [*line.split(), "--source_column", "2", "--streaming", "--merge_references", "false"], look_for_args_file=False
    )
    assert (found.train_file, found.languages, found.source_column) == (["a.tsv", "b.tsv"], ["de", "fi"], "2")
    assert (found.bad_rows, found.max_length_ratio, found.max_train_rows) == ("skip", 1.5, 7)
    assert (found.streaming, found.merge_references, found.data_dir) == (True, False, "/somewhere")
    assert (found.test_file, found.tags_column, found.validation_rows) == ([], None, None)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("train_file: a.tsv\nsource_column: 2\ntest_file: [x.tsv, y.tsv]\nlanguages:\n")
    (found,) = HfArgumentParser(DataArguments).parse_yaml_file(str(recipe))
    assert (found.train_file, found.source_column, found.languages) == (["a.tsv"], "2", [])
    assert found.test_file == ["x.tsv", "y.tsv"]
    with pytest.raises(SystemExit):
        HfArgumentParser(DataArguments).parse_args(["--help"])
    assert all(option.metadata["help"] for option in DataArguments.__dataclass_fields__.values())
    assert "--max_length_ratio" in capsys.readouterr().out


def test_reading_data_does_not_import_torch():
    source = Path(training_data.__file__).read_text(encoding="utf-8")
    assert "import torch" not in source and "from torch" not in source and "transformers" not in source
    command = "import sys; sys.modules['torch'] = None; import training.data"
    environment = {**os.environ, "USE_TORCH": "0"}
    subprocess.run([sys.executable, "-c", command], check=True, cwd=Path(__file__).parent.parent, env=environment)


# Real data


@needs_data
def test_grapheme_to_phoneme_in_fifteen_languages():
    languages = "ady arm bul dut fre geo gre hin hun ice jpn kor lit rum vie".split()
    files = {split: f"sigmorphon2020_g2p/{{language}}_{split}.tsv" for split in ("train", "dev", "test")}
    found = load_text_data(
        DataArguments(
            train_file=files["train"],
            validation_file=files["dev"],
            test_file=files["test"],
            languages=languages,
            source_prefix="<{language}>",
        )
    )
    assert Counter(found.train["group"]) == dict.fromkeys(languages, 3600)
    assert Counter(found.validation["group"]) == dict.fromkeys(languages, 450)
    assert Counter(found.tests["test"]["group"]) == dict.fromkeys(languages, 450)
    assert found.tags == [f"<{language}>" for language in languages]
    first = (
        (Path(DATA) / "sigmorphon2020_g2p" / "ady_train.tsv").read_text(encoding="utf-8").split("\n")[0].split("\t")
    )
    assert found.train[0] == {"source": "<ady>" + first[0], "target": first[1], "group": "ady"}


@needs_data
def test_several_pronunciations_of_cmudict():
    path = Path(DATA) / "cmudict_cntk" / "test.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line]
    assert len(rows) == 12_855
    found = load_text_data(DataArguments(test_file="cmudict_cntk/test.tsv", merge_references=True)).tests["test"]
    assert len(found) == 11_994
    expected: dict[str, set[str]] = {}
    for word, phones, *_ in rows:
        expected.setdefault(word, set()).add(phones)
    assert {row["source"]: set(row["references"]) for row in found} == expected
