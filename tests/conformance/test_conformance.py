"""
The suites that transformers ships for its own models, run against ours: modelling, configuration and training.

What a test skips, it skips itself, by the attributes of the model; the one that reads pickled weights must fail.
"""

from __future__ import annotations

import tempfile
import unittest
from unittest import mock

import pytest
import torch
from transformers.models.auto import modeling_auto

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqModel,
)

from . import library_tests

try:
    common = library_tests.load("test_modeling_common")
    configuration = library_tests.load("test_configuration_common")
    training = library_tests.load("test_training_mixin")  # none before transformers 5
except library_tests.Unavailable as error:
    pytest.skip(str(error), allow_module_level=True)


class ModelTester:
    """What the library's mixins ask of a model: a tiny configuration and a batch for it."""

    is_training = True
    batch_size = 4
    seq_length = encoder_seq_length = decoder_seq_length = 7
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 1
    vocab_size = 40
    causal_lm_class = AttentionSeq2SeqForConditionalGeneration  # the class that the training suite trains

    def __init__(self, parent: unittest.TestCase, **fields):
        self.parent = parent
        self.fields = {
            "vocab_size": self.vocab_size,
            "embedding_size": self.hidden_size,
            "hidden_size": self.hidden_size,
            "encoder_layers": self.num_hidden_layers,
            "decoder_layers": self.num_hidden_layers,
            "attention_heads": self.num_attention_heads,
            **fields,
        }

    def get_config(self) -> AttentionSeq2SeqConfig:
        return AttentionSeq2SeqConfig(**self.fields)

    def prepare_config_and_inputs_for_common(self):
        lengths = torch.tensor([7, 3, 5, 7])
        mask = (torch.arange(self.seq_length) < lengths[:, None]).long()
        inputs = {
            "input_ids": torch.randint(3, self.vocab_size, (self.batch_size, self.seq_length)) * mask,
            "attention_mask": mask,
            "decoder_input_ids": torch.randint(3, self.vocab_size, (self.batch_size, self.decoder_seq_length)),
            "decoder_attention_mask": torch.ones(self.batch_size, self.decoder_seq_length, dtype=torch.long),
        }
        return self.get_config(), inputs


TrainingTesterMixin = object if training is None else training.TrainingTesterMixin


class LibrarySuites(common.ModelTesterMixin, common.GenerationTesterMixin, TrainingTesterMixin):
    """The suites for one configuration; `fields` are the fields that differ from the tester's."""

    fields: dict = {}
    model_tester = None
    all_model_classes = (AttentionSeq2SeqModel, AttentionSeq2SeqForConditionalGeneration)
    is_encoder_decoder = True
    has_attentions = False  # means self-attentions: a recurrent model has none
    test_pruning = test_head_masking = False  # before transformers 5: those of self-attention
    test_can_init_all_missing_weights_before_2023 = True  # the suite leaves out files without a copyright year
    training_overfit_steps = 150
    training_overfit_seq_length = 30
    training_overfit_learning_rate = 2e-2

    def setUp(self):
        self.model_tester = ModelTester(self, **self.fields)
        # The suites find out by the class name what kind of a model it is.
        for names, model_class in (
            (modeling_auto.MODEL_MAPPING_NAMES, AttentionSeq2SeqModel),
            (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, AttentionSeq2SeqForConditionalGeneration),
        ):
            entered = mock.patch.dict(names, {AttentionSeq2SeqConfig.model_type: model_class.__name__})
            entered.start()
            self.addCleanup(entered.stop)

    def test_config(self):
        # Before transformers 5, the i-th of these properties gets the value i.
        properties = ["pad_token_id", "num_attention_heads", "hidden_size", "num_hidden_layers"]
        tester = configuration.ConfigTester(
            self, config_class=AttentionSeq2SeqConfig, common_properties=properties, **self.model_tester.fields
        )
        tester.run_common_tests()

    def test_disk_offload_bin(self):
        """The suite offloads pickled weights; ours are refused, written or read."""
        model = AttentionSeq2SeqModel(self.model_tester.get_config())
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(ValueError, "safetensors only"):
                model.save_pretrained(folder, safe_serialization=False)
            model.config.save_pretrained(folder)
            torch.save(model.state_dict(), f"{folder}/pytorch_model.bin")
            for options in ({}, {"use_safetensors": False}):
                with self.assertRaisesRegex(ValueError, "safetensors only"):
                    AttentionSeq2SeqModel.from_pretrained(folder, device_map="auto", offload_folder=folder, **options)

    def _create_text_training_batch(self, batch_size, seq_length, vocab_size):
        """The suite's batch for an encoder-decoder: the prompt is the source, what comes after it the target."""
        batch = super()._create_text_training_batch(batch_size, seq_length, vocab_size)
        mask = torch.zeros_like(batch["input_ids"])
        mask[:, 0] = 1
        return {"input_ids": batch["input_ids"], "attention_mask": mask, "labels": batch["labels"][:, 1:]}


class AdditiveLSTMTest(LibrarySuites, unittest.TestCase):
    fields = {"attention_type": "additive", "attention_query": "previous_state"}


class DotGRUTest(LibrarySuites, unittest.TestCase):
    fields = {"attention_type": "dot", "rnn_type": "gru", "input_feeding": True, "tie_word_embeddings": True}


class LocationRNNTest(LibrarySuites, unittest.TestCase):
    fields = {"attention_type": "location", "rnn_type": "rnn", "max_source_positions": 80}


class FixedContextTest(LibrarySuites, unittest.TestCase):
    fields = {"attention_type": "none", "encoder_bidirectional": False, "bridge_type": "copy"}


class SelfAttentionEncoderTest(LibrarySuites, unittest.TestCase):
    fields = {"encoder_type": "self_attention", "attention_type": "general", "input_feeding": True}
