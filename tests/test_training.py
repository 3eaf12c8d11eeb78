"""Seq2SeqTrainer with our models: accumulated, smoothed, interrupted, in several processes, and from text to text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.trainer_pt_utils import LabelSmoother

from .helpers import source_batch, target_batch, tiny_model
from .training_script import main as train

SCRIPT = Path(__file__).with_name("training_script.py")


def losses(folder):
    return [row["loss"] for row in json.loads((folder / "log.json").read_text()) if "loss" in row]


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same_weights(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def test_gradient_accumulation_trains_the_same_model(tmp_path):
    train(tmp_path / "whole", {}, {"per_device_train_batch_size": 8})
    train(tmp_path / "parts", {}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4})
    assert losses(tmp_path / "whole") == pytest.approx(losses(tmp_path / "parts"), abs=2e-4)
    assert_same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"), atol=1e-4, rtol=1e-3)


def test_gradient_accumulation_with_label_smoothing_trains_the_same_model(tmp_path):
    smoothing = {"label_smoothing_factor": 0.1, "optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.5}
    train(tmp_path / "whole", {}, {"per_device_train_batch_size": 8, **smoothing})
    train(tmp_path / "parts", {}, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, **smoothing})
    assert_same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"), atol=1e-5, rtol=1e-4)


def test_label_smoothing_of_the_trainer():
    """The Trainer takes the labels out and smooths itself: it must get the same decoder inputs and logits."""
    model = tiny_model()
    input_ids, mask = source_batch()
    labels = target_batch()
    plain = model(input_ids, mask, labels=labels)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    unlabelled = model(input_ids, mask, decoder_input_ids=decoder_input_ids, num_items_in_batch=15)
    torch.testing.assert_close(LabelSmoother(epsilon=0.0)(unlabelled, labels), plain.loss)
    log_probabilities = plain.logits.log_softmax(-1)
    kept = labels != -100
    picked = log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = -(0.9 * picked + 0.1 * log_probabilities.mean(-1))[kept].mean()
    torch.testing.assert_close(LabelSmoother(epsilon=0.1)(unlabelled, labels), expected)


def test_training_with_label_smoothing_runs(tmp_path):
    trainer = train(tmp_path, {}, {"label_smoothing_factor": 0.1, "eval_strategy": "steps", "eval_steps": 2})
    assert trainer.state.log_history[-1]["train_loss"] > 0
    assert "eval_loss" in trainer.evaluate()


def test_an_interrupted_training_ends_with_the_same_weights(tmp_path):
    options = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    fields = {"embedding_dropout": 0.1, "output_dropout": 0.1, "input_feeding": True}
    train(tmp_path / "whole", fields, options)
    train(tmp_path / "parts", fields, options, stop_after=3)
    train(tmp_path / "parts", fields, options)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    assert_same_weights(weights(tmp_path / "whole"), weights(tmp_path / "parts"), atol=0, rtol=0)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_type": "additive", "input_feeding": True},
        {"attention_type": "none", "attention_query": "previous_state", "rnn_type": "gru"},
    ],
    ids=lambda fields: fields["attention_type"],
)
def test_two_processes_train_the_same_model_as_one(tmp_path, fields):
    rows = 8  # the global batch is all of the data, in whichever order
    train(tmp_path / "one", fields, {"per_device_train_batch_size": 8}, rows)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", f"{__package__}.{SCRIPT.stem}", str(tmp_path / "two"), json.dumps(fields)]
    command += [json.dumps({"per_device_train_batch_size": 4, "ddp_backend": "gloo"}), str(rows)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parents[1])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("ran as one of 2 processes") == 2
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), abs=2e-4)
    assert_same_weights(weights(tmp_path / "one"), weights(tmp_path / "two"), atol=1e-4, rtol=1e-3)


def test_from_text_to_text(tmp_path):
    """A model learns to reverse a few words, and says them through the pipeline after loading."""
    train(tmp_path, {"hidden_size": 32, "input_feeding": True}, {"max_steps": 150, "predict_with_generate": True})
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    translate = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")
    words = ["ab", "hikl", "aaaa", "bdfhj"]
    outputs = translate(words, num_beams=2, batch_size=2)
    assert all(set(output) == {"translation_text"} for output in outputs)
    assert model.generate(**tokenizer(words, return_tensors="pt", padding=True)).shape[0] == 4


def test_evaluation_by_generating(tmp_path):
    trainer = train(tmp_path, {}, {"predict_with_generate": True, "generation_max_length": 9})
    prediction = trainer.predict(trainer.eval_dataset)
    assert prediction.predictions.shape[0] == 48
    assert prediction.predictions.shape[1] <= 256
    assert prediction.metrics["test_loss"] > 0


def test_evaluation_by_logits_leaves_the_cache_out(tmp_path):
    trainer = train(tmp_path, {}, {"max_steps": 1})
    outputs = trainer.predict(trainer.eval_dataset).predictions
    for array in outputs if isinstance(outputs, tuple) else (outputs,):
        assert array.shape[0] == 48
