"""Each preset against its paper's equations, written out step by step for each sentence, in double precision."""

import pytest
import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration

from .helpers import SIZES, concatenated, source_batch


def preset_model(name, **overrides):
    vocabularies = {key: SIZES[key] for key in ("vocab_size", "decoder_vocab_size")}
    config = AttentionSeq2SeqConfig.from_preset(
        name, **{**vocabularies, "dropout": 0.0, "initializer_range": 0.6, **overrides}
    )
    model = AttentionSeq2SeqForConditionalGeneration(config).double().eval()
    torch.manual_seed(3)
    for parameter in model.parameters():  # biases too, so that none can be forgotten
        parameter.data.uniform_(-0.6, 0.6)
    return model


def lstm(rnn, x, state, suffix=""):
    """Hochreiter and Schmidhuber's cell with forget gates; `state` is (h, c)."""
    h, c = state
    weights = [getattr(rnn, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    i, f, g, o = (weights[0] @ x + weights[2] + weights[1] @ h + weights[3]).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru(rnn, x, h, suffix=""):
    """The GRU of torch: the reset gate acts after the recurrent product."""
    weights = [getattr(rnn, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    ir, iz, inew = (weights[0] @ x + weights[2]).chunk(3)
    hr, hz, hnew = (weights[1] @ h + weights[3]).chunk(3)
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    return (1 - z) * torch.tanh(inew + r * hnew) + z * h


def zeros(size):
    return torch.zeros(size, dtype=torch.float64)


def sentences(model):
    """The batch, and each sentence of it without its padding."""
    input_ids, mask = source_batch()
    decoder_input_ids = torch.randint(
        3, SIZES["decoder_vocab_size"], (4, 5), generator=torch.Generator().manual_seed(2)
    )
    output = model(input_ids, mask, decoder_input_ids=decoder_input_ids, output_attentions=True)
    for row in range(4):
        length = int(mask[row].sum())
        source = model.get_input_embeddings()(input_ids[row, :length])
        target = model.get_decoder_input_embeddings()(decoder_input_ids[row])
        weights = output.cross_attentions[0][row, 0] if output.cross_attentions else None
        yield source, target, output.logits[row], weights


def check(logits, weights, expected_logits, expected_weights=None):
    torch.testing.assert_close(logits, torch.stack(expected_logits), rtol=1e-10, atol=1e-12)
    if expected_weights is None:
        assert weights is None
        return
    length = expected_weights[0].shape[0]
    torch.testing.assert_close(weights[:, :length], torch.stack(expected_weights), rtol=1e-10, atol=1e-12)
    assert (weights[:, length:] == 0).all()


@torch.no_grad()
def test_bahdanau_2014():
    model = preset_model(
        "bahdanau-2014", embedding_size=5, hidden_size=4, encoder_hidden_size=6, attention_size=3, readout_size=2
    )
    encoder, decoder = model.get_encoder().layers.layers[0].rnn, model.get_decoder()
    score, cell = decoder.attention.score, decoder.layers[0].rnn
    bridge, deep = decoder.bridge.maps[0], decoder.readout.projection
    for source, target, logits, weights in sentences(model):
        forward, backward = [], []
        h = zeros(3)
        for x in source:  # A.2.1
            h = gru(encoder, x, h)
            forward.append(h)
        h = zeros(3)
        for x in reversed(source):
            h = gru(encoder, x, h, "_reverse")
            backward.insert(0, h)
        annotations = [torch.cat(pair) for pair in zip(forward, backward)]
        s = torch.tanh(bridge.weight @ backward[0] + bridge.bias)  # A.2.2: s_0 = tanh(W_s h_1)
        expected_logits, expected_weights = [], []
        for y in target:
            energies = [
                score.energy[0] @ torch.tanh(score.query_projection.weight @ s + score.key_projection.weight @ h)
                for h in annotations
            ]  # A.1.2
            alpha = torch.softmax(torch.stack(energies), 0)  # eq. 6
            c = sum(a * h for a, h in zip(alpha, annotations))  # eq. 5
            s = gru(cell, torch.cat((y, c)), s)
            t = deep.weight @ torch.cat((s, y, c)) + deep.bias
            t = torch.stack([torch.maximum(t[2 * k], t[2 * k + 1]) for k in range(2)])  # maxout
            expected_logits.append(model.lm_head.weight @ t + model.lm_head.bias)
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)


@torch.no_grad()
def test_cho_2014():
    model = preset_model("cho-2014", embedding_size=5, hidden_size=4, readout_size=3)
    encoder, decoder = model.get_encoder().layers.layers[0].rnn, model.get_decoder()
    cell, bridge, deep = decoder.layers[0].rnn, decoder.bridge.maps[0], decoder.readout.projection
    for source, target, logits, weights in sentences(model):
        h = zeros(4)
        for x in source:
            h = gru(encoder, x, h)
        c = torch.tanh(decoder.attention.summary_projection.weight @ h)  # A.1.1: c = tanh(V h_N)
        h = torch.tanh(bridge.weight @ c + bridge.bias)  # A.1.2: h'_0 = tanh(V' c)
        expected = []
        for y in target:
            h = gru(cell, torch.cat((y, c)), h)
            s = deep.weight @ torch.cat((h, y, c)) + deep.bias
            s = torch.stack([torch.maximum(s[2 * k], s[2 * k + 1]) for k in range(3)])
            expected.append(model.lm_head.weight @ s + model.lm_head.bias)
        check(logits, weights, expected)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@torch.no_grad()
def test_xu_2015(kind):
    """The annotation vectors are the encoder states; hard attention reads the most probable one."""
    model = preset_model(f"xu-2015-{kind}", embedding_size=5, hidden_size=4, encoder_hidden_size=6, attention_size=3)
    encoder, decoder = model.get_encoder().layers.layers[0].rnn, model.get_decoder()
    score, gate, cell = decoder.attention.score, decoder.attention.gate, decoder.layers[0].rnn
    (init_h, init_c), deep = decoder.bridge.maps, decoder.readout.projection
    for source, target, logits, weights in sentences(model):
        forward, backward = [], []
        state = (zeros(3), zeros(3))
        for x in source:
            state = lstm(encoder, x, state)
            forward.append(state[0])
        state = (zeros(3), zeros(3))
        for x in reversed(source):
            state = lstm(encoder, x, state, "_reverse")
            backward.insert(0, state[0])
        a = [torch.cat(pair) for pair in zip(forward, backward)]
        mean = sum(a) / len(a)  # 3.1.2: the first state is predicted from the average annotation
        h, c = torch.tanh(init_h.weight @ mean + init_h.bias), init_c.weight @ mean + init_c.bias
        expected_logits, expected_weights = [], []
        for y in target:
            energies = [  # eq. 4
                score.energy[0]
                @ torch.tanh(
                    score.query_projection.weight @ h + score.key_projection.weight @ a_i + score.key_projection.bias
                )
                for a_i in a
            ]
            alpha = torch.softmax(torch.stack(energies), 0)  # eq. 5
            if kind == "hard":
                alpha = torch.nn.functional.one_hot(alpha.argmax(), len(a)).double()  # 4.1
            beta = 1.0 if kind == "hard" else torch.sigmoid(gate.weight @ h + gate.bias)  # 4.2.1
            z = beta * sum(weight * a_i for weight, a_i in zip(alpha, a))  # eq. 13 and 4.2.1
            h, c = lstm(cell, torch.cat((y, z)), (h, c))  # eq. 1 to 3
            out = y + deep.weight @ torch.cat((h, z)) + deep.bias
            expected_logits.append(model.lm_head.weight @ out + model.lm_head.bias)  # eq. 7
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)


def stacked_lstm(layers, inputs, states):
    """Every layer over every input; returns the top outputs and the last states."""
    tops = []
    for x in inputs:
        for index, layer in enumerate(layers):
            states[index] = lstm(layer.rnn, x, states[index])
            x = states[index][0]
        tops.append(x)
    return tops, states


@torch.no_grad()
def test_sutskever_2014():
    model = preset_model("sutskever-2014", embedding_size=5, hidden_size=4, encoder_layers=3, decoder_layers=3)
    encoder, decoder = model.get_encoder().layers.layers, model.get_decoder()
    for source, target, logits, weights in sentences(model):
        _, states = stacked_lstm(encoder, reversed(source), [(zeros(4), zeros(4))] * 3)  # 3.3: the source reversed
        tops, _ = stacked_lstm(decoder.layers, target, states)
        check(logits, weights, [model.lm_head.weight @ top + model.lm_head.bias for top in tops])


@pytest.mark.parametrize("kind", ["dot", "general", "concat", "location"])
@torch.no_grad()
def test_luong_2015_global(kind):
    model = preset_model(
        f"luong-2015-global-{kind}", embedding_size=5, hidden_size=4, encoder_layers=2, decoder_layers=2
    )
    encoder, decoder = model.get_encoder().layers.layers, model.get_decoder()
    score = decoder.attention.score

    def scores(h, memory):  # eq. 7 and 8
        if kind == "dot":
            return [h @ m for m in memory]
        if kind == "general":
            return [h @ (score.key_projection.weight @ m) for m in memory]
        if kind == "concat":
            return [score.energy[0] @ torch.tanh(concatenated(score) @ torch.cat((h, m))) for m in memory]
        return list(score.positions.weight @ h)[: len(memory)]

    for source, target, logits, weights in sentences(model):
        memory, states = stacked_lstm(encoder, reversed(source), [(zeros(4), zeros(4))] * 2)
        memory = memory[::-1]  # attention speaks of places in the sentence, not of reading order
        feed = zeros(4)
        expected_logits, expected_weights = [], []
        for y in target:
            (top,), states = stacked_lstm(decoder.layers, [torch.cat((y, feed))], states)  # 3.3: input feeding
            alpha = torch.softmax(torch.stack(scores(top, memory)), 0)
            c = sum(a * m for a, m in zip(alpha, memory))
            feed = torch.tanh(decoder.readout.projection.weight @ torch.cat((c, top)))  # eq. 5
            expected_logits.append(model.lm_head.weight @ feed + model.lm_head.bias)  # eq. 6
            expected_weights.append(alpha)
        check(logits, weights, expected_logits, expected_weights)
