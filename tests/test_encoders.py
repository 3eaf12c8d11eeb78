"""The encoders, each against what its equations give; under every attention see `test_encoders_invariants`."""

import pytest
import torch
from torch import nn

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    align,
    alignments_from_generate,
)
from hf_attention_seq2seq.encoder_fields import ENCODER_TYPES
from hf_attention_seq2seq.layout import spread_over_tokens
from hf_attention_seq2seq.self_attention import sinusoidal_positions

from .encoder_grid import ENCODERS
from .helpers import name_of, source_batch, target_batch, tiny_model

every_encoder = pytest.mark.parametrize("encoder", ENCODERS, ids=name_of)


@every_encoder
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite(encoder, dtype):
    model = tiny_model(dtype, **encoder).train()
    input_ids, mask = source_batch()
    mask[1] = 0
    output = model(input_ids, mask, labels=target_batch(), output_attentions=True)
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_encoder
@torch.no_grad()
def test_states_are_zero_at_padding_and_do_not_depend_on_it(encoder):
    model = tiny_model(torch.float64, **encoder)
    input_ids = torch.randint(3, 17, (4, 7), generator=torch.Generator().manual_seed(0))
    mask = source_batch()[1]
    mask[3] = torch.tensor([0, 1, 1, 0, 1, 0, 1])  # padding on both sides and in between
    mask[1] = 0
    options = {"output_hidden_states": True, "output_attentions": True}
    output = model.get_encoder()(input_ids, mask, **options)
    memory = output.last_hidden_state
    assert (memory[~output.attention_mask] == 0).all()
    assert not output.attention_mask[1].any()
    other = model.get_encoder()(torch.where(mask.bool(), input_ids, 5), mask, **options)
    assert torch.equal(memory, other.last_hidden_state)
    row = mask[3].bool()
    alone = model.get_encoder()(input_ids[3:, row], **options)
    torch.testing.assert_close(memory[3][output.attention_mask[3]], alone.last_hidden_state[0])
    torch.testing.assert_close(output.final_hidden[3:], alone.final_hidden)
    for padded, single in zip(output.attentions or (), alone.attentions or ()):
        torch.testing.assert_close(padded[3][:, row][:, :, row], single[0])
        assert (padded[3][:, ~row] == 0).all() and (padded[3][:, :, ~row] == 0).all()


@every_encoder
def test_encoder_outputs_as_a_tuple(encoder):
    model = tiny_model(**encoder)
    input_ids, mask = source_batch()
    decoder_input_ids = target_batch().clamp(min=0)
    expected = model(input_ids, mask, decoder_input_ids=decoder_input_ids).logits
    for options in ({}, {"output_attentions": True}, {"output_attentions": True, "output_hidden_states": True}):
        encoded = model.get_encoder()(input_ids, mask, return_dict=False, **options)
        for more in ({}, {"attention_mask": mask}):
            found = model(encoder_outputs=encoded, decoder_input_ids=decoder_input_ids, **more)
            torch.testing.assert_close(found.logits, expected)


# --- Pyramidal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 5, 8, 11])
@torch.no_grad()
def test_the_pyramid_by_hand(length):
    """Unpadded torch modules over lists of frames that are put together in pairs."""
    encoder = tiny_model(torch.float64, encoder_type="pyramidal", encoder_layers=3, rnn_type="gru").get_encoder()
    input_ids = torch.arange(3, 3 + length)[None]
    frames = list(encoder.embed_tokens(input_ids)[0])
    finals = []
    for index, layer in enumerate(encoder.layers.layers):
        if index > 0:
            if len(frames) % 2:
                frames.append(torch.zeros(8, dtype=torch.float64))
            frames = [torch.cat(frames[start : start + 2]) for start in range(0, len(frames), 2)]
        plain = nn.GRU(layer.rnn.input_size, 4, bidirectional=True).double()
        plain.load_state_dict(layer.rnn.state_dict())
        outputs, final = plain(torch.stack(frames))
        frames = list(outputs)
        finals.append(final.flatten())
    junk = torch.full((1, 4), 7)
    output = encoder(
        torch.cat((junk, input_ids, junk), 1),
        torch.tensor([[0] * 4 + [1] * length + [0] * 4]),
        output_hidden_states=True,
    )
    assert len(frames) == -(-length // 4)
    assert output.last_hidden_state.shape[1] == -(-(length + 8) // 4)
    torch.testing.assert_close(output.last_hidden_state[0][: len(frames)], torch.stack(frames))
    torch.testing.assert_close(output.final_hidden[0], torch.stack(finals))
    assert output.attention_mask[0].tolist() == [True] * len(frames) + [False] * (
        len(output.attention_mask[0]) - len(frames)
    )


def test_weights_of_positions_as_weights_of_tokens():
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.6, 0.0], [0.0, 0.0, 0.0]])[:, None, None]
    found = spread_over_tokens(weights, mask)
    expected = [[0.25, 0.25, 0.15, 0.15, 0.2], [0, 0.2, 0, 0.2, 0.6], [0.0] * 5]
    torch.testing.assert_close(found[:, 0, 0], torch.tensor(expected))
    assert spread_over_tokens(found, mask) is found
    with pytest.raises(ValueError, match="Attention to 4 positions does not fit 5 source tokens"):
        spread_over_tokens(torch.ones(3, 4), mask)


