"""Other toolkits, each run by its own commands in a virtual environment of its own on the same sentences."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase

from .texts import MULTI30K, batches, read, test_sources, tokenizer

_REPORT = re.compile(r"Step\s+(\d+)/.*bsz:\s*\d+/\s*(\d+)/")
REPORT_EVERY = 5  # steps
WARM_UP = 10  # steps of a training that do not count
MAX_LENGTH = 100


def parse_peers(given: list[str], allowed: Iterable[str] | None = None) -> list[Peer]:
    """
    `NAME=FOLDER` of a virtual environment, as often as there are peers; `NAME` of `PEERS`, or of those allowed.

    Raises:
        ValueError: an unknown name, or a folder without the toolkit's commands.
    """
    names = list(PEERS if allowed is None else allowed)
    peers = []
    for text in given:
        name, _, folder = text.partition("=")
        if name not in names:
            raise ValueError(f"peer: {text!r} is not possible; allowed: NAME=FOLDER with NAME of {', '.join(names)}")
        peers.append(PEERS[name](Path(folder)))
    return peers


class Peer:
    """A toolkit; its files are in a temporary folder until `close`."""

    name: str
    program: str
    variables: dict[str, str] = {}
    can_translate = False
    sources: list[str]  # the pieces of each test sentence, a line each, from `prepare` on

    def __init__(self, environment: Path):
        self.command = str(environment / "bin" / self.program)
        if not os.path.exists(self.command):
            raise ValueError(f"peer: {environment} has no bin/{self.program}; install {self.name} there")
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)

    def close(self) -> None:
        """Removes the files."""
        self._folder.cleanup()

    def can_train(self, case: str) -> bool:
        """Whether there is a counterpart of this case of `train.CASES`."""
        return case != "character"

    def train(self, case: dict[str, str], steps: int, batch_size: int, threads: int) -> dict:
        """
        One measurement. The toolkit reports its tokens every `REPORT_EVERY` steps; what counts are the tokens, and the
        seconds by its wall and CPU clocks, between the report at the end of the warm-up and the last.
        """
        text = case["text"]
        lines = self._write_training_texts(batches(text, WARM_UP + steps + REPORT_EVERY, batch_size), text)
        steps += WARM_UP
        config = self.training_config(case["attention_type"], steps, batch_size, lines)
        reports: list[tuple[float, float, float]] = []

        def read_report(line: str, wall: float, cpu: float) -> None:
            if match := _REPORT.search(line):
                reports.append((REPORT_EVERY * int(match[2]), wall, cpu))

        used = self._train(config, threads, read_report)
        del reports[: WARM_UP // REPORT_EVERY - 1]
        if len(reports) < 2:
            raise RuntimeError(f"{self.name} reported nothing:\n{used['tail']}")
        return {
            "tokens": sum(report[0] for report in reports[1:]),
            "wall": reports[-1][1] - reports[0][1],
            "cpu": reports[-1][2] - reports[0][2],
            "peak_mib": used["peak_mib"],
        }

    def prepare(self, model: str, threads: int) -> None:
        """Takes the weights and the vocabulary of our model in the folder `model`, to translate with."""
        raise NotImplementedError(f"{self.name} is compared in training only.")

    def translate(self, sentences: int, beams: int, batch_size: int, threads: int) -> dict:
        """
        One measurement: the difference between translating `sentences` sentences and one batch of them (of single
        sentences a tenth), so that start and loading do not count. `texts` are the pieces of each sentence.
        """
        source, output = self.folder / "test.source", self.folder / "test.output"
        rows = test_sources([len(line.split()) for line in self.sources], sentences, batch_size)
        results = []
        for number in (sentences, batch_size if sentences > batch_size > 1 else max(1, sentences // 10)):
            source.write_text("".join(self.sources[row] for row in rows[:number]), encoding="utf-8")
            used = self._run(self.translation_command(source, output, beams, batch_size), threads)
            lines = output.read_text(encoding="utf-8").splitlines()
            tokens = sum(len(line.split()) + 1 for line in lines)  # and the end of the sentence
            results.append({**used, "tokens": tokens, "texts": lines})
        return {**_difference(*results), "texts": results[0]["texts"]}

    def training_config(self, attention_type: str, steps: int, batch_size: int, lines: int) -> dict:
        """The toolkit's configuration file."""
        raise NotImplementedError(f"{type(self).__name__} must define training_config(...).")

    def training_command(self) -> list[str]:
        """What comes before the configuration file."""
        raise NotImplementedError(f"{type(self).__name__} must define training_command().")

    def translation_command(self, source: Path, output: Path, beams: int, batch_size: int) -> list[str]:
        """The whole command."""
        raise NotImplementedError(f"{type(self).__name__} must define translation_command(...).")

    def _train(self, config: dict, threads: int, on_line=lambda line, wall, cpu: None) -> dict:
        file = self.folder / "train.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        return self._run([*self.training_command(), str(file)], threads, on_line)

    def _write_training_texts(self, parts: list[dict[str, torch.Tensor]], text: str) -> int:
        own = tokenizer(text)
        rows = [row for part in parts for row in zip(part["input_ids"].tolist(), part["labels"].tolist())]
        for index, (name, side) in enumerate((("source", own), ("target", own.target_tokenizer))):
            lines = (
                " ".join(side.convert_ids_to_tokens([token for token in row[index] if token > 2])) for row in rows
            )
            (self.folder / f"train.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._write_vocabulary(own)
        return len(rows)

    def _write_vocabulary(self, own: PreTrainedTokenizerBase) -> None:
        pieces = [piece for piece in own.convert_ids_to_tokens(range(4, len(own))) if piece.split() == [piece]]
        (self.folder / "vocabulary").write_text("".join(f"{piece}\t1\n" for piece in pieces), encoding="utf-8")

    def _run(self, command: list[str], threads: int, on_line=lambda line, wall, cpu: None) -> dict:
        """Runs to the end; wall and CPU seconds, peak memory in MiB, and the last lines."""
        numbers = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        started = time.perf_counter()
        process = psutil.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **numbers, **self.variables},
            cwd=self.folder,
        )
        tail: list[str] = []
        for line in process.stdout:
            tail = [*tail[-30:], line]
            times = process.cpu_times()
            on_line(line, time.perf_counter(), times.user + times.system)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"{' '.join(command)} failed:\n{''.join(tail)}")
        return {
            "wall": time.perf_counter() - started,
            "cpu": usage.ru_utime + usage.ru_stime,
            "peak_mib": usage.ru_maxrss / 1024,
            "tail": "".join(tail),
        }


