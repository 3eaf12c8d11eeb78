"""The presets of exact and variational hard attention against their papers' equations."""

import pytest
import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig

from .test_papers import check, preset_model, sentences, stacked_lstm
from .test_papers_alignment import bidirectional, first_states


def test_what_the_presets_are():
    exact, zeroth, first, variational, sampled = (
        AttentionSeq2SeqConfig.from_preset(name)
        for name in (
            "wu-2018-exact-hard",
            "wu-2019-monotonic",
            "wu-2019-monotonic-first-order",
            "deng-2018-variational",
            "xu-2015-hard",
        )
    )
    assert [c.hard_attention_order for c in (exact, zeroth, first, variational)] == [None, 0, 1, None]
    assert [c.hard_attention_estimator for c in (exact, zeroth, first)] == ["marginal"] * 3
    assert variational.hard_attention_estimator == "variational"
    assert (sampled.hard_attention_estimator, sampled.hard_attention_soft_probability) == ("reinforce", 0.5)  # 4.1


@pytest.mark.parametrize(
    "name", ["wu-2018-exact-hard", "deng-2018-variational", "wu-2019-monotonic", "wu-2019-monotonic-first-order"]
)
@torch.no_grad()
def test_the_mixture_and_the_forward_recursion(name):
    """Wu 2018, eq. 5; Wu and Cotterell 2019, the forward algorithm written with a matrix of transitions."""
    sizes = {"embedding_size": 5, "hidden_size": 4, "encoder_hidden_size": 6, "hard_attention_jumps": 2}
    model = preset_model(name, **sizes)
    order, decoder = model.config.hard_attention_order, model.get_decoder()
    general, jumps = decoder.attention.score.key_projection.weight, decoder.attention.jumps
    words = torch.randint(3, 13, (4, 5), generator=torch.Generator().manual_seed(2))  # as in `sentences`
    for row, (source, target, logits, weights) in enumerate(sentences(model)):
        memory, finals = bidirectional(model, source)
        length = len(memory)
        expected_logits, expected_weights = [], []
        filtered = torch.zeros(length, dtype=torch.float64)
        filtered[0] = 1.0
        states, _ = stacked_lstm(decoder.layers, target, first_states(model, finals))  # no attention flows back
        for step, s in enumerate(states):
            scores = torch.stack([s @ (general @ h) for h in memory])
            transitions = []
            for last in range(length):
                total = scores.clone()
                if order is not None:
                    total[:last] = float("-inf")
                if order == 1:
                    ahead = jumps.of_state.weight @ s + jumps.of_state.bias + jumps.of_place.weight @ memory[last]
                    total += torch.stack([ahead[min(max(place - last, 0), 2)] for place in range(length)])
                transitions.append(torch.softmax(total, 0))
            prior = filtered @ torch.stack(transitions)
            emissions = torch.stack(
                [
                    torch.softmax(model.lm_head(torch.tanh(decoder.readout.projection.weight @ torch.cat((h, s)))), 0)
                    for h in memory
                ]
            )
            expected_logits.append(torch.log(prior @ emissions))
            expected_weights.append(prior)
            if step + 1 < len(target):
                filtered = prior * emissions[:, words[row, step + 1]]
                filtered = filtered / filtered.sum()
        check(logits, weights, expected_logits, expected_weights)
