"""A fast tokenizer for translation-like tasks that holds one shared or two separate vocabularies.

Two vocabularies are two `tokenizers.Tokenizer` backends behind one Transformers tokenizer. Nothing is switched while a
text is encoded: the other side is reached through a *view*, a shallow copy of the tokenizer that holds the other
backend, so an exception or a second thread cannot leave the tokenizer on the wrong side.
"""

import copy
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenizers import AddedToken, Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE, BatchEncoding

from .publishing import Published, has_code, tokenizer_entries, without_own_entries, write_code
from .vocabulary import VocabularyTraining, train_vocabulary

TOKENIZER_FILE = "tokenizer.json"
TARGET_TOKENIZER_FILE = "target_tokenizer.json"
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# What `train_from_iterator` passes on to the constructor; a misspelt option must not vanish there.
CONSTRUCTOR_OPTIONS = (
    *("model_max_length", "padding_side", "truncation_side", "split_special_tokens", "max_unknown_words"),
    *SPECIAL_TOKENS,
)


class AttentionSeq2SeqTokenizer(Published, PreTrainedTokenizerFast):
    """Fast tokenizer with one vocabulary for both sides, or one for the source and one for the target.

    Which side a call uses:

    - `tokenizer(text)`, `convert_ids_to_tokens`, `convert_tokens_to_ids`, `get_vocab`, `len`: the source;
    - `tokenizer(text_target=...)` (and the `labels` of `tokenizer(text, text_target=...)`), `decode`, `batch_decode`:
      the target; `decode(ids, use_source_tokenizer=True)` decodes source ids;
    - everything else on the target: `target_tokenizer`, this tokenizer seen from the target side
      (`tokenizer.target_tokenizer.convert_ids_to_tokens(ids)`). Pass it to whatever looks at output text or its
      vocabulary by itself, such as `generate(..., stop_strings=..., tokenizer=tokenizer.target_tokenizer)`.

    With one vocabulary the sides are the same and all of this is the tokenizer itself.

    `pad`, `bos`, `eos` and `unk` (0 to 3 when trained here) and any other named special token have one id for both
    sides. `add_tokens` and `add_special_tokens` add to both vocabularies, each at its own end, so added tokens may
    have different ids on the two sides: a named special token for which that would happen raises `ValueError`. To add
    to one side only, use `source_tokenizer.add_tokens` or `target_tokenizer.add_tokens`.

    For models that copy unknown words (`copy_mechanism`), `max_unknown_words` extends the one vocabulary row by row:
    `unknown_words(text)` get the ids from `len(tokenizer)` on, both in `input_ids` and in the `labels` of a call with
    `text` and `text_target`; without a source, unknown words are `<unk>`. Such ids mean something only together with
    their source: `with_source(text).decode(ids)` writes the words, `decode(ids)` writes `<unk>`.

    Make one with `train_from_iterator` or `from_pretrained`.

    Args:
        tokenizer_object (`tokenizers.Tokenizer`, *optional*): The source backend; it must append `eos_token` itself.
        tokenizer_file (`str`, *optional*): The file of the source backend, used if no object is given.
        target_tokenizer_object (`tokenizers.Tokenizer`, *optional*): The target backend.
        target_tokenizer_file (`str`, *optional*): The file of the target backend, used if no object is given.
        separate_vocabs (`bool`, *optional*): Whether there are two vocabularies. By default, if a target backend is
            given; `True` without one is an error, with `False` it is not loaded.
        max_unknown_words (`int`, *optional*, defaults to 0): How many unknown words of a text have ids of their own.
        kwargs: Passed on to `PreTrainedTokenizerFast`.

    Raises:
        ValueError: No source backend, no target backend although `separate_vocabs`, a named special token that has
            different ids on the two sides, or `max_unknown_words` below 0 or with two vocabularies.
    """

    vocab_files_names = {"tokenizer_file": TOKENIZER_FILE, "target_tokenizer_file": TARGET_TOKENIZER_FILE}
    model_input_names = ["input_ids", "attention_mask"]
    slow_tokenizer_class = None

    def __init__(
        self,
        tokenizer_object: Tokenizer | None = None,
        tokenizer_file: str | None = None,
        target_tokenizer_object: Tokenizer | None = None,
        target_tokenizer_file: str | None = None,
        separate_vocabs: bool | None = None,
        max_unknown_words: int = 0,
        **kwargs,
    ):
        if tokenizer_object is None and tokenizer_file is None:
            raise ValueError(
                f"{type(self).__name__} has no vocabulary: make one with train_from_iterator, or load a directory "
                f"that holds {TOKENIZER_FILE}"
            )
        has_target = target_tokenizer_object is not None or target_tokenizer_file is not None
        separate_vocabs = has_target if separate_vocabs is None else separate_vocabs
        if separate_vocabs and not has_target:
            raise ValueError(
                f"separate_vocabs={separate_vocabs!r}, but there is no target vocabulary: {TARGET_TOKENIZER_FILE} "
                f"must lie beside {TOKENIZER_FILE}"
            )
        if not isinstance(max_unknown_words, int) or isinstance(max_unknown_words, bool) or max_unknown_words < 0:
            raise ValueError(
                f"max_unknown_words={max_unknown_words!r} is not allowed; it must be an integer from 0 up"
            )
        if separate_vocabs and max_unknown_words:
            raise ValueError(
                f"max_unknown_words={max_unknown_words} needs one vocabulary, in which a copied word has one id on "
                "both sides, but there is a target vocabulary"
            )
        self.max_unknown_words = max_unknown_words
        self._copies: dict[int, str] = {}  # of the source that this tokenizer is a view for
        # Set first, because the base constructor may add special tokens. A tokenizer rather than a bare backend, so
        # that `datasets` treats both backends alike when it makes a fingerprint.
        self._target = None
        if separate_vocabs:
            self._target = PreTrainedTokenizerFast(
                tokenizer_object=target_tokenizer_object, tokenizer_file=target_tokenizer_file
            )
        if isinstance(kwargs.get("extra_special_tokens"), list | tuple):
            # The name of transformers 5 for a list of tokens; this one is read by transformers 4 as well.
            kwargs["additional_special_tokens"] = kwargs.pop("extra_special_tokens")
        super().__init__(
            tokenizer_object=tokenizer_object,
            tokenizer_file=tokenizer_file,
            separate_vocabs=separate_vocabs,
            max_unknown_words=max_unknown_words,
            **{**SPECIAL_TOKENS, **without_own_entries(kwargs)},
        )
        self._check_ids_agree(self.special_tokens_map)

    @classmethod
    def convert_to_native_format(cls, **kwargs) -> dict[str, Any]:
        """Keeps transformers 5 from taking `tokenizer.json` apart: the constructor loads it whole."""
        return kwargs

    @classmethod
    def _from_pretrained(cls, resolved_vocab_files, *args, **kwargs) -> "AttentionSeq2SeqTokenizer":
        cls._check_file(resolved_vocab_files.get("tokenizer_config_file"))
        try:
            return super()._from_pretrained(resolved_vocab_files, *args, **kwargs)
        except ImportError as error:
            # Transformers 4 without protobuf complains about that instead of what the constructor raised.
            raise error.__context__ or error from None

    @classmethod
    def _check_file(cls, tokenizer_config_file: str | None) -> None:
        """Refuses a `tokenizer_config.json` that names files to read, which `save_pretrained` never does."""
        if tokenizer_config_file is None:
            return
        with open(tokenizer_config_file, encoding="utf-8") as file:
            fields = json.load(file)
        for name in (*cls.vocab_files_names, "init_inputs"):
            if fields.get(name):
                raise ValueError(
                    f"{TOKENIZER_CONFIG_FILE} has {name}={fields[name]!r}, which is not possible; vocabularies are "
                    f"read from {TOKENIZER_FILE} and {TARGET_TOKENIZER_FILE} beside it."
                )

    @classmethod
    def train_from_iterator(
        cls,
        source: Iterable[str],
        target: Iterable[str] | None = None,
        model: str = "bpe",
        vocab_size: int = 8000,
        *,
        target_model: str | None = None,
        target_vocab_size: int | None = None,
        min_frequency: int = 1,
        limit_alphabet: int | None = None,
        lowercase: bool = False,
        target_lowercase: bool | None = None,
        normalization: str | None = None,
        target_normalization: str | None = "as source",
        special_tokens: Sequence[str] = (),
        **kwargs,
    ) -> "AttentionSeq2SeqTokenizer":
        """Trains a tokenizer on texts.

        The units:

        - `"bpe"`, `"unigram"`: subwords. `▁` stands for the space before a word; a `▁` in the text itself is decoded
          as a space. Any other text of seen characters is decoded exactly, spaces included.
        - `"word"`: what stands between white space, such as words or phones; decoded with single spaces.
        - `"text_word"`: the same with the punctuation at both ends of a word as tokens of its own: `"(a real-time
          game)."` is `( a real-time game ).`
        - `"char"`: grapheme clusters (a letter with its combining marks, a whole emoji) and spaces. Clusters that were
          not seen, or for which the vocabulary has no room, are made of several code points; text of seen code points
          is decoded exactly.

        - `"codepoint"`: single code points; with `normalization="NFD"`, marks and the letters of Hangul syllables.

        What was not seen becomes `<unk>`. Training is reproducible.

        Args:
            source (iterable of `str`): The source texts, read once.
            target (iterable of `str`, *optional*): The target texts. If given, the sides have separate vocabularies;
                for a shared one chain both sides into `source`.
            model (`str`, *optional*, defaults to `"bpe"`): The unit: `"bpe"`, `"unigram"`, `"word"`, `"text_word"`,
                `"char"` or `"codepoint"`.
            vocab_size (`int`, *optional*, defaults to 8000): The most entries a vocabulary may have, special tokens
                included; a small text gives fewer. All characters seen must fit, except with `"word"` and
                `"text_word"`, which keep the most frequent words.
            target_model (`str`, *optional*): The unit of the target side, by default `model`.
            target_vocab_size (`int`, *optional*): The size of the target side, by default `vocab_size`.
            min_frequency (`int`, *optional*, defaults to 1): How often a word, or a pair that is to be merged, must
                occur. Not for `"unigram"`.
            limit_alphabet (`int`, *optional*): Keeps only so many characters, the most frequent. For `"bpe"` and
                `"char"`.
            lowercase (`bool`, *optional*, defaults to `False`): Whether to lower-case texts.
            target_lowercase (`bool`, *optional*): The same for the target side, by default `lowercase`.
            normalization (`str`, *optional*): The Unicode form to bring texts into: `"NFC"`, `"NFD"`, `"NFKC"` or
                `"NFKD"`. `"NFD"` takes Hangul syllables apart into letters.
            target_normalization (`str`, *optional*): The same for the target side, by default `normalization`; `None`
                leaves it as it is.
            special_tokens (sequence of `str`, *optional*): More special tokens, such as language tags. They get the
                ids from 4 on, on both sides.
            kwargs: For the constructor: `model_max_length`, `padding_side`, `truncation_side`, `split_special_tokens`,
                `max_unknown_words`, or other names for `pad_token`, `bos_token`, `eos_token`, `unk_token` (ids 0 to
                3).

        Raises:
            TypeError: A side is not an iterable of strings, or an unknown option.
            ValueError: An option out of range, a side without text, or a vocabulary too small for its characters.
        """
        if unknown := sorted(set(kwargs) - set(CONSTRUCTOR_OPTIONS)):
            raise TypeError(f"unknown options {unknown}; allowed beside the named ones are {CONSTRUCTOR_OPTIONS}")
        target_options = {"model": target_model, "vocab_size": target_vocab_size, "lowercase": target_lowercase}
        given = {name: value for name, value in target_options.items() if value is not None}
        if target_normalization != "as source":
            given["normalization"] = target_normalization
        if target is None and given:
            raise ValueError(f"target_{'/target_'.join(given)} given without target; allowed only with target texts")

        named = {name: str(kwargs.get(name, default)) for name, default in SPECIAL_TOKENS.items()}
        if isinstance(special_tokens, str) or not all(isinstance(token, str) and token for token in special_tokens):
            raise ValueError(f"special_tokens={special_tokens!r} is not allowed; it must be a sequence of strings")
        # Looked for after normalization, so that the space after a tag is not taken for the beginning of a text.
        tags = [AddedToken(token, normalized=True, special=True) for token in special_tokens]
        if len({*named.values(), *special_tokens}) < len(named) + len(tags):
            raise ValueError(f"special tokens must differ, got {[*named.values(), *special_tokens]}")
        options = {
            "model": model,
            "vocab_size": vocab_size,
            "special_tokens": (*named.values(), *tags),
            "min_frequency": min_frequency,
            "limit_alphabet": limit_alphabet,
            "lowercase": lowercase,
            "normalization": normalization,
        }
        trainings = [VocabularyTraining(**options)]
        if target is not None:
            trainings.append(VocabularyTraining(**{**options, **given}))
        models = {training.model for training in trainings}
        if min_frequency > 1 and models == {"unigram"}:
            raise ValueError(f"min_frequency={min_frequency} has no effect with unigram; allowed is 1")
        if limit_alphabet is not None and not models & {"bpe", "char"}:
            raise ValueError(f"limit_alphabet={limit_alphabet} has no effect with {models}; allowed is None")

        backends = [
            train_vocabulary(side, texts, training)
            for side, texts, training in zip(("source", "target"), (source, target), trainings, strict=False)
        ]
        return cls(
            tokenizer_object=backends[0],
            target_tokenizer_object=backends[1] if target is not None else None,
            additional_special_tokens=list(special_tokens),
            **{**kwargs, **named},
        )

    def train_new_from_iterator(self, *args, **kwargs) -> "AttentionSeq2SeqTokenizer":
        """As in the library, for a shared vocabulary only.

        Raises:
            ValueError: The tokenizer has two vocabularies.
        """
        if self.separate_vocabs:
            raise ValueError(
                "train_new_from_iterator trains one vocabulary and this tokenizer has two: use train_from_iterator"
            )
        return super().train_new_from_iterator(*args, **kwargs)

    # --- the two sides

    @property
    def separate_vocabs(self) -> bool:
        """Whether source and target have vocabularies of their own."""
        return self._target is not None

    @property
    def source_tokenizer(self) -> "AttentionSeq2SeqTokenizer":
        """This tokenizer with the source vocabulary on both sides; it shares vocabulary and settings with this one."""
        return self._seen_from(self.backend_tokenizer) if self.separate_vocabs else self

    @property
    def target_tokenizer(self) -> "AttentionSeq2SeqTokenizer":
        """This tokenizer with the target vocabulary on both sides; it shares vocabulary and settings with this one."""
        return self._seen_from(self._target.backend_tokenizer) if self.separate_vocabs else self

    def _seen_from(self, backend: Tokenizer) -> "AttentionSeq2SeqTokenizer":
        view = copy.copy(self)
        view._tokenizer, view._target = backend, None
        return view

    @property
    def target_vocab_size(self) -> int:
        """Size of the target vocabulary with added tokens: what `len(tokenizer)` is for the source."""
        return len(self.target_tokenizer)

    def get_target_vocab(self) -> dict[str, int]:
        """The target vocabulary, as `get_vocab` gives the source vocabulary."""
        return self.target_tokenizer.get_vocab()

    def convert_ids_to_target_tokens(self, ids: int | list[int], skip_special_tokens: bool = False) -> str | list[str]:
        """The tokens of target ids, as `convert_ids_to_tokens` gives those of source ids."""
        return self.target_tokenizer.convert_ids_to_tokens(ids, skip_special_tokens)

    @contextmanager
    def as_target_tokenizer(self) -> Iterator[None]:
        """Within the block every method works on the target side, for code that does not know `text_target=`.

        Unlike `text_target=` this changes the tokenizer for as long as the block lasts, for all threads.
        """
        backend = self._tokenizer
        self._tokenizer = self.target_tokenizer.backend_tokenizer
        try:
            yield
        finally:
            self._tokenizer = backend

    # --- unknown words

    def unknown_words(self, text: str) -> list[str]:
        """The first `max_unknown_words` different words (or characters) of a text that are not in the vocabulary.

        They are written as the tokenizer normalizes them.
        """
        encoding = super().__call__(text, add_special_tokens=False).encodings[0]
        words = dict.fromkeys(word for _, word in self._unknown(encoding, text))
        return list(words)[: self.max_unknown_words]

    def with_source(self, text: str) -> "AttentionSeq2SeqTokenizer":
        """This tokenizer for what a model writes for one source: the ids of its unknown words stand for them."""
        if not self.max_unknown_words:
            return self
        view = copy.copy(self)
        view._copies = dict(enumerate(self.unknown_words(text), len(self)))
        return view

    def _unknown(self, encoding: Encoding, text: str) -> Iterator[tuple[int, str]]:
        """Place and word of each unknown token; one that stands as such in the text is none."""
        normalizer, unknown = self.backend_tokenizer.normalizer, self.unk_token_id
        for place, (token_id, (start, end)) in enumerate(zip(encoding.ids, encoding.offsets, strict=True)):
            word = text[start:end]
            if token_id == unknown and word != self.unk_token:
                yield place, word if normalizer is None else normalizer.normalize_str(word)

    def _number_unknown(self, encoded: BatchEncoding, texts: str | Sequence[str], words: list[list[str]]) -> None:
        """Replaces the ids of unknown tokens that are among the `words` of their row."""
        is_batch, unknown, ids = not isinstance(texts, str), self.unk_token_id, encoded["input_ids"]
        rows = ids if is_batch or not isinstance(ids[0], int) else [ids]
        samples = encoded.get("overflow_to_sample_mapping", range(len(rows)))
        for row, sample, encoding in zip(rows, samples, encoded.encodings, strict=True):
            numbers = {word: len(self) + index for index, word in enumerate(words[int(sample)])}
            for place, word in self._unknown(encoding, texts[int(sample)] if is_batch else texts):
                row[place] = numbers.get(word, unknown)

    def _with_unknown_words(
        self, text, text_pair, text_target, text_pair_target, *args, is_split_into_words: bool = False, **kwargs
    ) -> BatchEncoding:
        if is_split_into_words or text_pair is not None or text_pair_target is not None:
            raise ValueError(
                f"max_unknown_words={self.max_unknown_words} is for whole texts, not with text_pair, text_pair_target "
                f"or is_split_into_words={is_split_into_words}"
            )
        encodings = super().__call__(text, *args, **kwargs)
        words = [self.unknown_words(one) for one in ([text] if isinstance(text, str) else text)]
        self._number_unknown(encodings, text, words)
        if text_target is not None:
            targets = super().__call__(None, None, text_target, *args, **kwargs)
            self._number_unknown(targets, text_target, words)
            encodings["labels"] = targets["input_ids"]
        return encodings

    # --- encoding and decoding

    def __call__(
        self, text=None, text_pair=None, text_target=None, text_pair_target=None, *args, **kwargs
    ) -> BatchEncoding:
        """Encodes `text` with the source and `text_target` with the target vocabulary; arguments as in the library.

        Returns:
            `BatchEncoding`: `input_ids` and `attention_mask` of the only text given; with both texts those of `text`,
            and the ids of `text_target` as `labels`. Every sequence ends with `</s>`, after truncation too.
        """
        if self.max_unknown_words and text is not None:
            return self._with_unknown_words(text, text_pair, text_target, text_pair_target, *args, **kwargs)
        if text_target is None or not self.separate_vocabs:
            return super().__call__(text, text_pair, text_target, text_pair_target, *args, **kwargs)
        targets = self.target_tokenizer(None, None, text_target, text_pair_target, *args, **kwargs)
        if text is None:
            return targets
        encodings = super().__call__(text, text_pair, None, None, *args, **kwargs)
        encodings["labels"] = targets["input_ids"]
        return encodings

    def convert_ids_to_tokens(self, ids: int | list[int], skip_special_tokens: bool = False) -> str | list[str]:
        """As in the library; an id from `len(self)` on is the unknown word that it stands for, else `<unk>`."""
        if not self.max_unknown_words:
            return super().convert_ids_to_tokens(ids, skip_special_tokens)
        extra, unknown = range(len(self), len(self) + self.max_unknown_words), self.unk_token_id
        skipped = self.all_special_ids if skip_special_tokens else ()
        tokens = []
        for token_id in [ids] if isinstance(ids, int) else map(int, ids):
            if token_id in extra and token_id not in self._copies:
                token_id = unknown
            if token_id not in skipped or isinstance(ids, int):
                tokens.append(self._copies.get(token_id) or self.backend_tokenizer.id_to_token(token_id))
        return tokens[0] if isinstance(ids, int) else tokens

    def _decode_copies(
        self,
        token_ids: list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces=None,
        **kwargs,
    ) -> str:
        """As in the library, where all that it needs to know is the vocabulary."""
        tokens = self.convert_ids_to_tokens(token_ids, skip_special_tokens)
        decoder = self.backend_tokenizer.decoder
        text = " ".join(tokens) if decoder is None else decoder.decode(tokens)
        return self.clean_up_tokenization(text) if clean_up_tokenization_spaces else text

    def _decode(self, token_ids: int | list[int], *args, use_source_tokenizer: bool = False, **kwargs) -> str:
        if self.separate_vocabs and not use_source_tokenizer:
            return self.target_tokenizer._decode(token_ids, *args, **kwargs)
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        if self.max_unknown_words and max(ids, default=0) >= len(self):
            return self._decode_copies(ids, *args, **kwargs)
        try:
            return super()._decode(token_ids, *args, **kwargs)
        except OverflowError as error:
            raise ValueError(
                f"token ids must not be negative, got {token_ids!r:.80}; replace the -100 of ignored labels by "
                f"pad_token_id={self.pad_token_id} before decoding"
            ) from error

    # --- changing and saving the vocabularies

    def add_special_tokens(self, special_tokens_dict: dict[str, Any], *args, **kwargs) -> int:
        """Adds to both vocabularies, as in the library.

        Raises:
            ValueError: A named token (`pad_token`, ...) would have different ids on the two sides; nothing is changed.
        """
        self._check_ids_agree(special_tokens_dict)
        return super().add_special_tokens(special_tokens_dict, *args, **kwargs)

    def _add_tokens(self, new_tokens: list[str | AddedToken], special_tokens: bool = False) -> int:
        if self.separate_vocabs:
            self._target.add_tokens(new_tokens, special_tokens=special_tokens)
        return super()._add_tokens(new_tokens, special_tokens=special_tokens)

    def _check_ids_agree(self, special_tokens: dict[str, Any]) -> None:
        """Compares the ids that the named tokens have, or would get at the end of each vocabulary."""
        if not self.separate_vocabs:
            return
        for name, token in special_tokens.items():
            if not isinstance(token, str | AddedToken):
                continue  # a list of unnamed tokens, whose ids may differ
            source_id, target_id = (
                backend.get_vocab_size() if (known := backend.token_to_id(str(token))) is None else known
                for backend in (self.backend_tokenizer, self._target.backend_tokenizer)
            )
            if source_id != target_id:
                raise ValueError(
                    f"{name}={str(token)!r} has id {source_id} in the source and id {target_id} in the target "
                    "vocabulary; allowed are tokens with one id for both, such as those of "
                    "train_from_iterator(special_tokens=...)"
                )

    def save_pretrained(self, save_directory: str | os.PathLike, *args, **kwargs) -> tuple[str, ...]:
        """As in the library; the code that loads it without this package goes with it, see `publishing`."""
        published = copy.copy(self)
        if has_code(save_directory):
            published._auto_map = {**tokenizer_entries()["auto_map"], **self.init_kwargs.get("auto_map", {})}
        return super(AttentionSeq2SeqTokenizer, published).save_pretrained(save_directory, *args, **kwargs)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        file_names = super()._save_pretrained(save_directory, file_names, legacy_format, filename_prefix)
        if has_code(save_directory):
            write_code(save_directory)
        if not self.separate_vocabs:
            return file_names
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        target_file = os.path.join(str(save_directory), prefix + TARGET_TOKENIZER_FILE)
        self._target.backend_tokenizer.save(target_file)
        return (*file_names, target_file)


__all__ = ["AttentionSeq2SeqTokenizer"]
