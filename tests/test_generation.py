"""The library's `generate` over a recurrent decoder, against search and scoring written naively."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_attention_seq2seq import AttentionSeq2SeqTokenizer
from hf_attention_seq2seq.compat import CACHE_NAME

from .helpers import cache_of, name_of, source_batch, tiny_model

PAD, BOS, EOS = 0, 1, 2

CASES = [
    {"rnn_type": rnn_type, "input_feeding": feeding, "attention_query": query, "attention_type": attention}
    for (rnn_type, feeding, query), attention in zip(
        itertools.product(("lstm", "gru"), (False, True), ("current_state", "previous_state")),
        ("additive", "dot", "general", "location", "none", "mlp", "cosine", "concat"),
        strict=True,
    )
]
every_case = pytest.mark.parametrize("case", CASES, ids=name_of)
KINDS = {
    "greedy": {"do_sample": False, "num_beams": 1},
    "sampling": {"do_sample": True, "num_beams": 1, "num_return_sequences": 3},
    "beam search": {"do_sample": False, "num_beams": 4, "num_return_sequences": 2},
    "beam sampling": {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def log_probabilities(model, input_ids, mask, sequences):
    """Log-probability of each token of `sequences` `(batch, length)` behind the first, by one call of the model."""
    with torch.no_grad():
        logits = model(input_ids, attention_mask=mask, decoder_input_ids=sequences[:, :-1]).logits
    return logits.log_softmax(-1).gather(-1, sequences[:, 1:, None]).squeeze(-1)


def search_everything(model, input_ids, mask, length, length_penalty):
    """All sequences of one sentence with up to `length` tokens, best first, as pairs of score and tokens."""
    vocabulary = range(model.config.target_vocab_size)
    found = {}
    for tokens in itertools.product(vocabulary, repeat=length):
        ended = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
        found[ended] = None
    rows = torch.tensor([[BOS, *tokens] + [PAD] * (length - len(tokens)) for tokens in found])
    count = len(rows)
    scores = log_probabilities(model, input_ids.expand(count, -1), mask.expand(count, -1), rows)
    totals = [
        (float(row[: len(tokens)].sum()) / len(tokens) ** length_penalty, list(tokens))
        for row, tokens in zip(scores, found, strict=True)
    ]
    return sorted(totals, reverse=True)


def without_padding(sequence):
    """The tokens behind the first, without what follows the end of the sentence."""
    tokens = sequence.tolist()[1:]
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


# Search


@every_case
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_beam_of_every_sequence_is_an_exhaustive_search(case, length_penalty):
    model = tiny_model(decoder_vocab_size=4, **case)
    input_ids, mask = source_batch()
    output = model.generate(
        input_ids,
        attention_mask=mask,
        num_beams=64,
        num_return_sequences=6,
        max_new_tokens=3,
        length_penalty=length_penalty,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for row in range(len(input_ids)):
        expected = search_everything(model, input_ids[row : row + 1], mask[row : row + 1], 3, length_penalty)[:6]
        part = slice(6 * row, 6 * row + 6)
        torch.testing.assert_close(output.sequences_scores[part], torch.tensor([score for score, _ in expected]))
        assert [without_padding(sequence) for sequence in output.sequences[part]] == [list(t) for _, t in expected]


@every_case
def test_one_beam_takes_the_best_token_in_each_step(case):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    expected = torch.full((4, 1), BOS)
    for _ in range(6):
        with torch.no_grad():
            logits = model(input_ids, attention_mask=mask, decoder_input_ids=expected).logits[:, -1]
        ended = (expected[:, 1:] == EOS).any(dim=1)
        expected = torch.cat((expected, logits.argmax(-1).masked_fill(ended, PAD)[:, None]), dim=1)
    found = model.generate(input_ids, attention_mask=mask, num_beams=1, max_new_tokens=6)
    assert found.tolist() == expected[:, : found.shape[1]].tolist()
    assert found.shape[1] == 7 or (found == EOS).any(dim=1).all()


@every_case
@every_kind
def test_the_cache_changes_nothing(case, kind):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    results = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = {**KINDS[kind], "max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
        results.append(model.generate(input_ids, attention_mask=mask, use_cache=use_cache, **options))
    assert results[0].sequences.tolist() == results[1].sequences.tolist()
    torch.testing.assert_close(results[0].scores, results[1].scores)
    assert cache_of(results[0]).get_seq_length() == results[0].sequences.shape[1] - 1
    assert results[1].get(CACHE_NAME) is None


@pytest.mark.parametrize("length_penalty", [0.0, 0.7])
@pytest.mark.parametrize("vocabularies", [{}, {"decoder_vocab_size": None}], ids=["two", "one"])
def test_transition_scores_add_up_to_sequence_scores(length_penalty, vocabularies):
    model = tiny_model(**vocabularies)
    input_ids, mask = source_batch()
    output = model.generate(
        input_ids,
        attention_mask=mask,
        num_beams=5,
        num_return_sequences=5,
        max_new_tokens=5,
        length_penalty=length_penalty,
        return_dict_in_generate=True,
        output_scores=True,
    )
    steps = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    lengths = (output.beam_indices >= 0).sum(dim=1)
    torch.testing.assert_close(steps.sum(dim=1) / lengths**length_penalty, output.sequences_scores)
    # They are the model's own log-probabilities, too.
    forced = log_probabilities(
        model, input_ids.repeat_interleave(5, 0), mask.repeat_interleave(5, 0), output.sequences
    )
    real = torch.arange(forced.shape[1]) < lengths[:, None]
    torch.testing.assert_close(forced * real, steps[:, : forced.shape[1]])


def test_transition_scores_of_sampling():
    model = tiny_model()
    input_ids, mask = source_batch()
    torch.manual_seed(0)
    options = {"max_new_tokens": 5, "return_dict_in_generate": True, "output_scores": True, "min_new_tokens": 5}
    output = model.generate(input_ids, attention_mask=mask, do_sample=True, top_k=0, **options)
    scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    for row, step in itertools.product(range(4), range(5)):
        expected = output.scores[step][row].log_softmax(-1)[output.sequences[row, step + 1]]
        torch.testing.assert_close(scores[row, step], expected)


# Independence of the batch


@every_case
@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_equals_its_sentences_alone(case, beams):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    options = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": 6}
    together = model.generate(input_ids, attention_mask=mask, **options)
    for row in range(4):
        alone = model.generate(input_ids[row : row + 1, : int(mask[row].sum())], **options)
        part = together[beams * row : beams * (row + 1)]
        assert [without_padding(sequence) for sequence in part] == [without_padding(sequence) for sequence in alone]


@every_case
def test_the_side_of_the_padding_does_not_matter(case):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    shifts = (mask.shape[1] - mask.sum(dim=1)).tolist()
    left_ids, left_mask = (
        torch.stack([row.roll(shift) for row, shift in zip(tensor, shifts, strict=True)])
        for tensor in (input_ids, mask)
    )
    right = model.generate(input_ids, attention_mask=mask, num_beams=3, max_new_tokens=6)
    left = model.generate(left_ids, attention_mask=left_mask, num_beams=3, max_new_tokens=6)
    assert left.tolist() == right.tolist()


@every_case
@pytest.mark.parametrize("beams", [1, 3])
def test_a_sentence_without_tokens_gives_finite_scores(case, beams):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    empty = mask.clone()
    empty[2] = 0
    options = {"num_beams": beams, "max_new_tokens": 5, "return_dict_in_generate": True, "output_logits": True}
    output = model.generate(input_ids, attention_mask=empty, **options)
    assert all(logits.isfinite().all() for logits in output.logits)
    expected = model.generate(input_ids, attention_mask=mask, **options).sequences
    others = [0, 1, 3]
    assert [without_padding(row) for row in output.sequences[others]] == [without_padding(r) for r in expected[others]]


def test_embeddings_or_encoder_outputs_in_place_of_ids():
    model = tiny_model()
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "num_beams": 3, "max_new_tokens": 6}
    expected = model.generate(input_ids, **options).tolist()
    embeddings = model.get_input_embeddings()(input_ids)
    assert model.generate(inputs_embeds=embeddings, **options).tolist() == expected
    encoded = model.get_encoder()(input_ids, attention_mask=mask)
    assert model.generate(encoder_outputs=encoded, **options).tolist() == expected
    assert encoded.last_hidden_state.shape[0] == 4  # not repeated for the beams


def test_the_default_length_is_long_enough_for_a_sentence():
    model = tiny_model()
    input_ids, mask = source_batch()
    assert model.generate(input_ids, attention_mask=mask, suppress_tokens=[EOS]).shape == (4, 256)
    assert model.generate(input_ids, attention_mask=mask, suppress_tokens=[EOS], max_length=9).shape == (4, 9)


# Prefixes

PREFIXES = torch.tensor([[BOS, 5, 7], [BOS, 8, 4], [BOS, 3, 3], [BOS, 9, 6]])


@every_case
@pytest.mark.parametrize("beams", [1, 3])
def test_a_prefix_is_continued(case, beams):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "output_attentions": True}
    output = model.generate(
        input_ids,
        decoder_input_ids=PREFIXES,
        max_new_tokens=4,
        num_beams=beams,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    assert output.sequences[:, :3].tolist() == PREFIXES.tolist()
    with torch.no_grad():
        forced = model(input_ids, decoder_input_ids=PREFIXES, **options)
    torch.testing.assert_close(output.logits[0], forced.logits[:, -1].repeat_interleave(beams, dim=0))
    if case["attention_type"] != "none":
        expected = forced.cross_attentions[0].repeat_interleave(beams, dim=0)
        torch.testing.assert_close(output.cross_attentions[0][0], expected)


@every_case
@pytest.mark.parametrize("use_cache", [True, False])
def test_prefixes_of_unequal_length_are_padded_on_the_left(case, use_cache):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    lengths = torch.tensor([3, 2, 1, 3])
    decoder_mask = (torch.arange(3) >= 3 - lengths[:, None]).long()
    padded = torch.stack([row.roll(3 - int(n)) for row, n in zip(PREFIXES, lengths, strict=True)]) * decoder_mask
    options = {"num_beams": 3, "max_new_tokens": 4, "use_cache": use_cache}
    together = model.generate(
        input_ids, attention_mask=mask, decoder_input_ids=padded, decoder_attention_mask=decoder_mask, **options
    )
    for row, n in enumerate(lengths.tolist()):
        alone = model.generate(
            input_ids[row : row + 1],
            attention_mask=mask[row : row + 1],
            decoder_input_ids=PREFIXES[row : row + 1, :n],
            **options,
        )
        assert without_padding(together[row, 2:]) == without_padding(alone[0, n - 1 :])


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@every_case
def test_a_returned_cache_is_continued(case, name):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "suppress_tokens": [EOS], "return_dict_in_generate": True}
    whole = model.generate(input_ids, max_new_tokens=5, **options)
    part = model.generate(input_ids, max_new_tokens=3, **options)
    rest = model.generate(
        input_ids, decoder_input_ids=part.sequences, max_new_tokens=2, **{name: cache_of(part)}, **options
    )
    assert rest.sequences.tolist() == whole.sequences.tolist()
    for found, expected in zip(cache_of(rest).state.tensors(), cache_of(whole).state.tensors(), strict=True):
        torch.testing.assert_close(found, expected)


@every_case
def test_a_returned_cache_is_continued_with_tokens_of_ones_own(case):
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "return_dict_in_generate": True, "output_logits": True}
    part = model.generate(input_ids, max_new_tokens=3, suppress_tokens=[EOS], **options)
    longer = torch.cat((part.sequences, PREFIXES), dim=1)
    rest = model.generate(
        input_ids, decoder_input_ids=longer, max_new_tokens=1, **{CACHE_NAME: cache_of(part)}, **options
    )
    with torch.no_grad():
        forced = model(input_ids, attention_mask=mask, decoder_input_ids=longer).logits[:, -1]
    torch.testing.assert_close(rest.logits[0], forced)


# What the library does to scores and tokens


def test_logits_processors():
    model = tiny_model()
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "num_beams": 3, "max_new_tokens": 8}
    plain = model.generate(input_ids, **options)
    longer = model.generate(input_ids, min_new_tokens=8, **options)
    assert longer.shape[1] == 9 and not (longer[:, 1:8] == EOS).any()
    unrepeated = model.generate(input_ids, no_repeat_ngram_size=1, min_new_tokens=8, **options)
    assert all(len(set(row)) == len(row) for row in unrepeated.tolist())
    bad = int(plain[0, 1])
    without = model.generate(input_ids, bad_words_ids=[[bad]], **options)
    assert (plain == bad).any() and not (without == bad).any()


class StopAfter(StoppingCriteria):
    """Stops each row once it has `token`."""

    def __init__(self, token: int):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids == self.token).any(dim=1)


def test_stopping_criteria():
    model = tiny_model()
    input_ids, mask = source_batch()
    options = {"attention_mask": mask, "max_new_tokens": 8, "suppress_tokens": [EOS]}
    plain = model.generate(input_ids, **options)
    token = int(plain[0, 3])
    stopped = model.generate(input_ids, stopping_criteria=StoppingCriteriaList([StopAfter(token)]), **options)
    for before, after in zip(plain.tolist(), stopped.tolist(), strict=True):
        kept = before[: before.index(token) + 1] if token in before else before[: len(after)]
        assert after == kept + [PAD] * (len(after) - len(kept))


class Listener(BaseStreamer):
    """Keeps what it is told."""

    def __init__(self):
        self.tokens = []
        self.ended = False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


def test_streaming():
    model = tiny_model()
    input_ids, mask = source_batch()
    listener = Listener()
    output = model.generate(input_ids[:1], attention_mask=mask[:1], max_new_tokens=8, streamer=listener)
    assert listener.tokens == output[0].tolist() and listener.ended


# Attentions


@every_case
@every_kind
def test_attentions_of_each_step(case, kind):
    if case["attention_type"] == "none":
        case = {**case, "attention_type": "scaled_dot"}
    model = tiny_model(**case)
    input_ids, mask = source_batch()
    torch.manual_seed(5)
    output = model.generate(
        input_ids,
        attention_mask=mask,
        max_new_tokens=5,
        output_attentions=True,
        return_dict_in_generate=True,
        output_scores=True,
        **KINDS[kind],
    )
    copies = KINDS[kind].get("num_return_sequences", 1)
    rows = 4 * max(KINDS[kind]["num_beams"], copies)
    steps = [weights for (weights,) in output.cross_attentions]
    assert all(weights.shape == (rows, 1, 1, 7) for weights in steps)
    assert output.encoder_attentions is None and all(step is None for step in output.decoder_attentions)
    with torch.no_grad():
        forced = model(
            input_ids.repeat_interleave(copies, dim=0),
            attention_mask=mask.repeat_interleave(copies, dim=0),
            decoder_input_ids=output.sequences[:, :-1],
            output_attentions=True,
        ).cross_attentions[0]
    for row, sequence in enumerate(output.sequences):
        for step in range(len(without_padding(sequence))):
            # A beam's row in a step is where its previous token stood.
            where = row if output.get("beam_indices") is None else int(output.beam_indices[row, step])
            torch.testing.assert_close(steps[step][where, :, 0], forced[row, :, step])


def test_without_attention_there_are_no_weights():
    model = tiny_model(attention_type="none")
    input_ids, mask = source_batch()
    options = {"max_new_tokens": 3, "output_attentions": True, "return_dict_in_generate": True}
    output = model.generate(input_ids, attention_mask=mask, **options)
    assert output.cross_attentions == (None,) * 3


def test_hidden_states_of_each_step():
    model = tiny_model(encoder_layers=2, decoder_layers=3, embedding_size=8)
    input_ids, mask = source_batch()
    options = {"num_beams": 3, "max_new_tokens": 4, "suppress_tokens": [EOS]}
    output = model.generate(
        input_ids, attention_mask=mask, output_hidden_states=True, return_dict_in_generate=True, **options
    )
    assert [states.shape for states in output.encoder_hidden_states] == [(4, 7, 8)] * 3
    assert len(output.decoder_hidden_states) == 4
    for step in output.decoder_hidden_states:
        assert [states.shape for states in step] == [(12, 1, 8)] * 4


@torch.no_grad()
def test_stop_strings():
    words = ["abcdefg gfedcba", "ab cd ef"]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(words, model="char")
    model = tiny_model(vocab_size=len(tokenizer), decoder_vocab_size=None)
    batch = tokenizer(words, padding=True, return_tensors="pt")
    free = tokenizer.batch_decode(model.generate(**batch, max_new_tokens=12), skip_special_tokens=True)
    stop = free[0][3]
    cut = model.generate(**batch, max_new_tokens=12, stop_strings=[stop], tokenizer=tokenizer)
    text = tokenizer.batch_decode(cut, skip_special_tokens=True)[0]
    assert text == free[0][: free[0].index(stop) + 1]
