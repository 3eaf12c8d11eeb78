"""Models in int8: close to float32, saved and loaded, through everything that a model goes through."""

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSeq2SeqLM

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    quantization,
    quantize_int8,
)
from hf_attention_seq2seq.quantization import Int8Embedding, Int8Linear, Int8Recurrent
from hf_attention_seq2seq.recurrent import RecurrentLayer

from .helpers import name_of, source_batch, target_batch, tiny_model

CASES = [
    {},
    {"attention_type": "general", "input_feeding": True, "decoder_layers": 2, "residual": True},
    {"rnn_type": "gru", "attention_query": "previous_state", "attention_type": "mlp", "readout_type": "maxout"},
    {"rnn_type": "rnn", "attention_type": "none"},
    {"attention_type": "scaled_dot", "attention_heads": 4, "attention_values": "projected", "context_gate": True},
    {"attention_span": "local_p", "attention_window": 2},
    {"attention_selection": "monotonic", "monotonic_chunk_size": 3, "attention_query": "previous_state"},
    {"attention_selection": "hard", "attention_type": "general"},
    {"copy_mechanism": "pointer_generator", "decoder_vocab_size": None},
    {"decoder_vocab_size": None, "tie_word_embeddings": True},
]


def logits(model):
    input_ids, mask = source_batch()
    targets = target_batch().clamp(min=3)[:, :4]
    with torch.no_grad():
        return model(input_ids=input_ids, attention_mask=mask, decoder_input_ids=targets).logits


def wide_model(**overrides):
    return tiny_model(hidden_size=64, embedding_size=32, initializer_range=0.2, **overrides)


# --- the modules


@pytest.mark.parametrize("exact", [True, False], ids=["bytes", "float32"])
def test_linear_is_the_product_of_rounded_numbers(exact, monkeypatch):
    if exact and not quantization._has_exact_products():
        pytest.skip("this processor has no products of bytes")
    monkeypatch.setattr(quantization, "_has_exact_products", lambda: exact)
    torch.manual_seed(0)
    matrix, bias, inputs = torch.randn(5, 7), torch.randn(5), torch.randn(2, 3, 7)
    inputs[0, 1] = 0
    expected = torch.empty(2, 3, 5)
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(5)).tolist():
        row, column = inputs[place[0], place[1]], matrix[place[2]]
        row_step, column_step = max(row.abs().max().item(), 1e-12) / 127, column.abs().max().item() / 127
        whole = sum(round(a / row_step) * round(b / column_step) for a, b in zip(row.tolist(), column.tolist()))
        expected[tuple(place)] = whole * row_step * column_step + bias[place[2]]
    layer = Int8Linear(matrix, bias).eval()
    assert layer.weight.dtype == torch.int8
    torch.testing.assert_close(layer(inputs), expected, rtol=1e-5, atol=1e-5)
    without_bias = Int8Linear(matrix, None).eval()
    torch.testing.assert_close(without_bias(inputs), expected - bias, rtol=1e-5, atol=1e-5)


def test_largest_numbers_do_not_overflow():
    for sign in (1, -1):
        layer = Int8Linear(torch.ones(3, 512), None).eval()
        torch.testing.assert_close(layer(torch.full((1, 512), sign * 2.0)), torch.full((1, 3), sign * 1024.0))


@pytest.mark.parametrize("rnn_type", ["lstm", "gru", "rnn"])
def test_recurrent_is_torch_with_rounded_numbers(rnn_type):
    torch.manual_seed(0)
    layer = RecurrentLayer(rnn_type, 48, 64).eval()
    rounded = Int8Recurrent(layer.rnn).eval()
    inputs = torch.randn(3, 6, 48)
    state = tuple(torch.rand(3, 64) for _ in range(2 if rnn_type == "lstm" else 1))
    with torch.no_grad():
        expected, expected_last = layer(inputs, state)
        layer.rnn = rounded
        outputs, last = layer(inputs, state)
        for position in range(6):
            state = layer.step(inputs[:, position], state)
            torch.testing.assert_close(state[0], outputs[:, position])
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0.02)
    for part, expected_part, stepped in zip(last, expected_last, state, strict=True):
        torch.testing.assert_close(part, expected_part, rtol=0, atol=0.02)
        torch.testing.assert_close(part, stepped)


def test_embedding_keeps_each_token_to_half_a_step():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(9, 16, padding_idx=0)
    tokens = torch.arange(9).view(3, 3)
    rows = Int8Embedding(embedding)(tokens)
    step = embedding.weight.detach().abs().amax(dim=1).view(3, 3, 1) / 127
    assert ((rows - embedding(tokens)).abs() <= 0.501 * step).all()
    assert (rows[0, 0] == 0).all()


