"""
A user's program for the type checker (`make typecheck`), never run: what the public interface promises, and mistakes.

Where mypy finds no mistake although there is one (`type: ignore`), it complains too.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from matplotlib.figure import Figure
from torch import Tensor
from transformers.modeling_outputs import Seq2SeqLMOutput

import hf_attention_seq2seq as plugin


def configuration() -> plugin.AttentionSeq2SeqConfig:
    config = plugin.AttentionSeq2SeqConfig(attention_type="general", hidden_size=8, decoder_vocab_size=None)
    assert_type(config.hidden_size, int)
    assert_type(config.attention_type, str)
    plugin.AttentionSeq2SeqConfig(hidden_size="large")  # type: ignore[arg-type]
    plugin.AttentionSeq2SeqConfig(attention_type=None)  # type: ignore[arg-type]
    preset = plugin.AttentionSeq2SeqConfig.from_preset("bahdanau-2014", hidden_size=8)
    return assert_type(preset, plugin.AttentionSeq2SeqConfig)


def tokenizer(source: list[str], target: list[str]) -> plugin.AttentionSeq2SeqTokenizer:
    trained = plugin.AttentionSeq2SeqTokenizer.train_from_iterator(source, target, "char", target_model="word")
    assert_type(trained.target_vocab_size, int)
    plugin.AttentionSeq2SeqTokenizer.train_from_iterator(source, vocab_size="8000")  # type: ignore[arg-type]
    return assert_type(trained, plugin.AttentionSeq2SeqTokenizer)


def models(config: plugin.AttentionSeq2SeqConfig, ids: Tensor) -> None:
    model = plugin.AttentionSeq2SeqForConditionalGeneration(config)
    assert_type(model.config, plugin.AttentionSeq2SeqConfig)
    loaded = plugin.AttentionSeq2SeqForConditionalGeneration.from_pretrained("runs/first")
    assert_type(loaded, plugin.AttentionSeq2SeqForConditionalGeneration)
    output = model.forward(input_ids=ids, labels=ids)
    if isinstance(output, Seq2SeqLMOutput) and output.loss is not None:
        output.loss.backward()
    model.forward(inputs_ids=ids)  # type: ignore[call-arg]
    plugin.AttentionSeq2SeqForConditionalGeneration("runs/first")  # type: ignore[arg-type]

    ensemble = plugin.AttentionSeq2SeqEnsemble.from_pretrained(["runs/first", Path("runs/second")])
    assert_type(ensemble, plugin.AttentionSeq2SeqEnsemble)
    assert_type(plugin.AttentionSeq2SeqEnsemble([model, loaded]), plugin.AttentionSeq2SeqEnsemble)
    plugin.AttentionSeq2SeqEnsemble(model)  # type: ignore[arg-type]


@plugin.register_score("shifted")
class ShiftedScore(plugin.Score):
    shift = 1.0

    def score(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ keys.mT + self.shift


assert_type(ShiftedScore.shift, float)  # registering a class does not hide what it is


@plugin.register_score("no score")
class NoScore:  # type: ignore[type-var]
    pass


def pipelines(
    model: plugin.AttentionSeq2SeqForConditionalGeneration, tokenizer: plugin.AttentionSeq2SeqTokenizer
) -> plugin.Text2TextGenerationPipeline:
    translate = plugin.TranslationPipeline(model=model, tokenizer=tokenizer)
    alignment = translate("a man", return_alignments=True)[0]["alignment"]
    assert_type(plugin.plot_alignment(alignment, Path("alignment.png"), title="a man"), Figure)
    plugin.plot_alignment("a man")  # type: ignore[arg-type]
    return translate
