"""The models as a user of transformers meets them: outputs, loss, embeddings, saving, and bad input."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, DynamicCache
from transformers.modeling_outputs import BaseModelOutput

from hf_attention_seq2seq import (
    AttentionSeq2SeqCache,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqModel,
)
from hf_attention_seq2seq.losses import sequence_loss

from .helpers import SIZES, attention_grid, cache_of, name_of, source_batch, target_batch, tiny_config, tiny_model

ONE_VOCABULARY = {"decoder_vocab_size": None}


@pytest.fixture
def model():
    return tiny_model()


@pytest.fixture
def batch():
    input_ids, mask = source_batch()
    return {"input_ids": input_ids, "attention_mask": mask, "decoder_input_ids": target_batch().clamp(min=0)}


# Outputs


@torch.no_grad()
def test_output_shapes(batch):
    model = tiny_model(encoder_layers=2, decoder_layers=3, attention_heads=2, readout_size=5)
    output = model(**batch, output_attentions=True, output_hidden_states=True, use_cache=True)
    assert output.logits.shape == (4, 5, 13)
    assert [tuple(states.shape) for states in output.encoder_hidden_states] == [(4, 7, 6), (4, 7, 8), (4, 7, 8)]
    assert [tuple(states.shape) for states in output.decoder_hidden_states] == [(4, 5, 6)] + [(4, 5, 8)] * 3
    assert [tuple(weights.shape) for weights in output.cross_attentions] == [(4, 2, 5, 7)]
    torch.testing.assert_close(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    assert cache_of(output).get_seq_length() == 5
    assert model.model(**batch).last_hidden_state.shape == (4, 5, 5)


@torch.no_grad()
def test_return_dict_false_gives_the_same_as_a_tuple(model, batch):
    options = {"output_attentions": True, "output_hidden_states": True, "use_cache": False}
    named = model(**batch, labels=target_batch(), **options)
    plain = model(**batch, labels=target_batch(), return_dict=False, **options)
    assert isinstance(plain, tuple)
    assert len(plain) == len(named.to_tuple())
    torch.testing.assert_close(plain[0], named.loss)
    torch.testing.assert_close(plain[1], named.logits)
    assert isinstance(model.get_encoder()(batch["input_ids"], return_dict=False), tuple)


@torch.no_grad()
def test_embeddings_and_encoder_outputs_in_place_of_ids(model, batch):
    expected = model(**batch).logits
    embedded = model(
        inputs_embeds=model.get_input_embeddings()(batch["input_ids"]),
        attention_mask=batch["attention_mask"],
        decoder_inputs_embeds=model.get_decoder_input_embeddings()(batch["decoder_input_ids"]),
    )
    torch.testing.assert_close(embedded.logits, expected)
    encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"])
    again = model(
        encoder_outputs=encoded, attention_mask=batch["attention_mask"], decoder_input_ids=batch["decoder_input_ids"]
    )
    torch.testing.assert_close(again.logits, expected)


@torch.no_grad()
@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_encoder_outputs_as_a_tuple_or_a_dictionary(batch, rnn_type):
    model = tiny_model(rnn_type=rnn_type, encoder_layers=2)
    expected = model(**batch).logits
    decoder = {"decoder_input_ids": batch["decoder_input_ids"]}
    for options in ({"output_hidden_states": True}, {}):
        encoded = model.get_encoder()(batch["input_ids"], batch["attention_mask"], **options)
        for outputs in (encoded.to_tuple(), dict(encoded)):
            torch.testing.assert_close(model(encoder_outputs=outputs, **decoder).logits, expected)


@torch.no_grad()
def test_plain_encoder_outputs_do_where_no_final_state_is_needed(batch):
    for bridge_type in ("mean", "zeros"):
        model = tiny_model(bridge_type=bridge_type)
        states = model.get_encoder()(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        rest = {name: batch[name] for name in ("attention_mask", "decoder_input_ids")}
        expected = model(**batch).logits
        torch.testing.assert_close(model(encoder_outputs=(states,), **rest).logits, expected)
        torch.testing.assert_close(model(encoder_outputs=BaseModelOutput(states), **rest).logits, expected)
    with pytest.raises(ValueError, match="no final states, which bridge_type='linear'"):
        tiny_model()(encoder_outputs=(states,), **rest)


@torch.no_grad()
def test_a_decoder_mask_freezes_the_state(model, batch):
    tokens = batch["decoder_input_ids"]
    padded = torch.cat((tokens.new_full((4, 2), 3), tokens), 1)
    mask = torch.cat((tokens.new_zeros(4, 2), torch.ones_like(tokens)), 1)
    shifted = model(**{**batch, "decoder_input_ids": padded}, decoder_attention_mask=mask).logits[:, 2:]
    torch.testing.assert_close(shifted, model(**batch).logits)


# Loss


def test_loss_is_the_mean_negative_log_likelihood_of_the_labels(model, batch):
    labels = target_batch()
    output = model(batch["input_ids"], batch["attention_mask"], labels=labels)
    shifted = torch.tensor([[1, *row[:-1]] for row in labels.tolist()])
    shifted[shifted == -100] = 0
    logits = model(batch["input_ids"], batch["attention_mask"], decoder_input_ids=shifted).logits
    terms = [
        -torch.log_softmax(logits[row, step], -1)[label]
        for row in range(4)
        for step, label in enumerate(labels[row].tolist())
        if label != -100
    ]
    torch.testing.assert_close(output.loss, torch.stack(terms).mean())
    torch.testing.assert_close(output.logits, logits)
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted)


def test_num_items_in_batch_makes_accumulated_batches_equal_one(model, batch):
    labels = target_batch()
    items = int((labels != -100).sum())
    whole = model(batch["input_ids"], batch["attention_mask"], labels=labels).loss
    for divisor in (items, torch.tensor(items)):
        parts = [
            model(
                batch["input_ids"][rows],
                batch["attention_mask"][rows],
                labels=labels[rows],
                num_items_in_batch=divisor,
            ).loss
            for rows in (slice(0, 1), slice(1, 4))
        ]
        torch.testing.assert_close(sum(parts), whole)


def test_labels_of_32_bits(model, batch):
    labels = target_batch()
    expected = model(batch["input_ids"], batch["attention_mask"], labels=labels).loss
    found = model(batch["input_ids"].int(), batch["attention_mask"], labels=labels.int()).loss
    torch.testing.assert_close(found, expected)


def test_no_items_in_a_batch():
    for divisor in (0, torch.tensor(0)):
        assert sequence_loss(torch.randn(1, 2, 5), torch.full((1, 2), -100), divisor) == 0


def test_a_batch_without_labels_has_loss_zero():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = sequence_loss(logits, torch.full((2, 3), -100))
    loss.backward()
    assert loss == 0
    assert (logits.grad == 0).all()


def test_loss_in_half_precision_is_computed_in_full(batch):
    model = tiny_model().to(torch.bfloat16)
    loss = model(batch["input_ids"], batch["attention_mask"], labels=target_batch()).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(
        loss, tiny_model()(batch["input_ids"], batch["attention_mask"], labels=target_batch()).loss, atol=0.05, rtol=0
    )


# Embeddings


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_one_vocabulary_is_resized_on_both_sides(tmp_path, shared, tied):
    model = tiny_model(**ONE_VOCABULARY, share_encoder_decoder_embeddings=shared, tie_word_embeddings=tied)
    input_ids, mask = source_batch()
    before = model(input_ids, mask, decoder_input_ids=input_ids[:, :3]).logits
    model.resize_token_embeddings(21)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (21, None)
    logits = model(input_ids + 4 * mask, mask, decoder_input_ids=input_ids[:, :3] + 4).logits
    assert logits.shape == (4, 3, 21)
    after = model(input_ids, mask, decoder_input_ids=input_ids[:, :3]).logits
    torch.testing.assert_close(after[..., :17], before)
    tables = {id(model.get_input_embeddings().weight), id(model.get_decoder_input_embeddings().weight)}
    assert len(tables) == (1 if shared else 2)
    assert (model.lm_head.weight is model.get_decoder_input_embeddings().weight) == tied
    model.save_pretrained(tmp_path)
    reloaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(reloaded(input_ids, mask, decoder_input_ids=input_ids[:, :3]).logits, after)
    assert (reloaded.lm_head.weight is reloaded.get_decoder_input_embeddings().weight) == tied


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_two_vocabularies_are_resized_apart(tmp_path, tied):
    model = tiny_model(tie_word_embeddings=tied)
    model.resize_token_embeddings(20)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (20, 13)
    assert model.lm_head.weight.shape[0] == 13
    model.resize_decoder_token_embeddings(15)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (20, 15)
    assert model.get_decoder_input_embeddings().weight.shape[0] == model.lm_head.out_features == 15
    assert (model.lm_head.weight is model.get_decoder_input_embeddings().weight) == tied
    input_ids, mask = source_batch()
    logits = model(input_ids + 3 * mask, mask, decoder_input_ids=torch.full((4, 2), 14)).logits
    assert logits.shape == (4, 2, 15)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(again(input_ids + 3 * mask, mask, decoder_input_ids=torch.full((4, 2), 14)).logits, logits)
    assert again.generate(input_ids, attention_mask=mask, num_beams=3, max_new_tokens=3).shape[0] == 4


def test_a_shared_matrix_is_one_vocabulary(tmp_path):
    model = tiny_model(decoder_vocab_size=17, share_encoder_decoder_embeddings=True)
    model.resize_token_embeddings(20)
    assert model.lm_head.weight.shape[0] == 20
    model.save_pretrained(tmp_path)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.target_vocab_size == 20


def test_one_vocabulary_has_no_target_side_to_resize():
    with pytest.raises(ValueError, match="one vocabulary; resize it with resize_token_embeddings"):
        tiny_model(**ONE_VOCABULARY).resize_decoder_token_embeddings(20)


def test_padding_embeddings_start_at_zero_and_forget_gates_open():
    model = tiny_model()
    assert (model.get_input_embeddings().weight[0] == 0).all()
    lstm = model.get_decoder().layers[0].rnn
    assert (lstm.bias_ih_l0[8:16] == 1).all()
    assert (lstm.bias_hh_l0 == 0).all()
    assert lstm.weight_hh_l0.abs().max() <= 0.5


# Saving and loading


@pytest.mark.parametrize("case", attention_grid(encoder_layers=2, residual=True), ids=name_of)
def test_a_saved_model_is_loaded_bit_for_bit(tmp_path, case):
    model = tiny_model(**case)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is AttentionSeq2SeqForConditionalGeneration
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


@torch.no_grad()
def test_auto_classes(tmp_path, model, batch):
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).attention_type == "additive"
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is AttentionSeq2SeqModel
    torch.testing.assert_close(base(**batch).last_hidden_state, model.model(**batch).last_hidden_state)
    from_config = AutoModelForSeq2SeqLM.from_config(model.config)
    assert type(from_config) is AttentionSeq2SeqForConditionalGeneration


def checkpoint(tmp_path, change):
    """A saved tiny model whose tensors went through `change`."""
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)


def test_a_checkpoint_with_a_missing_tensor_says_so_and_initialises_it(tmp_path):
    torch.manual_seed(0)
    model, info = checkpoint(tmp_path, lambda tensors: tensors.pop("model.decoder.attention.score.energy"))
    assert list(info["missing_keys"]) == ["model.decoder.attention.score.energy"]
    energy = model.get_decoder().attention.score.energy
    assert 0 < energy.abs().max() <= 0.5
    lstm_weight = "model.decoder.layers.0.rnn.weight_hh_l0"
    expected = tiny_model().state_dict()
    model, info = checkpoint(tmp_path, lambda tensors: tensors.pop(lstm_weight))
    assert list(info["missing_keys"]) == [lstm_weight]
    for name, tensor in model.state_dict().items():
        assert name == lstm_weight or torch.equal(tensor, expected[name]), name


def test_a_checkpoint_with_an_extra_tensor_says_so(tmp_path):
    _, info = checkpoint(tmp_path, lambda tensors: tensors.update(extra=torch.zeros(2)))
    assert list(info["unexpected_keys"]) == ["extra"]


def test_a_checkpoint_with_a_tensor_of_another_shape_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="size mismatch for bias|lm_head.bias|ignore_mismatched_sizes"):
        checkpoint(tmp_path, lambda tensors: tensors.update({"lm_head.bias": torch.zeros(5)}))


def test_a_corrupt_checkpoint_is_refused(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(Exception, match="(?i)header|safetensor|corrupt"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_a_configuration_file_with_a_wrong_value_is_refused(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attention_type": "magic"}))
    with pytest.raises(ValueError, match="attention_type='magic'"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_saving_goes_to_a_folder_that_can_be_moved(tmp_path):
    tiny_model().save_pretrained(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b").config.hidden_size == SIZES["hidden_size"]


# Bad input


BAD_INPUTS = {
    "token too large": ({"input_ids": torch.tensor([[3, 17]])}, r"input_ids\[0, 1\] is 17.*0 to 16 \(vocab_size=17\)"),
    "negative token": ({"input_ids": torch.tensor([[3, -1]])}, r"input_ids\[0, 1\] is -1"),
    "target token too large": (
        {"decoder_input_ids": torch.tensor([[13]])},
        r"decoder_input_ids\[0, 0\] is 13.*0 to 12 \(decoder_vocab_size=13\)",
    ),
    "floating ids": ({"input_ids": torch.tensor([[3.0]])}, "int64 or int32, got torch.float32"),
    "flat ids": ({"input_ids": torch.tensor([3, 4])}, r"\(batch, length\), got \(2,\)"),
    "empty batch": ({"input_ids": torch.zeros(0, 3, dtype=torch.long)}, r"input_ids is empty.*\(0, 3\)"),
    "no source token": ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"input_ids is empty.*\(1, 0\)"),
    "no target token": ({"decoder_input_ids": torch.zeros(1, 0, dtype=torch.long)}, "decoder_input_ids is empty"),
    "mask of another length": (
        {"attention_mask": torch.ones(1, 9)},
        r"attention_mask has the shape \(1, 9\).*\(1, 3\)",
    ),
    "mask of another batch": ({"attention_mask": torch.ones(2, 3)}, r"attention_mask has the shape \(2, 3\)"),
    "flat mask": ({"attention_mask": torch.ones(3)}, r"attention_mask has the shape \(3,\)"),
    "decoder mask of another length": (
        {"decoder_attention_mask": torch.ones(1, 4)},
        r"decoder_attention_mask has the shape \(1, 4\); allowed: \(1, 2\)",
    ),
    "both kinds of input": ({"inputs_embeds": torch.zeros(1, 3, 6)}, "Exactly one of input_ids and inputs_embeds"),
    "no input": ({"input_ids": None}, "Exactly one of input_ids and inputs_embeds must be given, got neither"),
    "no decoder input": ({"decoder_input_ids": None}, "Exactly one of decoder_input_ids and decoder_inputs_embeds"),
    "embeddings of another width": (
        {"input_ids": None, "inputs_embeds": torch.zeros(1, 3, 5)},
        r"inputs_embeds.*\(1, 3, 5\).*embedding_size=6",
    ),
    "rows that do not fit": (
        {"input_ids": torch.full((2, 3), 3), "decoder_input_ids": torch.full((3, 2), 3)},
        "3 rows, but the encoder 2 sentences",
    ),
    "another cache": ({"past_key_values": DynamicCache()}, "AttentionSeq2SeqCache, got DynamicCache"),
    "a cache of tuples": ({"past_key_values": ((torch.zeros(1),),)}, "AttentionSeq2SeqCache, got tuple"),
    "two caches": (
        {"past_key_values": AttentionSeq2SeqCache(), "cache": AttentionSeq2SeqCache()},
        "two names of one argument",
    ),
    "label too large": ({"labels": torch.tensor([[3, 13]])}, r"labels\[0, 1\] is 13.*-100 is allowed"),
    "negative label": ({"labels": torch.tensor([[3, -1]])}, r"labels\[0, 1\] is -1"),
    "flat labels": ({"labels": torch.tensor([3])}, r"labels must have the shape \(batch, target_length\), got \(1,\)"),
    "additive mask": ({"attention_mask": torch.tensor([[0.0, 0.0, -1e9]])}, "attention_mask has values other than 0"),
    "labels of another batch": (
        {"decoder_input_ids": None, "labels": torch.full((2, 2), 3)},
        "labels has 2 rows, but there are 1 source sentences",
    ),
    "labels of another length": ({"labels": torch.tensor([[3, 4, 5]])}, r"labels.*\(1, 3\).*\(1, 2\)"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_gets_a_clear_error(model, name):
    change, message = BAD_INPUTS[name]
    inputs = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[1, 3]])}
    with pytest.raises(ValueError, match=message):
        model(**{**inputs, **change})


@torch.no_grad()
def test_padding_is_found_where_no_mask_is_given(model, batch):
    expected = model(**batch).logits
    rest = {"decoder_input_ids": batch["decoder_input_ids"]}
    torch.testing.assert_close(model(batch["input_ids"], **rest).logits, expected)
    encoded = model.get_encoder()(batch["input_ids"])
    torch.testing.assert_close(model(encoder_outputs=encoded, **rest).logits, expected)
    options = {"num_beams": 3, "max_new_tokens": 5}
    generated = model.generate(batch["input_ids"], **options)
    masked = model.generate(batch["input_ids"], attention_mask=batch["attention_mask"], **options)
    assert torch.equal(generated, masked)


def test_a_field_that_was_set_later_is_checked_too():
    config = tiny_config()
    config.attention_type = "foo"
    with pytest.raises(ValueError, match="attention_type='foo'"):
        AutoModelForSeq2SeqLM.from_config(config)


def test_a_misspelt_argument_is_refused(model):
    with pytest.raises(TypeError, match="atention_mask"):
        model(torch.tensor([[3]]), decoder_input_ids=torch.tensor([[1]]), atention_mask=torch.ones(1, 1))


@torch.no_grad()
def test_an_integer_float_or_bool_mask_is_the_same(model, batch):
    expected = model(**batch).logits
    for dtype in (torch.bool, torch.float32, torch.int32):
        torch.testing.assert_close(
            model(**{**batch, "attention_mask": batch["attention_mask"].to(dtype)}).logits, expected
        )


@pytest.mark.parametrize(
    "case",
    [
        {"attention_type": "concat", "input_feeding": True},
        {"attention_type": "cosine", "coverage_type": "accumulated", "attention_query": "previous_state"},
        {"attention_type": "mlp", "coverage_type": "location_aware"},
        {"attention_type": "mlp", "attention_selection": "monotonic", "monotonic_chunk_size": 2},
    ],
    ids=name_of,
)
@torch.no_grad()
def test_weights_can_be_offloaded(batch, case):
    """Every weight is read within a call of the module that has it, where hooks can bring it."""
    from accelerate import cpu_offload

    model = tiny_model(**case)
    expected = model(**batch).logits
    torch.testing.assert_close(cpu_offload(model, execution_device="cpu")(**batch).logits, expected)


def test_gradient_checkpointing_is_refused_by_name():
    with pytest.raises(ValueError, match="ForConditionalGeneration does not support (gradient|activation) checkpoint"):
        tiny_model().gradient_checkpointing_enable()


def test_pickled_and_deep_copied_models_are_equal(model, batch):
    import copy
    import pickle

    expected = model(**batch).logits
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(clone(**batch).logits, expected)


def test_configuration_of_a_model_is_its_own():
    config = tiny_config()
    model = AttentionSeq2SeqForConditionalGeneration(config)
    assert model.model.config is model.config
