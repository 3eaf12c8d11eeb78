"""The presets of local, location-aware, coverage, monotonic and sparse attention against their papers' equations."""

import math

import pytest
import torch
from torch.nn import functional as F

from hf_attention_seq2seq import AttentionSeq2SeqConfig

from .helpers import source_batch, target_batch
from .test_normalizers import entmax15
from .test_papers import check, gru, lstm, preset_model, sentences, stacked_lstm, zeros


def bidirectional(model, source):
    """Annotations, and per state tensor the final states of all layers, forward before backward, concatenated."""
    finals = []
    for layer in model.get_encoder().layers.layers:
        is_lstm = isinstance(layer.rnn, torch.nn.LSTM)
        size = layer.rnn.hidden_size
        directions = []
        for suffix, inputs in (("", source), ("_reverse", reversed(source))):
            state = (zeros(size), zeros(size)) if is_lstm else zeros(size)
            outputs = []
            for x in inputs:
                state = (lstm if is_lstm else gru)(layer.rnn, x, state, suffix)
                outputs.append(state[0] if is_lstm else state)
            directions.append(outputs[::-1] if suffix else outputs)
            finals.append(state if is_lstm else (state,))
        source = [torch.cat(pair) for pair in zip(*directions)]
    return source, [torch.cat(tensors) for tensors in zip(*finals)]


def first_states(model, finals):
    """Affine on all final states, with tanh for hidden states; per decoder layer a tuple."""
    maps, layers = model.get_decoder().bridge.maps, model.config.decoder_layers
    tensors = [mapping.weight @ final + mapping.bias for mapping, final in zip(maps, finals)]
    tensors[0] = torch.tanh(tensors[0])
    return list(zip(*(tensor.chunk(layers) for tensor in tensors)))


def different_words(model):
    """Makes annotations differ more; returns those of the first sentence, and the decoder's first states."""
    table = model.get_input_embeddings()
    table.weight.mul_(5)
    annotations, finals = bidirectional(model, table(source_batch()[0][0]))
    return annotations, first_states(model, finals)


def mlp_energy(score, s, h, coverage=None):
    """`v . tanh(W s + V h + b)`, and `+ U f` within the tanh."""
    hidden = score.query_projection.weight @ s + score.key_projection.weight @ h + score.key_projection.bias
    if coverage is not None:
        hidden = hidden + score.feature_weights @ coverage
    return score.energy[0] @ torch.tanh(hidden)


def weighted(alpha, annotations):
    return sum(a * h for a, h in zip(alpha, annotations))


def attentional(model, c, s):
    """The readout vector `tanh(W [c; s])` and the logits."""
    vector = torch.tanh(model.get_decoder().readout.projection.weight @ torch.cat((c, s)))
    return vector, model.lm_head.weight @ vector + model.lm_head.bias