def _difference(large: dict, small: dict) -> dict:
    """One measurement from two runs that start and load alike."""
    return {**{key: large[key] - small[key] for key in ("tokens", "wall", "cpu")}, "peak_mib": large["peak_mib"]}


def _training_texts() -> dict:
    return {"train": {"path_src": "train.source", "path_tgt": "train.target"}}


class OpenNMT(Peer):
    """OpenNMT-py 3.5."""

    name = "opennmt"
    program = "onmt_train"
    variables = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}

    def training_config(self, attention_type: str, steps: int, batch_size: int, lines: int) -> dict:
        """See `Peer`."""
        return {
            "save_data": "data",
            "data": _training_texts(),
            "src_vocab": "vocabulary",
            "tgt_vocab": "vocabulary",
            "share_vocab": True,
            "encoder_type": "brnn",
            "decoder_type": "rnn",
            "rnn_type": "LSTM",
            "global_attention": {"additive": "mlp"}.get(attention_type, attention_type),
            "input_feed": 1,
            "word_vec_size": 256,
            "hidden_size": 512,
            "layers": 1,
            "bridge": False,
            "share_embeddings": True,
            "dropout": [0.0],
            "optim": "adam",
            "learning_rate": 0.001,
            "max_grad_norm": 5,
            "batch_type": "sents",
            "batch_size": batch_size,
            "bucket_size": lines,
            "num_workers": 0,
            "train_steps": steps,
            "report_every": REPORT_EVERY,
            "save_checkpoint_steps": 10 * steps,
            "valid_steps": 10 * steps,
            "save_model": "model",
            "world_size": 1,
            "gpu_ranks": [],
        }

    def training_command(self) -> list[str]:
        """See `Peer`."""
        return [self.command, "-config"]


