"""
From raw data to `datasets.Dataset`s of text pairs. The three usual ways to give data, as lines of a recipe:

    train_file: multi30k/train.tsv                   # two columns of a table; also .csv, .jsonl, each also with .gz
    validation_file: multi30k/val.tsv
    test_file: [multi30k/test_2016_flickr.tsv, multi30k/test_2017_flickr.tsv]

    train_file: "{language}/train.words"             # parallel text: line i of one file belongs to line i of the other
    train_target_file: "{language}/train.phones"
    languages: [ady, arm]

    dataset_name: wmt/wmt16                          # a data set of the Hub with its own splits
    dataset_config_name: de-en
    source_column: translation.de
    target_column: translation.en

Sources of several parts, with a special token between them:

    source_column: turns                             # of a dialogue: a list of texts, the last one is answered
    target_column: response
    source_separator: <sep>

    source_column: document                          # cut where sentences end, see `split_sentences`
    source_separator: <sep>
    split_sentences: true
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import itertools
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow
from datasets import Dataset, Features, IterableDataset, Value, load_dataset

logger = logging.getLogger(__name__)

MAX_LINE = 100_000  # characters; what is longer is no line of text
SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION = ("train", ""), ("validation", "")
TABLES = (".tsv", ".csv", ".jsonl", ".json")
PAIR = Features({name: Value("string") for name in ("source", "target", "group")})
SHOWN = 10  # broken rows, in a message
Values = (
    list[Any] | str
)  # texts, or lists of texts: what stands in the columns of a row; or, as a string, what is wrong with it


class DataError(ValueError):
    """The data, or how they are described, cannot be used."""


def _option(text: str, default: Any = None) -> Any:
    return field(**{"default_factory" if callable(default) else "default": default}, metadata={"help": text})


@dataclass
class DataArguments:
    """Which texts to train on, to validate with and to test with."""

    data_dir: str = _option(
        "folder of relative file names; else $ATTENTION_SEQ2SEQ_DATA, else the current folder",
        lambda: os.environ.get("ATTENTION_SEQ2SEQ_DATA") or ".",
    )
    dataset_name: str | None = _option("data set of the Hub or folder; its splits train, validation, test* are used")
    dataset_config_name: str | None = _option("configuration of this data set")
    streaming: bool = _option("read training data while training, instead of before", False)
    train_file: list[str] = _option("training data: .tsv, .csv, .jsonl, .json (JSON lines), each also with .gz", list)
    validation_file: list[str] = _option("validation data, in the same formats", list)
    test_file: list[str] = _option("test sets, in the same formats; each is called by its file's name", list)
    train_target_file: list[str] = _option("if train_file is one side of parallel text: the other", list)
    validation_target_file: list[str] = _option("if validation_file is one side of parallel text: the other", list)
    test_target_file: list[str] = _option("if test_file is one side of parallel text: the other", list)
    languages: list[str] = _option('each replaces "{language}" in file names and prefixes in turn', list)
    source_column: str = _option(
        "of the input: a number from 0 on, or a name (tables then have a first line of names); a.b is b in column a",
        "0",
    )
    target_column: str = _option("of the text to be generated, in the same way", "1")
    tags_column: str | None = _option("of tags such as V;PST, with which the source then begins: <V><PST>")
    tags_separator: str = _option("between tags", ";")
    source_prefix: str | None = _option("put in front of each source and its tags; may hold {language}")
    target_prefix: str | None = _option("put in front of each target and reference; may hold {language}")
    source_separator: str | None = _option(
        "special token between the parts of a source: the texts of a list, such as the turns of a dialogue; sentences"
    )
    split_sentences: bool = _option(
        "put source_separator between the sentences of each source: after . ! ? (and a closing quote or bracket) in "
        "front of a space and anything but a small letter",
        False,
    )
    validation_rows: int | None = _option(
        "without validation data, so many training rows are held out, all rows of a source together; "
        "default: a twentieth, at most 1000; none when streaming"
    )
    max_train_rows: int | None = _option("use only so many training rows, of each language as many")
    max_validation_rows: int | None = _option("use only so many validation rows, of each language as many")
    max_test_rows: int | None = _option("use only so many rows of each test set, of each language as many")
    min_source_characters: int | None = _option("drop training rows with a shorter source (without prefix and tags)")
    max_source_characters: int | None = _option("drop training rows with a longer source")
    min_target_characters: int | None = _option("drop training rows with a shorter target")
    max_target_characters: int | None = _option("drop training rows with a longer target")
    max_length_ratio: float | None = _option("drop training rows with one side more than so often as long")
    bad_rows: Literal["stop", "skip"] = _option("what to do about broken rows", "stop")
    merge_references: bool = _option("make one row of validation or test rows with equal source", False)

    def __post_init__(self):
        # A YAML file may have one name where a list is meant, and a number for a column.
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if option.default_factory is list:
                setattr(self, option.name, [value] if isinstance(value, str) else [str(item) for item in value or []])
            elif option.name.endswith("_column") and value is not None:
                setattr(self, option.name, str(value))

    @property
    def columns(self) -> list[str]:
        """Source, target and, if asked for, tags."""
        return [column for column in (self.source_column, self.target_column, self.tags_column) if column is not None]


@dataclass(frozen=True)
class TextData:
    """
    The data sets of a run: training data with the columns `source`, `target`, `group`, the others with `source`,
    `references` (a list), `group`. `group` is the language, or empty. `tests` go by the name of their file or split,
    `tags` are tokens like `<V>` that training texts begin with, `report` says in sentences what was read and left out.
    """

    train: Dataset | IterableDataset | None
    validation: Dataset | None
    tests: dict[str, Dataset]
    tags: list[str]
    report: list[str]


@dataclass(frozen=True)
class _Part:
    """A file, a pair of files, or (with `rows`) a split of a Hub data set."""

    name: str
    path: Path | None = None
    target: _Part | None = None
    rows: Any = None
    group: str = ""


Plan = dict[tuple[str, str], list[_Part]]  # by split and, for tests, name


def load_text_data(arguments: DataArguments) -> TextData:
    """
    Reads, checks and filters the data that `arguments` describe.

    Raises:
        DataError: Options that contradict each other, files or columns that do not exist, parallel files of different
            lengths, a set without rows, or, with `bad_rows="stop"`, broken rows. Streamed training data are read later
            and raise then, at the first broken row.
    """
    problems = list(_problems(arguments))
    if problems:
        raise DataError("\n".join(problems))
    plan = _hub_plan(arguments) if arguments.dataset_name else _file_plan(arguments)
    if arguments.validation_rows and (TRAIN not in plan or VALIDATION in plan or arguments.streaming):
        raise DataError(
            f"validation_rows={arguments.validation_rows} is for training data that are not streamed and come without "
            "validation data"
        )
    readings = {key: _Reading(arguments, *key) for key in plan}
    sets: dict[tuple[str, str], Dataset | IterableDataset] = {}
    for key, reading in readings.items():
        if key == TRAIN and arguments.streaming:
            options = {"arguments": arguments, "parts": plan[key]}
            sets[key] = IterableDataset.from_generator(_stream, features=PAIR, gen_kwargs=options)
            if arguments.tags_column is not None:
                for _ in reading.rows(plan[key]):
                    pass  # the tokenizer has to know the tags before training begins
        else:
            sets[key] = _dataset(reading.rows(plan[key]))
    _stop_if_broken(arguments, list(readings.values()))
    for key, rows in sets.items():
        if isinstance(rows, Dataset) and not len(rows):
            raise DataError("\n".join(["no rows are left", *readings[key].report()]))
    report = [sentence for reading in readings.values() if reading.read for sentence in reading.report()]

    train, validation = sets.pop(TRAIN, None), sets.pop(VALIDATION, None)
    merge = arguments.merge_references
    if isinstance(train, Dataset) and validation is None and arguments.validation_rows != 0:
        train, held_out = _hold_out(train, arguments.validation_rows)
        report.append(f"training data: {len(held_out):,} rows held out for validation, {len(train):,} left")
        validation = held_out if len(held_out) else None
    if isinstance(train, IterableDataset):
        report.append("training data: streamed; each pass logs what it left out")
        train = train if arguments.max_train_rows is None else train.take(arguments.max_train_rows)
    elif train is not None:
        train = _first(train, arguments.max_train_rows)
    if validation is not None:
        validation = _first(_with_references(validation, merge), arguments.max_validation_rows)
    tests = {name: _first(_with_references(rows, merge), arguments.max_test_rows) for (_, name), rows in sets.items()}
    for name, rows in {"training data": train, "validation data": validation, **tests}.items():
        report += [f"{name}: {len(rows):,} rows in use"] if isinstance(rows, Dataset) else []
    tags = set(readings[TRAIN].tags) if TRAIN in readings else set()
    tags |= {arguments.source_separator} - {None}
    for language in arguments.languages or [""]:
        for prefix in (arguments.source_prefix, arguments.target_prefix):
            tags.update(re.findall(r"<[^<>\s]+>", (prefix or "").replace("{language}", language)))
    return TextData(train, validation, tests, sorted(tags), report)


# What was asked for


def _problems(arguments: DataArguments) -> Iterator[str]:
    """Sentences about options that do not go together."""
    sides = {split: [getattr(arguments, f"{split}{side}_file") for side in ("", "_target")] for split in SPLITS}
    pairs = [(split, *pair) for split in SPLITS for pair in itertools.zip_longest(*sides[split], fillvalue="")]
    languages, hub = arguments.languages, arguments.dataset_name
    if bool(hub) == bool(pairs):
        have = f"there are dataset_name={hub!r} and {pairs[0][1] or pairs[0][2]}" if hub else "there is neither"
        yield f"data are given by train_file, validation_file, test_file or by dataset_name, but {have}"
    if arguments.dataset_config_name and not hub:
        yield f"dataset_config_name={arguments.dataset_config_name!r} needs dataset_name"
    if hub and languages:
        yield "languages are for file names; of a Hub data set, dataset_config_name chooses the language"
    for split, (names, targets) in sides.items():
        if targets and len(targets) != len(names):
            yield f"{split}_file has {len(names)} files and {split}_target_file {len(targets)}; these must be as many"
        if targets and arguments.tags_column is not None:
            yield f"tags_column={arguments.tags_column!r} needs a table, but {split}_file is parallel text"
    for split, name, target in pairs:
        if bool(languages) != ("{language}" in name + target):
            yield f'{split}_file {name}: "{{language}}" in file names and languages={languages} need each other'
    for option in ("source_prefix", "target_prefix"):
        if "{language}" in (getattr(arguments, option) or "") and not languages:
            yield f"{option}={getattr(arguments, option)!r} needs languages"
    separator = arguments.source_separator
    if separator is not None and not re.fullmatch(r"<[^<>\s]+>", separator):
        yield f"source_separator={separator!r} is not allowed; it is a token such as <sep>"
    if arguments.split_sentences and separator is None:
        yield "split_sentences needs a source_separator, such as <sep>"
    if len(set(languages)) < len(languages):
        yield f"languages={languages} has one twice"
    if not arguments.tags_separator:
        yield "tags_separator must not be empty"
    if arguments.bad_rows not in ("stop", "skip"):
        yield f'bad_rows={arguments.bad_rows!r} is not allowed; it is "stop" or "skip"'
    for option in dataclasses.fields(arguments):
        value, least = getattr(arguments, option.name), 0 if option.name == "validation_rows" else 1
        if value is not None and re.match("max_|min_|validation_rows", option.name):
            real = option.name == "max_length_ratio" and isinstance(value, float)
            if not (type(value) is int or real) or not value >= least:
                yield f"{option.name}={value!r} is not allowed; it is a number from {least} on"


def _file_plan(arguments: DataArguments) -> Plan:
    folder = Path(arguments.data_dir).expanduser()
    plan: Plan = {}
    for split in SPLITS:
        targets = getattr(arguments, f"{split}_target_file")
        for name, target in itertools.zip_longest(getattr(arguments, f"{split}_file"), targets):
            if target is None and _ending(name) not in TABLES:
                hint = f"; parallel text needs {split}_target_file" if _ending(name) == ".txt" else ""
                raise DataError(f"{split}_file {name} must end in {', '.join(TABLES)}, or one of these and .gz{hint}")
            title = Path(name.removesuffix(".gz")).stem
            title = re.sub(r"[-_.]*\{language\}[-_.]*", "_", title).strip("_") or "test"
            key = (split, title if split == "test" else "")
            if split == "test" and key in plan:
                raise DataError(f"two test files would be called {title!r}: the second is {name}")
            for language in arguments.languages or [""]:
                files = [file.replace("{language}", language) for file in (name, target) if file]
                one, *other = (_Part(file, folder / file, group=language) for file in files)
                plan.setdefault(key, []).append(dataclasses.replace(one, target=other[0] if other else None))
    files = [file for parts in plan.values() for part in parts for file in (part, part.target) if file]
    missing = [str(file.path.absolute()) for file in files if not file.path.is_file()]
    if missing:
        raise DataError(
            f"files that do not exist:{_listed(missing, len(missing))}\nRelative names are looked up in data_dir="
            f"{arguments.data_dir!r}, by default the environment variable ATTENTION_SEQ2SEQ_DATA"
        )
    return plan


def _ending(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix


def _hub_plan(arguments: DataArguments) -> Plan:
    name, columns = arguments.dataset_name, arguments.columns
    splits = load_dataset(name, arguments.dataset_config_name, streaming=arguments.streaming)
    plan: Plan = {}
    for split, rows in splits.items():
        kind = "test" if split.startswith("test") else split
        if kind not in SPLITS:
            continue
        if rows.column_names:  # a stream may not know them yet
            needed = {column if column in rows.column_names else column.split(".")[0] for column in columns}
            for column in sorted(needed - set(rows.column_names)):
                raise DataError(f"{name} has no column {column!r}; there are {', '.join(rows.column_names)}")
            rows = rows.select_columns(sorted(needed))
        plan[kind, split if kind == "test" else ""] = [_Part(f"{name}/{split}", rows=rows)]
    if not plan:
        raise DataError(f"{name} has no split train, validation or test*; there are {', '.join(splits)}")
    return plan


# Reading


@dataclass
class _Reading:
    """One pass over the data of one set: its rows, and what happened to them."""

    arguments: DataArguments
    split: str
    name: str = ""
    read: int = 0
    broken: int = 0
    examples: list[str] = field(default_factory=list)  # of broken rows
    dropped: Counter = field(default_factory=Counter)  # by reason
    tags: set[str] = field(default_factory=set)

    def rows(self, parts: list[_Part]) -> Iterator[dict[str, str]]:
        """The rows that are neither broken nor dropped."""
        options = self.arguments
        for part in parts:
            source_prefix, target_prefix = (
                (prefix or "").replace("{language}", part.group)
                for prefix in (options.source_prefix, options.target_prefix)
            )
            for place, values in _rows_of(part, options.columns):
                self.read += 1
                values = self._joined(values)
                fault = values if isinstance(values, str) else next(filter(None, map(_fault, values)), None)
                source, target, *tags = ("", "") if fault else (value.strip() for value in values)
                fault = fault or ("empty source" if not source else "" if target else "empty target")
                if fault:
                    self.broken += 1
                    self.examples += [f"{place}: {fault}"] if len(self.examples) < SHOWN else []
                elif reason := self._drop_reason(source, target):
                    self.dropped[reason] += 1
                else:
                    tags = [tag.strip() for tag in "".join(tags).split(options.tags_separator)]
                    tags = [f"<{tag}>" for tag in tags if tag]
                    self.tags.update(tags)
                    source, target = source_prefix + "".join(tags) + source, target_prefix + target
                    yield {"source": source, "target": target, "group": part.group}

    def _joined(self, values: Values) -> Values:
        """The same with a source that is one text, its parts joined by the separator."""
        separator = self.arguments.source_separator
        if isinstance(values, str):
            return values
        for place, (column, value) in enumerate(zip(self.arguments.columns, values)):
            if isinstance(value, list) and (place or separator is None):
                hint = "" if place else "; a source that is a list of texts needs a source_separator"
                return f"{column!r} is no string but list{hint}"
        if separator is None:
            return values
        source, *others = values
        parts = [source] if isinstance(source, str) else source
        if any(separator in part for part in parts):
            return f"the source has {separator} in it, which is the source_separator"
        if self.arguments.split_sentences:
            parts = [sentence for part in parts for sentence in sentences_of(part)]
        return [f" {separator} ".join(filter(None, map(str.strip, parts))), *others]

    def _drop_reason(self, source: str, target: str) -> str | None:
        if self.split != "train":
            return None
        for side, text in (("source", source), ("target", target)):
            least = getattr(self.arguments, f"min_{side}_characters")
            most = getattr(self.arguments, f"max_{side}_characters")
            if least is not None and len(text) < least:
                return f"{side} shorter than {least} characters"
            if most is not None and len(text) > most:
                return f"{side} longer than {most} characters"
        ratio = self.arguments.max_length_ratio
        short, long = sorted((len(source), len(target)))
        if ratio is not None and long > ratio * short:
            return f"one side more than {ratio:g} times as long as the other"
        return None

    def report(self) -> list[str]:
        """What happened, in sentences."""
        name = self.name or {"train": "training data", "validation": "validation data"}[self.split]
        report = [f"{name}: {self.read:,} rows read"]
        report += [f"{name}: {n:,} of {self.read:,} rows dropped: {reason}" for reason, n in self.dropped.items()]
        if self.broken:
            some = "; ".join(self.examples[:3]) + "; ..." * (self.broken > 3)
            report.append(f"{name}: {self.broken:,} of {self.read:,} rows skipped as broken: {some}")
        return report


def _stream(arguments: DataArguments, parts: list[_Part]) -> Iterator[dict[str, str]]:
    reading = _Reading(arguments, "train")
    try:
        for row in reading.rows(parts):
            _stop_if_broken(arguments, [reading])
            yield row
        _stop_if_broken(arguments, [reading])
    finally:
        for sentence in reading.report():
            logger.info(sentence)


def _stop_if_broken(arguments: DataArguments, readings: list[_Reading]) -> None:
    broken = sum(reading.broken for reading in readings)
    if broken and arguments.bad_rows == "stop":
        examples = [example for reading in readings for example in reading.examples]
        raise DataError(f'broken rows: {broken:,} (bad_rows="skip" leaves them out)' + _listed(examples, broken))


def _listed(items: list[str], total: int) -> str:
    shown = items[:SHOWN]
    return "".join(f"\n  {item}" for item in shown) + (f"\n  and {total - len(shown):,} more" * (total > len(shown)))


def _rows_of(part: _Part, columns: list[str]) -> Iterator[tuple[str, Values]]:
    """The place and the values of each row of a part."""
    if part.rows is not None:
        return ((f"{part.name}:{number}", _entries(row, columns)) for number, row in enumerate(part.rows, 1))
    if part.target is not None:
        return _parallel_rows(part, part.target)
    if _ending(part.name) in (".tsv", ".csv"):
        return _table_rows(part, columns)
    return ((f"{part.name}:{number}", _json_values(line, columns)) for number, line in enumerate(_lines(part.path), 1))


def _lines(path: Path) -> Iterator[str]:
    r"""
    The lines of a file without their \n, which alone ends a line. Bytes that are no UTF-8 become lone surrogates, and
    of a line that is far too long only the beginning is kept: `_fault` finds both.
    """
    limit = 4 * MAX_LINE + 8  # bytes; a character has at most 4
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            first = True
            while line := file.readline(limit):
                rest = line
                while len(rest) == limit and not rest.endswith(b"\n"):
                    rest = file.readline(limit)
                line = line.removeprefix(b"\xef\xbb\xbf") if first else line
                first = False
                yield line.removesuffix(b"\n").decode(errors="surrogateescape")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _fault(text: str) -> str | None:
    """What is wrong with a line."""
    if len(text) > MAX_LINE:
        return f"longer than {MAX_LINE:,} characters"
    if "\0" in text:
        return "a NUL byte"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "invalid UTF-8"
    return None


def _parallel_rows(part: _Part, target: _Part) -> Iterator[tuple[str, Values]]:
    files = _lines(part.path), _lines(target.path)
    for number, pair in enumerate(itertools.zip_longest(*files), 1):
        if None in pair:
            lengths = [number - (text is None) + sum(1 for _ in lines) for text, lines in zip(pair, files)]
            raise DataError(f"{part.name} has {lengths[0]:,} lines, but {target.name} has {lengths[1]:,}")
        faults = [(f"{file.name}:{number}", _fault(text)) for file, text in zip((part, target), pair)]
        yield next((fault for fault in faults if fault[1]), (f"{part.name}:{number}", list(pair)))


def _table_rows(part: _Part, columns: list[str]) -> Iterator[tuple[str, Values]]:
    records = _csv_records(part.path) if _ending(part.name) == ".csv" else _tsv_records(part.path)
    names: list[str] = []
    if not all(column.isdecimal() for column in columns):
        _, header = next(records, (1, []))
        if isinstance(header, str):
            raise DataError(f"{part.name}:1: {header}")
        names = [name.strip() for name in header]
    for column in columns:
        if column not in names and not column.isdecimal():
            raise DataError(f"{part.name} has no column {column!r}; there are {', '.join(names) or 'none'}")
    positions = [names.index(column) if column in names else int(column) for column in columns]
    for number, fields in records:
        if not isinstance(fields, str):
            missing = [column for column, position in zip(columns, positions) if position >= len(fields)]
            fault = f"no column {missing[0]!r}, the row has {len(fields)}" if missing else ""
            fields = fault or [fields[position] for position in positions]
        yield f"{part.name}:{number}", fields


def _tsv_records(path: Path) -> Iterator[tuple[int, Values]]:
    for number, line in enumerate(_lines(path), 1):
        yield number, _fault(line) or line.split("\t")


def _csv_records(path: Path) -> Iterator[tuple[int, Values]]:
    reader = csv.reader((line + "\n" for line in _lines(path)), strict=True)
    while True:
        number = reader.line_num + 1  # of the first line, where a quoted text has several
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, f"invalid CSV ({error})"
        else:
            yield number, _fault(",".join(fields)) or fields


def _json_values(line: str, columns: list[str]) -> Values:
    try:
        return _fault(line) or _entries(json.loads(line), columns)
    except (ValueError, RecursionError):
        return "invalid JSON"


def _entries(row: Any, columns: list[str]) -> Values:
    """The texts in `columns` of a dictionary, where a.b is the entry b of the dictionary a."""
    values = []
    for column in columns:
        value, path = row, [column] if isinstance(row, dict) and column in row else column.split(".")
        for name in path:
            if not isinstance(value, dict) or name not in value:
                known = ", ".join(value) if isinstance(value, dict) else "no names"
                return f"no {column!r}: there are {known}"
            value = value[name]
        if not isinstance(value, str) and not _is_list_of_texts(value):
            return f"{column!r} is no string but {type(value).__name__}"
        values.append(value)
    return values


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def sentences_of(text: str) -> list[str]:
    """
    The text cut where sentences seem to end: after a full stop, exclamation or question mark, which a quotation mark
    or bracket may close, in front of white space and anything but a small letter.
    """
    places = [match.end() for match in re.finditer(r"[.!?]+[\"')\]”’]*\s+", text)]
    places = [place for place in places if not text[place : place + 1].islower()]
    return [
        text[start:end].strip() for start, end in zip([0, *places], [*places, len(text)]) if text[start:end].strip()
    ]


# Sets of rows


def _dataset(rows: Iterator[dict[str, str]]) -> Dataset:
    chunks = iter(lambda: list(itertools.islice(rows, 10_000)), [])
    batches = [pyarrow.RecordBatch.from_pylist(chunk, PAIR.arrow_schema) for chunk in chunks]
    return Dataset(pyarrow.Table.from_batches(batches, PAIR.arrow_schema))


def _hold_out(train: Dataset, wanted: int | None) -> tuple[Dataset, Dataset]:
    """
    Splits off `wanted` rows for validation, or fewer where sources would have to be divided. The choice depends on the
    sources alone, not on their order.
    """
    if wanted is not None and wanted >= len(train):
        raise DataError(f"validation_rows={wanted} leaves none of {len(train):,} training rows")
    wanted = min(1000, len(train) // 20) if wanted is None else wanted
    sources = train["source"][:]
    counts = Counter(sources)
    held: set[str] = set()
    for source in sorted(counts, key=lambda source: hashlib.blake2b(source.encode(), digest_size=8).digest()):
        if counts[source] <= wanted:
            held.add(source)
            wanted -= counts[source]
    sides: tuple[list[int], list[int]] = ([], [])
    for index, source in enumerate(sources):
        sides[source in held].append(index)
    return train.select(sides[0]), train.select(sides[1])


def _with_references(rows: Dataset, merge: bool) -> Dataset:
    """Evaluation rows: the target becomes a list of references, with those of equal sources if they are merged."""
    merged: dict[tuple, dict] = {}
    for index, row in enumerate(rows):
        key = (row["source"], row["group"]) if merge else (index,)
        entry = merged.setdefault(key, {"source": row["source"], "references": [], "group": row["group"]})
        if row["target"] not in entry["references"]:
            entry["references"].append(row["target"])
    return Dataset.from_list(list(merged.values()))


def _first(rows: Dataset, limit: int | None) -> Dataset:
    """The first rows, equally many of each group as far as there are."""
    if limit is None or limit >= len(rows):
        return rows
    seen: Counter = Counter()
    turns = []
    for group in rows["group"][:]:
        turns.append(seen[group])
        seen[group] += 1
    return rows.select(sorted(sorted(range(len(rows)), key=turns.__getitem__)[:limit]))
