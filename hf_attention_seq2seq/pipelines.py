"""Text-to-text pipelines for any sequence-to-sequence model: generation, translation, summarization.

Transformers 5 dropped the three tasks; `register_pipelines` gives them back with the outputs they had in version 4.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, Pipeline, PreTrainedTokenizerBase

from .alignment import Alignment, alignment_side, forced_attention, generated_lengths
from .compat import register_pipeline_tasks, transformers_version
from .unknown_words import replace_unknown as with_words_for_unknown

logger = logging.getLogger(__name__)

_NO_LIMIT = 10**20  # tokenizers without a maximum length report a number beyond this one
_LENGTH_OPTIONS = {"max_length", "max_new_tokens"}
_DEFAULT_NEW_TOKENS = 256
_DEFAULT_BEAMS = 4


class Text2TextGenerationPipeline(Pipeline):
    r"""
    Text in, text out, with any model of `AutoModelForSeq2SeqLM`.

    A text gives a list of records, one for each returned sequence: `[{"generated_text": "..."}]`. A list gives a list
    of records when each text has one returned sequence, else a list of such lists; a generator or a `torch` data set
    gives an iterator over the lists of each text. An empty text gives empty texts; the model is not asked.

    Options, for the constructor or a call:
        return_tensors (`bool`): token ids instead of text, under `generated_token_ids`, `(length,)`, `torch.long`,
            with start, end and padding tokens as `generate` returns them.
        return_text (`bool`): accepted as in version 4, where `return_tensors` alone decides.
        return_alignments (`bool`): each record also gets `"alignment"`, an `Alignment` with the cross-attention of the
            last decoder layer; its source is the text with the prefix that the model has for the task. An empty text
            has no tokens and weights `(1, 0, 0)`.
        replace_unknown (`bool`): unknown words in the text are replaced by the source words that got most attention
            when they were predicted (Luong 2015b, Jean 2015); see `replace_unknown`.
        lexicon (mapping of `str` to `str`): for that, target words by source words, in place of copies.
        truncation (`bool`, `str`): as for the tokenizer; cuts an input that is longer than the model takes.
        clean_up_tokenization_spaces (`bool`): as for `tokenizer.decode`, `False` if not given.
        stop_sequence (`str`): stop at the first token of this text.
        batch_size (`int`), num_workers (`int`): as in every pipeline.
        **generate_options: everything else is for `model.generate`, which refuses what it does not know.

    What neither the caller, the model's `task_specific_params` nor its generation configuration decides is
    `num_beams=4` and `max_new_tokens=256`. A `generation_config` replaces all of these.

    Raises:
        TypeError: an input that is not text.
        ValueError: an input that is too long without `truncation`; alignments asked from a model that has none; a
            model that is no encoder-decoder; an unknown option.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    # The base class would prepare the options of `generate`, differently in each version; 4.57 then ignores a
    # `max_length`, and what the model's generation configuration says on beams. `_generate_options` does it here.
    _pipeline_calls_generate = False

    return_name = "generated"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not getattr(self.model.config, "is_encoder_decoder", False):
            raise ValueError(
                f"{type(self).__name__} needs an encoder-decoder model (one of AutoModelForSeq2SeqLM), "
                f"got {type(self.model).__name__}."
            )
        if self.tokenizer is None:
            raise ValueError(f"{type(self).__name__} needs a tokenizer: pass tokenizer=.")
        task_options = dict(self._task_options())
        self.prefix = task_options.pop("prefix", None) or getattr(self.model.config, "prefix", None) or ""
        own = {name: self._forward_params.pop(name) for name in self._forward_params.keys() - {"return_alignments"}}
        has_config = own.get("generation_config") is not None
        self._constructor_options = own if has_config else _override(task_options, own)

    def _task_options(self) -> dict[str, Any]:
        """The options (and the prefix) that the model's configuration holds for this task."""
        return (getattr(self.model.config, "task_specific_params", None) or {}).get(self.task, {})

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        return_alignments: bool | None = None,
        replace_unknown: bool | None = None,
        lexicon: Mapping[str, str] | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        truncation: bool | str | None = None,
        stop_sequence: str | None = None,
        **generate_options: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if lexicon is not None and not replace_unknown:
            raise ValueError("A lexicon is for unknown words only; give replace_unknown=True as well.")
        if replace_unknown and return_tensors:
            raise ValueError("replace_unknown=True changes the text, and return_tensors=True asks for tokens instead.")
        if stop_sequence is not None:
            generate_options["eos_token_id"] = self._first_token_id(stop_sequence)
        aligns = True if replace_unknown else return_alignments
        preprocess = {"truncation": truncation, "return_alignments": aligns}
        forward = {"return_alignments": aligns}
        postprocess = {
            "return_tensors": return_tensors,
            "return_alignments": return_alignments,
            "replace_unknown": replace_unknown,
            "lexicon": lexicon,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        return _given(preprocess), {**_given(forward), **generate_options}, _given(postprocess)

    def _first_token_id(self, stop_sequence: str) -> int:
        ids = self.tokenizer(text_target=stop_sequence, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError(f"stop_sequence={stop_sequence!r} has no tokens; a text with at least one is needed.")
        if len(ids) > 1:
            warnings.warn(
                f"stop_sequence={stop_sequence!r} has {len(ids)} tokens; generation stops at the first of them. "
                "For a whole text use stop_strings=[...] with tokenizer=.",
                stacklevel=2,
            )
        return ids[0]

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Runs the pipeline; see the class for inputs, options and results."""
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes, list)):
            inputs = list(inputs)  # a tuple, or a column of a data set
        if isinstance(inputs, Dataset) and isinstance(inputs, Sized) and len(inputs) == 0:
            return iter(())  # the base class looks at the first item
        if not isinstance(inputs, list):
            return super().__call__(inputs, **options)
        for position, text in enumerate(inputs):
            _check_text(text, f" at position {position} of the list")
        results = super().__call__(inputs, **options) if inputs else []
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def preprocess(
        self, inputs: str, truncation: bool | str = False, return_alignments: bool = False, **options: Any
    ) -> dict[str, Any]:
        """
        Tokens of one text, each tensor `(1, source_length)`, and `is_empty`, `(1,)`, `torch.bool`; for alignments also
        the `source_text` and, from a fast tokenizer, `offset_mapping`, `(1, source_length, 2)`.
        """
        _check_text(inputs)
        limit = self._source_limit()
        is_cut = truncation not in (None, False, "do_not_truncate") and limit is not None
        options.update({"truncation": truncation, "max_length": limit} if is_cut else {"truncation": False})
        if return_alignments and self.tokenizer.is_fast:
            options["return_offsets_mapping"] = True
        encoded = {
            name: value for name, value in self._tokenize(inputs, **options).items() if name != "token_type_ids"
        }
        encoded.setdefault("attention_mask", torch.ones_like(encoded["input_ids"]))
        length = encoded["input_ids"].shape[1]
        if limit is not None and length > limit:
            raise ValueError(
                f"The input has {length} tokens, but the tokenizer and model allow {limit}: {inputs!r:.60}. "
                "Pass truncation=True to use only its beginning, or split it."
            )
        if length == 0:  # one column, so that the row can stand in a batch
            encoded.update(input_ids=torch.zeros(1, 1, dtype=torch.long), attention_mask=torch.zeros(1, 1).long())
            if "offset_mapping" in encoded:
                encoded["offset_mapping"] = torch.zeros(1, 1, 2, dtype=torch.long)
        if return_alignments or self._copies_unknown_words:
            encoded["source_text"] = self.prefix + inputs
        return {**encoded, "is_empty": torch.tensor([not inputs or length == 0])}

    @property
    def _copies_unknown_words(self) -> bool:
        return getattr(self.tokenizer, "max_unknown_words", 0) > 0

    def _tokenize(self, text: str, **options: Any) -> dict[str, Any]:
        return self.tokenizer(self.prefix + text if text else "", return_tensors="pt", **options)

    def _source_limit(self) -> int | None:
        """The largest number of source tokens; `None` if there is no limit."""
        limits = (self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", None))
        return min((int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT), default=None)

    def _forward(
        self, model_inputs: dict[str, Any], return_alignments: bool = False, **options: Any
    ) -> dict[str, Any]:
        """
        Generates for the rows that are not empty.

        Returns:
            `output_ids` `(batch, returned, target_length)` and `is_empty` `(batch,)`; for alignments also
            `input_ids` and `attention_mask` `(batch, source_length)`, what `preprocess` gives for them, `weights`
            `(batch, returned, heads, target_length - 1, source_length)`, and `lengths` `(batch, returned)`: the
            number of tokens after the start token. Empty rows hold padding and zeros.
        """
        options = self._generate_options(options)
        is_empty = model_inputs.pop("is_empty")
        places = {name: model_inputs.pop(name) for name in ("source_text", "offset_mapping") if name in model_inputs}
        if is_empty.all():
            returned = self._setting("num_return_sequences", options) or 1
            return {"output_ids": torch.zeros(len(is_empty), returned, 0, dtype=torch.long), "is_empty": is_empty}

        # A setting that the tokenizer adds, such as the target language, comes as a list from a batch.
        rows = {
            name: value[~is_empty] if torch.is_tensor(value) else value[0] if isinstance(value, list) else value
            for name, value in model_inputs.items()
        }
        generated = self.model.generate(**{**rows, **options})
        sequences = generated if torch.is_tensor(generated) else generated.sequences
        pad_token_id = self._setting("pad_token_id", options)
        outputs = {"output_ids": _spread(sequences, is_empty, pad_token_id or 0), "is_empty": is_empty, **places}
        if return_alignments:
            # Decoded once more: `generate` would have to keep the attention of all beams in all steps and layers.
            returned = len(sequences) // len(rows["input_ids"])
            source = (rows[name].repeat_interleave(returned, dim=0) for name in ("input_ids", "attention_mask"))
            weights = forced_attention(self.model, *source, sequences[:, :-1])
            lengths = generated_lengths(sequences, self._setting("eos_token_id", options), pad_token_id)
            outputs.update(input_ids=model_inputs["input_ids"], attention_mask=model_inputs["attention_mask"])
            outputs["weights"] = _spread(weights, is_empty, 0)
            outputs["lengths"] = _spread(lengths, is_empty, 0)
        return outputs

    def _generate_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of one `generate` call: the call's, over the constructor's and task's, over the defaults."""
        if options.get("generation_config") is None:
            options = _override(self._constructor_options, options)
        if options.get("generation_config") is not None:
            return options
        model_options = self.model.generation_config.to_diff_dict()
        decided = options.keys() | model_options.keys()
        if not decided & _LENGTH_OPTIONS:
            options["max_new_tokens"] = _DEFAULT_NEW_TOKENS
        if "num_beams" not in decided:
            options["num_beams"] = _DEFAULT_BEAMS
        if "max_length" in options:
            options.setdefault("max_new_tokens", None)  # else one in the generation configuration would win
        if self.tokenizer.pad_token_id is not None and model_options.get("pad_token_id") is None:
            options.setdefault("pad_token_id", self.tokenizer.pad_token_id)
        return options

    def _setting(self, name: str, options: dict[str, Any]) -> Any:
        """The value that `generate` uses for `name`."""
        if options.get(name) is not None:
            return options[name]
        value = getattr(options.get("generation_config"), name, None)
        return getattr(self.model.generation_config, name, None) if value is None else value

    def postprocess(
        self,
        model_outputs: dict[str, Any],
        return_tensors: bool = False,
        return_alignments: bool = False,
        replace_unknown: bool = False,
        lexicon: Mapping[str, str] | None = None,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """The records of one text from the outputs of `_forward` for it, a batch of one."""
        is_empty = bool(model_outputs["is_empty"][0])
        tokenizer, records = self.tokenizer, []
        if self._copies_unknown_words and not is_empty:
            tokenizer = tokenizer.with_source(model_outputs["source_text"])
        for index, ids in enumerate(model_outputs["output_ids"][0]):
            ids = ids[:0] if is_empty else ids
            if return_tensors:
                record = {f"{self.return_name}_token_ids": ids}
            else:
                options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
                record = {f"{self.return_name}_text": "" if is_empty else tokenizer.decode(ids, **options)}
            alignment = (
                self._alignment(model_outputs, index, tokenizer) if return_alignments or replace_unknown else None
            )
            if replace_unknown and self.tokenizer.unk_token in alignment.target_tokens:
                text = with_words_for_unknown(alignment, self.tokenizer.unk_token, lexicon)
                record[f"{self.return_name}_text"] = text
            if return_alignments:
                record["alignment"] = alignment
            records.append(record)
        return records

    def _alignment(self, outputs: dict[str, Any], index: int, tokenizer: PreTrainedTokenizerBase) -> Alignment:
        if outputs["is_empty"][0]:
            return Alignment("", "", [], [], torch.zeros(1, 0, 0), [], [])
        is_token = outputs["attention_mask"][0].bool()
        length = int(outputs["lengths"][0, index])
        offsets = outputs["offset_mapping"][0][is_token].tolist() if "offset_mapping" in outputs else None
        source_ids = outputs["input_ids"][0][is_token].tolist()
        return Alignment(
            weights=outputs["weights"][0, index, :, :length][..., is_token].float(),
            **alignment_side("source", tokenizer, source_ids, outputs["source_text"], offsets),
            **alignment_side("target", tokenizer, outputs["output_ids"][0, index, 1 : 1 + length].tolist()),
        )


class SummarizationPipeline(Text2TextGenerationPipeline):
    """`Text2TextGenerationPipeline` with the records `{"summary_text": ...}` or `{"summary_token_ids": ...}`."""

    return_name = "summary"


class TranslationPipeline(Text2TextGenerationPipeline):
    r"""
    `Text2TextGenerationPipeline` with the records `{"translation_text": ...}` or `{"translation_token_ids": ...}`.

    Further options:
        src_lang, tgt_lang (`str`): the languages, for multilingual tokenizers; they come from the task if its name is
            `translation_XX_to_YY`. Models for one pair of languages ignore them.
    """

    return_name = "translation"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        words = self.task.split("_")
        if len(words) == 4:  # translation_XX_to_YY
            self._preprocess_params = {"src_lang": words[1], "tgt_lang": words[3], **self._preprocess_params}

    def _task_options(self) -> dict[str, Any]:
        tasks = getattr(self.model.config, "task_specific_params", None) or {}
        known = [task for task in tasks if task.startswith("translation")]
        if self.task == "translation" and known:
            self.task = known[0]
            warnings.warn(f'"translation" names no languages; the model\'s first task, "{self.task}", is used.')
        return super()._task_options()

    def _sanitize_parameters(
        self, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess, forward, postprocess = super()._sanitize_parameters(**options)
        return {**preprocess, **_given({"src_lang": src_lang, "tgt_lang": tgt_lang})}, forward, postprocess

    def _tokenize(
        self, text: str, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any
    ) -> dict[str, Any]:
        build_inputs = getattr(self.tokenizer, "_build_translation_inputs", None)
        if build_inputs is None:
            return super()._tokenize(text, **options)
        return build_inputs(text, return_tensors="pt", src_lang=src_lang, tgt_lang=tgt_lang, **options)


_PIPELINES = {
    "text2text-generation": Text2TextGenerationPipeline,
    "translation": TranslationPipeline,
    "summarization": SummarizationPipeline,
}


def register_pipelines() -> None:
    """
    Makes `pipeline("translation")`, `"translation_XX_to_YY"`, `"summarization"` and `"text2text-generation"` work.

    Tasks that transformers has itself stay as they are. If this version of transformers does not let the tasks in, a
    warning says so, and how to do without.
    """
    try:
        register_pipeline_tasks(_PIPELINES, AutoModelForSeq2SeqLM)
    except Exception as error:  # whatever a later version changes must not stop the import
        logger.warning(
            "transformers %s does not accept the tasks %s (%s: %s). Build the pipeline from its class instead, as in "
            "TranslationPipeline(model=model, tokenizer=tokenizer).",
            transformers_version(),
            ", ".join(_PIPELINES),
            type(error).__name__,
            error,
        )


def _check_text(text: Any, where: str = "") -> None:
    if not isinstance(text, str):
        raise TypeError(
            f"The input{where} is of type {type(text).__name__}; allowed are a text (str), a list of texts, and a "
            "generator or torch data set that yields texts."
        )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _override(options: dict[str, Any], stronger: dict[str, Any]) -> dict[str, Any]:
    """`options` replaced by `stronger`; either length option in `stronger` replaces both."""
    if _LENGTH_OPTIONS & stronger.keys():
        options = {name: value for name, value in options.items() if name not in _LENGTH_OPTIONS}
    return {**options, **stronger}


def _spread(values: torch.Tensor, is_empty: torch.Tensor, fill: int) -> torch.Tensor:
    """Puts `values`, `(rows * returned, ...)`, into `(batch, returned, ...)`, where the empty rows hold `fill`."""
    rows = int((~is_empty).sum())
    shape = (len(values) // rows, *values.shape[1:])
    spread = values.new_full((len(is_empty), *shape), fill)
    spread[~is_empty] = values.reshape(rows, *shape)
    return spread
