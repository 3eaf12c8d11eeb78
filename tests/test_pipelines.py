"""The pipelines against version 4's own where transformers has them, and against `generate` by hand everywhere."""

import pytest
import transformers
from tokenizers import normalizers, processors
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from hf_attention_seq2seq import pipelines

from .pipeline_helpers import (
    CLASSES,
    MODELS,
    NATIVE,
    SHORT,
    TEXTS,
    TOKENIZER,
    MultilingualTokenizer,
    TextDataset,
    by_hand,
    make_model,
    make_pipeline,
    make_tokenizer,
    plain,
)

# --- The same results as version 4 -----------------------------------------------------------------------------------

STOP = TOKENIZER.convert_tokens_to_ids("▁")
CASES = {  # options of the call, what `by_hand` is told
    "defaults": ({}, {}),
    "short": (SHORT, SHORT),
    "greedy": ({"num_beams": 1, **SHORT}, {"num_beams": 1, **SHORT}),
    "batch": ({"batch_size": 2, **SHORT}, SHORT),
    "several": ({"num_return_sequences": 2, **SHORT}, {"num_return_sequences": 2, **SHORT}),
    "several_batch": ({"num_return_sequences": 3, "batch_size": 3, **SHORT}, {"num_return_sequences": 3, **SHORT}),
    "ids": ({"return_tensors": True, **SHORT}, {"key": "translation_token_ids", **SHORT}),
    "text": ({"return_text": True, "clean_up_tokenization_spaces": False, **SHORT}, SHORT),
    "stop": ({"stop_sequence": " ", **SHORT}, {"stop_id": STOP, **SHORT}),
    "truncation": ({"truncation": True, **SHORT}, SHORT),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_version_4(name, case):
    model = make_model(name)
    options, told = CASES[case]
    expected = by_hand(model, TEXTS[:1] if case == "defaults" else TEXTS, **told)
    pipe = make_pipeline(model)
    inputs = {
        "list": (TEXTS, [row[0] for row in expected] if all(len(row) == 1 for row in expected) else expected),
        "text": (TEXTS[0], expected[0]),
        "generator": ((text for text in TEXTS), expected),
        "dataset": (TextDataset(TEXTS), expected),
    }
    native = NATIVE["translation"] and make_pipeline(model, pipeline_class=NATIVE["translation"])
    for kind, (texts, result) in inputs.items():
        if kind != "text" and case == "defaults":
            continue  # 256 tokens each
        assert plain(pipe(texts, **options)) == plain(result), kind
        if native:
            texts = (text for text in TEXTS) if kind == "generator" else texts
            assert plain(native(texts, **options)) == plain(result), kind


@pytest.mark.parametrize(
    ("task", "key"),
    [("text2text-generation", "generated"), ("translation", "translation"), ("summarization", "summary")],
)
def test_each_task_has_its_keys(task, key):
    model = make_model("t5")
    for option, suffix in (({}, "text"), ({"return_tensors": True}, "token_ids")):
        pipe = make_pipeline(model, task, **option)  # options of the constructor
        expected = by_hand(model, TEXTS, f"{key}_{suffix}", **SHORT)
        assert plain(pipe(TEXTS, **SHORT)) == plain([row[0] for row in expected])
        if NATIVE[task]:
            native = make_pipeline(model, task, pipeline_class=NATIVE[task], **option)
            assert plain(native(TEXTS, **SHORT)) == plain([row[0] for row in expected])


def test_tuples_and_columns_are_lists():
    pipe = make_pipeline("bart", **SHORT)
    assert pipe(tuple(TEXTS)) == pipe(TEXTS)
    assert pipe([]) == pipe(()) == list(pipe(TextDataset([]))) == list(pipe(text for text in [])) == []


# --- Options of generate ---------------------------------------------------------------------------------------------


@pytest.fixture
def library_log(caplog):
    transformers.utils.logging.enable_propagation()
    yield caplog
    transformers.utils.logging.disable_propagation()


def lengths(pipe, **options):
    records = pipe(TEXTS[:1], return_tensors=True, **options)
    return [len(record[f"{pipe.return_name}_token_ids"]) - 1 for record in records]


def test_length_options_replace_each_other(library_log):
    """An end token that never comes: each result shows which limit was used."""
    model = make_model("t5", task_specific_params={"summarization": {"max_length": 5}})
    model.generation_config.eos_token_id = len(TOKENIZER) - 1
    pipe, limited = make_pipeline(model), make_pipeline(model, max_new_tokens=3)
    assert lengths(pipe, max_length=8) == [7]
    assert lengths(pipe, max_new_tokens=9) == [9]
    assert lengths(limited) == [3]
    assert lengths(limited, max_length=8) == [7]
    assert lengths(limited, generation_config=GenerationConfig(max_new_tokens=2)) == [2]
    summary = make_pipeline(model, "summarization")
    assert lengths(summary) == [4]
    assert lengths(summary, max_new_tokens=9) == [9]
    assert lengths(make_pipeline(model, "summarization", max_new_tokens=9)) == [9]
    model.generation_config.max_new_tokens = 6
    assert lengths(pipe) == [6]
    assert lengths(pipe, max_length=3) == [2]
    assert "max_length" not in library_log.text


def test_what_decides_the_number_of_beams(monkeypatch):
    model = make_model("marian")
    used = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **options: used.append(options.get("num_beams")) or generate(**options)
    )
    make_pipeline(model)("a", **SHORT)
    make_pipeline(model, num_beams=2)("a", **SHORT)
    make_pipeline(model, num_beams=2)("a", num_beams=3, **SHORT)
    make_pipeline(model, num_beams=2)("a", generation_config=GenerationConfig(**SHORT))
    model.generation_config.num_beams = 5
    make_pipeline(model)("a", **SHORT)
    assert used == [4, 2, 3, None, None]


