"""Beam search with the penalties of Wu 2016 against the best of all hypotheses."""

import itertools
import math

import pytest
import torch

from hf_attention_seq2seq.penalties import beam_penalties

from .helpers import tiny_model

STEPS, EOS = 3, 2
SMALL = {"decoder_vocab_size": 5, "vocab_size": 9, "share_encoder_decoder_embeddings": False}


def wu_score(model, source, words, length, coverage):
    """Equation 14, word by word."""
    decoder_input_ids = torch.tensor([[model.config.decoder_start_token_id, *words[:-1]]])
    output = model(source, decoder_input_ids=decoder_input_ids, output_attentions=True)
    log_probabilities = output.logits.log_softmax(-1)[0]
    log_likelihood = sum(log_probabilities[step, word].item() for step, word in enumerate(words))
    covered = output.cross_attentions[0][0].mean(dim=0).sum(dim=0).tolist()
    penalty = coverage * sum(math.log(min(max(value, 0.01), 1.0)) for value in covered)
    return log_likelihood / ((5 + len(words)) / 6) ** length + penalty


@pytest.mark.parametrize("length, coverage", [(0.0, 0.0), (0.6, 0.0), (0.0, 0.4), (1.0, 0.3)])
@pytest.mark.parametrize(
    "fields",
    [{}, {"attention_heads": 2, "attention_type": "dot"}, {"attention_normalizer": "sparsemax", "rnn_type": "gru"}],
)
@torch.no_grad()
def test_it_finds_the_best_of_all_hypotheses(length, coverage, fields):
    model = tiny_model(**SMALL, **fields)
    sources = torch.tensor([[3, 4, 5, 6, 2], [7, 2, 0, 0, 0], [0, 0, 8, 3, 2]])
    hypotheses = [
        (*words, EOS)
        for number in range(STEPS)
        for words in itertools.product([0, 1, 3, 4], repeat=number)  # every token but the end
    ]
    with beam_penalties(model, length=length, coverage=coverage) as penalties:
        output = model.generate(
            sources,
            num_beams=40,
            max_new_tokens=STEPS + 3,
            early_stopping="never",
            output_scores=True,
            return_dict_in_generate=True,
            num_return_sequences=3,
            **penalties,
        )
    rows = iter(zip(output.sequences.tolist(), output.sequences_scores.tolist()))
    for source in sources:
        source = source[source != 0].unsqueeze(0)
        best = max(wu_score(model, source, words, length, coverage) for words in hypotheses)
        found = [next(rows) for _ in range(3)]
        assert found[0][1] >= best - 1e-4
        for sequence, score in found:
            if EOS in sequence:
                words = sequence[1 : sequence.index(EOS) + 1]
                assert score == pytest.approx(wu_score(model, source, words, length, coverage), abs=1e-4)
    assert not model.get_decoder()._forward_hooks and not model.get_decoder()._forward_pre_hooks


@torch.no_grad()
def test_without_penalties_it_is_plain_beam_search():
    model = tiny_model(**SMALL)
    source = torch.tensor([[3, 4, 5, 6, 2]])
    plain = model.generate(source, num_beams=4, max_new_tokens=6, length_penalty=0.0)
    with beam_penalties(model, length=0.0, coverage=0.0) as penalties:
        assert torch.equal(model.generate(source, num_beams=4, max_new_tokens=6, **penalties), plain)
        assert torch.equal(model.generate(source, num_beams=4, max_new_tokens=6, **penalties), plain)


@torch.no_grad()
def test_coverage_prefers_translations_of_everything():
    """Of two hypotheses as likely, the one that looked at both words wins."""
    model = tiny_model(**SMALL)
    source = torch.tensor([[3, 4, 5, 6, 7, 8, 2]])
    covered = []
    for coverage in (0.0, 5.0):
        with beam_penalties(model, length=0.0, coverage=coverage) as penalties:
            words = model.generate(source, num_beams=20, max_new_tokens=8, early_stopping="never", **penalties)[0, 1:]
        labels = words[: words.tolist().index(EOS) + 1].unsqueeze(0) if EOS in words.tolist() else words.unsqueeze(0)
        weights = model(source, labels=labels, output_attentions=True).cross_attentions[0]
        covered.append(weights.sum(dim=2).clamp(max=1.0).log().sum().item())
    assert covered[1] > covered[0]


def test_what_is_not_possible():
    with pytest.raises(ValueError, match="length=-1"), beam_penalties(tiny_model(), length=-1):
        pass
    none = tiny_model(attention_type="none")
    with pytest.raises(ValueError, match="attention_type='none'"), beam_penalties(none):
        pass
