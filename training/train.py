"""
From raw files to a scored model with a card, by a recipe.

    python -m training.train training/recipes/multi30k.yaml [--field value ...]
    accelerate launch --num_processes 2 -m training.train RECIPE.yaml [--field value ...]

The same command continues a run that was interrupted. `--do_train false` scores the model that is there again;
`--predict_file sources.txt --predict_output translations.txt` translates a file, one source a line.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import sys
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset, IterableDataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    EarlyStoppingCallback,
    set_seed,
)
from transformers.integrations import TensorBoardCallback
from transformers.trainer_utils import IntervalStrategy

from hf_attention_seq2seq import (
    AttentionSeq2SeqEnsemble,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    align,
    learn_lexicon,
    plot_alignment,
)

from .arguments import Recipe, parse_recipe
from .averaging import WeightAverageCallback, average_checkpoints, last_checkpoints
from .card import describe_machine, write_model_card
from .data import TextData, load_text_data
from .launch import start_missing_processes
from .memory import keep_freed_memory
from .trainer import RecipeTrainer, SamplesCallback, checkpoint_to_continue

RECIPE_FILE = "recipe.yaml"
# What may differ when an interrupted run is continued: it does not change the training that is already done.
FREE_FIELDS = {
    *("do_train", "do_eval", "do_predict", "resume_from_checkpoint", "save_total_limit", "disable_tqdm"),
    *("report_to", "use_cpu"),
    *("num_train_epochs", "max_steps", "logging_steps", "per_device_eval_batch_size", "early_stopping_patience"),
    *("data_dir", "test_file", "test_target_file", "max_test_rows", "dataloader_num_workers", "output_dir"),
}


def make_tokenizer(recipe: Recipe, data: TextData) -> AttentionSeq2SeqTokenizer:
    """Trains the tokenizer on the training rows; with `model_name_or_path`, loads that model's."""
    if recipe.model.model_name_or_path is not None:
        return AutoTokenizer.from_pretrained(recipe.model.model_name_or_path)
    arguments = recipe.tokenizer
    units = [{"phone": "word"}.get(unit, unit) for unit in (arguments.source_unit, arguments.target_unit)]
    rows = (
        list(islice(data.train, arguments.tokenizer_rows)) if isinstance(data.train, IterableDataset) else data.train
    )
    sources, targets = ([row[side] for row in rows] for side in ("source", "target"))
    options = {
        "model": units[0],
        "vocab_size": arguments.vocab_size,
        "min_frequency": arguments.min_frequency,
        "lowercase": arguments.lowercase,
        "normalization": arguments.source_normalization,
        "special_tokens": data.tags,
    }
    if arguments.max_unknown_words:
        options["max_unknown_words"] = arguments.max_unknown_words
    if arguments.shared_vocabulary:
        return AttentionSeq2SeqTokenizer.train_from_iterator(chain(sources, targets), **options)
    return AttentionSeq2SeqTokenizer.train_from_iterator(
        sources,
        targets,
        target_model=units[1],
        target_vocab_size=arguments.target_vocab_size,
        target_normalization=arguments.target_normalization,
        **options,
    )


def make_model(recipe: Recipe, tokenizer: AttentionSeq2SeqTokenizer) -> AttentionSeq2SeqForConditionalGeneration:
    """A new model, or the one of `model_name_or_path`; beam search as the recipe wants it is its default."""
    if recipe.model.model_name_or_path is not None:
        model = AttentionSeq2SeqForConditionalGeneration.from_pretrained(recipe.model.model_name_or_path)
    else:
        decided = {
            "vocab_size": len(tokenizer),
            "decoder_vocab_size": tokenizer.target_vocab_size if tokenizer.separate_vocabs else None,
            "max_unknown_words": tokenizer.max_unknown_words,
        }
        if recipe.model.encoder_type == "hierarchical":
            decided["sentence_separator_token_id"] = tokenizer.convert_tokens_to_ids(recipe.data.source_separator)
        model = AttentionSeq2SeqForConditionalGeneration(recipe.configuration(**decided))
    generation = model.generation_config
    generation._from_model_config = False  # it says more than the configuration
    generation.num_beams = recipe.evaluation.num_beams
    generation.length_penalty = recipe.evaluation.length_penalty
    generation.max_length = recipe.evaluation.max_new_tokens + 1
    if generation.num_beams > 1:
        generation.early_stopping = False
    return model


