"""Alignments of pairs and of generated texts, units of text, links: against plain forward passes and by hand."""

import itertools

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
)
from hf_attention_seq2seq.alignment import (
    Alignment,
    align,
    alignment_side,
    alignments_from_generate,
    parse_pharaoh,
    symmetrize,
    to_pharaoh,
)
from hf_attention_seq2seq.compat import eager_attention

from .pipeline_helpers import GERMAN, TEXTS, TOKENIZER, make_model

SCORES = ("additive", "mlp", "concat", "dot", "scaled_dot", "general", "cosine", "location")
ATTENTIONS = {
    **{score: {"attention_type": score} for score in SCORES},
    "two heads": {"attention_type": "general", "attention_heads": 2},
    "previous state": {"attention_type": "additive", "attention_query": "previous_state"},
    "at once": {"attention_type": "general", "input_feeding": False},
    "local-m": {"attention_type": "general", "attention_span": "local_m", "attention_window": 1},
    "local-p": {"attention_type": "general", "attention_span": "local_p", "attention_window": 1},
    "sparsemax": {"attention_type": "general", "attention_normalizer": "sparsemax"},
    "entmax": {"attention_type": "general", "attention_normalizer": "entmax15"},
    "coverage": {"attention_type": "mlp", "coverage_type": "accumulated"},
    "location-aware": {"attention_type": "mlp", "coverage_type": "location_aware"},
    "monotonic": {"attention_type": "mlp", "attention_selection": "monotonic"},
    "chunks": {"attention_type": "mlp", "attention_selection": "monotonic", "monotonic_chunk_size": 2},
}
WORDS = AttentionSeq2SeqTokenizer.train_from_iterator(TEXTS, GERMAN, model="word")
BEAMS = {"num_beams": 5, "num_return_sequences": 3, "max_new_tokens": 7, "length_penalty": 1.5}
BEAMS |= {"suppress_tokens": [0]}  # an untrained model may choose the padding token as a word
RETURNED = {"output_attentions": True, "return_dict_in_generate": True}


def own_model(attention_type="general", seed=0, **options):
    torch.manual_seed(seed)
    config = AttentionSeq2SeqConfig(
        vocab_size=len(WORDS),
        decoder_vocab_size=WORDS.target_vocab_size,
        attention_type=attention_type,
        embedding_size=8,
        hidden_size=8,
        max_source_positions=12,
        initializer_range=1.0,
        **options,
    )
    if config.attention_normalizer != "softmax":
        pytest.importorskip("entmax")
    model = AttentionSeq2SeqForConditionalGeneration(config).eval()
    model.lm_head.bias.data[config.eos_token_id] += 2.0  # so that hypotheses end at different places
    return model


def forced(model, tokenizer, text, ids):
    """The attention of a plain forward pass over one pair, `(heads, target, source)`."""
    source = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        output = model(**source, decoder_input_ids=torch.tensor([ids[:-1]]), output_attentions=True, use_cache=False)
    return output.cross_attentions[-1][0]


def cut(sequence, end):
    """A generated sequence with its start and up to its end token."""
    ids = sequence.tolist()
    return ids[: ids.index(end, 1) + 1] if end in ids[1:] else ids


