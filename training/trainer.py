"""`Seq2SeqTrainer` with what recipes need: metrics over texts, averaged weights, checkpoints that survive a kill."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from transformers import EvalPrediction, PreTrainedModel, Seq2SeqTrainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from hf_attention_seq2seq import AttentionSeq2SeqTokenizer, TranslationPipeline, plot_alignment

from .averaging import WeightAverageCallback
from .metrics import compute_metrics
from .scheduled_sampling import with_own_words

CLOCK_FILE = "clock.json"


def is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end: the Trainer writes `trainer_state.json` last."""
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
        for weights in checkpoint.glob("*.safetensors"):
            with safe_open(weights, "pt"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    return True


def newest_complete_checkpoint(output_dir: str | Path) -> str | None:
    """
    The checkpoint to continue from.

    Those that a kill left incomplete are removed, so that neither the Trainer nor its rotation can take them for
    checkpoints.
    """
    while Path(output_dir).is_dir() and (newest := get_last_checkpoint(str(output_dir))) is not None:
        if is_complete(Path(newest)):
            return newest
        shutil.rmtree(newest)
    return None


class RecipeTrainer(Seq2SeqTrainer):
    """
    Evaluation and test sets are `datasets.Dataset`s with the columns `input_ids`, `attention_mask`, `labels`, and
    `source`, `references` (a list of texts) and `group`, which only the metrics read.

    Args:
        metric_names: what to compute from generated texts; see `training.metrics`.
        metric_options: options of `compute_metrics`.
        weight_average: exponential moving average of the weights, which evaluation and the result use.
    """

    def __init__(
        self,
        *args,
        metric_names: list[str] = (),
        metric_options: dict[str, Any] | None = None,
        weight_average: WeightAverageCallback | None = None,
        **kwargs,
    ):
        self.metric_names = list(metric_names)
        self.metric_options = metric_options or {}
        self.weight_average = weight_average
        self._scored = None
        self._averages_in_use = False
        self._seconds_before = 0.0
        self._started = time.time()
        compute = self._text_metrics if self.metric_names else None
        super().__init__(*args, compute_metrics=compute, **kwargs)
        if weight_average is not None:
            self.add_callback(weight_average)

    # Metrics over texts

    def texts(self, tokens: np.ndarray) -> list[str]:
        """Generated tokens `(rows, length)` as texts; -100 is padding."""
        tokenizer = self.processing_class
        tokens = np.where(tokens < 0, tokenizer.pad_token_id, tokens)
        return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    def _text_metrics(self, prediction: EvalPrediction) -> dict[str, Any]:
        tokens = prediction.predictions
        tokens = tokens[0] if isinstance(tokens, tuple) else tokens
        groups = self._scored["group"]
        return compute_metrics(
            self.metric_names,
            self.texts(tokens),
            list(self._scored["references"]),
            list(groups) if any(groups) else None,
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

    # Training

    @property
    def minutes(self) -> float:
        """How long the training has taken, evaluations and what came before an interruption included."""
        return (self._seconds_before + time.time() - self._started) / 60

    def compute_loss(self, model, inputs, *args, **kwargs):
        """See `Trainer.compute_loss`; with scheduled sampling, over inputs that have words of the model's own."""
        if model.training and self.args.scheduled_sampling:
            progress = self.state.global_step / max(self.state.max_steps, 1)
            own_words = with_own_words(
                self.accelerator.unwrap_model(model), inputs, progress * self.args.scheduled_sampling
            )
            inputs = {**inputs, "decoder_input_ids": own_words}
        return super().compute_loss(model, inputs, *args, **kwargs)

    # Averaged weights

    def _averages(self):
        if self.weight_average is None or not self.is_in_train or self._averages_in_use:
            return nullcontext()
        return self._swap_averages_in()

    @contextmanager
    def _swap_averages_in(self):
        self._averages_in_use = True
        try:
            with self.weight_average.swapped_in(self.accelerator.unwrap_model(self.model)):
                yield
        finally:
            self._averages_in_use = False

    def _save_checkpoint(self, model, trial) -> None:
        """The averages go first: `trainer_state.json`, which the Trainer writes last, says that all is there."""
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CLOCK_FILE).write_text(json.dumps(60 * self.minutes))
            if self.weight_average is not None:
                self.weight_average.save(folder)
        super()._save_checkpoint(model, trial)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        clock = Path(resume_from_checkpoint, CLOCK_FILE)
        self._seconds_before = json.loads(clock.read_text()) if clock.exists() else 0.0
        if self.weight_average is not None:
            self.weight_average.load(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        if self.weight_average is not None and self.state.best_model_checkpoint is not None:
            self.weight_average.load(self.state.best_model_checkpoint)

    def train(self, *args, **kwargs):
        """See `Trainer.train`; afterwards the model has the averaged weights."""
        self._started = time.time()
        output = super().train(*args, **kwargs)
        if self.weight_average is not None:
            self.weight_average.use_averages(self.accelerator.unwrap_model(self.model))
        return output


class SamplesCallback(TrainerCallback):
    """
    Shows what the model makes of a few validation sentences after each evaluation: in the log, and with alignment
    pictures in TensorBoard if the run reports there.
    """

    def __init__(self, tokenizer: AttentionSeq2SeqTokenizer, sources: list[str], max_new_tokens: int = 60):
        self.tokenizer = tokenizer
        self.sources = sources
        self.max_new_tokens = max_new_tokens
        self.writer = None

    def on_evaluate(self, args, state, control, model: PreTrainedModel | None = None, **kwargs) -> None:
        """Translates greedily; nothing of it touches the random numbers of training."""
        if not state.is_world_process_zero or not self.sources:
            return
        was_training = model.training
        model.eval()
        translate = TranslationPipeline(model=model, tokenizer=self.tokenizer, device=model.device)
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": self.max_new_tokens}
        attends = model.config.attention_type != "none"
        outputs = translate(self.sources, return_alignments=attends, **options)
        model.train(was_training)
        for source, output in zip(self.sources, outputs):
            print(f"  {source}  ->  {output['translation_text']}", flush=True)
        if "tensorboard" in args.report_to:
            self._to_tensorboard(state.global_step, outputs)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Closes TensorBoard's file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _to_tensorboard(self, step: int, outputs: list[dict[str, Any]]) -> None:
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(os.environ["TENSORBOARD_LOGGING_DIR"])
        rows = "\n".join(
            f"| {source} | {output['translation_text']} |" for source, output in zip(self.sources, outputs)
        )
        self.writer.add_text("samples", f"| source | output |\n|---|---|\n{rows}", step)
        for index, output in enumerate(outputs):
            if "alignment" in output:
                self.writer.add_figure(f"alignment/{index}", plot_alignment(output["alignment"]), step)
