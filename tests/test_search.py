"""Our own greedy and beam search against the library's, which knows nothing of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_attention_seq2seq import AttentionSeq2SeqEnsemble, AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq import generation as generation_module
from hf_attention_seq2seq.compat import CACHE_NAME
from hf_attention_seq2seq.search import best_continuations

from .helpers import alignment_grid, attention_grid, cache_of, name_of, pairwise, tiny_config, tiny_model

WORDS = 30
PAD, BOS, EOS = 0, 1, 2
OTHER_CASES = [
    {"attention_selection": "hard", "hard_attention_order": 1, "input_feeding": False},
    {"decoder_layers": 3, "encoder_layers": 2, "residual": True, "rnn_type": "gru"},
    {"readout_type": "maxout", "input_feeding": True},
    {"readout_type": "deep", "bridge_type": "mean"},
    {"readout_type": "state", "attention_type": "none", "bridge_type": "copy"},
    {"context_gate": True, "doubly_stochastic_weight": 1.0},
    {"decoder_vocab_size": None, "vocab_size": WORDS, "copy_mechanism": "pointer_generator", "max_unknown_words": 9},
    {"decoder_vocab_size": None, "vocab_size": WORDS, "share_encoder_decoder_embeddings": True, "readout_size": 6},
]
CASES = [*pairwise(attention_grid()), *pairwise(alignment_grid())[::3], *OTHER_CASES]
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def talkative_model(**case):
    """A model whose sentences end after one to many words: with weights so large that it computes in fp64."""
    model = tiny_model(torch.float64, **{"decoder_vocab_size": WORDS, "initializer_range": 2.0, **case})
    with torch.no_grad():
        model.lm_head.bias[EOS] += 4.0
    return model


def many_sentences(sentences: int = 12, seed: int = 0) -> dict[str, torch.Tensor]:
    """Sentences of 1 to 7 words, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 8, (sentences,), generator=generator).tolist()
    rows = [torch.randint(3, 17, (length,), generator=generator) for length in lengths]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long()}


def noted(name, used):
    search = getattr(generation_module, name)

    def spy(*args, **kwargs):
        used.append(name)
        return search(*args, **kwargs)

    return spy


@pytest.fixture
def own_searches(monkeypatch):
    """The names of our own searches, each time one of them is used."""
    used = []
    for name in ("greedy_search", "beam_search"):
        monkeypatch.setattr(generation_module, name, noted(name, used))
    return used


def both(model, **options):
    """What the library's search gives and what ours gives."""
    results = []
    for library in (True, False):
        model.use_library_search = library
        results.append(model.generate(**options))
    model.use_library_search = False
    return results


def assert_same(model, **options):
    expected, found = both(model, **options)
    assert found.tolist() == expected.tolist()
    expected, found = both(model, **options, **EVERYTHING)
    assert type(found) is type(expected) and found.keys() == expected.keys()
    assert found.sequences.tolist() == expected.sequences.tolist()
    for name in ("scores", "logits"):
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-5)
    if "sequences_scores" in expected:
        torch.testing.assert_close(found.sequences_scores, expected.sequences_scores, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.beam_indices, expected.beam_indices)
    assert cache_of(found).get_seq_length() == cache_of(expected).get_seq_length()
    for mine, theirs in zip(cache_of(found).state.tensors(), cache_of(expected).state.tensors(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    return found.sequences


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_configuration(case, own_searches):
    model = talkative_model(**case)
    assert_same(model, **many_sentences(6), max_new_tokens=8)
    assert_same(model, **many_sentences(6), num_beams=4, num_return_sequences=3, max_new_tokens=8)
    assert own_searches == ["greedy_search"] * 2 + ["beam_search"] * 2


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 1000),
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([False, True, "never"]),
    st.sampled_from([0.0, 0.6, 1.0, 2.0, -1.0]),
    st.sampled_from([EOS, [EOS, 5], [EOS, 5, 7]]),
    st.sampled_from([PAD, 3]),
    st.integers(1, 14),
    st.data(),
)
def test_every_option(seed, beams, early, penalty, ends, pad, steps, data):
    model = talkative_model(input_feeding=bool(seed % 2), seed=seed % 7)
    batch = many_sentences(data.draw(st.integers(1, 9)), seed)
    options = {"num_beams": beams, "max_new_tokens": steps, "eos_token_id": ends, "pad_token_id": pad}
    if beams > 1:
        options |= {"early_stopping": early, "length_penalty": penalty}
        options["num_return_sequences"] = data.draw(st.integers(1, beams))
    if data.draw(st.booleans()):  # prompts
        rows, length = len(batch["input_ids"]), data.draw(st.integers(1, 4))
        options["decoder_input_ids"] = torch.randint(3, WORDS, (rows, length))
        options["decoder_attention_mask"] = torch.arange(length).expand(rows, -1) >= torch.randint(length, (rows, 1))
    if data.draw(st.booleans()):  # padding on the left
        batch = {name: tensor.flip(1) for name, tensor in batch.items()}
    assert_same(model, **batch, **options)