# Generated texts


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attentions_of_beam_search_are_those_of_force_decoding(name, side):
    model = own_model(**ATTENTIONS[name])
    inputs = WORDS(TEXTS, padding=True, padding_side=side, return_tensors="pt")
    output = model.generate(**inputs, **BEAMS, **RETURNED)
    found = alignments_from_generate(output, WORDS, inputs, TEXTS)
    # What would be wrong without a cut, or without the beam indices.
    lengths = {len(alignment.target_tokens) for alignment in found}
    moved = [len(set(row[row >= 0].tolist())) > 1 for row in output.beam_indices[:, 1:]]
    assert len(found) == 9 and (len(lengths) > 1 or any(moved))
    for row, alignment in enumerate(found):
        text, ids = TEXTS[row // 3], cut(output.sequences[row], model.config.eos_token_id)
        expected = forced(model, WORDS, text, ids)
        torch.testing.assert_close(alignment.weights, expected, atol=1e-5, rtol=1e-4)
        assert alignment.source == text and alignment.source_tokens == [*text.split(), "</s>"]
        assert alignment.target_tokens == WORDS.target_tokenizer.convert_ids_to_tokens(ids[1:])


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 1, "do_sample": True, "num_return_sequences": 2},
        {"num_beams": 3, "do_sample": True, "num_return_sequences": 2},
        {"num_beams": 1, "decoder_input_ids": [1, 5, 6]},
        {"num_beams": 3, "decoder_input_ids": [1, 5, 6], "num_return_sequences": 2},
        {"num_beams": 3, "use_cache": False},
    ],
    ids=str,
)
def test_other_ways_to_generate(options):
    model = own_model(seed=1)
    if "decoder_input_ids" in options:
        options = {**options, "decoder_input_ids": torch.tensor([options["decoder_input_ids"]] * 3)}
    inputs = WORDS(TEXTS, padding=True, return_tensors="pt")
    output = model.generate(**inputs, **options, max_new_tokens=7, suppress_tokens=[0], **RETURNED)
    found = alignments_from_generate(output, WORDS, inputs)
    returned = options.get("num_return_sequences", 1)
    assert len(found) == 3 * returned
    for row, alignment in enumerate(found):
        expected = forced(model, WORDS, TEXTS[row // returned], cut(output.sequences[row], 2))
        torch.testing.assert_close(alignment.weights, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [0, -1])
def test_a_library_model_with_layers(layer):
    model = make_model("marian")
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel):
            module.config._attn_implementation = "eager"
    inputs = TOKENIZER(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**inputs, num_beams=4, num_return_sequences=2, max_new_tokens=5, **RETURNED)
    generated = alignments_from_generate(output, TOKENIZER, inputs, layer=layer)
    for row, alignment in enumerate(generated):
        ids = output.sequences[row, : len(alignment.target_tokens) + 1]
        source = TOKENIZER(TEXTS[row // 2], return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            expected = model(**source, decoder_input_ids=ids[None, :-1], output_attentions=True).cross_attentions
        torch.testing.assert_close(alignment.weights, expected[layer][0], atol=1e-4, rtol=1e-3)
    with pytest.raises(ValueError, match="layer=2 is not possible: .* in 2 layers"):
        alignments_from_generate(output, TOKENIZER, inputs, layer=2)


def test_offset_of_generated_texts():
    model = own_model()
    inputs = WORDS(TEXTS, padding=True, return_tensors="pt")
    output = model.generate(**inputs, **BEAMS, **RETURNED)
    plain = alignments_from_generate(output, WORDS, inputs, TEXTS)
    shifted = alignments_from_generate(output, WORDS, inputs, TEXTS, offset=1)
    for one, other in zip(plain, shifted, strict=True):
        assert torch.equal(other.weights, one.weights[:, 1:])
        assert other.target_tokens == one.target_tokens[:-1] and other.target == one.target


def test_what_generate_must_give():
    model = own_model()
    inputs = WORDS(TEXTS, padding=True, return_tensors="pt")
    for output in (
        model.generate(**inputs, max_new_tokens=3),
        model.generate(**inputs, max_new_tokens=3, return_dict_in_generate=True),
        own_model("none").generate(**inputs, max_new_tokens=3, **RETURNED),
    ):
        with pytest.raises(ValueError, match="output_attentions=True and return_dict_in_generate=True"):
            alignments_from_generate(output, WORDS, inputs)
    output = model.generate(**inputs, max_new_tokens=3, **RETURNED)
    other = WORDS(TEXTS[:2], padding=True, return_tensors="pt")
    with pytest.raises(ValueError, match="inputs must be the batch that generate was given"):
        alignments_from_generate(output, WORDS, other)
    with pytest.raises(ValueError, match="not those of inputs"):
        alignments_from_generate(output, WORDS, inputs, TEXTS[::-1])
    output.sequences = output.sequences[:1]
    with pytest.raises(ValueError, match="attentions of 3 rows, but 1 sequences and no beam_indices"):
        alignments_from_generate(output, WORDS, inputs)


# Pairs of texts


@pytest.mark.parametrize("name", ATTENTIONS)
def test_align_is_a_forward_pass_over_the_pair(name):
    model = own_model(**ATTENTIONS[name], dropout=0.5).train()  # monotonic attention is another one in training
    batches = [align(model, WORDS, TEXTS, GERMAN, batch_size=size) for size in (1, 2, 8)]
    assert model.training and model.model.encoder.training
    model.eval()
    for text, target, *found in zip(TEXTS, GERMAN, *batches, strict=True):
        ids = [model.config.decoder_start_token_id, *WORDS(text_target=target)["input_ids"]]
        expected = forced(model, WORDS, text, ids)
        for alignment in found:
            torch.testing.assert_close(alignment.weights, expected, atol=1e-5, rtol=1e-4)
            assert (alignment.source, alignment.target) == (text, target)
            assert alignment.target_tokens == [*target.split(), "</s>"]
            assert alignment["weights"] is alignment.weights


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_align_with_library_models(name):
    model = make_model(name)
    for text, target, alignment in zip(TEXTS, GERMAN, align(model, TOKENIZER, TEXTS, GERMAN), strict=True):
        labels = TOKENIZER(text_target=target, return_tensors="pt")["input_ids"]
        source = TOKENIZER(text, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad(), eager_attention(model):
            expected = model(**source, labels=labels, output_attentions=True).cross_attentions[-1][0]
        torch.testing.assert_close(alignment.weights, expected, atol=1e-4, rtol=1e-3)


def test_offset_of_pairs():
    model = own_model()
    for one, other in zip(
        align(model, WORDS, TEXTS, GERMAN), align(model, WORDS, TEXTS, GERMAN, offset=1), strict=True
    ):
        assert torch.equal(other.weights, one.weights[:, 1:])  # row i is the step that has read token i
        assert other.target_tokens == one.target_tokens[:-1]
    with pytest.raises(ValueError, match="offset=2 is not possible"):
        align(model, WORDS, TEXTS, GERMAN, offset=2)


def test_what_align_refuses():
    model = own_model()
    with pytest.raises(ValueError, match="not possible for AttentionSeq2Seq.*attention_type='none'"):
        align(own_model("none"), WORDS, TEXTS, GERMAN)
    with pytest.raises(ValueError, match="3 sources but 2 targets"):
        align(model, WORDS, TEXTS, GERMAN[:2])
    with pytest.raises(TypeError, match="targets is one text, 'ein hund'"):
        align(model, WORDS, ["a dog"], "ein hund")
    with pytest.raises(ValueError, match="layer=1 is not possible"):
        align(model, WORDS, TEXTS, GERMAN, layer=1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(ValueError, match="source '' has no tokens"):
        align(model, tokenizer, ["a", ""], ["a", "a"])
    assert align(model, WORDS, [], []) == []


def test_empty_texts_have_an_end():
    (alignment,) = align(own_model(), WORDS, [""], [""])
    assert alignment.source_tokens == alignment.target_tokens == ["</s>"] and alignment.weights.shape == (1, 1, 1)
    assert alignment.merge().weights.shape == (1, 0, 0) and alignment.merge().links() == []


# Where tokens stand


def places(side, *arguments):
    fields = alignment_side(side, *arguments)
    text, spans = fields[side], fields[f"{side}_offsets"]
    return text, [span if span is None else text[slice(*span)] for span in spans], spans


def test_places_of_given_texts():
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(TEXTS * 3, GERMAN * 3, vocab_size=60)
    text = "  the dog ξ"
    encoded = tokenizer(text, return_offsets_mapping=True)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    _, pieces, _ = places("source", tokenizer, encoded["input_ids"], text, encoded["offset_mapping"])
    known = [(token, piece) for token, piece in zip(tokens, pieces) if token not in ("▁", "<unk>", "</s>")]
    assert "".join(piece for _, piece in known) == "thedog"
    assert all(token.lstrip("▁") == piece for token, piece in known)
    assert pieces[-1] is None and pieces[tokens.index("<unk>")] == "ξ"


@pytest.mark.parametrize("unit", ["bpe", "unigram", "word", "char", "codepoint"])
def test_places_of_generated_tokens(unit):
    texts = ["नमस्ते दुनिया", "hello wörld", "안녕 하세요"]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["x"], texts * 3, model=unit, vocab_size=70)
    for text in texts:
        encoded = tokenizer(text_target=text, return_offsets_mapping=True)
        shown, _, spans = places("target", tokenizer, encoded["input_ids"])
        assert shown == text
        _, _, expected = places("target", tokenizer, encoded["input_ids"], text, encoded["offset_mapping"])
        if unit == "unigram":  # the mark before the text stands for nothing in the output, and goes with what follows
            assert spans[1:] == expected[1:] and spans[0][0] == expected[0][0]
        else:
            assert spans == expected


def test_places_of_unknown_and_special_tokens_in_an_output():
    ids = WORDS.target_tokenizer.convert_tokens_to_ids(["ein", "<unk>", "</s>", "hund", "<pad>"])
    text, pieces, spans = places("target", WORDS, ids)
    assert text == "ein <unk> hund"
    assert pieces == ["ein", "<unk>", None, "hund", None] and spans[3] == (10, 14)


def test_places_of_bytes():
    """The bytes of one character all stand for it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = tokenizer("né 😀")["input_ids"]
    text, _, spans = places("target", tokenizer, ids)
    assert text == "né 😀"
    assert spans == [(0, 1), (1, 2), (1, 2), (2, 3), (3, 4), (3, 4), (3, 4), (3, 4)]


# Units


def by_hand(**changes):
    """Two pieces of "under", "stand" and a full stop to "ver" + "steh" and "!"; the second head is uniform."""
    first = [[0.5, 0.25, 0.125, 0.0, 0.125], [0.25, 0.25, 0.25, 0.25, 0.0], [0, 0, 0, 1, 0], [0, 0, 0, 0.25, 0.75]]
    fields = {
        "source": "understand this .",
        "target": "versteh !",
        "source_tokens": ["▁under", "stand", "▁this", "▁.", "</s>"],
        "target_tokens": ["▁ver", "steh", "▁!", "</s>"],
        "weights": torch.stack([torch.tensor(first), torch.full((4, 5), 0.2)]),
        "source_offsets": [(0, 5), (5, 10), (11, 15), (16, 17), None],
        "target_offsets": [(0, 3), (3, 7), (8, 9), None],
    }
    return Alignment(**{**fields, **changes})


def test_words_by_hand():
    words = by_hand().merge("word", special=True)
    assert words.source_tokens == ["understand", "this", ".", "</s>"] and words.target_tokens == [
        "versteh",
        "!",
        "</s>",
    ]
    expected = [[0.625, 0.1875, 0.125, 0.0625], [0, 0, 1, 0], [0, 0, 0.25, 0.75]]
    torch.testing.assert_close(words.weights[0], torch.tensor(expected))
    torch.testing.assert_close(words.weights[1], torch.tensor([[0.4, 0.2, 0.2, 0.2]] * 3))
    torch.testing.assert_close(words.matrix, words.weights.mean(0))
    assert words.source_offsets == [(0, 10), (11, 15), (16, 17), None]
    without = by_hand().merge()
    assert torch.equal(without.weights, words.weights[:, :-1, :-1])
    assert without.source_tokens == words.source_tokens[:-1] and without.target_offsets == [(0, 7), (8, 9)]
    again = without.merge("word")
    assert torch.equal(again.weights, without.weights)


def test_tokens_without_special_ones():
    tokens = by_hand().merge("token")
    assert torch.equal(tokens.weights, by_hand().weights[:, :-1, :-1]) and tokens.target_tokens == [
        "▁ver",
        "steh",
        "▁!",
    ]
    assert torch.equal(by_hand().merge("token", special=True).weights, by_hand().weights)


def test_characters_by_hand():
    """A source token is shared out by code points, a target token counts for each of its characters."""
    alignment = Alignment(
        source="e\u0301a 가b",  # an e with a combining accent is one character
        target="xy z",
        source_tokens=["éa", "ᄀ", "ᅡ", "b"],
        target_tokens=["xy", "z"],
        weights=torch.tensor([[[0.75, 0.125, 0.0625, 0.0625], [0.0, 0.25, 0.25, 0.5]]]),
        source_offsets=[(0, 3), (4, 5), (4, 5), (5, 6)],
        target_offsets=[(0, 2), (3, 4)],
    )
    characters = alignment.merge("character")
    assert characters.source_tokens == ["e\u0301", "a", "가", "b"] and characters.target_tokens == ["x", "y", "z"]
    rows = [[0.5, 0.25, 0.1875, 0.0625], [0.0, 0.0, 0.5, 0.5]]
    torch.testing.assert_close(characters.weights[0], torch.tensor([rows[0], rows[0], rows[1]]))
    mixed = alignment.merge("character", "word")
    torch.testing.assert_close(mixed.weights[0], torch.tensor(rows))
    spans = alignment.merge([(0, 3), (3, 5)], [(0, 1), (1, 4)])
    assert spans.source_tokens == ["e\u0301a", " 가"] and spans.target_tokens == ["x", "y z"]
    torch.testing.assert_close(spans.weights[0], torch.tensor([[0.75, 0.1875], [0.375, 0.34375]]))


def test_white_space_goes_with_what_follows():
    fields = {
        "source": "a b ",
        "source_tokens": ["a", " ", "b", " "],
        "source_offsets": [(i, i + 1) for i in range(4)],
    }
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4]]])
    alignment = Alignment(target="c", target_tokens=["c"], target_offsets=[(0, 1)], weights=weights, **fields)
    for unit in ("word", "character"):
        torch.testing.assert_close(alignment.merge(unit).weights, torch.tensor([[[0.1, 0.5]]]))


def test_special_tokens_keep_their_place():
    alignment = Alignment(
        source="a b c",
        target="d",
        source_tokens=["<en>", "a", "<x>", "b", "</s>"],
        target_tokens=["d"],
        weights=torch.tensor([[[0.1, 0.2, 0.3, 0.15, 0.25]]]),
        source_offsets=[None, (0, 1), None, (2, 3), None],
        target_offsets=[(0, 1)],
    )
    words = alignment.merge("word", special=True)
    assert words.source_tokens == ["<en>", "a", "<x>", "b", "</s>", "c"]  # "c" was cut off
    torch.testing.assert_close(words.weights, torch.tensor([[[0.1, 0.2, 0.3, 0.15, 0.25, 0.0]]]))


@pytest.mark.parametrize("seed", range(20))
def test_merging_as_defined(seed):
    """Random tokens and units of random texts, pair by pair of code points."""
    generator = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    def random_spans(length, gaps):
        spans, place = [], 0
        while place < length:
            start = min(place + (number(0, 2) if gaps else 0), length - 1)
            end = min(start + number(1, 4), length)
            spans.append((start, end))
            place = end
        return spans

    source, target = "x" * number(1, 12), "y" * number(1, 12)
    tokens = {"source": random_spans(len(source), False), "target": random_spans(len(target), False)}
    units = {"source": random_spans(len(source), True), "target": random_spans(len(target), True)}
    weights = torch.rand(2, len(tokens["target"]), len(tokens["source"]), generator=generator)
    merged = Alignment(
        source=source,
        target=target,
        source_tokens=[source[a:b] for a, b in tokens["source"]],
        target_tokens=[target[a:b] for a, b in tokens["target"]],
        weights=weights,
        source_offsets=tokens["source"],
        target_offsets=tokens["target"],
    ).merge(units["source"], units["target"])
    expected = torch.zeros(2, len(units["target"]), len(units["source"]))
    for j, target_unit in enumerate(units["target"]):
        rows = [row for row, span in enumerate(tokens["target"]) if set(range(*span)) & set(range(*target_unit))]
        for i, source_unit in enumerate(units["source"]):
            for row, (column, span) in itertools.product(rows, enumerate(tokens["source"])):
                inside = len(set(range(*span)) & set(range(*source_unit)))
                everywhere = sum(len(set(range(*span)) & set(range(*unit))) for unit in units["source"])
                if inside:
                    expected[:, j, i] += weights[:, row, column] * inside / everywhere / len(rows)
    torch.testing.assert_close(merged.weights, expected)


def test_what_merging_refuses():
    for unit in ("syllable", "words"):
        with pytest.raises(ValueError, match=f"unit='{unit}' is not possible; allowed: 'token', 'word', 'character'"):
            by_hand().merge(unit)
    for spans in ([(0, 3), (2, 4)], [(3, 3)], [(0, 18)], [(5, 6), (0, 2)]):
        with pytest.raises(ValueError, match="of the source is not possible: spans must not be empty"):
            by_hand().merge(spans, "word")
    with pytest.raises(ValueError, match="target tokens can not be merged"):
        by_hand(target_offsets=None).merge()
    with pytest.raises(ValueError, match=r"shape \(2, 4, 5\); for 3 target tokens and 5 source tokens"):
        by_hand(target_tokens=["a", "b", "c"])


# Links


def test_links_by_hand():
    alignment = by_hand(weights=by_hand().weights[:1])
    assert alignment.links() == [(0, 0), (0, 1), (3, 2), (4, 3)]  # the first of the equal weights of row 1
    assert alignment.merge().links() == [(0, 0), (2, 1)]
    assert alignment.links("threshold", 0.25) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 1),
        (3, 1),
        (3, 2),
        (3, 3),
        (4, 3),
    ]
    assert to_pharaoh(alignment.links()) == "0-0 0-1 3-2 4-3"
    both = by_hand()  # the mean over the heads
    assert both.links("threshold", 0.35) == [(0, 0), (3, 2), (4, 3)]
    assert by_hand(weights=torch.zeros(1, 4, 5)).links() == []  # monotonic attention behind the end
    with pytest.raises(ValueError, match="'best' is not possible; allowed: 'argmax', 'threshold'"):
        both.links("best")
    with pytest.raises(ValueError, match="no meaning with method='argmax'"):
        both.links(threshold=0.2)
    for threshold in (None, 0.0, 1.5):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            both.links("threshold", threshold)


def test_shift_by_hand():
    read = by_hand().shift(1)
    assert read.target_tokens == ["▁ver", "steh", "▁!"] and read.target_offsets == [(0, 3), (3, 7), (8, 9)]
    assert torch.equal(read.weights, by_hand().weights[:, 1:])
    assert by_hand(target_offsets=None).shift(1).target_offsets is None
    assert torch.equal(by_hand().shift(0).weights, by_hand().weights)
    with pytest.raises(ValueError, match="offset=-1 is not possible; allowed: 0"):
        by_hand().shift(-1)


def test_pharaoh_format():
    assert to_pharaoh([(10, 2), (1, 2), (0, 0), (1, 2)]) == "0-0 1-2 10-2" and to_pharaoh([]) == ""
    assert parse_pharaoh(" 10-2  0-0\t1-2 0-0\n") == [(0, 0), (1, 2), (10, 2)] and parse_pharaoh("") == []
    for wrong in ("0-1 2", "0?1", "a-b", "-1-2", "1-2,3-4"):
        with pytest.raises(ValueError, match="no link of the form SOURCE-TARGET"):
            parse_pharaoh(wrong)


def grow_diag_final_and(forward, backward, sources, targets):
    """Koehn 2005, line by line over two matrices, target words outside."""
    first = [[(i, j) in forward for i in range(sources)] for j in range(targets)]
    second = [[(i, j) in backward for i in range(sources)] for j in range(targets)]
    points = [[first[j][i] and second[j][i] for i in range(sources)] for j in range(targets)]
    added = True
    while added:
        added = False
        for j in range(targets):
            for i in range(sources):
                if not points[j][i]:
                    continue
                for dj, di in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                    y, x = j + dj, i + di
                    if not (0 <= y < targets and 0 <= x < sources) or points[y][x]:
                        continue
                    free = not any(points[y]) or not any(row[x] for row in points)
                    if free and (first[y][x] or second[y][x]):
                        points[y][x] = added = True
    for matrix in (first, second):
        for j in range(targets):
            for i in range(sources):
                if matrix[j][i] and not any(points[j]) and not any(row[i] for row in points):
                    points[j][i] = True
    return [(i, j) for i in range(sources) for j in range(targets) if points[j][i]]


def test_symmetrizing_as_defined():
    generator = torch.Generator().manual_seed(0)
    results = set()
    for _ in range(300):
        sources, targets = torch.randint(1, 8, (2,), generator=generator).tolist()
        density = float(torch.rand((), generator=generator))
        forward, backward = (
            {tuple(link) for link in (torch.rand(sources, targets, generator=generator) < density).nonzero().tolist()}
            for _ in range(2)
        )
        found = symmetrize(forward, backward)
        assert found == grow_diag_final_and(forward, backward, sources, targets)
        assert symmetrize(forward, backward, "intersection") == sorted(forward & backward)
        assert symmetrize(forward, backward, "union") == sorted(forward | backward)
        results.add((found == sorted(forward & backward), found == sorted(forward | backward)))
    assert len(results) == 4  # neither the one nor the other, and so on


def test_symmetrizing_by_hand():
    forward = [(0, 0), (1, 1), (2, 1), (4, 4), (0, 6)]
    backward = [(0, 0), (1, 1), (1, 2), (3, 5)]
    # Both have 0-0 and 1-1. Grown: 2-1 and 1-2 touch 1-1, and source 2 and target 2 have no link yet. Not grown: 4-4,
    # 0-6 and 3-5 touch nothing. Final: 4-4 and 3-5, whose words have none; not 0-6, as source 0 has one.
    expected = [(0, 0), (1, 1), (1, 2), (2, 1), (3, 5), (4, 4)]
    assert symmetrize(forward, backward) == expected
    assert symmetrize(parse_pharaoh("0-0 1-1"), [(0, 0)], "union") == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="'grow-diag' is not possible; allowed: 'intersection', 'union', 'grow-"):
        symmetrize(forward, backward, "grow-diag")
