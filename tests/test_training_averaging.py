"""Averages of weights, against means and recursions in double precision."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

from hf_attention_seq2seq import AttentionSeq2SeqTokenizer
from training.averaging import AVERAGES_NAME, WeightAverageCallback, average_checkpoints, last_checkpoints

from .helpers import source_batch, target_batch, tiny_model

WEIGHTS = "model.safetensors"


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_equal(one, other, **tolerance):
    tolerance = tolerance or {"atol": 0, "rtol": 0}
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


# Average of checkpoints


@pytest.mark.parametrize("shards", [(), (1,), (0, 1, 2)], ids=str)
def test_the_average_of_checkpoints(tmp_path, shards):
    models = [tiny_model(seed=seed, tie_word_embeddings=True) for seed in range(3)]
    models[0].generation_config.num_beams = 5
    folders = [tmp_path / str(index) for index in range(3)]
    for index, (model, folder) in enumerate(zip(models, folders, strict=True)):
        model.save_pretrained(folder, max_shard_size="2KB" if index in shards else "1GB")
        assert (folder / "model.safetensors.index.json").exists() == (index in shards)
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["abc", "cba"], model="char")
    tokenizer.save_pretrained(folders[0])
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json", AVERAGES_NAME):
        (folders[0] / name).write_bytes(b"of the training")
    average_checkpoints(folders, tmp_path / "average")

    expected = weights_of(models[0])
    for name in expected:
        expected[name] = (sum(dict(model.named_parameters())[name].detach().double() for model in models) / 3).float()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "average")
    assert_equal(weights_of(loaded), expected)
    assert loaded.lm_head.weight is loaded.get_decoder_input_embeddings().weight
    assert loaded.generation_config.num_beams == 5
    assert AutoTokenizer.from_pretrained(tmp_path / "average").get_vocab() == tokenizer.get_vocab()
    kept = {file.name for file in folders[0].iterdir() if file.suffix in (".json", ".py")}
    kept -= {"trainer_state.json", "model.safetensors.index.json"}
    assert {file.name for file in (tmp_path / "average").iterdir()} == kept | {WEIGHTS}


def write(folder, **tensors):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def test_sums_are_double_precision(tmp_path):
    """In bfloat16 256 + 1 is 256; and the mean of equal weights is these weights, to the last bit."""
    same = torch.randn(50)
    folders = [
        write(tmp_path / str(index), half=torch.tensor([value], dtype=torch.bfloat16), same=same)
        for index, value in enumerate((256.0, 1.0, 1.0))
    ]
    average_checkpoints(folders, tmp_path / "average")
    found = load_file(tmp_path / "average" / WEIGHTS)
    assert found["half"].dtype == torch.bfloat16 and found["half"].item() == 86
    assert torch.equal(found["same"], same)


def test_integers_must_be_equal(tmp_path):
    float_values = torch.tensor([1.0, 2.0])
    first = write(tmp_path / "1", w=float_values, steps=torch.tensor([7]), on=torch.tensor([True]))
    second = write(tmp_path / "2", w=float_values + 2, steps=torch.tensor([7]), on=torch.tensor([True]))
    average_checkpoints([first, second], tmp_path / "average")
    found = load_file(tmp_path / "average" / WEIGHTS)
    assert found["steps"].tolist() == [7] and found["on"].tolist() == [True] and found["w"].tolist() == [2.0, 3.0]
    other = write(tmp_path / "3", w=float_values, steps=torch.tensor([8]), on=torch.tensor([True]))
    with pytest.raises(ValueError, match="steps holds torch.int64"):
        average_checkpoints([first, other], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_counter_is_the_newest(tmp_path):
    folders = [write(tmp_path / str(count), w=torch.zeros(2), updates=torch.tensor(count)) for count in (3, 8)]
    average_checkpoints(folders, tmp_path / "average")
    assert load_file(tmp_path / "average" / WEIGHTS)["updates"] == 8


def test_checkpoints_that_have_no_average(tmp_path):
    first = write(tmp_path / "1", w=torch.zeros(2, 3), v=torch.zeros(4))
    named = write(tmp_path / "named", w=torch.zeros(2, 3), u=torch.zeros(4))
    shaped = write(tmp_path / "shaped", w=torch.zeros(3, 2), v=torch.zeros(4))
    typed = write(tmp_path / "typed", w=torch.zeros(2, 3), v=torch.zeros(4).half())
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save({"w": torch.zeros(2, 3)}, pickled / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"these weights: \['u', 'v'\]"):
        average_checkpoints([first, named], tmp_path / "average")
    with pytest.raises(ValueError, match=r"w F32\[3, 2\] and F32\[2, 3\]"):
        average_checkpoints([first, shaped], tmp_path / "average")
    with pytest.raises(ValueError, match=r"v F16\[4\] and F32\[4\]"):
        average_checkpoints([first, first, typed], tmp_path / "average")
    with pytest.raises(FileNotFoundError, match="pickled' has neither model.safetensors nor"):
        average_checkpoints([first, pickled], tmp_path / "average")
    with pytest.raises(ValueError, match="is one of the checkpoints"):
        average_checkpoints([first, named], tmp_path / "average" / ".." / "1")
    with pytest.raises(ValueError, match="at least one checkpoint"):
        average_checkpoints([], tmp_path / "average")
    assert not (tmp_path / "average").exists()


def test_the_last_complete_checkpoints(tmp_path):
    for step in (9, 100, 10, 20, 30, 40, 50, 60):
        folder = write(tmp_path / f"checkpoint-{step}", w=torch.arange(100.0))
        (folder / "trainer_state.json").write_text('{"global_step": 1}')
    (tmp_path / "checkpoint-20" / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-30" / "trainer_state.json").write_text('{"global_st')
    weights = tmp_path / "checkpoint-40" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-20])
    (tmp_path / "checkpoint-50" / WEIGHTS).unlink()
    (tmp_path / "checkpoint-60" / WEIGHTS).rename(tmp_path / "checkpoint-60" / "shard-1.safetensors")
    index = {"weight_map": {"w": "shard-1.safetensors", "v": "shard-2.safetensors"}}
    (tmp_path / "checkpoint-60" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-70").write_text("no folder")

    def steps(number):
        return [int(folder.name.removeprefix("checkpoint-")) for folder in last_checkpoints(tmp_path, number)]

    assert steps(1) == [100] and steps(2) == [10, 100] and steps(5) == [9, 10, 100]
    save_file({"v": torch.zeros(1)}, tmp_path / "checkpoint-60" / "shard-2.safetensors")
    assert steps(2) == [60, 100]
    with pytest.raises(ValueError, match="number=0"):
        steps(0)


# Moving average


class AveragingTrainer(Seq2SeqTrainer):
    """What `WeightAverageCallback` asks of a Trainer."""

    def __init__(self, *args, averaging, **kwargs):
        super().__init__(*args, **kwargs)
        self.averaging = averaging
        self.add_callback(averaging)

    def evaluate(self, *args, **kwargs):
        with self.averaging.swapped_in(self.model):
            return super().evaluate(*args, **kwargs)

    def _save_checkpoint(self, model, trial):
        if self.args.should_save:
            self.averaging.save(Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}")
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self.averaging.load(resume_from_checkpoint)


class Recorder(TrainerCallback):
    """Keeps the weights before the training and after every step, and can stop it."""

    def __init__(self, stop_after=None):
        self.stop_after = stop_after
        self.weights = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights.append(weights_of(model))

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.weights.append(weights_of(model))
        if state.global_step == self.stop_after:
            control.should_training_stop = True


def make_trainer(folder, stop_after=None, decay=0.3, **options):
    set_seed(0)
    model = tiny_model(tie_word_embeddings=True, embedding_dropout=0.2)
    model.get_input_embeddings().weight.requires_grad_(False)
    (input_ids, mask), labels = source_batch(), target_batch()
    rows = [
        {"input_ids": ids[keep.bool()].tolist(), "labels": label[label >= 0].tolist()}
        for ids, keep, label in zip(input_ids, mask, labels, strict=True)
    ]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["abc"], model="char")
    arguments = {
        "output_dir": str(folder),
        "max_steps": 6,
        "learning_rate": 0.05,
        "per_device_train_batch_size": 2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_steps": 100,
        "ddp_find_unused_parameters": False,
        **options,
    }
    recorder = Recorder(stop_after)
    trainer = AveragingTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**arguments),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        averaging=WeightAverageCallback(decay),
        callbacks=[recorder],
    )
    return trainer, recorder


def naive(recorded, decay):
    """The recursion of the class's documentation over recorded weights, in double precision."""
    averages = {name: value.double() for name, value in recorded[0].items()}
    for t, weights in enumerate(recorded[1:]):
        d = min(decay, (1 + t) / (10 + t))
        averages = {name: d * averages[name] + (1 - d) * weights[name].double() for name in averages}
    return averages


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999])
def test_the_recursion(tmp_path, decay):
    trainer, recorder = make_trainer(tmp_path, decay=decay, gradient_accumulation_steps=2)
    trainer.train()
    assert len(recorder.weights) == 7 and trainer.averaging.updates == 6
    frozen = "model.encoder.embed_tokens.weight"
    expected = naive(recorder.weights, decay)
    assert torch.equal(recorder.weights[0][frozen], recorder.weights[-1][frozen])
    del expected[frozen]
    assert "lm_head.weight" not in expected  # tied
    found = {name: average.double() for name, average in trainer.averaging.averages.items()}
    assert_equal(found, expected, atol=1e-6, rtol=1e-6)


