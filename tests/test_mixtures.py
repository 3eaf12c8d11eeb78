"""Exact hard attention against the sum over all alignments, one by one, in double precision."""

import itertools

import pytest
import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq.losses import linear_log_likelihood

from .helpers import name_of, source_batch, tiny_model

INPUT_IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [0, 4, 4, 9]])
MASK = (INPUT_IDS != 0).long()
LABELS = torch.tensor([[3, 5, 2], [6, 2, -100], [8, 7, 2]])
HARD = {"attention_selection": "hard", "attention_type": "general"}
CASES = [
    {},
    {"hard_attention_order": 0},
    {"hard_attention_order": 1, "hard_attention_jumps": 2},
    {"hard_attention_order": 1, "hard_attention_jumps": 7, "decoder_layers": 2, "context_gate": True},
    {"hard_attention_order": 0, "readout_type": "maxout", "attention_type": "additive"},
    {"readout_type": "maxout", "context_gate": True, "attention_values": "projected"},
    {"readout_type": "deep", "rnn_type": "gru"},
    {"attention_normalizer": "entmax15"},
    {"attention_span": "local_m", "attention_window": 1},
    {"attention_span": "local_p", "attention_window": 2},
    {"attention_span": "local_m", "attention_window": 1, "hard_attention_order": 0},
    {"attention_type": "location", "max_source_positions": 3},
]


def exact_model(**case):
    model = tiny_model(torch.float64, **{**HARD, **case})
    torch.manual_seed(1)
    for parameter in model.parameters():  # biases too
        parameter.data.uniform_(-0.8, 0.8)
    return model


def softmax_over(scores, places):
    """`{place: probability}` of the scores of some places."""
    exponentials = {place: torch.exp(scores[place]) for place in places}
    return {place: value / sum(exponentials.values()) for place, value in exponentials.items()}


class Naive:
    """One sentence; everything about attention written out for one word and one position."""

    def __init__(self, model, row):
        self.model, self.config, self.decoder = model, model.config, model.get_decoder()
        self.labels = [int(label) for label in LABELS[row] if label != -100]
        source = INPUT_IDS[row][MASK[row].bool()]
        self.length = len(source)
        inputs = torch.tensor([[self.config.decoder_start_token_id, *self.labels[:-1]]])
        output = model(source[None], decoder_input_ids=inputs, output_hidden_states=True, output_attentions=True)
        self.embeddings, self.states = output.decoder_hidden_states[0][0], output.decoder_hidden_states[-1][0]
        attention = self.decoder.attention
        self.values = attention.value_projection(output.encoder_last_hidden_state[0])
        # What the attention would be without order: its own tests look at scores, windows and normalisers.
        without = attention(
            self.states[None],
            self.decoder.prepare(model.get_encoder()(source[None]), torch.ones(1, self.length, dtype=torch.bool)),
            torch.arange(len(self.labels))[None],
        )
        self.attention_weights = without.weights[0, 0]
        self.alone = output.cross_attentions[0][0, 0]

    def transition(self, step, last):
        """`{place: p(place | last)}`."""
        order = self.config.hard_attention_order
        weights = self.attention_weights[step]
        if order is None:
            return {place: weights[place] for place in range(self.length)}
        ahead = [place for place in range(last, self.length) if weights[place] > 0]
        if order == 0:
            return {place: weights[place] / sum(weights[other] for other in ahead) for place in ahead}
        jumps = self.decoder.attention.jumps
        scores = jumps.of_state.weight @ self.states[step] + jumps.of_state.bias
        scores = scores + jumps.of_place.weight @ self.values[last]
        furthest = self.config.hard_attention_jumps
        total = {place: torch.log(weights[place]) + scores[min(place - last, furthest)] for place in ahead}
        return softmax_over(total, ahead)

    def words(self, step, place):
        """`p(. | place)`, the distribution of the next word."""
        context = self.values[place]
        gate = self.decoder.attention.gate
        if gate is not None:
            context = torch.sigmoid(gate(self.states[step])) * context
        readout = self.decoder.readout(self.states[step], context, self.embeddings[step])
        return torch.softmax(self.model.lm_head(readout), dim=0)

    def probability(self):
        """`p(labels)`, over every alignment (Wu 2018, eq. 4; Wu and Cotterell 2019)."""
        total = 0.0
        for alignment in itertools.product(range(self.length), repeat=len(self.labels)):
            product, last = 1.0, 0
            for step, (place, label) in enumerate(zip(alignment, self.labels)):
                product = product * self.transition(step, last).get(place, 0.0) * self.words(step, place)[label]
                last = place
            total = total + product
        return total


