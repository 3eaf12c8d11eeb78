"""The decoder's state as the library moves it about, and what can not be done with it."""

from __future__ import annotations

import pytest
import torch
from transformers import Cache, DynamicCache

from hf_attention_seq2seq import AttentionSeq2SeqCache
from hf_attention_seq2seq.compat import CACHE_NAME

from .helpers import cache_of, source_batch, tiny_model

FIRST = torch.tensor([[1, 5], [1, 8], [1, 3], [1, 9]])
KINDS = [
    {"rnn_type": "lstm", "input_feeding": True, "decoder_layers": 2},
    {"rnn_type": "gru", "attention_type": "dot", "attention_query": "previous_state"},
    {"rnn_type": "lstm", "attention_type": "none", "attention_query": "previous_state"},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=["lstm", "gru", "fixed context"])


def run(model, tokens, cache=None):
    """The output for `tokens` behind the cache, or at the beginning."""
    input_ids, mask = source_batch()
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids, attention_mask=mask)
        return model(
            encoder_outputs=encoded,
            attention_mask=mask,
            decoder_input_ids=tokens,
            use_cache=True,
            output_attentions=True,
            **{CACHE_NAME: cache},
        )


def check_continuation(model, cache, rows):
    """Row `i` of the cache must go on as `rows[i]` of a batch which never had a cache."""
    words = torch.arange(3, 3 + len(rows))[:, None]
    input_ids, mask = source_batch()
    whole = torch.cat((FIRST[rows], words), dim=1)
    with torch.no_grad():
        expected = model(input_ids[rows], attention_mask=mask[rows], decoder_input_ids=whole, output_attentions=True)
        found = model(
            input_ids[rows],
            attention_mask=mask[rows],
            decoder_input_ids=words,
            output_attentions=True,
            **{CACHE_NAME: cache},
        )
    torch.testing.assert_close(found.logits, expected.logits[:, -1:])
    if expected.cross_attentions is not None:
        torch.testing.assert_close(found.cross_attentions[0], expected.cross_attentions[0][:, :, -1:])


@every_kind
def test_reordering(kind):
    model = tiny_model(**kind)
    cache = cache_of(run(model, FIRST))
    cache.reorder_cache(torch.tensor([2, 0, 0, 3]))
    check_continuation(model, cache, [2, 0, 0, 3])


@every_kind
def test_repeating(kind):
    model = tiny_model(**kind)
    cache = cache_of(run(model, FIRST))
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == 8 and cache.memory.rows == 4
    check_continuation(model, cache, [0, 0, 1, 1, 2, 2, 3, 3])


@every_kind
def test_reordering_within_sentences_leaves_the_memory_alone(kind):
    model = tiny_model(**kind)
    cache = cache_of(run(model, FIRST.repeat_interleave(2, dim=0)))
    memory = cache.memory
    state = cache.state
    order = torch.tensor([1, 1, 2, 3, 5, 4, 7, 7])
    cache.reorder_cache(order)
    assert cache.memory is memory
    for found, before in zip(cache.state.tensors(), state.tensors(), strict=True):
        assert torch.equal(found, before[order])


@every_kind
@pytest.mark.parametrize(
    "indices", [torch.tensor([3, 1]), torch.tensor([False, True, False, True])], ids=["n", "mask"]
)
def test_selecting(kind, indices):
    model = tiny_model(**kind)
    cache = cache_of(run(model, FIRST))
    cache.batch_select_indices(indices)
    check_continuation(model, cache, [3, 1] if indices.dtype == torch.int64 else [1, 3])


@every_kind
def test_selecting_among_hypotheses_of_a_sentence(kind):
    model = tiny_model(**kind)
    cache = cache_of(run(model, FIRST))
    cache.batch_repeat_interleave(3)
    cache.batch_select_indices(torch.tensor([2, 4, 10]))
    check_continuation(model, cache, [0, 1, 3])


@every_kind
def test_beams_share_the_memory(kind):
    model = tiny_model(**kind)
    input_ids, mask = source_batch()
    options = {"num_beams": 5, "max_new_tokens": 3, "return_dict_in_generate": True, "suppress_tokens": [2]}
    cache = cache_of(model.generate(input_ids, attention_mask=mask, **options))
    assert cache.batch_size == 20
    assert cache.memory.rows == 4
    assert cache.memory.values.shape[0] == 4
    assert cache.memory.keys is None or cache.memory.keys.shape[0] == 4


