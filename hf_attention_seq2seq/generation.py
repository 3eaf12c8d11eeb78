"""How `generate` drives a recurrent decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList

from .cache import AttentionSeq2SeqCache
from .checks import check_cache
from .compat import CACHE_NAME
from .packed import faster_products
from .search import beam_search, greedy_search, is_plain


class RecurrentGenerationMixin(GenerationMixin):
    """
    The library's `generate` over a recurrent state: one `AttentionSeq2SeqCache` instead of key-value caches, and
    encoder states that are never repeated for beams.

    Attributes:
        use_library_search: whether to search with the library's own loops even where `search` is faster.
    """

    use_library_search = False

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *args, **kwargs):
        implementation = generation_config.cache_implementation
        if implementation is not None:
            raise ValueError(
                f"cache_implementation={implementation!r} is not possible: a recurrent decoder keeps one state of "
                "constant size, not keys and values per token; leave cache_implementation at None."
            )
        given = check_cache(model_kwargs.pop("past_key_values", None), model_kwargs.pop("cache", None))
        if given is not None:
            model_kwargs[CACHE_NAME] = given
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)

    def _prepare_generated_length(self, generation_config, has_default_max_length, **kwargs):
        # The model's own max_length is a default: it gives way to max_new_tokens without the library's warning.
        if generation_config.max_new_tokens is not None:
            has_default_max_length |= generation_config.max_length == self.generation_config.max_length
        return super()._prepare_generated_length(generation_config, has_default_max_length, **kwargs)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = True, input_ids: Tensor | None = None, **model_kwargs
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeats what belongs to hypotheses only: the beams of a sentence share its encoder states and mask."""
        for name in ("decoder_input_ids", "decoder_attention_mask"):
            if model_kwargs.get(name) is not None:
                model_kwargs[name] = model_kwargs[name].repeat_interleave(expand_size, dim=0)
        if input_ids is not None:
            input_ids = input_ids.repeat_interleave(expand_size, dim=0)
        return input_ids, model_kwargs

    def _sample(self, input_ids: Tensor, *args, **kwargs):
        return self._search(greedy_search, super()._sample, input_ids, *args, **kwargs)

    def _beam_search(self, input_ids: Tensor, *args, **kwargs):
        return self._search(beam_search, super()._beam_search, input_ids, *args, **kwargs)

    def _search(
        self,
        own_search: Callable,
        library_search: Callable,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs,
    ):
        options = {"generation_config": generation_config, **model_kwargs}
        asked = {
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            "synced_gpus": synced_gpus,
            **({} if streamer is None else {"streamer": streamer}),
        }
        if self.use_library_search:  # the reference, with torch's own products
            return library_search(input_ids, **asked, **options)
        with faster_products():
            if is_plain(self, **asked, **options):
                return own_search(self, input_ids, **options)
            return library_search(input_ids, **asked, **options)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: AttentionSeq2SeqCache | None = None,
        cache: AttentionSeq2SeqCache | None = None,
        next_sequence_length: int | None = None,
        **kwargs,
    ) -> dict[str, Any]:
        """
        The arguments of the next step: the decoder tokens which the cache has not consumed, and all `kwargs`.

        Args:
            input_ids: `(rows, target_length)` int64, all decoder tokens so far.
            next_sequence_length: what the library counts as new; not used, since the cache knows it.
        """
        cache = check_cache(past_key_values, cache)
        if cache is not None:
            input_ids = input_ids[:, cache.get_seq_length() :]
        model_inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
        # `cache_position` is made by some versions; the tokenizers are for stopping criteria.
        for name in ("cache_position", "tokenizer", "assistant_tokenizer"):
            model_inputs.pop(name, None)
        return {**model_inputs, CACHE_NAME: cache}