@pytest.mark.parametrize("output_logits", [True, False], ids=["logits", "loss alone"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_likelihood_and_its_gradients_are_those_of_all_alignments(case, output_logits):
    model = exact_model(**case)
    loss = model(INPUT_IDS, MASK, labels=LABELS, output_logits=output_logits).loss
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    expected = -sum(Naive(model, row).probability().log() for row in range(3)) / (LABELS != -100).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    for name, parameter in model.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-9, msg=lambda text, n=name: f"{n} {text}")


@pytest.mark.parametrize("case", CASES, ids=name_of)
@torch.no_grad()
def test_attentions_are_what_all_alignments_say_given_the_words_before(case):
    model = exact_model(**case)
    output = model(INPUT_IDS, MASK, labels=LABELS, output_attentions=True)
    naive = Naive(model, 0)
    found = output.cross_attentions[0][0, 0]
    for step in range(3):
        mass = torch.zeros(4, dtype=torch.float64)
        for alignment in itertools.product(range(4), repeat=step + 1):
            product, last = 1.0, 0
            for earlier, place in enumerate(alignment):
                product = product * naive.transition(earlier, last).get(place, 0.0)
                if earlier < step:
                    product = product * naive.words(earlier, place)[naive.labels[earlier]]
                last = place
            mass[last] += product
        torch.testing.assert_close(found[step], mass / mass.sum(), rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_logits_are_a_distribution_over_all_sentences():
    """The probabilities of all sentences of three words sum to one, whatever the alignments are."""
    model = exact_model(hard_attention_order=1, decoder_vocab_size=4)
    words = torch.tensor(list(itertools.product(range(4), repeat=3)))
    source = INPUT_IDS[:1].expand(len(words), -1)
    logits = model(source, labels=words).logits
    total = logits.gather(-1, words.unsqueeze(-1)).squeeze(-1).sum(1).exp().sum()
    torch.testing.assert_close(total, torch.ones((), dtype=torch.float64))


@torch.no_grad()
def test_words_that_the_decoder_passes_over_say_nothing():
    model = exact_model(hard_attention_order=1)
    words = torch.tensor([[1, 5, 6, 7]])
    plain = model(INPUT_IDS[:1], decoder_input_ids=words, output_attentions=True)
    with_holes = torch.tensor([[3, 1, 4, 5, 6, 3, 7]])
    mask = torch.tensor([[0, 1, 0, 1, 1, 0, 1]])
    kept = mask[0].bool()
    passed = model(INPUT_IDS[:1], decoder_input_ids=with_holes, decoder_attention_mask=mask, output_attentions=True)
    torch.testing.assert_close(passed.logits[:, kept], plain.logits)
    torch.testing.assert_close(passed.cross_attentions[0][:, :, kept], plain.cross_attentions[0])
    # the same in two calls, of which the first may see nothing at all
    for cut in (1, 3, 6):
        first = model(
            INPUT_IDS[:1], decoder_input_ids=with_holes[:, :cut], decoder_attention_mask=mask[:, :cut], use_cache=True
        )
        name = "cache" if "cache" in first else "past_key_values"
        second = model(
            INPUT_IDS[:1],
            decoder_input_ids=with_holes[:, cut:],
            decoder_attention_mask=mask[:, cut:],
            past_key_values=first[name],
            use_cache=True,
        )
        torch.testing.assert_close(second.logits[:, kept[cut:]], passed.logits[:, cut:][:, kept[cut:]])


@torch.no_grad()
def test_the_most_probable_positions_alone():
    model, short = exact_model(), exact_model(hard_attention_positions=2)
    short.load_state_dict(model.state_dict())
    naive = Naive(model, 0)
    output = short(INPUT_IDS, MASK, labels=LABELS, output_attentions=True)
    for step in range(3):
        best = naive.attention_weights[step].topk(2)
        shares = best.values / best.values.sum()
        expected = sum(share * naive.words(step, place) for share, place in zip(shares, best.indices))
        torch.testing.assert_close(output.logits[0, step].exp(), expected)
        torch.testing.assert_close(output.cross_attentions[0][0, 0, step, best.indices], shares)
    everything = exact_model(hard_attention_positions=50)
    everything.load_state_dict(model.state_dict())
    torch.testing.assert_close(
        everything(INPUT_IDS, MASK, labels=LABELS).logits, model(INPUT_IDS, MASK, labels=LABELS).logits
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_likelihood_of_a_linear_layer(smoothing, monkeypatch):
    monkeypatch.setattr("hf_attention_seq2seq.losses.CHUNK", 30)  # several parts
    torch.manual_seed(0)
    layer = torch.nn.Linear(5, 7).double()
    states = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    words = torch.randint(0, 7, (11,))
    outer = torch.randn(11, dtype=torch.float64)
    logs = layer(states).log_softmax(-1)
    expected = (1 - smoothing) * logs[torch.arange(11), words] + smoothing * logs.mean(-1)
    wanted = torch.autograd.grad((expected * outer).sum(), (states, layer.weight, layer.bias))
    found = linear_log_likelihood(states, layer, words, smoothing)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad((found * outer).sum(), (states, layer.weight, layer.bias)), wanted)


@pytest.mark.parametrize("case", [{}, {"hard_attention_order": 1}, {"hard_attention_positions": 2}], ids=name_of)
def test_small_parts_give_the_same(case, monkeypatch):
    results = []
    for size in (1 << 23, 60, 1):
        monkeypatch.setattr("hf_attention_seq2seq.mixtures.CHUNK", size)
        model = exact_model(**case)
        output = model(INPUT_IDS, MASK, labels=LABELS)
        (output.loss + model(INPUT_IDS, MASK, labels=LABELS, output_logits=False).loss).backward()
        beams = model.generate(INPUT_IDS, attention_mask=MASK, num_beams=3, max_new_tokens=4)
        results.append([output.logits, beams, *(parameter.grad for parameter in model.parameters())])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


@pytest.mark.parametrize("output_logits", [True, False])
def test_no_tensor_of_positions_by_vocabulary_is_kept_for_the_gradient(output_logits):
    model = exact_model(decoder_vocab_size=500)
    input_ids, labels = torch.randint(3, 17, (4, 30)), torch.randint(3, 500, (4, 20))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: sizes.append(tensor.numel()) or tensor, lambda t: t):
        loss = model(input_ids, labels=labels, output_logits=output_logits).loss
    assert max(sizes) < 4 * 20 * 30 * 500 / 10
    loss.backward()


def test_embeddings_say_no_words():
    model = exact_model(hard_attention_order=0)
    embeddings = model.model.decoder_embed_tokens(torch.tensor([[1, 3]])).detach()
    with pytest.raises(ValueError, match="decoder_input_ids"):
        model(INPUT_IDS[:1], decoder_inputs_embeds=embeddings)


@pytest.mark.parametrize("order", [0, 1])
@torch.no_grad()
def test_many_steps_of_a_long_sentence_are_finite(order):
    model = AttentionSeq2SeqForConditionalGeneration(
        AttentionSeq2SeqConfig(
            vocab_size=17,
            embedding_size=6,
            hidden_size=8,
            initializer_range=3.0,
            attention_selection="hard",
            hard_attention_order=order,
        )
    )
    input_ids, mask = source_batch()
    long = torch.cat([input_ids] * 40, dim=1)
    labels = torch.randint(3, 17, (4, 200))
    output = model(long, torch.cat([mask] * 40, dim=1), labels=labels, output_attentions=True)
    assert output.logits.isfinite().all()
    torch.testing.assert_close(output.logits.logsumexp(-1), torch.zeros(4, 200), atol=1e-4, rtol=0)
    assert output.cross_attentions[0].isfinite().all()
