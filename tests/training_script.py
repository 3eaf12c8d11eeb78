"""
A tiny training, started by test_training.py in one process or by torchrun in several.

    python training_script.py FOLDER '{"attention_type": "dot"}' '{"max_steps": 4}' 48

Writes FOLDER/log.json (the loss of every step) and FOLDER/model.safetensors.
"""

import json
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)


class StopAfter(TrainerCallback):
    """Ends the training as if it had been interrupted."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.steps


def main(folder, fields, options, rows=48, stop_after=None):
    set_seed(0)
    words = ["".join(chr(97 + (7 * i + j * (i % 5 + 1)) % 26) for j in range(2 + i % 6)) for i in range(rows)]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(words, model="char", vocab_size=60)
    config = AttentionSeq2SeqConfig(
        **{"vocab_size": len(tokenizer), "embedding_size": 8, "hidden_size": 8, "max_source_positions": 20, **fields}
    )
    data = Dataset.from_dict(dict(tokenizer(words, text_target=[word[::-1] for word in words])))
    model = AttentionSeq2SeqForConditionalGeneration(config)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            **{
                "output_dir": folder,
                "max_steps": 4,
                "learning_rate": 1e-2,
                "per_device_train_batch_size": 8,
                "logging_steps": 1,
                "save_strategy": "no",
                "report_to": "none",
                "use_cpu": True,
                "disable_tqdm": True,
                "ddp_find_unused_parameters": False,
                **options,
            }
        ),
        train_dataset=data,
        eval_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        callbacks=[] if stop_after is None else [StopAfter(stop_after)],
    )
    resume = any(Path(folder).glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint=True if resume else None)
    trainer.save_model()
    if trainer.is_world_process_zero():
        Path(folder, "log.json").write_text(json.dumps(trainer.state.log_history))
    return trainer


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4]))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        print(f"ran as one of {torch.distributed.get_world_size()} processes", flush=True)
        os._exit(0)  # taking gloo's threads down while a distributed model is alive can hang