def test_sentences_of_many_lengths(own_searches):
    model = talkative_model()
    for options in ({}, {"num_beams": 5}):
        sequences = assert_same(model, **many_sentences(20), max_new_tokens=30, **options)
        lengths = (sequences[:, 1:] != EOS).int().cumprod(dim=1).sum(dim=1)
        assert lengths.unique().numel() > 5
    assert own_searches == ["greedy_search"] * 2 + ["beam_search"] * 2


@pytest.mark.parametrize("beams", [1, 5])
def test_finished_sentences_leave_the_batch(beams, monkeypatch):
    model = talkative_model()
    rows = []
    step = AttentionSeq2SeqForConditionalGeneration.next_logits

    def spy(self, words, cache):
        rows.append((len(words), cache.state.rows, cache.memory.rows * beams))
        return step(self, words, cache)

    monkeypatch.setattr(AttentionSeq2SeqForConditionalGeneration, "next_logits", spy)
    model.generate(**many_sentences(20), num_beams=beams, max_new_tokens=30)
    counts = [words for words, _, _ in rows]
    assert 16 * beams <= counts[0] and counts[-1] <= 10 * beams and counts == sorted(counts, reverse=True)
    assert all(len(set(row)) == 1 for row in rows)


def test_without_an_end_of_sentence():
    model = talkative_model()
    model.generation_config.eos_token_id = None
    for beams in (1, 3):
        assert_same(model, **many_sentences(), num_beams=beams, max_new_tokens=5, pad_token_id=PAD)


@pytest.mark.parametrize("beams", [1, 3])
def test_given_encoder_outputs_and_embeddings(beams, own_searches):
    model = talkative_model()
    batch = many_sentences()
    encoded = model.get_encoder()(**batch)
    mask = batch["attention_mask"]
    assert_same(model, encoder_outputs=encoded, attention_mask=mask, num_beams=beams, max_new_tokens=8)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    assert_same(model, inputs_embeds=embeddings, attention_mask=mask, num_beams=beams, max_new_tokens=8)
    assert len(own_searches) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beams", [1, 3])
def test_other_number_types(beams, dtype):
    model = talkative_model().to(dtype)
    expected, found = both(model, **many_sentences(), num_beams=beams, max_new_tokens=8, **EVERYTHING)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert found.scores[0].dtype == expected.scores[0].dtype == torch.float32


@pytest.mark.parametrize("average", ["probabilities", "log_probabilities"])
@pytest.mark.parametrize("beams", [1, 3])
def test_ensembles(beams, average, own_searches):
    members = [talkative_model(), talkative_model(seed=1, attention_type="dot", rnn_type="gru", input_feeding=True)]
    ensemble = AttentionSeq2SeqEnsemble(members, average)
    expected, found = both(ensemble, **many_sentences(), num_beams=beams, max_new_tokens=12)
    assert found.tolist() == expected.tolist()
    assert len(own_searches) == 1


# What is left to the library


