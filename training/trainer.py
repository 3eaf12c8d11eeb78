"""`Seq2SeqTrainer` with what recipes need: metrics over texts, averaged weights, checkpoints that survive a kill."""

from __future__ import annotations

import copy
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import Sampler, SequentialSampler
from transformers import EarlyStoppingCallback, EvalPrediction, PreTrainedModel, Seq2SeqTrainer, TrainerCallback
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_attention_seq2seq import (
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    plot_alignment,
)

from .arguments import RecipeTrainingArguments
from .averaging import WeightAverageCallback, checkpoints, is_complete, step_of
from .metrics import compute_metrics
from .scheduled_sampling import with_own_words

CLOCK_FILE = "clock.json"


def checkpoint_to_continue(output_dir: str | Path, wanted: str | None = "auto") -> Path | None:
    """
    The checkpoint that a training starts from; all others in `output_dir` that are incomplete or not of its past are
    removed, so that nothing can take them for checkpoints of this training.

    Args:
        wanted: "auto" for the newest complete one, "none" or `None` for none, or a folder.

    Raises:
        ValueError: `wanted` is a folder but no complete checkpoint.
    """
    there = checkpoints(output_dir)
    complete = [folder for folder in there if is_complete(folder, to_continue=True)]
    if wanted == "auto":
        start = complete[-1] if complete else None
    else:
        start = None if wanted in ("none", None) else Path(wanted)
        if start is not None and not is_complete(start, to_continue=True):
            raise ValueError(f"resume_from_checkpoint={wanted!r} is not a complete checkpoint.")
    is_ours = start is not None and start.resolve() in [folder.resolve() for folder in there]
    for folder in there:
        if not (is_ours and folder in complete and step_of(folder) <= step_of(start)):
            remove_checkpoint(folder)
    return start


def remove_checkpoint(folder: Path) -> None:
    """Removes a checkpoint, which is incomplete from the first moment on."""
    (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


class NothingLeft(Exception):
    """The training that is continued has already come to its end."""


class EndCallback(TrainerCallback):
    """The Trainer itself would do one step too many where a checkpoint is that of the last step."""

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """
        Raises:
            NothingLeft: all steps are done, or early stopping has ended the training.
        """
        waited, patience = _waited(state.stateful_callbacks), args.early_stopping_patience
        if state.global_step >= state.max_steps or (patience is not None and waited >= max(patience, 1)):
            raise NothingLeft


def _waited(states: dict[str, dict]) -> int:
    """How many evaluations early stopping has seen since the best one."""
    stopping = states.get(EarlyStoppingCallback.__name__, {"attributes": {}})
    return stopping["attributes"].get("early_stopping_patience_counter", 0)


class GroupedByLength(LengthGroupedSampler):
    """
    Rows of like length together, in an order that depends on `seed` and the epoch alone: it is the same in all
    processes, which share it out, and again the same where a training is continued.
    """

    def __init__(self, batch_size: int, lengths: list[int], seed: int, epoch: Callable[[], int]):
        super().__init__(batch_size, lengths=lengths)
        self.seed = seed
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch())
        return super().__iter__()


