import json

import pytest

from hf_attention_seq2seq import PRESETS, AttentionSeq2SeqConfig
from hf_attention_seq2seq.configuration_attention_seq2seq import ATTENTION_TYPES
from hf_attention_seq2seq.scoring import SCORES


def test_defaults_are_usable_and_survive_json(tmp_path):
    config = AttentionSeq2SeqConfig()
    config.save_pretrained(tmp_path)
    again = AttentionSeq2SeqConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "attention_seq2seq"
    assert saved["attention_type"] == "additive"
    assert saved["decoder_start_token_id"] == 1


def test_every_attention_type_has_a_score_and_the_reverse():
    assert sorted(ATTENTION_TYPES) == sorted([*SCORES, "none"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention_type": "dott"}, ["attention_type='dott'", "'scaled_dot'"]),
        ({"rnn_type": "LSTM"}, ["rnn_type='LSTM'", "'lstm'"]),
        ({"bridge_type": "random"}, ["bridge_type='random'", "'linear'"]),
        ({"attention_query": "next_state"}, ["attention_query='next_state'", "'previous_state'"]),
        ({"attention_values": "keys"}, ["attention_values='keys'", "'projected'"]),
        ({"readout_type": "softmax"}, ["readout_type='softmax'", "'maxout'"]),
        ({"hidden_size": -8}, ["hidden_size=-8", "from 1 up"]),
        ({"hidden_size": 8.0}, ["hidden_size=8.0", "integer"]),
        ({"embedding_size": 0}, ["embedding_size=0"]),
        ({"vocab_size": True}, ["vocab_size=True"]),
        ({"decoder_vocab_size": -1}, ["decoder_vocab_size=-1"]),
        ({"encoder_layers": 0}, ["encoder_layers=0"]),
        ({"attention_size": 0}, ["attention_size=0"]),
        ({"dropout": 1.0}, ["dropout=1.0", "below 1"]),
        ({"embedding_dropout": -0.1}, ["embedding_dropout=-0.1"]),
        ({"output_dropout": "0.1"}, ["output_dropout='0.1'"]),
        ({"dropout": float("nan")}, ["dropout=nan"]),
        ({"initializer_range": -1}, ["initializer_range=-1"]),
        ({"input_feeding": "yes"}, ["input_feeding='yes'", "True, False"]),
        ({"hidden_size": 7}, ["hidden_size=7", "even"]),
        ({"encoder_hidden_size": 7}, ["encoder_hidden_size=7", "even"]),
        ({"pad_token_id": 8000}, ["pad_token_id=8000", "0 to 7999"]),
        ({"pad_token_id": None}, ["pad_token_id=None"]),
        ({"decoder_vocab_size": 50, "eos_token_id": 50}, ["eos_token_id=50", "0 to 49"]),
        ({"decoder_start_token_id": -1}, ["decoder_start_token_id=-1"]),
        (
            {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": True},
            ["share_encoder_decoder_embeddings=True", "decoder_vocab_size=50"],
        ),
        ({"tie_word_embeddings": True, "readout_size": 5}, ["tie_word_embeddings=True", "embedding_size=256"]),
        ({"encoder_hidden_size": 100, "bridge_type": "copy"}, ["bridge_type='copy'", "'linear'"]),
        ({"reverse_source": True}, ["reverse_source=True", "encoder_bidirectional"]),
        ({"bridge_type": "backward", "encoder_bidirectional": False}, ["bridge_type='backward'"]),
        ({"bridge_type": "context"}, ["bridge_type='context'", "'none'"]),
        ({"readout_type": "state"}, ["readout_type='state'", "never be used"]),
        ({"readout_type": "state", "attention_type": "none", "readout_size": 5}, ["readout_size=5"]),
        ({"attention_heads": 3}, ["attention_heads=3", "hidden_size=512"]),
        ({"attention_size": 10, "attention_heads": 4}, ["attention_heads=4", "attention_size=10"]),
        ({"attention_type": "dot", "encoder_hidden_size": 100}, ["attention_type='dot'", "attention_size"]),
        ({"attention_type": "none", "attention_heads": 2}, ["attention_heads=2", "'none'"]),
        ({"attention_type": "none", "attention_size": 2}, ["attention_size=2", "'none'"]),
        ({"attention_type": "none", "attention_values": "projected"}, ["attention_values='projected'"]),
        ({"attention_type": "none", "bridge_type": "zeros"}, ["bridge_type='zeros'", "all that the decoder knows"]),
        ({"attention_type": "none", "bridge_type": "context"}, ["bridge_type='context'"]),
        ({"atention_type": "dot"}, ["atention_type='dot'", "did you mean 'attention_type'"]),
        ({"hiden_size": 3}, ["hiden_size=3", "did you mean 'hidden_size'"]),
        ({"decoder_start_token_id": [1, 1]}, ["decoder_start_token_id=[1, 1]"]),
        ({"bos_token_id": None}, ["decoder_start_token_id=None"]),
        ({"eos_token_id": []}, ["eos_token_id=[]"]),
        ({"initializer_range": float("inf")}, ["initializer_range=inf"]),
        ({"is_encoder_decoder": False}, ["is_encoder_decoder=False"]),
        ({"embedding_dim": 64}, ["embedding_dim=64", "called embedding_size"]),
        ({"bidirectional": False}, ["bidirectional=False", "called encoder_bidirectional"]),
        ({"num_layers": 2}, ["num_layers=2", "encoder_layers and decoder_layers"]),
        ({"target_vocab_size": 44}, ["target_vocab_size=44", "called decoder_vocab_size"]),
        ({"attention_span": "local"}, ["attention_span='local'", "'local_p'"]),
        ({"attention_window": 0}, ["attention_window=0"]),
        ({"attention_normalizer": "entmax"}, ["attention_normalizer='entmax'", "'entmax15'"]),
        ({"attention_selection": "firm"}, ["attention_selection='firm'", "'monotonic'"]),
        ({"attention_selection": "monotonic", "attention_heads": 2}, ["attention_heads=2", "'monotonic'"]),
        ({"attention_selection": "monotonic", "attention_span": "local_m"}, ["attention_span='local_m'"]),
        ({"attention_selection": "monotonic", "attention_normalizer": "entmax15"}, ["attention_normalizer"]),
        ({"attention_selection": "monotonic", "coverage_type": "accumulated"}, ["coverage_type='accumulated'"]),
        ({"monotonic_chunk_size": 2}, ["monotonic_chunk_size=2", "'monotonic'"]),
        ({"monotonic_noise": -1.0}, ["monotonic_noise=-1.0"]),
        ({"coverage_type": "sum"}, ["coverage_type='sum'", "'accumulated'"]),
        ({"coverage_loss_weight": 1.0}, ["coverage_loss_weight=1.0", "'accumulated'"]),
        ({"coverage_kernel_size": 4}, ["coverage_kernel_size=4", "odd"]),
        ({"attention_type": "none", "attention_span": "local_m"}, ["attention_span='local_m'", "'none'"]),
    ],
)
def test_what_has_no_meaning_is_refused_by_name_and_value(fields, words):
    with pytest.raises(ValueError) as error:
        AttentionSeq2SeqConfig(**fields)
    for word in words:
        assert word in str(error.value)


def test_fields_that_other_libraries_add_are_kept():
    config = AttentionSeq2SeqConfig(num_labels=5, task_specific_params={"a": 1}, sep_token_id=2, my_note="x")
    assert config.num_labels == 5
    assert config.my_note == "x"


def test_embeddings_are_shared_where_there_is_one_vocabulary():
    assert AttentionSeq2SeqConfig().share_encoder_decoder_embeddings is True
    assert AttentionSeq2SeqConfig(decoder_vocab_size=50).share_encoder_decoder_embeddings is False
    assert AttentionSeq2SeqConfig(share_encoder_decoder_embeddings=False).share_encoder_decoder_embeddings is False


def test_presets():
    for name in PRESETS:
        target_size = None if "pointer" in name else 90
        config = AttentionSeq2SeqConfig.from_preset(name, vocab_size=100, decoder_vocab_size=target_size)
        assert config.target_vocab_size == (target_size or 100)
    with pytest.raises(ValueError, match="Unknown preset 'luong'; known presets: bahdanau-2014"):
        AttentionSeq2SeqConfig.from_preset("luong")


def test_a_preset_takes_overrides():
    config = AttentionSeq2SeqConfig.from_preset("bahdanau-2014", hidden_size=8, encoder_hidden_size=16, vocab_size=9)
    assert (config.hidden_size, config.memory_size, config.vocab_size) == (8, 16, 9)
    assert config.attention_query == "previous_state"


def test_generate_sees_the_target_vocabulary():
    config = AttentionSeq2SeqConfig(vocab_size=100, decoder_vocab_size=50)
    assert config.get_text_config().vocab_size == 50
    assert config.get_text_config(decoder=True).vocab_size == 50
    assert config.get_text_config(encoder=True).vocab_size == 100
    shared = AttentionSeq2SeqConfig(vocab_size=100)
    assert shared.get_text_config(decoder=True) is shared