# --- models


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_close_saved_and_loaded(case, tmp_path):
    model = wide_model(**case)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = quantize_int8(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    expected, found = F.log_softmax(logits(model), -1), F.log_softmax(logits(small), -1)
    assert (found - expected).norm() < 0.05 * (expected - expected.mean()).norm()
    assert not torch.equal(found, expected)

    small.save_pretrained(tmp_path / "int8")
    model.save_pretrained(tmp_path / "float32")
    stored = {name: load_file(tmp_path / name / "model.safetensors") for name in ("int8", "float32")}
    sizes = {name: sum(tensor.nbytes for tensor in tensors.values()) for name, tensors in stored.items()}
    assert sizes["int8"] < 0.7 * sizes["float32"]  # the encoder is float32 in both
    for loaded in (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8"),
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "float32", quantization="int8"),
    ):
        assert loaded.config.quantization == "int8" and not loaded.training
        assert not any(parameter.requires_grad for parameter in loaded.parameters())
        assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in small.state_dict().items())
        torch.testing.assert_close(logits(loaded), logits(small), rtol=0, atol=1e-6)


def test_no_result_depends_on_batch_mates():
    small = quantize_int8(wide_model(input_feeding=True))
    input_ids, mask = source_batch()
    targets = target_batch().clamp(min=3)[:, :4]
    with torch.no_grad():
        for row, length in enumerate((7, 4, 1, 5)):
            alone = small(input_ids=input_ids[row : row + 1, :length], decoder_input_ids=targets[row : row + 1]).logits
            together = small(input_ids=input_ids, attention_mask=mask, decoder_input_ids=targets).logits
            torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4, "num_return_sequences": 3}])
def test_generates_what_the_steps_say(options):
    small = quantize_int8(wide_model(input_feeding=True))
    input_ids, mask = source_batch()
    outputs = small.generate(
        input_ids=input_ids,
        attention_mask=mask,
        max_new_tokens=6,
        min_new_tokens=6,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    rows = options.get("num_return_sequences", 1)
    with torch.no_grad():
        teacher = small(
            input_ids=input_ids.repeat_interleave(rows, dim=0),
            attention_mask=mask.repeat_interleave(rows, dim=0),
            decoder_input_ids=outputs.sequences[:, :-1],
        ).logits
    teacher[:, :, small.config.eos_token_id] = -torch.inf  # as min_new_tokens does
    if not options:
        assert torch.equal(teacher.argmax(dim=-1), outputs.sequences[:, 1:])
        return
    unforced = teacher.log_softmax(dim=-1).gather(2, outputs.sequences[:, 1:, None]).squeeze(-1).sum(dim=1)
    assert outputs.sequences_scores.shape == unforced.shape
    assert all(torch.unique(rows_of_one, dim=0).shape[0] == rows for rows_of_one in outputs.sequences.split(rows))


def test_base_model(tmp_path):
    small = quantize_int8(wide_model())
    small.save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path)
    input_ids, mask = source_batch()
    arguments = {"input_ids": input_ids, "attention_mask": mask, "decoder_input_ids": input_ids[:, :3] % 13}
    with torch.no_grad():
        expected = small.model(**arguments).last_hidden_state
        assert torch.equal(base(**arguments).last_hidden_state, expected)


def test_pipeline_and_alignments(tmp_path):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["a man sleeps", "ein Mann schläft"], model="char")
    model = wide_model(vocab_size=len(tokenizer), decoder_vocab_size=None)
    model.save_pretrained(tmp_path)
    small = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, quantization="int8")
    translate = TranslationPipeline(model=small, tokenizer=tokenizer, device="cpu")
    outputs = translate(["a man", "sleeps", ""], num_beams=3, max_new_tokens=5, return_alignments=True, batch_size=3)
    assert [set(output) for output in outputs] == [{"translation_text", "alignment"}] * 3
    weights = torch.as_tensor(outputs[0]["alignment"]["weights"])
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))


# --- errors


def test_training_is_refused():
    small = quantize_int8(wide_model())
    input_ids, mask = source_batch()
    with pytest.raises(ValueError, match="cannot be trained; train it in float32"):
        small.train()(input_ids=input_ids, attention_mask=mask, labels=target_batch())


def test_other_devices_and_types_are_refused():
    layer = Int8Linear(torch.ones(3, 4), None).eval()
    with pytest.raises(ValueError, match="on 'meta' from torch.float32"):
        layer(torch.ones(2, 4, device="meta"))
    with pytest.raises(ValueError, match="on 'cpu' from torch.bfloat16"):
        layer(torch.ones(2, 4, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="on 'cpu' in torch.float16"):
        quantize_int8(wide_model().half())


def test_unknown_and_repeated_quantization(tmp_path):
    with pytest.raises(ValueError, match="quantization='int4'.*None, 'int8'"):
        AttentionSeq2SeqConfig(quantization="int4")
    model = wide_model()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="quantization='int4'.*None, 'int8'"):
        type(model).from_pretrained(tmp_path, quantization="int4")
    with pytest.raises(ValueError, match="quantized already: quantization='int8'"):
        quantize_int8(quantize_int8(model))