def test_sizes():
    model = tiny_model(decoder_layers=3)
    cache = AttentionSeq2SeqCache()
    assert isinstance(cache, Cache)
    assert (cache.get_seq_length(), len(cache), cache.batch_size) == (0, 0, None)
    run(model, FIRST, cache)
    assert (cache.get_seq_length(), len(cache), cache.batch_size) == (2, 3, 4)
    assert cache.get_seq_length() == model.config.get_text_config(decoder=True).num_hidden_layers - 1
    run(model, FIRST[:, 1:], cache)
    assert cache.get_seq_length() == 3
    assert repr(cache) == "AttentionSeq2SeqCache(hypotheses=4, consumed_tokens=3)"
    assert cache.get_max_length() == cache.get_max_cache_shape() == -1
    assert not cache.is_compileable and not cache.is_croppable
    cache.reset()
    assert (cache.get_seq_length(), cache.state, cache.memory) == (0, None, None)


def test_an_empty_cache_can_be_moved_about():
    cache = AttentionSeq2SeqCache()
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.state is None and cache.memory is None


def test_taking_tokens_back_is_refused():
    cache = cache_of(run(tiny_model(), FIRST))
    with pytest.raises(ValueError, match="can not be cropped: a recurrent decoder keeps its last state only"):
        cache.crop(1)
    with pytest.raises(ValueError, match="holds a recurrent state, not key and value states"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)


def test_a_cache_is_not_changed_by_a_call_without_it():
    model = tiny_model()
    cache = cache_of(run(model, FIRST))
    before = [tensor.clone() for tensor in cache.state.tensors()]
    run(model, FIRST)
    assert all(torch.equal(found, expected) for found, expected in zip(cache.state.tensors(), before, strict=True))


# What a recurrent decoder can not do


@pytest.mark.parametrize(
    "options",
    [{"prompt_lookup_num_tokens": 2}, {"assistant_early_exit": 1}, {"assistant_model": "another"}],
    ids=lambda options: next(iter(options)),
)
def test_assisted_decoding_is_refused(options):
    model = tiny_model()
    if "assistant_model" in options:
        options = {"assistant_model": tiny_model(seed=1)}
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(source_batch()[0][:1], max_new_tokens=4, **options)


@pytest.mark.parametrize("implementation", ["static", "offloaded", "offloaded_static", "quantized", "dynamic"])
def test_other_caches_are_refused(implementation):
    with pytest.raises(ValueError, match=f"cache_implementation='{implementation}' is not possible.*recurrent"):
        tiny_model().generate(source_batch()[0], max_new_tokens=4, cache_implementation=implementation)


def test_a_key_value_cache_is_refused():
    model = tiny_model()
    input_ids, _ = source_batch()
    with pytest.raises(ValueError, match="is an AttentionSeq2SeqCache, got DynamicCache"):
        model.generate(input_ids, max_new_tokens=4, **{CACHE_NAME: DynamicCache()})
    with pytest.raises(ValueError, match="is an AttentionSeq2SeqCache, got DynamicCache"):
        model(input_ids, decoder_input_ids=FIRST, **{CACHE_NAME: DynamicCache()})


def test_a_cache_of_other_rows_is_refused():
    model = tiny_model()
    input_ids, mask = source_batch()
    cache = cache_of(model(input_ids, attention_mask=mask, decoder_input_ids=FIRST, use_cache=True))
    with pytest.raises(ValueError, match="holds 4 hypotheses, but the decoder inputs have 2 rows"):
        model(input_ids[:2], decoder_input_ids=FIRST[:2], **{CACHE_NAME: cache})


@torch.no_grad()
def test_layers_are_empty_but_comparable():
    model = tiny_model(decoder_layers=2)
    input_ids, mask = source_batch()
    cache = cache_of(model(input_ids, mask, decoder_input_ids=torch.full((4, 2), 3), use_cache=True))
    assert list(cache.layers) == []
    assert len(cache) == 2
    for index, (hidden, cell) in enumerate(cache.state.layers):
        assert torch.equal(cache.layers[index].keys, hidden)
        assert torch.equal(cache.layers[index].values, cell)
    with pytest.raises(IndexError, match="empty"):
        AttentionSeq2SeqCache().layers[0]