def encode(data: Dataset | IterableDataset, tokenizer: AttentionSeq2SeqTokenizer) -> Dataset | IterableDataset:
    """Adds `input_ids`, `attention_mask` and `labels` (of the first reference); rows with references go by length."""
    is_scored = "references" in data.column_names

    def to_tokens(batch: dict[str, list]) -> dict[str, list]:
        targets = [references[0] for references in batch["references"]] if is_scored else batch["target"]
        return dict(tokenizer(batch["source"], text_target=targets))

    if isinstance(data, IterableDataset):
        # Without an end: the Trainer finds its place in a stream again by the number of steps, not of passes.
        return data.map(to_tokens, batched=True, remove_columns=["source", "target", "group"]).repeat(None)
    columns = {**data[:], **to_tokens(data[:])}
    # Sentences of like length together need least padding: by the source, and then by the target.
    columns["length"] = [
        1000 * len(ids) + min(len(labels), 999) for ids, labels in zip(columns["input_ids"], columns["labels"])
    ]
    if is_scored:
        columns["row"] = list(range(len(data)))
        order = sorted(columns["row"], key=columns["length"].__getitem__)
        columns = {name: [values[row] for row in order] for name, values in columns.items()}
    return Dataset.from_dict(columns)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is never seen half written."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def check_recipe_of_run(recipe: Recipe) -> None:
    """A run that is continued must have been started by the same recipe. Raises `ValueError`."""
    folder = Path(recipe.training.output_dir)
    path = folder / RECIPE_FILE
    # Each worker reads its part of a stream.
    free = FREE_FIELDS - {"dataloader_num_workers"} if recipe.data.streaming else FREE_FIELDS
    if not path.exists():
        return
    before = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for section in ("data", "tokenizer", "model", "training"):
        old, new = before.get(section, {}), recipe.given[section]
        for name in sorted({*old, *new} - free):
            if str(old.get(name)) != str(new.get(name)):
                raise ValueError(
                    f"{folder} holds a run with {name}={old.get(name)!r}, and now it is {new.get(name)!r}. Give the "
                    "run a folder of its own with --output_dir, or start again with --resume_from_checkpoint none."
                )


def train(recipe: Recipe, data: TextData) -> tuple[RecipeTrainer, float]:
    """Trains, or continues, and saves; returns the trainer and the minutes that the whole training took."""
    arguments, evaluation = recipe.training, recipe.evaluation
    folder = Path(arguments.output_dir)
    if data.train is None:
        raise ValueError("There is no training data: give train_file or dataset_name, or --do_train false.")
    if isinstance(data.train, IterableDataset):
        arguments.group_by_length = False  # no lengths are known; transformers 4 would stop here
        if "epoch" in (arguments.eval_strategy, arguments.save_strategy):
            raise ValueError(
                f"eval_strategy={arguments.eval_strategy.value!r}, save_strategy={arguments.save_strategy.value!r}: "
                "streamed training data have no epochs; allowed are steps and no."
            )
    with arguments.main_process_first():
        checkpoint = checkpoint_to_continue(folder, arguments.resume_from_checkpoint)
    if checkpoint is None:
        tokenizer = make_tokenizer(recipe, data)
    else:
        print(f"continuing from {checkpoint}", flush=True)
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = make_model(recipe, tokenizer)
    generation = copy.deepcopy(model.generation_config)
    if arguments.should_save:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / RECIPE_FILE, recipe.to_yaml())
    if arguments.should_log:
        print(f"{model.num_parameters():,} parameters", flush=True)
    trainer = make_trainer(recipe, data, model, tokenizer)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    model, minutes = trainer.model, trainer.minutes
    if evaluation.average_last:
        checkpoints = last_checkpoints(folder, evaluation.average_last)
        if trainer.is_world_process_zero():
            average_checkpoints(checkpoints, folder / "averaged")
        trainer.accelerator.wait_for_everyone()
        model.load_state_dict(
            AttentionSeq2SeqForConditionalGeneration.from_pretrained(folder / "averaged").state_dict()
        )
    model.generation_config = generation  # evaluations have filled it with the library's defaults
    trainer.save_model()
    trainer.save_state()
    return trainer, minutes


def make_trainer(recipe: Recipe, data: TextData, model, tokenizer: AttentionSeq2SeqTokenizer) -> RecipeTrainer:
    """The trainer of a recipe, with its callbacks."""
    arguments, evaluation = recipe.training, recipe.evaluation
    validation = None if data.validation is None else encode(data.validation, tokenizer)
    average = None
    if arguments.weight_average_decay is not None:
        average = WeightAverageCallback(arguments.weight_average_decay)
    trainer = RecipeTrainer(
        model=model,
        args=arguments,
        train_dataset=None if data.train is None else encode(data.train, tokenizer),
        eval_dataset=validation,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        metric_names=evaluation.metrics,
        metric_options={"bleu_tokenize": evaluation.bleu_tokenize},
        weight_average=average,
    )
    if arguments.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(arguments.early_stopping_patience))
    if validation is not None and evaluation.samples:
        boards = [entry for entry in trainer.callback_handler.callbacks if isinstance(entry, TensorBoardCallback)]
        sources = data.validation[: evaluation.samples]["source"]
        trainer.add_callback(SamplesCallback(tokenizer, sources, *boards))
    return trainer