def test_the_warm_up_by_hand():
    model = torch.nn.Linear(1, 1, bias=False)
    callback = WeightAverageCallback(decay=0.15)
    model.weight.data.fill_(0.0)
    callback.on_train_begin(None, SimpleNamespace(global_step=0), None, model=model)
    for weight, expected in ((10.0, 9.0), (20.0, 0.15 * 9 + 0.85 * 20), (0.0, 0.15 * 18.35)):  # d = 0.1, 0.15, 0.15
        model.weight.data.fill_(weight)
        callback.on_step_end(None, None, None, model=model)
        assert callback.averages["weight"].item() == pytest.approx(expected, rel=1e-6)


def test_an_interrupted_training_has_the_same_averages(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3}
    whole, _ = make_trainer(tmp_path / "whole", **options)
    whole.train()
    first, _ = make_trainer(tmp_path / "parts", stop_after=3, **options)
    first.train()
    second, _ = make_trainer(tmp_path / "parts", **options)
    second.train(resume_from_checkpoint=True)
    assert whole.averaging.updates == second.averaging.updates == 6
    assert_equal(whole.averaging.averages, second.averaging.averages)
    for name in (WEIGHTS, AVERAGES_NAME):
        one, other = (load_file(tmp_path / run / "checkpoint-6" / name) for run in ("whole", "parts"))
        assert_equal(one, other)
    assert_equal(load_file(tmp_path / "parts" / "checkpoint-6" / AVERAGES_NAME), second.averaging.averages)