@pytest.mark.parametrize("name", MODELS)
def test_misspelt_options_raise(name):
    with pytest.raises(ValueError, match="num_beamz"):
        make_pipeline(name)("a dog", num_beamz=4)
    with pytest.raises(ValueError, match="num_beamz"):
        make_pipeline(name, num_beamz=4)("a dog")


@pytest.mark.parametrize("name", MODELS)
def test_short_inputs_give_no_warnings(name, library_log, recwarn):
    model = make_model(name)
    for task in CLASSES:
        pipe = make_pipeline(model, task)
        library_log.clear()
        for options in ({"max_length": 8}, SHORT, {"batch_size": 2, **SHORT}):
            pipe(TEXTS[:2], **options)
        assert library_log.text == ""
    assert [str(warning.message) for warning in recwarn if "max_" in str(warning.message)] == []


def test_task_parameters_of_the_configuration():
    parameters = {
        "translation_en_to_de": {"prefix": "en de ", "num_beams": 1, "max_length": 6},
        "summarization": {"prefix": "hello ", "min_length": 6},
    }
    model = make_model("t5", task_specific_params=parameters, prefix="dog ")
    english = by_hand(model, ["en de a dog"], num_beams=1, max_new_tokens=5)[0]
    with pytest.warns(UserWarning, match="translation_en_to_de"):
        assert make_pipeline(model)("a dog") == english
    for _ in range(2):  # the first pipeline must not have changed the configuration
        assert make_pipeline(model, "translation_en_to_de")("a dog") == english
    assert model.config.task_specific_params == parameters
    summary = by_hand(model, ["hello a dog"], "summary_text", min_length=6, max_new_tokens=9)[0]
    assert make_pipeline(model, "summarization")("a dog", max_new_tokens=9) == summary
    general = by_hand(model, ["dog a dog"], "generated_text", **SHORT)[0]
    assert make_pipeline(model, "text2text-generation")("a dog", **SHORT) == general
    if NATIVE["translation"]:
        native = make_pipeline(model, "text2text-generation", pipeline_class=NATIVE["text2text-generation"])
        assert native("a dog", **SHORT) == general


def test_stop_sequence_of_several_or_no_tokens():
    pipe = make_pipeline("bart")
    with pytest.warns(UserWarning, match="'a dog' has 2 tokens"):
        pipe("the cat", stop_sequence="a dog", **SHORT)
    with pytest.raises(ValueError, match="stop_sequence='' has no tokens"):
        pipe("the cat", stop_sequence="", **SHORT)


# --- Languages -------------------------------------------------------------------------------------------------------


def test_languages_come_from_the_task_or_the_options():
    model, tokenizer = make_model("t5"), make_tokenizer(MultilingualTokenizer)
    first = {}
    for task, options in {
        "translation_en_to_de": {},
        "translation_de_to_fr": {},
        "translation": {"src_lang": "en", "tgt_lang": "de"},
        "translation_fr_to_en": {"src_lang": "de", "tgt_lang": "fr"},
    }.items():
        by_call = make_pipeline(model, task, tokenizer)(TEXTS, **options, **SHORT)
        by_constructor = make_pipeline(model, task, tokenizer, **options)(TEXTS, **SHORT)
        assert by_call == by_constructor
        first[task] = by_call
        source, target = options.values() or task.split("_")[1::2]
        ids = tokenizer(f"{source} {TEXTS[0]}", return_tensors="pt")["input_ids"]
        forced = tokenizer.convert_tokens_to_ids(target)
        row = model.generate(input_ids=ids, num_beams=4, forced_bos_token_id=forced, pad_token_id=0, **SHORT)[0]
        assert by_call[0]["translation_text"] == tokenizer.decode(row, skip_special_tokens=True)
        mixed = make_pipeline(model, task, tokenizer)(["", *TEXTS], batch_size=4, **options, **SHORT)
        assert mixed == [{"translation_text": ""}, *by_call]
    assert first["translation_en_to_de"] == first["translation"] != first["translation_de_to_fr"]
    with pytest.raises(ValueError, match="both languages"):
        make_pipeline(model, "translation", tokenizer)("a dog")