class Eole(Peer):
    """eole 0.6."""

    name = "eole"
    program = "eole"
    can_translate = True

    def training_config(self, attention_type: str, steps: int, batch_size: int, lines: int) -> dict:
        """See `Peer`."""
        recurrent = {"rnn_type": "LSTM", "layers": 1, "hidden_size": 512, "bridge": False}
        attention = {"additive": "mlp"}.get(attention_type, attention_type)
        return {
            "data": _training_texts(),
            "src_vocab": "vocabulary",
            "tgt_vocab": "vocabulary",
            "share_vocab": True,
            "save_data": "data",
            "overwrite": True,
            "report_every": REPORT_EVERY,
            "training": {
                "optim": "adam",
                "learning_rate": 0.001,
                "max_grad_norm": 5,
                "dropout": [0.0],
                "attention_dropout": [0.0],
                "batch_type": "sents",
                "batch_size": batch_size,
                "bucket_size": lines,
                "num_workers": 0,
                "train_steps": steps,
                "save_checkpoint_steps": 10 * steps,
                "valid_steps": 10 * steps,
                "model_path": "model",
                "compute_dtype": "fp32",
                "world_size": 1,
                "gpu_ranks": [],
            },
            "model": {
                "architecture": "custom",  # "rnn" would make the encoder unidirectional
                "input_feed": 1,
                "share_embeddings": True,
                "embeddings": {
                    "position_encoding_type": None,
                    "word_vec_size": 256,
                    "src_word_vec_size": 256,
                    "tgt_word_vec_size": 256,
                },
                "hidden_size": 512,
                "encoder": {"encoder_type": "brnn", **recurrent},
                "decoder": {"decoder_type": "rnn", "global_attention": attention, **recurrent},
            },
        }

    def training_command(self) -> list[str]:
        """See `Peer`."""
        return [self.command, "train", "--config"]

    def prepare(self, model: str, threads: int) -> None:
        """
        See `Peer`. A training of one step makes the files, in which the weights are then replaced.

        Raises:
            ValueError: the model is not of the benchmark's configuration.
        """
        own = AutoTokenizer.from_pretrained(model)
        self.sources = [
            " ".join(own.convert_ids_to_tokens(ids)) + "\n"
            for ids in own([source for source, _ in read(MULTI30K)[1]])["input_ids"]
        ]
        self._write_vocabulary(own)
        for side in ("source", "target"):
            (self.folder / f"train.{side}").write_text(self.sources[0], encoding="utf-8")
        config = self.training_config("general", 1, 1, 1)
        config["training"]["save_checkpoint_steps"] = 1
        self._train(config, threads)

        folder = self.folder / "model"
        pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))["src"]
        special = {"<unk>": own.unk_token, "<blank>": own.pad_token, "<s>": own.bos_token, "</s>": own.eos_token}
        rows = own.convert_tokens_to_ids([special.get(piece, piece) for piece in pieces])
        weights = load_file(folder / "model.00.safetensors")
        for name, tensor in AutoModelForSeq2SeqLM.from_pretrained(model).state_dict().items():
            other = _eole_name(name)
            if other == _EOLE_QUERY:  # of `q W_a h`, ours is at the keys, eole's at the query
                tensor = tensor.T
            elif other in _EOLE_ROWS:
                tensor = tensor[rows]
            if other not in weights or weights[other].shape != tensor.shape:
                raise ValueError(
                    f"model: {name} {tuple(tensor.shape)} of {model} has no counterpart in eole; possible are models "
                    "of training/recipes/multi30k_benchmark.yaml"
                )
            weights[other] = tensor.contiguous()
        save_file(weights, folder / "model.00.safetensors")

    def translation_command(self, source: Path, output: Path, beams: int, batch_size: int) -> list[str]:
        """See `Peer`."""
        return [
            *(self.command, "predict", "--model_path", str(self.folder / "model"), "--src", str(source)),
            *("--output", str(output), "--beam_size", str(beams), "--batch_type", "sents"),
            *("--batch_size", str(batch_size), "--max_length", str(MAX_LENGTH), "--max_length_ratio", "0"),
        ]


