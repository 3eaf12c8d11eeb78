"""`return_alignments`: the attention that generation used, for each returned sequence."""

import contextlib

import pytest
import torch
import transformers

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    alignment,
    compat,
)

from .pipeline_helpers import GERMAN, MODELS, SHORT, TEXTS, TOKENIZER, make_model, make_pipeline

NO_PADDING = {"suppress_tokens": [0], **SHORT}  # an untrained model may choose the padding token as a word


@pytest.mark.parametrize("name", MODELS)
def test_alignments_are_the_attention_of_generation(name):
    """Greedy search reports the attention of each step itself."""
    model = make_model(name)
    before = model.config._attn_implementation
    aligned = make_pipeline(model)(TEXTS, batch_size=3, num_beams=1, return_alignments=True, **NO_PADDING)
    assert model.config._attn_implementation == before  # Marian and Bart: sdpa
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel):
            module.config._attn_implementation = "eager"
    for text, record in zip(TEXTS, aligned, strict=True):
        inputs = TOKENIZER(text, return_tensors="pt", return_token_type_ids=False)
        output = model.generate(
            **inputs, num_beams=1, output_attentions=True, return_dict_in_generate=True, pad_token_id=0, **NO_PADDING
        )
        steps = torch.cat([step[-1][0, :, -1:] for step in output.cross_attentions], dim=1)
        weights = record["alignment"]["weights"]
        torch.testing.assert_close(weights, steps, atol=1e-4, rtol=0)
        assert weights.dtype == torch.float32
        assert record["alignment"]["source_tokens"] == TOKENIZER.convert_ids_to_tokens(inputs["input_ids"][0])
        target_tokens = TOKENIZER.convert_ids_to_tokens(output.sequences[0, 1:])
        assert record["alignment"]["target_tokens"] == target_tokens
        assert record["translation_text"] == TOKENIZER.decode(output.sequences[0], skip_special_tokens=True)


@pytest.mark.parametrize("name", MODELS)
def test_alignments_of_several_sequences(name):
    model = make_model(name)
    pipe = make_pipeline(model, return_alignments=True)
    options = {"num_beams": 4, "num_return_sequences": 3, "return_tensors": True, **NO_PADDING}
    nested = pipe(TEXTS, batch_size=3, **options)
    assert all("alignment" not in record for row in pipe(TEXTS, return_alignments=False, **options) for record in row)
    for text, records in zip(TEXTS, nested, strict=True):
        inputs = TOKENIZER(text, return_tensors="pt", return_token_type_ids=False)
        for record in records:
            ids = record["translation_token_ids"][1:].tolist()
            ids = ids[: ids.index(1) + 1] if 1 in ids else ids
            assert record["alignment"]["target_tokens"] == TOKENIZER.convert_ids_to_tokens(ids)
            start = model.config.decoder_start_token_id
            with torch.no_grad(), compat.eager_attention(model):
                output = model(**inputs, decoder_input_ids=torch.tensor([[start, *ids[:-1]]]), output_attentions=True)
            expected = output.cross_attentions[-1][0]
            weights = record["alignment"]["weights"]
            torch.testing.assert_close(weights, expected, atol=1e-4, rtol=0)
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_padding_ends_a_sequence_that_has_no_end_token():
    sequences = torch.tensor([[0, 5, 6, 1, 0], [0, 5, 0, 6, 7], [0, 5, 6, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    assert alignment.generated_lengths(sequences, 1, 0).tolist() == [3, 4, 2, 1, 0]
    assert alignment.generated_lengths(sequences, [1, 6], 0).tolist() == [2, 3, 2, 1, 0]
    assert alignment.generated_lengths(sequences, None, None).tolist() == [4] * 5
    assert alignment.generated_lengths(sequences[:, :1], 1, 0).tolist() == [0] * 5


def test_alignments_of_a_model_that_gives_none(monkeypatch):
    monkeypatch.setattr(alignment, "eager_attention", lambda model: contextlib.nullcontext())
    with pytest.raises(ValueError, match="not possible for MarianMTModel: with attn_implementation='sdpa'"):
        make_pipeline("marian", return_alignments=True)("a dog", **SHORT)


# --- This package's own model ----------------------------------------------------------------------------------------


def own_model(**options):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(TEXTS, GERMAN, vocab_size=60)
    torch.manual_seed(0)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    sizes = {"embedding_size": 16, "hidden_size": 16, "initializer_range": 1.0}
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size, **ids, **sizes, **options
    )
    return AttentionSeq2SeqForConditionalGeneration(config).eval(), tokenizer


@pytest.mark.parametrize("heads", [1, 2])
def test_own_model_with_two_vocabularies(heads):
    model, tokenizer = own_model(attention_heads=heads)
    pipe = make_pipeline(model, tokenizer=tokenizer, return_alignments=True)
    single = [pipe(text, num_return_sequences=2, **SHORT) for text in TEXTS]
    batch = pipe(TEXTS, num_return_sequences=2, batch_size=3, **SHORT)
    for text, alone, together in zip(TEXTS, single, batch, strict=True):
        ids = tokenizer(text)["input_ids"]
        for record, other in zip(alone, together, strict=True):
            shown = record["alignment"]
            assert record["translation_text"] == other["translation_text"]
            torch.testing.assert_close(shown.weights, other["alignment"].weights, atol=1e-5, rtol=0)
            assert shown.source_tokens == tokenizer.convert_ids_to_tokens(ids)
            assert shown.weights.shape == (heads, len(shown.target_tokens), len(ids))
            target = tokenizer.target_tokenizer
            spelt = target.decode(target.convert_tokens_to_ids(shown.target_tokens), skip_special_tokens=True)
            assert record["translation_text"] == spelt
            assert shown.source == text and shown.source_offsets == other["alignment"].source_offsets
            assert shown.target.replace("<unk>", "") == spelt
            words = shown.merge("word")
            assert words.source_tokens == text.split() and words.target_tokens == shown.target.split()


def test_own_model_without_attention():
    model, tokenizer = own_model(attention_type="none")
    pipe = make_pipeline(model, tokenizer=tokenizer, **SHORT)
    assert pipe("a dog")[0]["translation_text"]
    with pytest.raises(ValueError, match="attention_type='none'"):
        pipe("a dog", return_alignments=True)