def maxout(model, s, y, c):
    deep = model.get_decoder().readout.projection
    t = deep.weight @ torch.cat((s, y, c)) + deep.bias
    t = torch.stack([torch.maximum(t[2 * k], t[2 * k + 1]) for k in range(len(t) // 2)])
    return model.lm_head.weight @ t + model.lm_head.bias


@pytest.mark.parametrize("span", ["local-m", "local-p"])
@torch.no_grad()
def test_luong_2015_local(span):
    name = f"luong-2015-{span}"
    assert AttentionSeq2SeqConfig.from_preset(name).attention_window == 10  # 4.1: D = 10
    model = preset_model(name, embedding_size=5, hidden_size=4, encoder_layers=2, decoder_layers=2, attention_window=2)
    encoder, decoder = model.get_encoder().layers.layers, model.get_decoder()
    general, half_width = decoder.attention.score.key_projection.weight, 2
    for source, target, logits, weights in sentences(model):
        memory, states = stacked_lstm(encoder, reversed(source), [(zeros(4), zeros(4))] * 2)
        memory, length = memory[::-1], len(source)
        feed = zeros(4)
        expected_logits, expected_weights = [], []
        for t, y in enumerate(target):
            (top,), states = stacked_lstm(decoder.layers, [torch.cat((y, feed))], states)
            if span == "local-m":
                p = min(t, length - 1)  # "simply p_t = t"; places count from 0, and the last word ends them
            else:
                predictor = decoder.attention.span
                wanted = predictor.center.weight[0] @ torch.tanh(predictor.hidden.weight @ top)
                p = (length * torch.sigmoid(wanted)).item()  # eq. 9
            window = [s for s in range(length) if p - half_width <= s <= p + half_width]
            align = torch.softmax(torch.stack([top @ (general @ memory[s]) for s in window]), 0)  # eq. 7
            alpha = zeros(length)
            for a, s in zip(align, window):
                alpha[s] = a
                if span == "local-p":
                    alpha[s] *= math.exp(-((s - p) ** 2) / (2 * (half_width / 2) ** 2))  # eq. 10, sigma = D / 2
            feed, word = attentional(model, weighted(alpha, memory), top)
            expected_logits.append(word)
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)


@torch.no_grad()
def test_chorowski_2015_location_aware():
    sizes = {"embedding_size": 5, "hidden_size": 4, "encoder_hidden_size": 6, "attention_size": 3, "readout_size": 2}
    model = preset_model("chorowski-2015-location-aware", **sizes, coverage_filters=2, coverage_kernel_size=3)
    decoder = model.get_decoder()
    score, cell, filters = decoder.attention.score, decoder.layers[0].rnn, decoder.attention.coverage.filters.weight
    for source, target, logits, weights in sentences(model):
        annotations, finals = bidirectional(model, source)
        ((s,),) = first_states(model, finals)
        alpha = zeros(len(source))
        expected_logits, expected_weights = [], []
        for y in target:
            padded = torch.cat((zeros(1), alpha, zeros(1)))
            located = [filters[:, 0] @ padded[j : j + 3] for j in range(len(source))]  # eq. 8: f_i = F * alpha_{i-1}
            energies = [mlp_energy(score, s, h, f) for h, f in zip(annotations, located)]  # eq. 9
            alpha = torch.softmax(torch.stack(energies), 0)
            c = weighted(alpha, annotations)
            s = gru(cell, torch.cat((y, c)), s)
            expected_logits.append(maxout(model, s, y, c))
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)


@torch.no_grad()
def test_see_2017_coverage():
    """Attention and loss; the readout is Luong's, with input feeding."""
    sizes = {"embedding_size": 5, "hidden_size": 4, "encoder_hidden_size": 6, "attention_size": 3}
    model = preset_model("see-2017-coverage", **sizes)
    decoder = model.get_decoder()
    score, cell = decoder.attention.score, decoder.layers[0].rnn
    losses = []
    for source, target, logits, weights in sentences(model):
        annotations, finals = bidirectional(model, source)
        (state,) = first_states(model, finals)
        coverage, feed = zeros(len(source)), zeros(4)
        expected_logits, expected_weights = [], []
        for y in target:
            state = lstm(cell, torch.cat((y, feed)), state)
            energies = [mlp_energy(score, state[0], h, c.view(1)) for h, c in zip(annotations, coverage)]  # eq. 11
            alpha = torch.softmax(torch.stack(energies), 0)  # eq. 2
            losses.append(sum(min(a, c) for a, c in zip(alpha, coverage)))  # eq. 12
            coverage = coverage + alpha  # eq. 10
            feed, word = attentional(model, weighted(alpha, annotations), state[0])  # eq. 3
            expected_logits.append(word)
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)
    input_ids, mask = source_batch()
    labels = target_batch().clamp(min=3)  # all of them count
    decoder_input_ids = torch.randint(3, 13, (4, 5), generator=torch.Generator().manual_seed(2))  # as in `sentences`
    output = model(input_ids, mask, decoder_input_ids=decoder_input_ids, labels=labels)
    expected = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten()) + sum(losses) / 20  # eq. 13, lambda = 1
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-6, atol=0)