_EOLE_QUERY = "decoder.attn.linear_in.weight"
_EOLE_ROWS = ("src_emb.embeddings.weight", "generator.weight", "generator.bias")  # a row for each piece
_EOLE_NAMES = {
    r"model\.encoder\.layers\.layers\.0\.rnn\.(.*)": r"encoder.rnn.\1",
    r"model\.decoder\.layers\.0\.rnn\.(.*)_l0": r"decoder.rnn.layers.0.\1",
    r"model\.encoder\.embed_tokens\.weight": _EOLE_ROWS[0],
    r"model\.decoder\.attention\.score\.key_projection\.weight": _EOLE_QUERY,
    r"model\.decoder\.readout\.projection\.weight": "decoder.attn.linear_out.weight",
    r"lm_head\.(.*)": r"generator.\1",
}


def _eole_name(name: str) -> str | None:
    """What eole calls the weight, if it has it."""
    matches = ((re.fullmatch(ours, name), theirs) for ours, theirs in _EOLE_NAMES.items())
    return next((match.expand(theirs) for match, theirs in matches if match), None)


class Yoyodyne(Peer):
    """yoyodyne 0.5, which trains models of characters; here with its attention, which is additive."""

    name = "yoyodyne"
    program = "yoyodyne"

    def can_train(self, case: str) -> bool:
        """See `Peer`."""
        return case == "character"

    def train(self, case: dict[str, str], steps: int, batch_size: int, threads: int) -> dict:
        """One measurement: the difference between an epoch of warm-up and all other steps, and one of the warm-up."""
        pairs = read(case["text"])[0]
        numbers = (WARM_UP + steps, WARM_UP)
        return _difference(*(self._epoch(pairs[: number * batch_size], batch_size, threads) for number in numbers))

    def training_command(self) -> list[str]:
        """See `Peer`."""
        return [self.command, "fit", "--config"]

    def _epoch(self, pairs: list[tuple[str, str]], batch_size: int, threads: int) -> dict:
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (self.folder / "train.tsv").write_text(lines, encoding="utf-8")
        encoder = {"hidden_size": 256, "layers": 1, "bidirectional": True, "dropout": 0}
        config = {
            "trainer": {
                "max_epochs": 1,
                "accelerator": "cpu",
                "devices": 1,
                "enable_progress_bar": False,
                "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "logs"}},
                "gradient_clip_val": 5,
                "limit_val_batches": 0,
            },
            "checkpoint": {"save_top_k": 0},
            "prediction": {"path": "predictions"},
            "model": {
                "class_path": "yoyodyne.models.SoftAttentionLSTMModel",
                "init_args": {
                    "embedding_size": 128,
                    "decoder_hidden_size": 512,
                    "decoder_dropout": 0,
                    "source_encoder": {"class_path": "yoyodyne.models.modules.LSTMEncoder", "init_args": encoder},
                },
            },
            "data": {
                "model_dir": "model",
                "train": "train.tsv",
                "val": "train.tsv",
                "target_sep": " ",
                "tie_embeddings": False,
                "batch_size": batch_size,
            },
        }
        used = self._train(config, threads)
        return {**used, "tokens": sum(len(target.split()) + 1 for _, target in pairs)}


PEERS = {peer.name: peer for peer in (OpenNMT, Eole, Yoyodyne)}