def score(recipe: Recipe, data: TextData, trainer: RecipeTrainer) -> dict[str, dict[str, Any]]:
    """
    Translates the test sets (without any, the validation data) with beam search; writes `predictions.NAME.txt` and
    returns the figures by set.
    """
    evaluation, folder = recipe.evaluation, Path(recipe.training.output_dir)
    trainer.compute_metrics = None  # the texts are measured below, in the order of their rows
    model, lexicon = trainer.accelerator.unwrap_model(trainer.model), None
    tests = scored_sets(data)
    if tests and evaluation.ensemble:
        ensemble = AttentionSeq2SeqEnsemble.from_pretrained([folder, *evaluation.ensemble])
    results = {}
    for name, test in tests.items():
        started = time.time()
        if evaluation.ensemble:
            texts, figures = translate(recipe, ensemble, trainer.processing_class, test["source"]), {}
        else:
            encoded = encode(test, trainer.processing_class)
            output = trainer.predict(encoded, metric_key_prefix=name, **search_options(recipe))
            by_row = dict(zip(encoded["row"], trainer.texts(output.predictions, encoded["source"])))
            texts, figures = [by_row[row] for row in range(len(test))], {"loss": output.metrics[f"{name}_loss"]}
        figures |= trainer.measure(texts, test)
        if evaluation.replace_unknown:
            if lexicon is None:
                lexicon = training_lexicon(data, trainer)
            for way, known in (("copied", None), ("by lexicon", lexicon)):
                replaced = translate(
                    recipe, model, trainer.processing_class, test["source"], replace_unknown=True, lexicon=known
                )
                figures |= labelled(trainer.measure(replaced, test), f"unknown words {way}")
        if evaluation.length_buckets:
            figures |= by_length(trainer, texts, test, evaluation.length_buckets)
        figures["seconds"] = round(time.time() - started, 1)
        results[name] = figures
        if trainer.is_world_process_zero():
            lines = (text.replace("\n", " ") for text in texts)
            (folder / f"predictions.{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return results


def scored_sets(data: TextData) -> dict[str, Dataset]:
    """The test sets; without any, the validation data."""
    return data.tests or ({} if data.validation is None else {"validation": data.validation})


def labelled(figures: dict[str, float | str], label: str) -> dict[str, float]:
    """Figures under names that say what they are of, without the signatures."""
    return {f"{name} ({label})": value for name, value in figures.items() if isinstance(value, float)}


def search_options(recipe: Recipe) -> dict[str, Any]:
    """How `generate` searches in the end."""
    evaluation = recipe.evaluation
    return {name: getattr(evaluation, name) for name in ("num_beams", "length_penalty", "max_new_tokens")}


def by_length(trainer: RecipeTrainer, texts: list[str], test: Dataset, limits: list[int]) -> dict[str, float]:
    """The figures of the sentences with fewer source words than each limit (and at least the limit before)."""
    figures = {}
    lengths = [len(source.split()) for source in test["source"]]
    for low, high in zip([0, *limits], [*limits, None]):
        rows = [row for row, length in enumerate(lengths) if low <= length and (high is None or length < high)]
        if rows:
            bucket = f"{low} words and more" if high is None else f"{low} to {high - 1} words"
            figures |= labelled(trainer.measure([texts[row] for row in rows], test.select(rows)), bucket)
    return figures


def training_lexicon(data: TextData, trainer: RecipeTrainer, rows: int = 10_000) -> dict[str, str]:
    """What the trained model aligns words to in its training data."""
    if data.train is None:
        raise ValueError("replace_unknown=True learns a lexicon from the training data, and there are none.")
    model = trainer.accelerator.unwrap_model(trainer.model)
    pairs = list(islice(data.train, rows))
    sources, targets = ([row[side] for row in pairs] for side in ("source", "target"))
    return learn_lexicon(align(model, trainer.processing_class, sources, targets, batch_size=128))


def translate(
    recipe: Recipe, model, tokenizer: AttentionSeq2SeqTokenizer, sources: list[str], **options: Any
) -> list[str]:
    """Texts for texts, as the recipe searches."""
    pipeline = TranslationPipeline(model=model, tokenizer=tokenizer, device=recipe.training.device)
    outputs = pipeline(
        list(sources),
        batch_size=recipe.training.per_device_eval_batch_size,
        **search_options(recipe),
        **options,
    )
    return [output["translation_text"].strip() for output in outputs]


def predict_file(recipe: Recipe, model, tokenizer: AttentionSeq2SeqTokenizer) -> None:
    """Translates `predict_file`, line by line; an empty line gives an empty line."""
    sources = Path(recipe.evaluation.predict_file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = iter(translate(recipe, model, tokenizer, [source for source in sources if source.strip()]))
    lines = [next(texts) if source.strip() else "" for source in sources]
    if recipe.evaluation.predict_output is None:
        print("\n".join(lines))
    else:
        Path(recipe.evaluation.predict_output).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_card(
    recipe: Recipe, data: TextData, trainer: RecipeTrainer, results: dict, minutes: float, command: str
) -> None:
    """The model card with the figures, examples and one alignment picture."""
    folder = Path(recipe.training.output_dir)
    evaluation, model = recipe.evaluation, trainer.accelerator.unwrap_model(trainer.model)
    translate = TranslationPipeline(model=model, tokenizer=trainer.processing_class, device=model.device)
    model.eval()
    shown = next(iter(scored_sets(data).values()), None)
    sources = [] if shown is None else shown[:3]["source"]
    pictures, examples = [], []
    if sources:
        attends = model.config.attention_type != "none"
        outputs = translate(list(sources), return_alignments=attends)
        examples = [(source, output["translation_text"]) for source, output in zip(sources, outputs)]
        if attends:
            for index, output in enumerate(outputs):
                pictures.append("alignment.png" if index == 0 else f"alignment_{index + 1}.png")
                plot_alignment(output["alignment"], folder / pictures[-1])
    write_model_card(
        folder,
        title=evaluation.title or folder.name,
        recipe_text=recipe.to_yaml(),
        config=model.config,
        results={
            name: {figure: value for figure, value in figures.items() if figure not in ("loss", "seconds")}
            for name, figures in results.items()
        },
        languages=evaluation.source_language,
        license=evaluation.license,
        datasets=evaluation.data_name,
        task=evaluation.task,
        examples=examples,
        alignment_pictures=pictures,
        command=command,
        minutes=minutes,
        machine=describe_machine(),
        limitations=evaluation.limitations,
    )


def run(recipe: Recipe, data: TextData, command: str) -> dict[str, dict[str, Any]]:
    """Does what the recipe asks for; returns the figures of the test sets."""
    arguments = recipe.training
    folder = Path(arguments.output_dir)
    set_seed(arguments.seed)
    if data.validation is None and arguments.eval_strategy != IntervalStrategy.NO:
        if arguments.do_train and arguments.load_best_model_at_end:
            raise ValueError(
                f"metric_for_best_model={arguments.metric_for_best_model!r} needs validation data, and there are none."
            )
        arguments.eval_strategy = IntervalStrategy.NO
    if arguments.should_log:
        print(*data.report, sep="\n", flush=True)
    results_file = folder / "results.json"
    known = json.loads(results_file.read_text()) if results_file.exists() else {}
    if arguments.do_train:
        trainer, minutes = train(recipe, data)
    else:
        if not (folder / "config.json").exists():
            raise ValueError(f"There is no trained model in {folder}; train first, or give --output_dir.")
        minutes = known.get("training_minutes", 0.0)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AttentionSeq2SeqForConditionalGeneration.from_pretrained(folder)
        trainer = make_trainer(recipe, data, model, tokenizer)
    results = score(recipe, data, trainer) if arguments.do_predict else {}
    if results and trainer.is_world_process_zero():
        report = {"training_minutes": round(minutes, 1), **results}
        write_whole(results_file, json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
        if not recipe.evaluation.ensemble:
            write_card(recipe, data, trainer, results, minutes, command)
    if recipe.evaluation.predict_file is not None and trainer.is_world_process_zero():
        predict_file(recipe, trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class)
    return results


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if start_missing_processes(f"{__package__}.train", arguments):
            return
        recipe = parse_recipe(arguments)
        file = recipe.evaluation.predict_file
        if file is not None and not Path(file).is_file():
            raise ValueError(f"predict_file={file!r} does not exist.")
        if file is not None and not recipe.given["data"] and "do_train" not in recipe.given["training"]:
            recipe.training.do_train = False  # nothing to train on: the model is there
        if recipe.training.do_train and recipe.training.resume_from_checkpoint == "auto":
            check_recipe_of_run(recipe)
        needs_data = recipe.training.do_train or any(recipe.given["data"])
        data = load_text_data(recipe.data) if needs_data else TextData(None, None, {}, [], [])
    except ValueError as error:
        sys.exit(f"error: {error}")
    keep_freed_memory()
    run(recipe, data, shlex.join(["python", "-m", f"{__package__}.train", *arguments]))


if __name__ == "__main__":
    main()