class RecipeTrainer(Seq2SeqTrainer):
    """
    Evaluation and test sets are `datasets.Dataset`s with the columns `input_ids`, `attention_mask`, `labels`, and
    `source`, `references` (a list of texts) and `group`, which only the metrics read; training sets may be sorted by a
    column `length`.

    Args:
        metric_names: what to compute from generated texts; see `training.metrics`.
        metric_options: options of `compute_metrics`.
        weight_average: exponential moving average of the weights, which evaluation and the result use.
    """

    def __init__(
        self,
        *,
        args: RecipeTrainingArguments,
        metric_names: list[str] = (),
        metric_options: dict[str, Any] | None = None,
        weight_average: WeightAverageCallback | None = None,
        **kwargs,
    ):
        self.metric_names = list(metric_names)
        self.metric_options = metric_options or {}
        self.weight_average = weight_average
        self._scored = None
        self._seconds_before = 0.0
        self._started = time.time()
        compute = self._text_metrics if self.metric_names else None
        self._kept_checkpoints = args.save_total_limit
        args = copy.copy(args)
        args.save_total_limit = None  # the Trainer goes by the times of folders, which a kill or a copy changes
        super().__init__(args=args, compute_metrics=compute, **kwargs)
        self.label_smoother = None  # see `compute_loss`
        if weight_average is not None and self.is_fsdp_enabled:
            raise ValueError(
                f"weight_average_decay={weight_average.decay} needs the whole weights in each process, which FSDP "
                "shards; use average_last instead."
            )
        self.add_callback(EndCallback())
        if weight_average is not None:
            self.add_callback(weight_average)

    # Metrics over texts

    def texts(self, tokens: np.ndarray, sources: Sequence[str]) -> list[str]:
        """Generated tokens `(rows, length)` as texts for `sources`; -100 is padding."""
        tokenizer = self.processing_class
        tokens = np.where(tokens < 0, tokenizer.pad_token_id, tokens)
        rows = zip(tokens, sources, strict=True)
        return [tokenizer.with_source(source).decode(ids, skip_special_tokens=True).strip() for ids, source in rows]

    def _text_metrics(self, prediction: EvalPrediction) -> dict[str, Any]:
        tokens = prediction.predictions
        texts = self.texts(tokens[0] if isinstance(tokens, tuple) else tokens, self._scored["source"])
        return self.measure(texts, self._scored)

    def measure(self, texts: list[str], scored: Dataset) -> dict[str, Any]:
        """The figures of texts, one for each row of `scored`."""
        groups = list(scored["group"])
        return compute_metrics(
            self.metric_names,
            texts,
            list(scored["references"]),
            groups if any(groups) else None,
            **self.metric_options,
        )

    def evaluate(self, eval_dataset=None, **kwargs) -> dict[str, float]:
        """See `Seq2SeqTrainer.evaluate`; with averaged weights if there are such."""
        self._scored = self.eval_dataset if eval_dataset is None else eval_dataset
        with self._averages():
            return super().evaluate(eval_dataset, **kwargs)

    def predict(self, test_dataset, **kwargs):
        """See `Seq2SeqTrainer.predict`; with averaged weights if there are such."""
        self._scored = test_dataset
        with self._averages():
            return super().predict(test_dataset, **kwargs)

    def log(self, logs: dict[str, Any], *args, **kwargs) -> None:
        """See `Trainer.log`; signatures are for the report only."""
        super().log({name: value for name, value in logs.items() if not isinstance(value, str)}, *args, **kwargs)

    # The order of rows

    def _get_train_sampler(self, *args) -> Sampler | None:
        sampler = super()._get_train_sampler(*args)
        if isinstance(sampler, LengthGroupedSampler):  # its own order comes from the random numbers of each process
            batch_size = sampler.batch_size * self.args.world_size
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            sampler = GroupedByLength(
                batch_size, self.train_dataset["length"], seed, lambda: int(self.state.epoch or 0)
            )
        return sampler

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler:
        """In order: the library's own would group by length here too, and outputs would not stand by their rows."""
        return SequentialSampler(eval_dataset)

    def evaluation_loop(self, *args, **kwargs):
        """See `Trainer.evaluation_loop`; without the rows that only fill up the last batch of several processes."""
        self.gather_function = self.accelerator.gather_for_metrics
        self._unshard()
        return super().evaluation_loop(*args, **kwargs)

    # Training

    @property
    def minutes(self) -> float:
        """How long the training has taken, evaluations and what came before an interruption included."""
        return (self._seconds_before + time.time() - self._started) / 60

    def compute_loss(self, model, inputs, *args, **kwargs):
        """
        See `Trainer.compute_loss`. In training, the model smooths labels itself, which needs no logits; with scheduled
        sampling, it reads words of its own.
        """
        if model.training:
            inputs = {**inputs, "smoothing": self.args.label_smoothing_factor, "output_logits": False}
        self._unshard()
        if model.training and self.args.scheduled_sampling:
            progress = self.state.global_step / max(self.state.max_steps, 1)
            own_words = with_own_words(
                self.accelerator.unwrap_model(model), inputs, progress * self.args.scheduled_sampling
            )
            inputs = {**inputs, "decoder_input_ids": own_words}
        return super().compute_loss(model, inputs, *args, **kwargs)

    # Averaged weights

    def _averages(self):
        if self.weight_average is None or not self.is_in_train:
            return nullcontext()
        return self.weight_average.swapped_in(self.accelerator.unwrap_model(self.model))

    # Checkpoints

    def _save_checkpoint(self, model, trial) -> None:
        """The averages go first: `trainer_state.json`, which the Trainer writes last, says that all is there."""
        if self.args.should_save:
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CLOCK_FILE).write_text(json.dumps(60 * self.minutes))
            if self.weight_average is not None:
                self.weight_average.save(folder)
        super()._save_checkpoint(model, trial)
        self._remove_old_checkpoints()

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # each process writes its own, and then one writes the last file

    def _remove_old_checkpoints(self) -> None:
        best = self.state.best_model_checkpoint
        if self.args.should_save and self._kept_checkpoints:
            for folder in checkpoints(self.args.output_dir)[: -self._kept_checkpoints]:
                if best is None or folder.resolve() != Path(best).resolve():
                    remove_checkpoint(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        clock = Path(resume_from_checkpoint) / CLOCK_FILE
        self._seconds_before = json.loads(clock.read_text()) if clock.exists() else 0.0
        if self.weight_average is not None:
            self.weight_average.load(resume_from_checkpoint)

    def _load_callback_state(self) -> None:
        """What the Trainer calls when it has read its state: early stopping has waited, and folders may have moved."""
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback):
                callback.early_stopping_patience_counter = _waited(self.state.stateful_callbacks)
                self.state.stateful_callbacks.setdefault(EarlyStoppingCallback.__name__, callback.state())
        best = TrainerState.load_from_json(self._continued / TRAINER_STATE_NAME).best_model_checkpoint
        if best is not None:
            best = self._continued.with_name(Path(best).name)
            if self.args.load_best_model_at_end and not is_complete(best):
                raise ValueError(
                    f"The best checkpoint before {self._continued}, {best}, is not there or not complete."
                )
            self.state.best_model_checkpoint = str(best)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.weight_average is not None and self.state.best_model_checkpoint is not None:
            self.weight_average.load(self.state.best_model_checkpoint)

    def train(self, resume_from_checkpoint: str | None = None, **kwargs) -> None:
        """
        See `Trainer.train`; afterwards the model has the averaged weights, and each process all of them. A training at
        its end is left there.
        """
        self._started = time.time()
        self._continued = None if resume_from_checkpoint is None else Path(resume_from_checkpoint)
        try:
            super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except NothingLeft:
            self.is_in_train = False
            self._remove_old_checkpoints()
            if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
                self._load_best_model()
            self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.weight_average is not None:
            self.weight_average.use_averages(self.accelerator.unwrap_model(self.model))
        if isinstance(self.model, FSDPModule):
            self._gather_weights()

    def _unshard(self) -> None:
        """For generation and loss, which call parts of the model, or use their weights, by themselves."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()

    def _gather_weights(self) -> None:
        """Puts a model that is not sharded in the place of the one that was trained."""
        weights = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        config, generation = self.model.config, self.model.generation_config
        self.model = AttentionSeq2SeqForConditionalGeneration(config).to(self.args.device)
        self.model.load_state_dict(weights)
        self.model.generation_config = generation
        self.model_wrapped = self.model
        self.is_fsdp_enabled = False


class SamplesCallback(TrainerCallback):
    """
    Shows what the model makes of a few validation sentences after each evaluation: in the log, and with alignment
    pictures in TensorBoard if the run reports there.
    """

    def __init__(
        self,
        tokenizer: AttentionSeq2SeqTokenizer,
        sources: list[str],
        board: TensorBoardCallback | None = None,
        max_new_tokens: int = 60,
    ):
        self.tokenizer = tokenizer
        self.sources = sources
        self.board = board
        self.max_new_tokens = max_new_tokens

    def on_evaluate(self, args, state, control, model: PreTrainedModel | None = None, **kwargs) -> None:
        """Translates greedily; nothing of it touches the random numbers of training."""
        if not state.is_world_process_zero or not self.sources or isinstance(model, FSDPModule):
            return  # no process has a whole sharded model
        was_training = model.training
        model.eval()
        translate = TranslationPipeline(model=model, tokenizer=self.tokenizer, device=model.device)
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": self.max_new_tokens}
        attends = model.config.attention_type != "none"
        outputs = translate(self.sources, return_alignments=attends, **options)
        model.train(was_training)
        for source, output in zip(self.sources, outputs):
            print(f"  {source}  ->  {output['translation_text']}", flush=True)
        if self.board is not None and self.board.tb_writer is not None:
            self._to_tensorboard(self.board.tb_writer, state.global_step, outputs)

    def _to_tensorboard(self, writer, step: int, outputs: list[dict[str, Any]]) -> None:
        rows = "\n".join(
            f"| {source} | {output['translation_text']} |" for source, output in zip(self.sources, outputs)
        )
        writer.add_text("samples", f"| source | output |\n|---|---|\n{rows}", step)
        for index, output in enumerate(outputs):
            if "alignment" in output:
                writer.add_figure(f"alignment/{index}", plot_alignment(output["alignment"]), step)