# --- Empty, wrong and long inputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2, 8])
@pytest.mark.parametrize("kind", [list, TextDataset, iter])
def test_empty_texts_stay_empty(monkeypatch, kind, batch_size):
    model = make_model("marian")
    pipe = make_pipeline(model, **SHORT)
    expected = by_hand(model, TEXTS, num_return_sequences=2, **SHORT)
    nothing = [{"translation_text": ""}] * 2
    rows = []
    generate = model.generate
    monkeypatch.setattr(
        model, "generate", lambda **options: rows.append(len(options["input_ids"])) or generate(**options)
    )
    texts = ["", "", TEXTS[0], "", TEXTS[1], TEXTS[2], ""]
    inputs = (text for text in texts) if kind is iter else kind(texts)
    results = list(pipe(inputs, num_return_sequences=2, batch_size=batch_size))
    assert results == [nothing, nothing, expected[0], nothing, *expected[1:], nothing]
    assert sum(rows) == 3  # the model never saw an empty text


def test_empty_texts_alone():
    pipe = make_pipeline("bart")
    assert pipe("") == [{"translation_text": ""}]
    assert pipe(["", ""]) == [{"translation_text": ""}] * 2
    assert pipe("", num_return_sequences=3) == [{"translation_text": ""}] * 3
    assert plain(pipe("", return_tensors=True)) == [{"translation_token_ids": []}]
    record = pipe([TEXTS[0], ""], batch_size=2, return_alignments=True, **SHORT)[1]
    assert record["alignment"]["source_tokens"] == record["alignment"]["target_tokens"] == []
    assert record["alignment"]["weights"].shape == (1, 0, 0)


def test_a_text_without_tokens_is_empty():
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("x", "")
    pipe = make_pipeline("t5", tokenizer=tokenizer, **SHORT)
    result = pipe(["xx", "a dog", ""], batch_size=3)
    assert result == [{"translation_text": ""}, *pipe(["a dog"]), {"translation_text": ""}]


@pytest.mark.parametrize("wrong", [None, 3, b"a", {"text": "a"}, {"role": "user", "content": "a"}])
def test_what_is_no_text_raises(wrong):
    pipe = make_pipeline("bart", **SHORT)
    name = type(wrong).__name__
    with pytest.raises(TypeError, match=f"type {name}; allowed"):
        pipe(wrong)
    with pytest.raises(TypeError, match=f"position 1 of the list is of type {name}"):
        pipe(["a", wrong])
    with pytest.raises(TypeError, match=f"type {name}; allowed"):
        list(pipe(text for text in ("a", wrong)))
    with pytest.raises(TypeError, match="position 0 of the list is of type list"):
        pipe([["a"]])


def test_too_long_inputs():
    """`LAYERS` allows 300 positions, T5 any number; the tokenizer's own limit holds for both."""
    text = " ".join(["cat"] * 400)
    for name, tokenizer, limit in [
        ("marian", TOKENIZER, 300),
        ("marian", make_tokenizer(model_max_length=7), 7),
        ("t5", make_tokenizer(model_max_length=9), 9),
    ]:
        pipe = make_pipeline(name, tokenizer=tokenizer, **SHORT)
        with pytest.raises(ValueError, match=rf"401 tokens, .* allow {limit}: .*truncation=True"):
            pipe(["a dog", text])
        with pytest.raises(ValueError, match=rf" {limit + 1} tokens"):
            pipe(" ".join(["cat"] * limit))
        fitting = " ".join(["cat"] * (limit - 1))
        assert pipe(text, truncation=True) == pipe(fitting) == pipe(fitting, truncation=True)
    assert make_pipeline("t5", **SHORT)(text) == by_hand(make_model("t5"), [text], **SHORT)[0]


def test_only_encoder_decoders_are_accepted():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=120, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="encoder-decoder.*GPT2LMHeadModel"):
        pipelines.TranslationPipeline(model=model, tokenizer=TOKENIZER, device="cpu")
    with pytest.raises(ValueError, match="needs a tokenizer"):
        pipelines.TranslationPipeline(model=make_model("t5"), device="cpu")
