"""Trains one vocabulary: the backend of one side of the tokenizer, cut into subwords, words or characters.

A new kind of unit is one function that builds a backend and its trainer, and its name in `UNITS`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPACE = "▁"
NORMALIZATIONS = {
    None: None,
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
}


@dataclass(frozen=True)
class VocabularyTraining:
    """Everything that decides a vocabulary except the text; the values are checked when it is made.

    Raises:
        ValueError: A value out of range, named together with what is allowed.
    """

    model: str
    vocab_size: int
    special_tokens: tuple[str | AddedToken, ...]  # pad, bos, eos and unk first, in this order
    min_frequency: int
    limit_alphabet: int | None
    lowercase: bool
    normalization: str | None

    def __post_init__(self):
        _check_choice("model", self.model, UNITS)
        _check_choice("normalization", self.normalization, NORMALIZATIONS)
        _check_choice("lowercase", self.lowercase, (False, True))
        _check_at_least("vocab_size", self.vocab_size, len(self.special_tokens) + 1)
        _check_at_least("min_frequency", self.min_frequency, 1)
        if self.limit_alphabet is not None:
            _check_at_least("limit_alphabet", self.limit_alphabet, 1)

    @property
    def eos_token(self) -> str:
        """What every sequence ends with."""
        return str(self.special_tokens[2])

    @property
    def unk_token(self) -> str:
        """What stands for units that were not seen."""
        return str(self.special_tokens[3])

    @property
    def trainer_options(self) -> dict[str, Any]:
        """What all trainers take."""
        return {"vocab_size": self.vocab_size, "special_tokens": list(self.special_tokens), "show_progress": False}

    def bpe_trainer(self) -> trainers.BpeTrainer:
        """The trainer of the units that are made by merging."""
        limit = {} if self.limit_alphabet is None else {"limit_alphabet": self.limit_alphabet}
        return trainers.BpeTrainer(min_frequency=self.min_frequency, **limit, **self.trainer_options)

    def normalizer(self, *more: normalizers.Normalizer) -> normalizers.Normalizer | None:
        """Lower-casing comes before the Unicode form, because it can undo a composed form."""
        steps = [normalizers.Lowercase()] if self.lowercase else []
        steps += [NORMALIZATIONS[self.normalization]()] if self.normalization is not None else []
        steps += more
        return normalizers.Sequence(steps) if steps else None


def _as_subwords(backend: Tokenizer, training: VocabularyTraining) -> Tokenizer:
    """Marks each word's beginning with `▁`; punctuation never joins a word.

    `Metaspace` puts a mark before a text that does not start with one, and the decoder takes the first one away. So a
    leading space is doubled here, or it would be lost.
    """
    backend.normalizer = training.normalizer(normalizers.Replace(Regex(rf"\A[ {SPACE}]"), "  "))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(SPACE, prepend_scheme="first"), pre_tokenizers.Punctuation("isolated")]
    )
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return backend


def _bpe(training: VocabularyTraining) -> tuple[Tokenizer, trainers.Trainer]:
    model = models.BPE(unk_token=training.unk_token, fuse_unk=True)
    return _as_subwords(Tokenizer(model), training), training.bpe_trainer()


def _unigram(training: VocabularyTraining) -> tuple[Tokenizer, trainers.Trainer]:
    trainer = trainers.UnigramTrainer(unk_token=training.unk_token, **training.trainer_options)
    return _as_subwords(Tokenizer(models.Unigram()), training), trainer


def _word(training: VocabularyTraining) -> tuple[Tokenizer, trainers.Trainer]:
    backend = Tokenizer(models.WordLevel(unk_token=training.unk_token))
    backend.normalizer = training.normalizer()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Without a decoder the tokens are joined by single spaces.
    return backend, trainers.WordLevelTrainer(min_frequency=training.min_frequency, **training.trainer_options)


def _text_word(training: VocabularyTraining) -> tuple[Tokenizer, trainers.Trainer]:
    """Words without the punctuation around them, which is tokens of its own; that inside of a word stays there."""
    backend, trainer = _word(training)
    edges = pre_tokenizers.Split(Regex(r"\A\p{P}+|\p{P}+\z"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), edges])
    return backend, trainer


def _char(training: VocabularyTraining) -> tuple[Tokenizer, trainers.Trainer]:
    """Byte-pair merges that cannot leave a grapheme cluster: what was not merged falls back to code points."""
    backend = Tokenizer(models.BPE(unk_token=training.unk_token, fuse_unk=False))
    backend.normalizer = training.normalizer()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\X"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend, training.bpe_trainer()


def _codepoint(training: VocabularyTraining) -> tuple[Tokenizer, trainers.Trainer]:
    """Code points, so that letters and marks (with NFD the letters of a Hangul syllable) are tokens of their own."""
    backend, trainer = _char(training)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return backend, trainer


UNITS: dict[str, Callable[[VocabularyTraining], tuple[Tokenizer, trainers.Trainer]]] = {
    "bpe": _bpe,
    "unigram": _unigram,
    "word": _word,
    "text_word": _text_word,
    "char": _char,
    "codepoint": _codepoint,
}


def train_vocabulary(side: str, texts: Iterable[str], training: VocabularyTraining) -> Tokenizer:
    """Trains the backend of one side.

    Args:
        side (`str`): `"source"` or `"target"`, for the messages.
        texts (iterable of `str`): Read once.
        training (`VocabularyTraining`): The options.

    Returns:
        `tokenizers.Tokenizer`: It has the special tokens at the ids from 0 on and appends `eos_token`.

    Raises:
        TypeError: `texts` is not an iterable of strings.
        ValueError: There is no text, or the options leave no vocabulary for it.
    """
    backend, trainer = UNITS[training.model](training)
    too_small = (
        f"vocab_size={training.vocab_size} is too small for the {side} side: it must hold the special tokens and "
        "every character seen; allowed is a larger vocab_size or, with bpe and char, a limit_alphabet"
    )
    try:
        checked = _checked_texts(side, texts)
        # A special token in a text is not a unit to learn: a trainer would move it from its place in the vocabulary.
        special = re.compile("|".join(re.escape(str(token)) for token in training.special_tokens))
        backend.train_from_iterator((special.sub(" ", text) for text in checked), trainer=trainer)
    except Exception as error:
        if "not large enough" in str(error):  # the unigram trainer's own words
            raise ValueError(too_small) from error
        raise
    size, reserved = backend.get_vocab_size(), len(training.special_tokens)
    if size > training.vocab_size:
        raise ValueError(f"{too_small}. Needed: {size}.")
    if size == reserved:
        raise ValueError(
            f"min_frequency={training.min_frequency} leaves no unit on the {side} side; allowed is at most the count "
            "of the most frequent unit"
        )
    if training.model == "unigram":
        backend = _reproducible_unigram(backend, reserved)
    eos = training.eos_token
    backend.post_processor = processors.TemplateProcessing(
        single=["$A", eos], pair=["$A", "$B", eos], special_tokens=[(eos, backend.token_to_id(eos))]
    )
    return backend


def _reproducible_unigram(backend: Tokenizer, reserved: int) -> Tokenizer:
    """The same model with scores and order that do not differ between two trainings on the same text.

    Two runs of the unigram trainer differ in the last digits, in the order of pieces with equal scores and by 1e-4 in
    the scores of the characters it puts back at the bottom of the list.
    """
    state = json.loads(backend.to_str())
    pieces = state["model"]["vocab"]
    lowest = min(score for _, score in pieces[reserved:]) + 2e-4
    learned = [[piece, round(max(score, lowest), 4)] for piece, score in pieces[reserved:]]
    state["model"]["vocab"] = pieces[:reserved] + sorted(learned, key=lambda entry: (-entry[1], entry[0]))
    return Tokenizer.from_str(json.dumps(state))


def _checked_texts(side: str, texts: Iterable[str]) -> Iterator[str]:
    """The texts as an iterator that complains about items that are no strings; at least one must not be blank."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"{side} must be an iterable of strings, got {texts!r:.60} of type {type(texts).__name__}")

    def strings() -> Iterator[str]:
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(
                    f"{side} item {position} is {text!r:.60} of type {type(text).__name__}, "
                    "but every item must be a string"
                )
            yield text

    iterator, leading = strings(), []
    for text in iterator:
        leading.append(text)
        if text.strip():
            return chain(leading, iterator)
    raise ValueError(f"{side} holds no text ({len(leading)} items); at least one item must not be blank")


def _check_choice(name: str, value: Any, allowed: Iterable[Any]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; allowed are {', '.join(map(repr, allowed))}")


def _check_at_least(name: str, value: Any, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{name}={value!r} is not allowed; it must be an integer of at least {minimum}")


__all__ = ["NORMALIZATIONS", "UNITS", "VocabularyTraining", "train_vocabulary"]