def expected_stops(p, previous):
    """`alpha_j = p_j sum_k alpha'_k prod_{l=k}^{j-1} (1 - p_l)` (Raffel 2017, eq. 8)."""
    alpha = zeros(len(p))
    for j in range(len(p)):
        for k in range(j + 1):
            alpha[j] += p[j] * previous[k] * torch.prod(1 - p[k:j])
    return alpha


def hard_stop(p, start):
    """The first position from `start` on with `p > 1/2`, or the length (Raffel 2017, algorithm 1)."""
    return next((j for j in range(start, len(p)) if p[j] > 0.5), len(p))


@pytest.mark.parametrize("training", [False, True], ids=["hard", "expected"])
@pytest.mark.parametrize("name", ["raffel-2017-monotonic", "chiu-2018-mocha"])
@torch.no_grad()
def test_monotonic_attention(name, training):
    preset = AttentionSeq2SeqConfig.from_preset(name)
    assert preset.monotonic_noise == 1.0 and preset.monotonic_offset == -4.0
    width = preset.monotonic_chunk_size
    assert width == (1 if name.startswith("raffel") else 4)
    width = min(width, 2)
    model = preset_model(name, embedding_size=5, hidden_size=4, monotonic_noise=0.0, monotonic_chunk_size=width)
    attention, cell = model.get_decoder().attention, model.get_decoder().layers[0].rnn
    annotations, ((state, _),) = different_words(model)
    energies = torch.stack([mlp_energy(attention.score, state, h) for h in annotations])
    g, r = attention.monotonic.scale.fill_(20.0), attention.monotonic.offset
    r.fill_(-20.0 * energies.quantile(0.7))  # the first step stops somewhere
    stopped = []
    for source, target, logits, weights in sentences(model.train(training)):
        annotations, finals = bidirectional(model, source)
        (state,) = first_states(model, finals)
        length, position = len(source), 0
        alpha = torch.eye(length, dtype=torch.float64)[0]  # alpha_0: attention stands at the beginning
        expected_logits, expected_weights = [], []
        for y in target:
            energies = torch.stack([mlp_energy(attention.score, state[0], h) for h in annotations])
            p = torch.sigmoid(g * energies + r)
            if training:
                alpha = expected_stops(p, alpha)
            else:
                position = hard_stop(p, position)
                alpha = torch.tensor([float(j == position) for j in range(length)], dtype=torch.float64)
                stopped.append(position < length)
            beta = alpha
            if width > 1:
                u = torch.stack([mlp_energy(attention.chunk_score, state[0], h) for h in annotations])
                beta = zeros(length)
                for k in range(length):  # the chunk that ends at k
                    first = max(k - width + 1, 0)
                    beta[first : k + 1] += alpha[k] * torch.softmax(u[first : k + 1], 0)
            c = weighted(beta, annotations)
            state = lstm(cell, torch.cat((y, c)), state)
            expected_logits.append(attentional(model, c, state[0])[1])
            expected_weights.append(beta)
        check(logits, weights, expected_logits, expected_weights)
    assert training or any(stopped)


@torch.no_grad()
def test_peters_2019_sparse():
    model = preset_model("peters-2019-sparse", embedding_size=5, hidden_size=4)
    decoder = model.get_decoder()
    annotations, (*_, (state, _)) = different_words(model)
    general = decoder.attention.score.key_projection.weight
    scores = torch.stack([state @ (general @ h) for h in annotations])
    general.mul_(6 / (scores.max() - scores.min()))  # so that there are zeros
    zero_weights = 0
    for source, target, logits, weights in sentences(model):
        annotations, finals = bidirectional(model, source)
        states = first_states(model, finals)
        feed = zeros(4)
        expected_logits, expected_weights = [], []
        for y in target:
            (top,), states = stacked_lstm(decoder.layers, [torch.cat((y, feed))], states)
            scores = [(top @ (general @ h)).item() for h in annotations]
            alpha = torch.tensor(entmax15(scores), dtype=torch.float64)
            zero_weights += int((alpha == 0).sum())
            feed, word = attentional(model, weighted(alpha, annotations), top)
            expected_logits.append(word)
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)
    assert zero_weights > 0