class Unchanged(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


class Never(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Deaf(BaseStreamer):
    def put(self, value):
        pass

    def end(self):
        pass


FALLBACKS = {
    "sampling": {"do_sample": True},
    "beam sampling": {"do_sample": True, "num_beams": 2},
    "a processor": {"logits_processor": [Unchanged()]},
    "a least length": {"min_new_tokens": 2, "num_beams": 2},
    "unrepeated words": {"no_repeat_ngram_size": 2},
    "allowed words": {"prefix_allowed_tokens_fn": lambda row, words: [5, EOS], "num_beams": 2},
    "a criterion": {"stopping_criteria": StoppingCriteriaList([Never()])},
    "time": {"max_time": 60.0, "num_beams": 2},
    "streaming": {"streamer": Deaf()},
    "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "hidden states": {"output_hidden_states": True, "return_dict_in_generate": True, "num_beams": 2},
    "no cache": {"use_cache": False},
    "more candidates than words": {"num_beams": WORDS // 2 + 1},
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_left_to_the_library(name, own_searches):
    model = talkative_model()
    model.generate(**many_sentences(4), max_new_tokens=4, **FALLBACKS[name])
    assert not own_searches
    model.generate(**many_sentences(4), max_new_tokens=4)
    assert own_searches


def test_a_given_cache_is_left_to_the_library(own_searches):
    model = talkative_model()
    options = {**many_sentences(4), "suppress_tokens": [EOS], "return_dict_in_generate": True}
    part = model.generate(**options, max_new_tokens=2)
    del options["suppress_tokens"]
    model.generate(**options, decoder_input_ids=part.sequences, max_new_tokens=2, **{CACHE_NAME: cache_of(part)})
    assert not own_searches


def test_models_that_somebody_changed_or_listens_to(own_searches):
    class Other(AttentionSeq2SeqForConditionalGeneration):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    batch = many_sentences(4)
    Other(tiny_config()).eval().generate(**batch, max_new_tokens=4)
    listened = talkative_model()
    listened.model.register_forward_hook(lambda *args: None)
    listened.generate(**batch, max_new_tokens=4)
    patched = talkative_model()
    patched.forward = patched.forward
    patched.generate(**batch, max_new_tokens=4)
    training = talkative_model().train()
    training.generate(**batch, max_new_tokens=4)
    assert not own_searches

    class Both(Other):
        def next_logits(self, words, cache):
            return super().next_logits(words, cache)

    Both(tiny_config()).eval().generate(**batch, max_new_tokens=4)
    assert own_searches


def test_mixed_precision():
    model = talkative_model().float()
    for beams in (1, 3):
        with torch.autocast("cpu", torch.bfloat16):
            expected, found = both(model, **many_sentences(), num_beams=beams, max_new_tokens=8, **EVERYTHING)
        assert found.sequences.tolist() == expected.sequences.tolist()


@pytest.mark.parametrize("vocabulary", [1300, 2048, 2079, 40])
@pytest.mark.parametrize(("hypotheses", "number"), [(1, 2), (5, 10)])
def test_the_best_continuations_of_a_large_vocabulary(vocabulary, hypotheses, number):
    torch.manual_seed(0)
    log_probs = torch.randn(3 * hypotheses, vocabulary).log_softmax(dim=-1)
    log_probs[-1, -1] = log_probs[1, 7] = 0.0
    scores = torch.randn(3, hypotheses)
    expected = (log_probs.view(3, hypotheses, -1) + scores.unsqueeze(-1)).flatten(1).topk(number)
    sums, places = best_continuations(log_probs, scores, number)
    assert places.tolist() == expected.indices.tolist()
    assert sums.tolist() == expected.values.tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_hooks_keep_what_they_saw(beams):
    model = talkative_model()
    seen = []

    def keep(module, inputs, logits):
        seen.append((logits, logits.clone()))

    model.lm_head.register_forward_hook(keep)
    model.generate(**many_sentences(), num_beams=beams, max_new_tokens=4)
    assert len(seen) > 2 and all(logits.equal(copy) for logits, copy in seen)