def test_evaluation_sees_the_averages_and_training_does_not(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 1}
    plain, untouched = make_trainer(tmp_path / "plain", decay=0.0, **options)
    plain.train()
    trainer, recorder = make_trainer(tmp_path / "averaged", **options)
    trainer.train()
    assert_equal(untouched.weights[-1], recorder.weights[-1])
    model = copy.deepcopy(trainer.model).eval()
    values = {**recorder.weights[-1], **{n: v.float() for n, v in naive(recorder.weights, 0.3).items()}}
    model.load_state_dict(values, strict=False)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, values[name])
    (input_ids, mask), labels = source_batch(), target_batch()
    expected = model(input_ids, mask, labels=labels).loss.item()
    raw = trainer.model.eval()(input_ids, mask, labels=labels).loss.item()
    logged = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert len(logged) == 6
    assert logged[-1] == pytest.approx(expected, rel=1e-5)
    assert abs(raw - expected) > 1e-4
    trainer.averaging.use_averages(trainer.model)
    assert trainer.model(input_ids, mask, labels=labels).loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_best_checkpoint_gives_its_averages(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    # The worst is called the best, so that it is not the last.
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    trainer, recorder = make_trainer(tmp_path, **options)
    trainer.train()
    best = trainer.state.best_model_checkpoint
    step = int(best.split("-")[-1])
    assert step < 6
    trainer.averaging.load_averages(best, trainer.model)
    expected = naive(recorder.weights[: step + 1], 0.3)
    found = {name: value.double() for name, value in weights_of(trainer.model).items()}
    assert_equal(found, expected, atol=1e-6, rtol=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)


def started(model, **options):
    callback = WeightAverageCallback(**options)
    callback.on_train_begin(None, SimpleNamespace(global_step=0), None, model=model)
    return callback


def test_an_error_in_the_evaluation_brings_the_weights_back():
    model = tiny_model()
    callback = started(model)
    with torch.no_grad():
        model.lm_head.weight += 1
    before = weights_of(model)
    with pytest.raises(RuntimeError, match="in the middle"), callback.swapped_in(model):
        assert torch.equal(model.lm_head.weight, callback.averages["lm_head.weight"])
        with callback.swapped_in(model):  # evaluation within prediction
            pass
        assert torch.equal(model.lm_head.weight, callback.averages["lm_head.weight"])
        raise RuntimeError("in the middle")
    assert_equal(weights_of(model), before)


def test_without_a_training_the_model_is_evaluated_as_it_is(tmp_path):
    model, callback = tiny_model(), WeightAverageCallback()
    before = weights_of(model)
    with callback.swapped_in(model):
        assert_equal(weights_of(model), before)
    with pytest.raises(ValueError, match="no averages yet"):
        callback.use_averages(model)
    with pytest.raises(ValueError, match="no averages yet"):
        callback.save(tmp_path)


def test_a_new_training_begins_new_averages(tmp_path):
    model = tiny_model()
    callback = started(model)
    callback.on_step_end(None, None, None, model=model)
    other = tiny_model(seed=1)
    callback.on_train_begin(None, SimpleNamespace(global_step=0), None, model=other)
    assert callback.updates == 0
    assert_equal(callback.averages, weights_of(other))


def test_half_precision_weights_have_single_precision_averages():
    """A bfloat16 average would not move by a thousandth of the difference."""
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    model.weight.data.fill_(1.0)
    callback = started(model)
    callback.updates = 10**6
    model.weight.data.fill_(2.0)
    callback.on_step_end(None, None, None, model=model)
    assert callback.averages["weight"].item() == pytest.approx(1.001, abs=1e-6)
    with callback.swapped_in(model):
        assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == 2.0


def test_what_is_refused(tmp_path):
    for decay in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"decay={decay}"):
            WeightAverageCallback(decay)
    with pytest.raises(FileNotFoundError, match="has no averages.safetensors"):
        WeightAverageCallback().load(tmp_path)
    started(tiny_model()).save(tmp_path)
    callback = WeightAverageCallback()
    with pytest.raises(ValueError, match=r"unlike are \['lm_head.bias', 'lm_head.weight'.*decoder_embed"):
        callback.load_averages(tmp_path, tiny_model(decoder_vocab_size=20))
    callback.load(tmp_path)
    with pytest.raises(ValueError, match="not those of this model"):
        callback.on_train_begin(None, SimpleNamespace(global_step=5), None, model=tiny_model(rnn_type="gru"))


@pytest.mark.slow
def test_two_processes_hold_the_averages_of_one(tmp_path):
    options = {"optim": "sgd", "max_grad_norm": 0.0}
    one, _ = make_trainer(tmp_path, per_device_train_batch_size=4, **options)
    one.model.config.embedding_dropout = 0.0
    one.train()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", __name__, str(tmp_path), json.dumps({**options, "ddp_backend": "gloo"})]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    first, second = (load_file(tmp_path / rank / AVERAGES_NAME) for rank in "01")
    assert_equal(first, second)
    assert_equal(first, one.averaging.averages, atol=1e-5, rtol=1e-4)


if __name__ == "__main__":  # a process of the test above
    TRAINER, _ = make_trainer(sys.argv[1], **json.loads(sys.argv[2]))
    TRAINER.model.config.embedding_dropout = 0.0
    TRAINER.train()
    TRAINER.averaging.save(Path(sys.argv[1], str(torch.distributed.get_rank())))
    torch.distributed.barrier()
    os._exit(0)  # taking gloo's threads down while a distributed model is alive can hang
