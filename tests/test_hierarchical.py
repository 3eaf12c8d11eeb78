"""Documents as sentences of words: the encoder and the attention of two levels, against their equations."""

import pytest
import torch
from torch import nn

from hf_attention_seq2seq import AttentionSeq2SeqConfig
from hf_attention_seq2seq.attention import restore_weights
from hf_attention_seq2seq.encoders import EncoderOutput
from hf_attention_seq2seq.hierarchical import SentenceLayout
from hf_attention_seq2seq.hierarchical_attention import HierarchicalAttention
from hf_attention_seq2seq.layout import PaddingLayout

from .attention_helpers import naive_energies
from .helpers import tiny_config, tiny_model

SEPARATOR = 4
HIERARCHICAL = {"encoder_type": "hierarchical", "sentence_separator_token_id": SEPARATOR}
# Empty sentences, separators at both ends, one sentence, no words at all, padding on either side and in between.
IDS = torch.tensor(
    [
        [5, 6, 7, 4, 8, 4, 9, 10, 11, 12],
        [4, 5, 6, 4, 4, 7, 4, 4, 0, 0],
        [0, 0, 0, 5, 6, 7, 8, 9, 10, 11],
        [4, 4, 4, 0, 0, 0, 0, 0, 0, 0],
        [5, 0, 6, 0, 4, 0, 0, 7, 8, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
)
SENTENCES = [[[0, 1, 2], [4], [6, 7, 8, 9]], [[1, 2], [5]], [[3, 4, 5, 6, 7, 8, 9]], [], [[0, 2], [7, 8]], []]
WORDS = (IDS != 0) & (IDS != SEPARATOR)
TARGETS = torch.tensor([[1, 5, 6]]).expand(len(IDS), 3)


def plain_gru(layer, inputs, size):
    """Outputs of a torch module by itself, over one unpadded sequence."""
    gru = nn.GRU(size, 4, bidirectional=True).double()
    gru.load_state_dict(layer.rnn.state_dict())
    outputs, final = gru(inputs)
    return outputs, final.flatten()


@torch.no_grad()
def test_the_encoder_by_hand():
    """Each sentence by itself, `s = sum_t a_t h_t` with `a = softmax(tanh(W h_t + b) · u)`, then the sentences."""
    encoder = tiny_model(torch.float64, rnn_type="gru", **HIERARCHICAL).get_encoder()
    layers = encoder.layers
    layers.pooling.projection.bias.uniform_(-1, 1)
    output = encoder(IDS, output_attentions=True)
    assert torch.equal(output.attention_mask, WORDS)
    assert output.sentence_states.shape[1] == 3
    for row, document in enumerate(SENTENCES):
        vectors = []
        for number, places in enumerate(document):
            states, _ = plain_gru(layers.words.layers[0], encoder.embed_tokens(IDS[row, places]), 6)
            torch.testing.assert_close(output.last_hidden_state[row, places], states)
            assert output.sentence_index[row, places].tolist() == [number] * len(places)
            hidden = [layers.pooling.projection(state).tanh() @ layers.pooling.context.weight[0] for state in states]
            weights = torch.stack(hidden).softmax(0)
            torch.testing.assert_close(output.word_weights[row, places], weights)
            vectors.append(weights @ states)
        assert output.sentence_mask[row].tolist() == [number < len(document) for number in range(3)]
        if document:
            states, final = plain_gru(layers.sentences.layers[0], torch.stack(vectors), 8)
            torch.testing.assert_close(output.sentence_states[row, : len(document)], states)
            torch.testing.assert_close(output.final_hidden[row, 0], final)
        else:
            assert not output.final_hidden[row].any()
        assert not output.sentence_states[row, len(document) :].any()
        assert not output.last_hidden_state[row, ~WORDS[row]].any()
        assert not output.word_weights[row, ~WORDS[row]].any()


@pytest.mark.parametrize("score", ["additive", "general", "dot", "scaled_dot", "concat", "mlp", "cosine"])
@torch.no_grad()
def test_attention_of_two_levels_by_hand(score):
    """Nallapati 2016: both softmaxes, their product, normalised again; the context is that of the words."""
    module = HierarchicalAttention(tiny_config(attention_type=score, **HIERARCHICAL)).double().eval()
    for parameter in module.parameters():
        parameter.uniform_(-0.7, 0.7)
    torch.manual_seed(0)
    memory = torch.randn(*IDS.shape, 8, dtype=torch.float64)
    sentence_states = torch.randn(len(IDS), 3, 8, dtype=torch.float64)
    sentence_mask = torch.tensor([[number < len(document) for number in range(3)] for document in SENTENCES])
    index = torch.zeros_like(IDS)
    for row, document in enumerate(SENTENCES):
        for number, places in enumerate(document):
            index[row, places] = number
    encoder = EncoderOutput(sentence_states=sentence_states, sentence_mask=sentence_mask, sentence_index=index)
    prepared = module.prepare(memory, PaddingLayout.from_mask(WORDS), encoder)
    states = torch.randn(2 * len(IDS), 2, 8, dtype=torch.float64)  # two hypotheses of each document, two steps
    attended = module(states, prepared, torch.zeros(2 * len(IDS), 2, dtype=torch.long))
    found = restore_weights(attended.weights, prepared)
    for hypothesis in range(2 * len(IDS)):
        row = hypothesis // 2
        places = WORDS[row].nonzero().flatten()
        if not len(places):
            assert not found[hypothesis].any() and not attended.sentence_weights[hypothesis].any()
            assert not attended.contexts[hypothesis].any()
            continue
        keys = sentence_states[row, : len(SENTENCES[row])]
        of_sentences = naive_energies(module, score, states[hypothesis], keys, score=module.sentence_score).softmax(-1)
        weights = naive_energies(module, score, states[hypothesis], memory[row, places]).softmax(-1)
        weights = weights * of_sentences[:, index[row, places]]
        weights = weights / weights.sum(-1, keepdim=True)
        torch.testing.assert_close(attended.sentence_weights[hypothesis, 0, :, : len(keys)], of_sentences)
        assert not attended.sentence_weights[hypothesis, 0, :, len(keys) :].any()
        torch.testing.assert_close(found[hypothesis, 0][:, places], weights)
        assert not found[hypothesis, 0][:, ~WORDS[row]].any()
        torch.testing.assert_close(attended.contexts[hypothesis], weights @ memory[row, places])


@pytest.mark.parametrize("query", ["current_state", "previous_state"])
@torch.no_grad()
def test_a_document_of_one_sentence_is_read_as_without_levels(query):
    fields = {"bridge_type": "mean", "attention_query": query, "attention_heads": 2}
    model = tiny_model(torch.float64, **fields, **HIERARCHICAL)
    flat = tiny_model(torch.float64, **fields, encoder_type="rnn")
    weights = {name.replace(".layers.words.", ".layers."): value for name, value in model.state_dict().items()}
    flat.load_state_dict({name: weights[name] for name in flat.state_dict()})
    ids = torch.tensor([[5, 6, 7, 8, 0], [0, 0, 9, 10, 11]])
    expected = flat(ids, decoder_input_ids=TARGETS[:2], output_attentions=True)
    found = model(ids, decoder_input_ids=TARGETS[:2], output_attentions=True)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.cross_attentions[0], expected.cross_attentions[0])
    torch.testing.assert_close(found.sentence_attentions[0], torch.ones(2, 2, 3, 1, dtype=torch.float64))


@torch.no_grad()
def test_more_separators_change_nothing_and_padding_neither():
    model = tiny_model(torch.float64, **HIERARCHICAL)

    def read(ids, mask=None):
        return model(torch.tensor([ids]), mask, decoder_input_ids=TARGETS[:1], output_attentions=True)

    expected = read([5, 6, 4, 7, 8, 9])
    for ids, mask in [
        ([5, 6, 4, 4, 7, 8, 9], None),
        ([4, 4, 5, 6, 4, 7, 8, 9, 4], None),
        ([0, 5, 6, 0, 4, 7, 8, 0, 9, 0], None),
        ([9, 4, 5, 6, 4, 4, 7, 4, 8, 9, 4, 3], [0, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0]),
    ]:
        found = read(ids, None if mask is None else torch.tensor([mask]))
        torch.testing.assert_close(found.logits, expected.logits)
        torch.testing.assert_close(found.sentence_attentions, expected.sentence_attentions)
        own = torch.tensor([token in (5, 6, 7, 8, 9) for token in ids]) & (torch.tensor(mask or [1]) == 1)
        torch.testing.assert_close(
            found.cross_attentions[0][..., own], expected.cross_attentions[0][..., [0, 1, 3, 4, 5]]
        )
    assert not torch.allclose(read([5, 6, 7, 4, 8, 9]).logits, expected.logits, atol=1e-4)


def test_documents_together_and_alone_are_read_the_same_and_steps_give_what_one_call_gives():
    model = tiny_model(torch.float64, encoder_layers=2, input_feeding=True, **HIERARCHICAL)
    together = model(IDS, decoder_input_ids=TARGETS, output_attentions=True)
    for row, document in enumerate(SENTENCES):
        alone = model(IDS[row : row + 1], decoder_input_ids=TARGETS[:1], output_attentions=True)
        torch.testing.assert_close(alone.logits[0], together.logits[row])
        torch.testing.assert_close(alone.cross_attentions[0][0], together.cross_attentions[0][row])
        sentences = alone.sentence_attentions[0][0]
        torch.testing.assert_close(sentences, together.sentence_attentions[0][row, ..., : sentences.shape[-1]])
        torch.testing.assert_close(sentences.sum(-1), torch.full((1, 3), float(bool(document)), dtype=torch.float64))
    assert model(IDS, decoder_input_ids=TARGETS).sentence_attentions is None


def test_gradients_are_finite_and_all_there():
    model = tiny_model(**HIERARCHICAL).train()
    for ids in (IDS, IDS[3:4], IDS[2:3]):
        model.zero_grad(set_to_none=True)
        model(ids, labels=TARGETS[: len(ids)]).loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_sentences_are_grouped_so_that_padding_takes_no_more_than_words():
    """A thousand sentences of one word beside one of a thousand words; padded together they would take a million."""
    numbers = torch.cat((torch.arange(1000), torch.full((1000,), 1000)))[None]
    layout = SentenceLayout.from_breaks(numbers, torch.ones_like(numbers).bool())
    assert layout.lengths.tolist() == [[1] * 1000 + [1000]]
    groups = list(layout.groups())
    assert sum(places.numel() for _, places, _ in groups) <= 2 * 2000
    assert sorted(torch.cat([places[inside] for _, places, inside in groups]).tolist()) == list(range(2000))
    assert sorted(torch.cat([places for places, _, _ in groups]).tolist()) == list(range(1001))


def test_a_document_of_two_hundred_sentences_of_fifty_words():
    model = tiny_model(**HIERARCHICAL).train()
    ids = torch.randint(5, 17, (200, 51))
    ids[:, -1] = SEPARATOR
    output = model(ids.view(1, -1), labels=TARGETS[:1], output_attentions=True)
    output.loss.backward()
    assert output.cross_attentions[0].shape == (1, 1, 3, 200 * 51)
    assert output.sentence_attentions[0].shape == (1, 1, 3, 200)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sentence_separator_token_id": None}, ["sentence_separator_token_id=None", "0 to 7999"]),
        ({"sentence_separator_token_id": 8000}, ["sentence_separator_token_id=8000"]),
        ({"sentence_separator_token_id": 0}, ["sentence_separator_token_id=0", "pad_token_id"]),
        ({"encoder_type": "rnn"}, ["sentence_separator_token_id=4", "'hierarchical'"]),
        ({"attention_span": "local_p"}, ["attention_span='local_p'", "where sentences begin"]),
        ({"attention_normalizer": "sparsemax"}, ["attention_normalizer='sparsemax'", "'hierarchical'"]),
        ({"attention_selection": "monotonic"}, ["attention_selection='monotonic'", "'hierarchical'"]),
        ({"attention_type": "location"}, ["attention_type='location'", "sentences"]),
        ({"attention_type": "none"}, ["attention_type='none'", "sentences"]),
    ],
)
def test_what_has_no_meaning_is_refused(fields, words):
    with pytest.raises(ValueError) as error:
        AttentionSeq2SeqConfig(**{**HIERARCHICAL, **fields})
    for word in words:
        assert word in str(error.value)


def test_what_lacks_the_sentences_is_refused():
    model = tiny_model(**HIERARCHICAL)
    with pytest.raises(ValueError, match="needs input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 6), decoder_input_ids=TARGETS[:1])
    with pytest.raises(ValueError, match="no sentence states"):
        model(encoder_outputs=(torch.zeros(1, 3, 8),), decoder_input_ids=TARGETS[:1])