SOURCES = ["a small dog runs", "two dogs", "a woman sleeps on a"]
TARGETS = ["ein kleiner Hund rennt", "zwei Hunde", "eine Frau"]


@every_encoder
def test_alignments_generation_and_pipelines_have_a_weight_for_each_token(encoder):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(SOURCES, TARGETS, model="word")
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    model = tiny_model(**encoder, **sizes)
    alignments = align(model, tokenizer, SOURCES, TARGETS)
    assert [len(alignment.source_tokens) for alignment in alignments] == [5, 3, 6]
    for alignment in alignments:
        torch.testing.assert_close(alignment.matrix.sum(1), torch.ones(len(alignment.target_tokens)))
    inputs = tokenizer(SOURCES, padding=True, return_tensors="pt")
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5, "output_attentions": True}
    output = model.generate(**inputs, **options, return_dict_in_generate=True)
    found = alignments_from_generate(output, tokenizer, inputs, SOURCES)
    assert len(found) == 6
    forced = align(model, tokenizer, [SOURCES[0]], [found[0].target])[0]
    rows = min(found[0].weights.shape[1], forced.weights.shape[1])
    torch.testing.assert_close(found[0].weights[:, :rows], forced.weights[:, :rows], atol=1e-5, rtol=0)
    translate = TranslationPipeline(model=model, tokenizer=tokenizer)
    (record,) = translate(SOURCES[:1], max_new_tokens=4, return_alignments=True)
    assert record["alignment"].source_tokens == alignments[0].source_tokens


# --- Self-attention --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_self_attention_layers_are_those_of_torch():
    fields = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_feedforward_size": 10}
    encoder = tiny_model(torch.float64, encoder_type="self_attention", **fields).get_encoder()
    for parameter in encoder.parameters():  # biases and normalisations too
        parameter.uniform_(-0.7, 0.7)
    input_ids, mask = source_batch()
    states = encoder.layers.input_projection(encoder.embed_tokens(input_ids) * 6**0.5)
    states = states + sinusoidal_positions(7, 8, states)
    for layer in encoder.layers.stack.layers:
        theirs = nn.TransformerEncoderLayer(8, 2, 10, dropout=0.0, batch_first=True, norm_first=True).double().eval()
        ours = layer.state_dict()
        names = {
            "self_attn.in_proj_": "query_key_value.",
            "self_attn.out_proj.": "output.",
            "linear1.": "feedforward_in.",
            "linear2.": "feedforward_out.",
            "norm1.": "attention_norm.",
            "norm2.": "feedforward_norm.",
        }
        kinds = ("weight", "bias")
        theirs.load_state_dict({their + kind: ours[our + kind] for their, our in names.items() for kind in kinds})
        normed = theirs.norm1(states)
        _, weights = theirs.self_attn(normed, normed, normed, key_padding_mask=mask == 0, average_attn_weights=False)
        states = theirs(states, src_key_padding_mask=mask == 0)
    states = encoder.layers.stack.norm(states)
    expected = states * mask[..., None]
    output = encoder(input_ids, mask, output_attentions=True)
    torch.testing.assert_close(output.last_hidden_state, expected)
    torch.testing.assert_close(output.attentions[-1], weights * mask[:, None, :, None])
    torch.testing.assert_close(encoder(input_ids, mask).last_hidden_state, output.last_hidden_state)  # the fused path
    torch.testing.assert_close(output.final_hidden[:, 1], expected.sum(1) / mask.sum(1, keepdim=True))


