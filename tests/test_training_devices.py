"""Training by a recipe in several processes: the same losses, weights and files as in one with the same batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from training.launch import launch_options
from training.train import main as train
from training.trainer import GroupedByLength

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "training" / "accelerate"
TRAIN_ROWS, VALIDATION_ROWS, TEST_ROWS, BATCH = 40, 7, 5, 8
# SGD without clipping, unlike Adam, shows a loss that is wrong by a factor.
PLAIN = {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 0.0, "num_train_epochs": 2, "logging_steps": 1}
QUIET = {"eval_strategy": "no", "save_strategy": "no", "do_predict": False}
COVERAGE = {"coverage_type": "accumulated", "coverage_loss_weight": 0.5}
MODELS = {
    **{name: {"attention_type": name} for name in ("none", "dot", "scaled_dot", "general", "concat", "mlp")},
    **{name: {"attention_type": name} for name in ("cosine", "location")},
    "additive": {"input_feeding": True, "encoder_layers": 2, "decoder_layers": 2},
    "local_m": {"attention_span": "local_m", "attention_window": 2},
    "local_p": {"attention_span": "local_p", "attention_window": 2},
    "sparsemax": {"attention_normalizer": "sparsemax"},
    "entmax15": {"attention_normalizer": "entmax15"},
    "coverage": COVERAGE,
    "location_aware": {"coverage_type": "location_aware"},
    "doubly_stochastic": {"doubly_stochastic_weight": 0.5},
    "monotonic": {"attention_selection": "monotonic", "monotonic_noise": 0.0},
    "monotonic_chunks": {"attention_selection": "monotonic", "monotonic_noise": 0.0, "monotonic_chunk_size": 3},
    "marginal": {"attention_selection": "hard"},
    "marginal_in_order": {"attention_selection": "hard", "hard_attention_order": 1},
    "variational_smoothed": {
        "attention_selection": "hard",
        "hard_attention_estimator": "variational",
        "label_smoothing_factor": 0.1,
    },
    "smoothed": {"label_smoothing_factor": 0.1},
    "smoothed_coverage": {**COVERAGE, "label_smoothing_factor": 0.1},
    "streamed": {"streaming": True, "max_steps": 10},
    "accumulated": {"gradient_accumulation_steps": 2},
    "accumulated_smoothed_coverage": {**COVERAGE, "label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """Words of different lengths, to be spelt backwards."""
    folder = tmp_path_factory.mktemp("recipe")
    rows = TRAIN_ROWS + VALIDATION_ROWS + TEST_ROWS
    words = ["".join(chr(97 + (7 * i + j * (i % 5 + 1)) % 26) for j in range(2 + 5 * i % 9)) for i in range(rows)]
    data = {"data_dir": str(folder)}
    for name, number in (("train", TRAIN_ROWS), ("validation", VALIDATION_ROWS), ("test", TEST_ROWS)):
        (folder / f"{name}.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words[:number]))
        data[f"{name}_file"] = f"{name}.tsv"
        words = words[number:]
    sections = {
        "data": data,
        "tokenizer": {"source_unit": "char"},
        "model": {"embedding_size": 8, "hidden_size": 8},
        "training": {"disable_tqdm": True, "use_cpu": True, **PLAIN},
        "evaluation": {"metrics": ["character_error_rate"], "num_beams": 2, "max_new_tokens": 12, "samples": 1},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def words_of(recipe, folder, **fields):
    """The arguments of `training.train`."""
    options = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    return [str(recipe), "--output_dir", str(folder), *options]


def launch(*words):
    """Runs a module of this repository; returns what it printed, once it has ended by itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-m", *map(str, words)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def losses(folder):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [row["loss"] for row in history if "loss" in row]


def assert_same_training(one, two):
    assert len(losses(one)) >= 5
    assert losses(one) == pytest.approx(losses(two), abs=2e-4)
    weights, others = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert weights.keys() == others.keys()
    for name in weights:
        torch.testing.assert_close(
            weights[name], others[name], atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


# Launching


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python /bin/accelerate launch --num_processes 2 -m training.train x --num_train_epochs 3", (2, 1, None)),
        ("python /bin/accelerate launch --num_processes=3 --cpu -m training.train", (3, 1, None)),
        ("python /bin/accelerate-launch --num-processes 4 -m training.train", (4, 1, None)),
        ("python -m accelerate.commands.launch --num_processes 2 --main_process_port 5 -m x", (2, 1, 5)),
        ("python -m accelerate.commands.launch --config_file CONFIGS/cpu.yaml -m x", (2, 1, None)),
        ("accelerate launch --config_file CONFIGS/cpu.yaml --num_processes 3 -m x", (3, 1, None)),
        ("accelerate launch --num_machines 2 --num_processes 4 --main_process_ip h -m x", (4, 2, None)),
        ("accelerate launch --cpu -m x --num_processes 7", (1, 1, None)),
        ("bash -c run", None),
    ],
)
def test_what_a_command_asks_for(command, expected):
    assert launch_options(command.replace("CONFIGS", str(CONFIGS)).split()) == expected


def test_every_file_of_options_is_one_that_accelerate_reads():
    from accelerate.commands.config.config_args import load_config_from_file

    kinds = {path.stem: load_config_from_file(str(path)).distributed_type for path in CONFIGS.glob("*.yaml")}
    assert kinds == {"cpu": "MULTI_CPU", "ddp": "MULTI_GPU", "fsdp2": "FSDP"}


# Rows


