"""Models that decode together, against averages and searches written naively, and against single models."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from transformers import pipeline

from hf_attention_seq2seq import AttentionSeq2SeqCache, AttentionSeq2SeqTokenizer, TranslationPipeline
from hf_attention_seq2seq.compat import CACHE_NAME
from hf_attention_seq2seq.ensemble import AttentionSeq2SeqEnsemble, AttentionSeq2SeqEnsembleCache

from .helpers import cache_of, source_batch, tiny_model

PAD, BOS, EOS = 0, 1, 2
UNLIKE = (
    {"attention_type": "additive", "rnn_type": "lstm", "attention_query": "previous_state", "input_feeding": True},
    {"attention_type": "general", "attention_span": "local_p", "rnn_type": "gru", "embedding_size": 4},
    {"attention_type": "none", "hidden_size": 6, "encoder_layers": 2, "decoder_layers": 2},
)
KINDS = {
    "greedy": {},
    "beam search": {"num_beams": 4, "num_return_sequences": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "beam sampling": {"do_sample": True, "num_beams": 3},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_average = pytest.mark.parametrize("average", ["probabilities", "log_probabilities"])


def unlike_models(**overrides):
    return [tiny_model(seed=seed, **{**fields, **overrides}) for seed, fields in enumerate(UNLIKE)]


def attentive_models():
    return [tiny_model(seed=seed, attention_heads=2, attention_type=kind) for seed, kind in enumerate(("mlp", "dot"))]


@torch.no_grad()
def next_words(models, average, input_ids, mask, prefixes):
    """The distribution of the word behind each prefix `(rows, length)`, as the definition says; float64."""
    single = [
        torch.softmax(model(input_ids, mask, decoder_input_ids=prefixes).logits[:, -1].double(), -1)
        for model in models
    ]
    if average == "probabilities":
        return sum(single) / len(single)
    product = math.prod(single) ** (1 / len(single))
    return product / product.sum(-1, keepdim=True)


def log_probability(models, average, input_ids, mask, tokens):
    """The sum over `tokens`, a list that begins behind the start, and each its own word by word."""
    total = 0.0
    for length, token in enumerate(tokens):
        prefix = torch.tensor([[BOS, *tokens[:length]]])
        total += math.log(next_words(models, average, input_ids, mask, prefix)[0, token])
    return total


def without_padding(sequence):
    tokens = sequence.tolist()[1:]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


# Against brute force


@every_average
def test_beam_search_finds_what_a_search_of_everything_finds(average):
    models = unlike_models(decoder_vocab_size=4)
    input_ids, mask = (tensor[:2] for tensor in source_batch())
    output = AttentionSeq2SeqEnsemble(models, average).generate(
        input_ids,
        attention_mask=mask,
        num_beams=64,
        num_return_sequences=6,
        max_new_tokens=3,
        return_dict_in_generate=True,
        output_scores=True,
    )
    endings = {tuple(t[: t.index(EOS) + 1] if EOS in t else t) for t in itertools.product(range(4), repeat=3)}
    for row in range(2):
        sentence = input_ids[row : row + 1], mask[row : row + 1]
        scored = [(log_probability(models, average, *sentence, list(t)) / len(t), list(t)) for t in endings]
        expected = sorted(scored, reverse=True)[:6]
        part = slice(6 * row, 6 * row + 6)
        assert [without_padding(sequence) for sequence in output.sequences[part]] == [t for _, t in expected]
        scores = [score for score, _ in expected]
        torch.testing.assert_close(output.sequences_scores[part], torch.tensor(scores), atol=2e-5, rtol=0)


@every_average
def test_scores_of_returned_sequences(average):
    models = unlike_models()
    input_ids, mask = source_batch()
    ensemble = AttentionSeq2SeqEnsemble(models, average)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5, "length_penalty": 0.7}
    output = ensemble.generate(
        input_ids, attention_mask=mask, return_dict_in_generate=True, output_scores=True, **options
    )
    steps = ensemble.compute_transition_scores(output.sequences, output.scores, output.beam_indices).sum(-1)
    for index, sequence in enumerate(output.sequences):
        row = slice(index // 2, index // 2 + 1)
        tokens = without_padding(sequence)
        expected = log_probability(models, average, input_ids[row], mask[row], tokens)
        assert float(steps[index]) == pytest.approx(expected, abs=2e-5)
        assert float(output.sequences_scores[index]) == pytest.approx(expected / len(tokens) ** 0.7, abs=2e-5)


@every_average
def test_greedy_search_takes_the_best_word_of_the_average(average):
    models = unlike_models()
    input_ids, mask = source_batch()
    found = AttentionSeq2SeqEnsemble(models, average).generate(input_ids, attention_mask=mask, max_new_tokens=5)
    expected = torch.full((4, 1), BOS)
    for _ in range(found.shape[1] - 1):
        best = next_words(models, average, input_ids, mask, expected).argmax(-1)
        ended = (expected[:, 1:] == EOS).any(dim=1)
        expected = torch.cat((expected, best.masked_fill(ended, PAD)[:, None]), dim=1)
    assert found.tolist() == expected.tolist()


def test_the_two_averages_by_hand():
    """Two models which know two words besides the special ones: biases alone decide."""
    models = [tiny_model(decoder_vocab_size=5) for _ in range(2)]
    distributions = ([0.0, 0.0, 0.0, 0.9, 0.1], [0.0, 0.0, 0.0, 0.5, 0.5])
    for model, distribution in zip(models, distributions, strict=True):
        model.lm_head.weight.data.zero_()
        model.lm_head.bias.data = torch.tensor(distribution).clamp(min=1e-30).log()
    batch = {"input_ids": source_batch()[0][:1], "decoder_input_ids": torch.tensor([[BOS]])}
    arithmetic = AttentionSeq2SeqEnsemble(models)(**batch).logits.exp()[0, 0, 3:]
    geometric = AttentionSeq2SeqEnsemble(models, "log_probabilities")(**batch).logits.exp()[0, 0, 3:]
    torch.testing.assert_close(arithmetic, torch.tensor([0.7, 0.3]))
    torch.testing.assert_close(geometric, torch.tensor([0.75, 0.25]))  # sqrt(0.45) and sqrt(0.05), to sum to one


# Against single models


@every_kind
@every_average
@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("fields", UNLIKE, ids=lambda fields: fields["attention_type"])
def test_one_model_and_its_copies_equal_the_model(kind, average, copies, fields):
    model = tiny_model(**fields)
    ensemble = AttentionSeq2SeqEnsemble([model, copy.deepcopy(model)][:copies], average)
    input_ids, mask = source_batch()
    options = {**KINDS[kind], "max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True}
    results = []
    for one in (model, ensemble):
        torch.manual_seed(1)
        results.append(one.generate(input_ids, attention_mask=mask, **options))
    assert results[0].sequences.tolist() == results[1].sequences.tolist()
    for mine, other in zip(results[0].scores, results[1].scores, strict=True):
        torch.testing.assert_close(mine.log_softmax(-1), other.log_softmax(-1), atol=2e-5, rtol=1e-4)
    if "num_beams" in KINDS[kind]:
        torch.testing.assert_close(results[0].sequences_scores, results[1].sequences_scores, atol=2e-5, rtol=0)


def test_half_precision_is_averaged_in_single_precision():
    models = [model.to(torch.bfloat16) for model in unlike_models()]
    models[1].float()
    input_ids, mask = source_batch()
    prefix = torch.full((4, 1), BOS)
    logits = AttentionSeq2SeqEnsemble(models)(input_ids, mask, prefix).logits[:, -1]
    assert logits.dtype == torch.float32
    expected = next_words(models, "probabilities", input_ids, mask, prefix).log()
    torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=0)


# Cache, batch, loading


def test_step_by_step_equals_one_call():
    ensemble = AttentionSeq2SeqEnsemble(unlike_models())
    input_ids, mask = source_batch()
    tokens = torch.tensor([[BOS, 5, 7, 3], [BOS, 8, 4, 9], [BOS, 3, 3, 12], [BOS, 9, 6, 5]])
    with torch.no_grad():
        whole = ensemble(input_ids, mask, tokens).logits
        encoded, cache, parts = ensemble.get_encoder()(input_ids, mask), None, []
        for step in range(4):
            options = {CACHE_NAME: cache, "encoder_outputs": encoded, "attention_mask": mask}
            output = ensemble(decoder_input_ids=tokens[:, step : step + 1], **options)
            cache = cache_of(output)
            assert cache.get_seq_length() == step + 1 and cache.batch_size == 4
            parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert CACHE_NAME not in ensemble(input_ids, mask, tokens, use_cache=False)


@every_kind
def test_the_cache_changes_nothing(kind):
    ensemble = AttentionSeq2SeqEnsemble(unlike_models())
    input_ids, mask = source_batch()
    results = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = {**KINDS[kind], "max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True}
        results.append(ensemble.generate(input_ids, attention_mask=mask, use_cache=use_cache, **options))
    assert results[0].sequences.tolist() == results[1].sequences.tolist()
    torch.testing.assert_close(results[0].scores, results[1].scores)


def test_in_training_mode_there_is_no_cache():
    """As for one model; also when a member alone is in training mode, since it would not continue its cache."""
    ensemble = AttentionSeq2SeqEnsemble(unlike_models())
    input_ids, mask = source_batch()
    expected = ensemble.generate(input_ids, attention_mask=mask, num_beams=2, max_new_tokens=4)
    ensemble.members[1].train()
    assert CACHE_NAME not in ensemble(input_ids, mask, torch.full((4, 1), BOS))
    found = ensemble.generate(input_ids, attention_mask=mask, num_beams=2, max_new_tokens=4)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_batch_mates_and_padding_do_not_matter(beams):
    ensemble = AttentionSeq2SeqEnsemble(unlike_models())
    input_ids, mask = source_batch()
    options = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 6}
    together = ensemble.generate(input_ids, attention_mask=mask, **options)
    for row in range(4):
        alone = ensemble.generate(input_ids[row : row + 1, : int(mask[row].sum())], **options)
        part = together[beams * row : beams * (row + 1)]
        assert [without_padding(sequence) for sequence in part] == [without_padding(sequence) for sequence in alone]


def test_rows_of_the_cache_are_those_of_all_members():
    ensemble = AttentionSeq2SeqEnsemble(unlike_models())
    input_ids, mask = source_batch()
    first, second = torch.tensor([[BOS], [3], [4], [5]]), torch.tensor([[6], [7], [8], [9]])

    def start():
        return cache_of(ensemble(input_ids, mask, first))

    def continued(cache, rows):
        encoded = ensemble.get_encoder()(input_ids[rows], mask[rows])
        logits = ensemble(decoder_input_ids=second[rows], encoder_outputs=encoded, **{CACHE_NAME: cache}).logits
        return logits[:, -1]

    with torch.no_grad():
        expected = ensemble(input_ids, mask, torch.cat((first, second), dim=1)).logits[:, -1]
        cache = start()
        cache.batch_select_indices(torch.tensor([2, 0]))
        torch.testing.assert_close(continued(cache, [2, 0]), expected[[2, 0]])
        cache = start()
        cache.reorder_cache(torch.tensor([3, 3, 1, 0]))
        torch.testing.assert_close(continued(cache, [3, 3, 1, 0]), expected[[3, 3, 1, 0]])
        cache = start()
        cache.batch_repeat_interleave(2)
        encoded = ensemble.get_encoder()(input_ids, mask)
        options = {CACHE_NAME: cache, "encoder_outputs": encoded}
        twice = ensemble(decoder_input_ids=second.repeat_interleave(2, 0), **options).logits[:, -1]
        torch.testing.assert_close(twice, expected.repeat_interleave(2, 0))
        cache.reset()
        assert cache.get_seq_length() == 0 and cache.batch_size is None and len(cache) == 0


def test_members_come_back_from_their_folders(tmp_path):
    models = unlike_models()
    folders = [tmp_path / str(index) for index in range(3)]
    for model, folder in zip(models, folders, strict=True):
        model.save_pretrained(folder)
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "num_beams": 3, "max_new_tokens": 5}
    loaded = AttentionSeq2SeqEnsemble.from_pretrained(folders, average="log_probabilities")
    assert loaded.average == "log_probabilities" and not loaded.training
    expected = AttentionSeq2SeqEnsemble(models, "log_probabilities").generate(input_ids, **options)
    assert loaded.generate(input_ids, **options).tolist() == expected.tolist()


# Attentions, pipeline


@pytest.mark.parametrize("beams", [1, 3])
def test_attentions_are_the_mean_of_the_members(beams):
    models = attentive_models()
    input_ids, mask = source_batch()
    options = {"max_new_tokens": 4, "output_attentions": True, "return_dict_in_generate": True, "num_beams": beams}
    output = AttentionSeq2SeqEnsemble(models).generate(input_ids, attention_mask=mask, output_scores=True, **options)
    with torch.no_grad():
        forced = [
            model(input_ids, mask, decoder_input_ids=output.sequences[:, :-1], output_attentions=True)
            for model in models
        ]
    expected = (forced[0].cross_attentions[0] + forced[1].cross_attentions[0]) / 2
    for row, sequence in enumerate(output.sequences):
        for step in range(len(without_padding(sequence))):
            where = row if beams == 1 else int(output.beam_indices[row, step])
            torch.testing.assert_close(output.cross_attentions[step][0][where, :, 0], expected[row, :, step])


@pytest.mark.parametrize("beams", [1, 2])
def test_pipeline(beams):
    words = ["abcdefg", "gf", "edcb"]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(words, model="char")
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": None}
    ensemble = AttentionSeq2SeqEnsemble(unlike_models(**sizes))
    translate = pipeline("translation", model=ensemble, tokenizer=tokenizer, device="cpu")
    options = {"num_beams": beams, "max_new_tokens": 6}
    batch = tokenizer(words, padding=True, return_tensors="pt")
    texts = tokenizer.batch_decode(ensemble.generate(**batch, **options), skip_special_tokens=True)
    assert translate(words, batch_size=2, **options) == [{"translation_text": text} for text in texts]


def test_pipeline_shows_the_mean_attention():
    words = ["abcdefg", "gf"]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(words, model="char")
    models = [tiny_model(seed=seed, vocab_size=len(tokenizer), decoder_vocab_size=None) for seed in range(2)]
    ensemble = AttentionSeq2SeqEnsemble(models)
    translate = TranslationPipeline(model=ensemble, tokenizer=tokenizer, task="translation", device="cpu")
    ids = translate("gf", return_tensors=True, max_new_tokens=4)[0]["translation_token_ids"]
    shown = translate("gf", return_alignments=True, max_new_tokens=4)[0]["alignment"]["weights"]
    batch = {**tokenizer("gf", return_tensors="pt"), "decoder_input_ids": ids[None, :-1], "output_attentions": True}
    with torch.no_grad():
        expected = sum(model(**batch).cross_attentions[0][0] for model in models) / 2
    torch.testing.assert_close(shown, expected[:, : shown.shape[1]])


# What is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_vocab_size": 14}, "target_vocab_size: member 0 has target_vocab_size=13, member 1 .*=14"),
        ({"vocab_size": 18}, "vocab_size: member 0 has vocab_size=17, member 1 vocab_size=18"),
        ({"pad_token_id": 3}, "pad_token_id: member 0 has pad_token_id=0, member 1 pad_token_id=3"),
        ({"bos_token_id": 3}, "bos_token_id=1, member 1 bos_token_id=3"),
        ({"eos_token_id": [2, 3]}, r"eos_token_id=2, member 1 eos_token_id=\[2, 3\]"),
        ({"decoder_start_token_id": 4}, "decoder_start_token_id=1, member 1 decoder_start_token_id=4"),
    ],
)
def test_members_with_other_tokens(fields, message):
    with pytest.raises(ValueError, match=message):
        AttentionSeq2SeqEnsemble([tiny_model(), tiny_model(**fields)])


def test_what_is_no_ensemble(tmp_path):
    with pytest.raises(ValueError, match="at least one model"):
        AttentionSeq2SeqEnsemble([])
    with pytest.raises(ValueError, match="number 1 is a AttentionSeq2SeqModel"):
        AttentionSeq2SeqEnsemble([tiny_model(), tiny_model().model])
    with pytest.raises(ValueError, match="average='mean'.*'probabilities', 'log_probabilities'"):
        AttentionSeq2SeqEnsemble([tiny_model()], average="mean")
    with pytest.raises(ValueError, match="list of folders, got 'somewhere'"):
        AttentionSeq2SeqEnsemble.from_pretrained("somewhere")
    with pytest.raises(ValueError, match="save each of `members`"):
        AttentionSeq2SeqEnsemble([tiny_model()]).save_pretrained(tmp_path)


def test_outputs_that_an_ensemble_does_not_have():
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "max_new_tokens": 2, "return_dict_in_generate": True}
    with pytest.raises(ValueError, match="member 2 has attention_type='none'"):
        AttentionSeq2SeqEnsemble(unlike_models()).generate(input_ids, output_attentions=True, **options)
    models = [tiny_model(attention_heads=2), tiny_model(attention_heads=4)]
    with pytest.raises(ValueError, match="member 0 has attention_heads=2 and member 1 attention_heads=4"):
        AttentionSeq2SeqEnsemble(models).generate(input_ids, output_attentions=True, **options)
    with pytest.raises(ValueError, match="output_hidden_states=True"):
        AttentionSeq2SeqEnsemble(models).generate(input_ids, output_hidden_states=True, **options)


def test_caches_and_encoder_outputs_of_others():
    input_ids, mask = source_batch()
    model, tokens = tiny_model(), torch.full((4, 1), BOS)
    pair = AttentionSeq2SeqEnsemble([model, tiny_model(seed=1)])
    for cache in (AttentionSeq2SeqCache(), AttentionSeq2SeqEnsembleCache(3)):
        with pytest.raises(ValueError, match="AttentionSeq2SeqEnsembleCache of 2 members"):
            pair(input_ids, mask, tokens, cache=cache)
    with pytest.raises(ValueError, match="continues that ensemble only"):
        model(input_ids, mask, tokens, cache=cache_of(pair(input_ids, mask, tokens)))
    with pytest.raises(ValueError, match="2 members; got EncoderOutput"):
        pair(decoder_input_ids=tokens, encoder_outputs=model.get_encoder()(input_ids))
    with pytest.raises(ValueError, match="can not be cropped"):
        AttentionSeq2SeqEnsembleCache(2).crop(1)