def test_sinusoidal_positions():
    found = sinusoidal_positions(5, 6, torch.zeros(1))
    assert found.shape == (5, 6)
    torch.testing.assert_close(found[0], torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]))
    third = torch.tensor(3.0 / 10000 ** (2 / 6))
    torch.testing.assert_close(found[3, 2:4], torch.stack((third.sin(), third.cos())))


@torch.no_grad()
def test_encoder_attentions_come_out_of_the_model_and_of_generate():
    model = tiny_model(encoder_type="rnn_self_attention", encoder_attention_layers=2, encoder_attention_heads=2)
    input_ids, mask = source_batch()
    output = model(input_ids, mask, decoder_input_ids=target_batch().clamp(min=0), output_attentions=True)
    assert [tensor.shape for tensor in output.encoder_attentions] == [(4, 2, 7, 7)] * 2
    sums = output.encoder_attentions[0].sum(-1)
    torch.testing.assert_close(sums, mask[:, None].expand_as(sums).float())
    assert model(input_ids, mask, decoder_input_ids=target_batch().clamp(min=0)).encoder_attentions is None
    options = {"max_new_tokens": 2, "num_beams": 2, "output_attentions": True, "return_dict_in_generate": True}
    generated = model.generate(input_ids, attention_mask=mask, **options)
    torch.testing.assert_close(generated.encoder_attentions[1], output.encoder_attentions[1])


@torch.no_grad()
def test_a_self_attention_encoder_knows_the_order_of_words():
    encoder = tiny_model(encoder_type="self_attention").get_encoder()
    there, back = (encoder(torch.tensor([ids])).last_hidden_state for ids in ([3, 4, 5], [5, 4, 3]))
    assert not torch.allclose(there.flip(1), back, atol=1e-3)


# --- Configuration ---------------------------------------------------------------------------------------------------


def test_the_default_is_recurrent():
    assert AttentionSeq2SeqConfig().encoder_type == ENCODER_TYPES[0] == "rnn"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"encoder_type": "cnn"}, ["encoder_type='cnn'", "'pyramidal'"]),
        ({"encoder_type": "pyramidal"}, ["encoder_layers=1", "'pyramidal'"]),
        ({"encoder_type": "pyramidal", "encoder_layers": 2, "residual": True}, ["residual=True", "'pyramidal'"]),
        (
            {"encoder_type": "pyramidal", "encoder_layers": 2, "encoder_bidirectional": False, "reverse_source": True},
            ["reverse_source=True", "'pyramidal'"],
        ),
        (
            {"encoder_type": "pyramidal", "encoder_layers": 2, "copy_mechanism": "pointer_generator"},
            ["copy_mechanism='pointer_generator'", "'pyramidal'"],
        ),
        ({"encoder_type": "self_attention", "bridge_type": "backward"}, ["bridge_type='backward'", "'mean'"]),
        ({"encoder_type": "self_attention", "encoder_bidirectional": False}, ["encoder_bidirectional=False"]),
        ({"encoder_type": "self_attention", "encoder_attention_heads": 3}, ["encoder_attention_heads=3", "512"]),
        ({"encoder_type": "self_attention", "encoder_attention_layers": 2}, ["encoder_attention_layers=2"]),
        ({"encoder_attention_heads": 8}, ["encoder_attention_heads=8", "'self_attention' or 'rnn_self_attention'"]),
        ({"encoder_feedforward_size": 8}, ["encoder_feedforward_size=8", "leave it at None"]),
        ({"encoder_type": "rnn_self_attention", "encoder_feedforward_size": 0}, ["encoder_feedforward_size=0"]),
        ({"encoder_type": "rnn_self_attention", "encoder_attention_layers": 0}, ["encoder_attention_layers=0"]),
    ],
)
def test_what_has_no_meaning_is_refused(fields, words):
    with pytest.raises(ValueError) as error:
        AttentionSeq2SeqConfig(**fields)
    for word in words:
        assert word in str(error.value)