def test_the_order_by_length_is_that_of_the_epoch_in_every_process():
    lengths = [1 + 7 * row % 13 for row in range(100)]
    orders = []
    for epoch in (0, 1, 1):
        torch.manual_seed(len(orders))  # what processes have drawn differs
        orders.append(list(GroupedByLength(4, lengths, 5, lambda epoch=epoch: epoch)))
    assert orders[0] != orders[1] == orders[2]
    assert all(sorted(order) == list(range(100)) for order in orders)


# The same as in one process


def test_two_processes_do_what_one_does(recipe, tmp_path):
    """Batches by length, accumulated, smoothed, with a coverage loss; then validation, test, card."""
    fields = {**MODELS["accumulated_smoothed_coverage"], "per_device_eval_batch_size": 2}
    train(words_of(recipe, tmp_path / "one", per_device_train_batch_size=BATCH // 2, **fields))
    words = words_of(recipe, tmp_path / "two", per_device_train_batch_size=BATCH // 4, **fields)
    output = launch(
        "accelerate.commands.accelerate_cli", "launch", "--num_processes", 2, "-m", "training.train", *words
    )
    assert_same_training(tmp_path / "one", tmp_path / "two")
    assert output.count('"training_minutes"') == 1
    results = [json.loads((tmp_path / name / "results.json").read_text())["test"] for name in ("one", "two")]
    assert results[0].pop("loss") == pytest.approx(results[1].pop("loss"), rel=0.1)  # a mean of means of batches
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]
    predictions = [(tmp_path / name / "predictions.test.txt").read_text() for name in ("one", "two")]
    assert predictions[0].count("\n") == TEST_ROWS
    assert predictions[0] == predictions[1]
    assert {path.name for path in (tmp_path / "one").iterdir()} == {path.name for path in (tmp_path / "two").iterdir()}


@pytest.mark.slow
def test_by_a_file_of_options_a_trained_model_is_scored(recipe, tmp_path):
    train(words_of(recipe, tmp_path, **QUIET))
    words = words_of(recipe, tmp_path, do_train=False, per_device_eval_batch_size=2)
    train(words)
    before = (tmp_path / "predictions.test.txt").read_text()
    (tmp_path / "predictions.test.txt").unlink()
    launch("accelerate.commands.launch", "--config_file", CONFIGS / "cpu.yaml", "-m", "training.train", *words)
    assert (tmp_path / "predictions.test.txt").read_text() == before


@pytest.mark.slow
def test_every_model_trains_the_same_in_two_processes(recipe, models, tmp_path):
    train_in_two("torch.distributed.run", ["--standalone", "--nproc_per_node", 2], recipe, tmp_path, models)


@pytest.mark.slow
def test_every_model_trains_the_same_with_its_weights_shared_out(recipe, models, tmp_path):
    """FSDP2, of which accelerate thinks that it needs GPUs."""
    launcher = "accelerate.commands.launch"
    train_in_two(launcher, ["--config_file", CONFIGS / "fsdp2.yaml"], recipe, tmp_path, models)


@pytest.mark.slow
def test_with_shared_weights_everything_else_works(recipe, tmp_path):
    """Validation by generation, the best checkpoint, a checkpoint to continue from, averaging, test set and card."""
    fields = {"metric_for_best_model": "loss", "lr_scheduler_type": "constant", "per_device_eval_batch_size": 4}
    fields |= {"optim": "adamw_torch", "learning_rate": 0.003}  # torch cannot load the state of SGD, which has none
    one, two = tmp_path / "one", tmp_path / "two"
    train(words_of(recipe, one, per_device_train_batch_size=BATCH, num_train_epochs=3, average_last=2, **fields))
    fields["per_device_train_batch_size"] = BATCH // 2
    jobs = [words_of(recipe, two, num_train_epochs=1, **fields)]
    jobs += [words_of(recipe, two, num_train_epochs=3, average_last=2, **fields)]
    options = ["--config_file", CONFIGS / "fsdp2.yaml", "-m", __name__]
    assert "continuing from" in launch("accelerate.commands.launch", *options, json.dumps(jobs))
    assert_same_training(one, two)
    assert (one / "predictions.test.txt").read_text() == (two / "predictions.test.txt").read_text()
    assert (two / "README.md").exists()


@pytest.fixture(scope="module")
def models(recipe, tmp_path_factory):
    """Where the models are that one process has trained."""
    folder = tmp_path_factory.mktemp("one")
    for name, fields in MODELS.items():
        batch = BATCH // fields.get("gradient_accumulation_steps", 1)
        train(words_of(recipe, folder / name, per_device_train_batch_size=batch, **fields, **QUIET))
    return folder


def train_in_two(launcher, options, recipe, folder, models):
    jobs = []
    for name, fields in MODELS.items():
        batch = BATCH // 2 // fields.get("gradient_accumulation_steps", 1)
        jobs.append(words_of(recipe, folder / name, per_device_train_batch_size=batch, **fields, **QUIET))
    launch(launcher, *options, "-m", __name__, json.dumps(jobs))
    for name in MODELS:
        assert_same_training(models / name, folder / name)


def shard_on_cpus():
    """Accelerate leaves FSDP out where there are no accelerators: here it must not."""
    from accelerate import DistributedType
    from accelerate.state import AcceleratorState, PartialState

    initialize = AcceleratorState.__init__

    def initialize_as_if_there_were_any(self, *args, **kwargs):
        state = PartialState(cpu=True, backend="gloo")
        if state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU
        initialize(self, *args, **kwargs)
        assert self.is_fsdp2

    AcceleratorState.__init__ = initialize_as_if_there_were_any


if __name__ == "__main__":
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpus()
    for job in json.loads(sys.argv[1]):
        train(job)
        assert torch.distributed.get_world_size() == 2
