"""The entry point: from two text files, or a recipe, to a scored model with a card."""

import itertools
import json
import re

import pytest
import torch
import yaml

from hf_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration
from training.arguments import parse_recipe
from training.scheduled_sampling import with_own_words
from training.train import main

from .helpers import source_batch, target_batch, tiny_model

TINY = ["--embedding_size", "16", "--hidden_size", "32", "--disable_tqdm", "true", "--samples", "1"]


@pytest.fixture()
def parallel_text(tmp_path):
    """Letters in front, the same letters reversed behind; nothing but two files."""
    words = ["".join("abcd"[(row // 4**place) % 4] for place in range(4)) for row in range(256)]
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "reversed.txt").write_text("\n".join(" ".join(word[::-1]) for word in words) + "\n", encoding="utf-8")
    return tmp_path


def test_two_text_files_and_nothing_else(parallel_text, capsys):
    folder = parallel_text / "model"
    files = [
        "--train_file",
        str(parallel_text / "words.txt"),
        "--train_target_file",
        str(parallel_text / "reversed.txt"),
    ]
    files += [
        "--test_file",
        str(parallel_text / "words.txt"),
        "--test_target_file",
        str(parallel_text / "reversed.txt"),
    ]
    units = ["--source_unit", "char", "--target_unit", "phone"]
    training = ["--num_train_epochs", "25", "--learning_rate", "0.01", "--per_device_train_batch_size", "16"]
    training += ["--eval_strategy", "no", "--output_dir", str(folder), "--lr_scheduler_type", "linear"]
    main([*files, *units, *training, *TINY, "--metrics", "exact_match", "edit_distance"])
    results = json.loads((folder / "results.json").read_text())
    assert results["words"]["exact_match"] > 95
    predictions = (folder / "predictions.words.txt").read_text().splitlines()
    expected = (parallel_text / "reversed.txt").read_text().splitlines()
    right = sum(prediction == reference for prediction, reference in zip(predictions, expected))
    assert results["words"]["exact_match"] == pytest.approx(100 * right / 256)
    card = (folder / "README.md").read_text()
    assert "exact_match" in card and "alignment.png" in card and (folder / "alignment.png").exists()
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["training"]["num_train_epochs"] in (25, "25")

    # The model is there: translate a file, an empty line among it, without training.
    (parallel_text / "more.txt").write_text("abca\n\nddda\n", encoding="utf-8")
    capsys.readouterr()
    main(
        ["--output_dir", str(folder), "--disable_tqdm", "true"]
        + ["--predict_file", str(parallel_text / "more.txt"), "--predict_output", str(parallel_text / "out.txt")]
    )
    assert (parallel_text / "out.txt").read_text() == "a c b a\n\na d d d\n"
    model = AttentionSeq2SeqForConditionalGeneration.from_pretrained(folder)
    assert model.generation_config.num_beams == 5


def test_what_a_recipe_can_do_together(parallel_text):
    """Averages, best checkpoint, early stopping, samples in TensorBoard, scheduled sampling, smoothing, ensembles."""
    recipe = {
        "data": {"train_file": "words.txt", "train_target_file": "reversed.txt", "validation_rows": 20},
        "tokenizer": {"source_unit": "char", "target_unit": "phone"},
        "model": {"preset": "luong-2015-local-p", "encoder_layers": 1, "decoder_layers": 1, "attention_window": 2},
        "training": {
            "num_train_epochs": 3,
            "eval_strategy": "epoch",
            "metric_for_best_model": "exact_match",
            "early_stopping_patience": 2,
            "weight_average_decay": 0.9,
            "scheduled_sampling": 0.2,
            "label_smoothing_factor": 0.1,
            "report_to": "tensorboard",
            "seed": 3,
        },
        "evaluation": {"metrics": ["exact_match"], "length_buckets": [2]},
    }
    (parallel_text / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    (parallel_text / "test.tsv").write_text("abcd\td c b a\nbb\tb b\na\ta\n")
    where = ["--data_dir", str(parallel_text), "--output_dir", str(parallel_text / "one"), *TINY]
    main([str(parallel_text / "recipe.yaml"), *where])
    assert "exact_match" in json.loads((parallel_text / "one" / "results.json").read_text())["validation"]
    assert "exact_match" in (parallel_text / "one" / "README.md").read_text()
    events = list((parallel_text / "one").rglob("events*"))
    assert any(b"alignment/0" in file.read_bytes() for file in events)
    main(
        [str(parallel_text / "recipe.yaml"), *where, "--do_train", "false", "--test_file", "test.tsv"]
        + ["--ensemble", str(parallel_text / "one")]
    )
    results = json.loads((parallel_text / "one" / "results.json").read_text())
    assert "exact_match" in results["test"] and results["training_minutes"] >= 0
    assert {name for name in results["test"] if "words" in name} == {"exact_match (0 to 1 words)"}


def test_unknown_words_are_copied(tmp_path):
    """Names that are not in the vocabulary, from text files to a score and to a file of new ones."""
    names = ["".join(letters).title() for letters in itertools.permutations("abcde", 3)]
    for name, some in (("train", names[:50]), ("test", names[50:])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"ask {one}\t{one} was asked\n" for one in some))
    (tmp_path / "new.txt").write_text("ask Xyz\n")
    recipe = {
        "data": {"train_file": "train.tsv", "test_file": "test.tsv", "validation_rows": 10},
        "tokenizer": {"source_unit": "word", "shared_vocabulary": True, "vocab_size": 7, "max_unknown_words": 2},
        "model": {"copy_mechanism": "pointer_generator"},
        "training": {"num_train_epochs": 40, "learning_rate": 0.01, "scheduled_sampling": 0.2, "eval_strategy": "no"},
        "evaluation": {"metrics": ["exact_match"]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    where = ["--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "model"), *TINY]
    where += ["--predict_file", str(tmp_path / "new.txt"), "--predict_output", str(tmp_path / "out.txt")]
    main([str(tmp_path / "recipe.yaml"), *where])
    assert json.loads((tmp_path / "model" / "results.json").read_text())["test"]["exact_match"] == 100
    assert (tmp_path / "out.txt").read_text() == "Xyz was asked\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "no recipe nowhere.yaml"),
        (["--hiden_size", "3"], "'hiden_size'; did you mean hidden_size"),
        (["--source_unit", "letters"], "source_unit.*letters"),
        (["--shared_vocabulary", "true", "--target_unit", "char"], "shared_vocabulary=True.*'bpe'.*'char'"),
        (["--scheduled_sampling", "2"], "scheduled_sampling=2.0.*0 to 1"),
        (["--early_stopping_patience", "2"], "early_stopping_patience=2.*metric_for_best_model"),
        (["--metric_for_best_model", "beauty"], "beauty"),
        (["--preset", "luong-2016"], "luong-2016.*luong-2015-local-p"),
        (["--metrics", "blue"], "blue"),
        (["--predict_file", "nowhere.txt"], "predict_file='nowhere.txt' does not exist"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert re.search(message, str(error.value) + capsys.readouterr().err)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: [1", "not a YAML file"),
        ("- 3", "sections data, tokenizer"),
        ("modell: {}", "'modell'; allowed: data"),
        ("model: 3", "'model' must hold fields"),
        ("data: {hidden_size: 3}", "'hidden_size' belongs to the section 'model'"),
        ("evaluation: {average_last: 5}", "average_last=5 needs as many checkpoints, but save_total_limit=3"),
        ("model: {atention_type: dot}", "'atention_type'; did you mean attention_type"),
    ],
)
def test_a_recipe_is_read_strictly(tmp_path, content, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(message).replace("\\ ", " ")):
        parse_recipe([str(path)])


def test_the_command_line_wins(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {hidden_size: 10, dropout: 0.1}\ntraining: {eval_strategy: no, learning_rate: 1e-3}\n")
    recipe = parse_recipe([str(path), "--hidden_size", "12", "--output-dir=x", "--languages", "a", "b", "--bf16"])
    configuration = recipe.configuration(vocab_size=20)
    assert (configuration.hidden_size, configuration.dropout, configuration.vocab_size) == (12, 0.1, 20)
    assert (recipe.training.output_dir, recipe.training.bf16, recipe.data.languages) == ("x", True, ["a", "b"])
    assert (str(recipe.training.eval_strategy.value), recipe.training.learning_rate) == ("no", 1e-3)
    assert yaml.safe_load(recipe.to_yaml())["model"] == {"hidden_size": "12", "dropout": 0.1}


def test_scheduled_sampling_reads_own_words():
    """With probability 0 what was given, with 1 the sampled words, each drawn after those before it."""
    model = tiny_model().train()
    input_ids, mask = source_batch()
    given = model.prepare_decoder_input_ids_from_labels(target_batch())
    inputs = {"input_ids": input_ids, "attention_mask": mask, "decoder_input_ids": given}
    assert torch.equal(with_own_words(model, inputs, 0.0), given)
    with torch.no_grad():  # one word is all but certain after each word
        model.lm_head.weight.mul_(1000)
        model.lm_head.bias[[model.config.pad_token_id, model.config.eos_token_id]] = -1e9
    own = with_own_words(model, inputs, 1.0)
    padding = given == model.config.pad_token_id
    assert torch.equal(own[padding], given[padding]) and torch.equal(own[:, 0], given[:, 0])
    model.eval()
    greedy = model.generate(input_ids, attention_mask=mask, max_new_tokens=4, num_beams=1)
    assert torch.equal(own[~padding], greedy[~padding])
