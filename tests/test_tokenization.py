import copy
import json
import os
import pickle
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, DataCollatorForSeq2Seq

from hf_attention_seq2seq import AttentionSeq2SeqTokenizer

ENGLISH = ["the cat sat.", "the dog ran.", "a cat ran, a dog sat!"]
GERMAN = ["die Katze saß.", "der Hund lief.", "eine Katze lief, ein Hund saß!"]
SCRIPTS = {
    "spaces": "  two  words   here ",
    "lines": "\ta line\n and another",
    "punctuation": "didn't it, (really) — “yes”?",
    "devanagari": "नमस्ते दुनिया क्षत्रिय।",
    "hebrew_points": "שָׁלוֹם עֲלֵיכֶם",
    "arabic_marks": "مُعَلِّم الكِتَاب",
    "jamo": unicodedata.normalize("NFD", "한국어 번역"),
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪👍🏽",
    "ipa": "t͡ʃʰɪ̃ˈkaɪ̯ n̩ː",
    "chinese": "机器翻译很有趣。",
    "thai": "การแปลภาษา น้ำ",
    "japanese": "注意機構が 好きです。",
}
MODELS = ("bpe", "unigram", "word", "char")


@pytest.mark.parametrize("model", ["bpe", "unigram", "word", "char"])
def test_special_tokens_in_the_training_text_keep_their_ids(model):
    tags = ["<de>", "<fr>"]
    texts = ["<de> abc cab </s> <unk>", "<fr> abba <pad> bac", "cc ab ba <s> b"] * 5
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(texts, texts, model=model, special_tokens=tags)
    for side in (tokenizer, tokenizer.target_tokenizer):
        expected = ["<pad>", "<s>", "</s>", "<unk>", "<de>", "<fr>"]
        assert side.convert_tokens_to_ids(expected) == list(range(6))
        assert sorted(side.get_vocab().values()) == list(range(len(side.get_vocab())))
    assert max(tokenizer(texts[0])["input_ids"]) < len(tokenizer)


def train(model="bpe", **options):
    """Two vocabularies of different sizes."""
    return AttentionSeq2SeqTokenizer.train_from_iterator(ENGLISH, GERMAN, model=model, vocab_size=60, **options)


@pytest.fixture(scope="module")
def separate():
    return train()


@pytest.fixture(scope="module")
def shared():
    return AttentionSeq2SeqTokenizer.train_from_iterator(ENGLISH + GERMAN, vocab_size=100)


def round_trip(tokenizer, text):
    return tokenizer.decode(tokenizer(text_target=text)["input_ids"], skip_special_tokens=True)


# --- units


@pytest.mark.parametrize("model", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_text_of_seen_characters_survives(model, script):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(SCRIPTS.values(), SCRIPTS.values(), model=model)
    assert round_trip(tokenizer, SCRIPTS[script]) == SCRIPTS[script]
    assert tokenizer.unk_token_id not in tokenizer(SCRIPTS[script])["input_ids"]
    # Characters in another order than in training, too.
    assert round_trip(tokenizer, SCRIPTS[script][::-1]) == SCRIPTS[script][::-1]


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_survive_but_white_space_becomes_one_space(script):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(SCRIPTS.values(), model="word")
    assert round_trip(tokenizer, SCRIPTS[script]) == " ".join(SCRIPTS[script].split())


@pytest.mark.parametrize(
    ("model", "text", "tokens"),
    [
        ("bpe", "the  cat, sat", ["▁the", "▁", "▁cat", ",", "▁sat", "</s>"]),
        ("bpe", " the", ["▁", "▁the", "</s>"]),
        ("bpe", "", ["</s>"]),
        ("word", "the  cat. sat.", ["the", "<unk>", "sat.", "</s>"]),
        ("char", "a cat", ["a", " ", "c", "a", "t", "</s>"]),
        ("char", "\u2603\u2603a", ["<unk>", "<unk>", "a", "</s>"]),
        ("bpe", "a\u2603\u2603a", ["▁a", "<unk>", "a", "</s>"]),
    ],
)
def test_units(model, text, tokens):
    tokenizer = train(model)
    assert tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) == tokens


@pytest.mark.parametrize(
    ("script", "units"),
    [
        ("hebrew_points", ["שָׁ", "ל", "וֹ", "ם", " ", "עֲ", "לֵ", "י", "כֶ", "ם"]),
        ("jamo", [unicodedata.normalize("NFD", syllable) for syllable in "한국어 번역"]),
        ("emoji", ["👩‍👩‍👧‍👦", " ", "🏳️‍🌈", " ", "🇩🇪", "👍🏽"]),
        ("ipa", ["t͡", "ʃ", "ʰ", "ɪ̃", "ˈ", "k", "a", "ɪ̯", " ", "n̩", "ː"]),
        ("chinese", ["机", "器", "翻", "译", "很", "有", "趣", "。"]),
        ("thai", ["ก", "า", "ร", "แ", "ป", "ล", "ภ", "า", "ษ", "า", " ", "น้ำ"]),
    ],
)
def test_characters_keep_their_marks(script, units):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(SCRIPTS.values(), model="char")
    assert tokenizer.tokenize(SCRIPTS[script]) == units


def test_unseen_cluster_falls_back_to_code_points():
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["a\u0301 e"], model="char")
    assert tokenizer.tokenize("a\u0301e\u0301") == ["a\u0301", "e", "\u0301"]


def test_a_mark_in_the_text_is_decoded_as_a_space():
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["▁a ▁b"])
    assert round_trip(tokenizer, "▁a▁b") == " a b"


ALPHABETS = ("ab ,", "नस्ते ", "שָׁ ", "👩\u200d👧🏽 ", "译a \n")


@pytest.mark.parametrize("model", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_any_text_over_the_alphabet_survives(model, alphabet):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator([alphabet, alphabet * 2], model=model)

    @settings(max_examples=50, deadline=None, database=None)
    @given(st.text(alphabet=alphabet))
    def check(text):
        assert round_trip(tokenizer, text) == text

    check()


@pytest.mark.parametrize("model", MODELS)
def test_phones_as_words(model):
    phones = ["HH AH0 L OW1", "W ER1 L D"]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        ["hello", "world"], phones, model="char", target_model=model, lowercase=True, target_lowercase=False
    )
    assert [round_trip(tokenizer, text) for text in phones] == phones
    assert tokenizer.tokenize("HELLO") == list("hello")


# --- training options


@pytest.mark.parametrize("model", MODELS)
def test_special_tokens_come_first_and_every_text_ends_with_eos(model):
    tokenizer = train(model, special_tokens=["<2de>"])
    for side in (tokenizer, tokenizer.target_tokenizer):
        assert side.convert_ids_to_tokens(range(5)) == ["<pad>", "<s>", "</s>", "<unk>", "<2de>"]
        assert (side.pad_token_id, side.bos_token_id, side.eos_token_id, side.unk_token_id) == (0, 1, 2, 3)
        assert side("a cat")["input_ids"][-1] == 2
        assert side("<2de> a cat")["input_ids"][0] == 4
    assert 2 not in tokenizer("a cat", add_special_tokens=False)["input_ids"]
    assert tokenizer("a", "cat")["input_ids"].count(2) == 1


def test_special_tokens_may_have_other_names():
    tokenizer = train(pad_token="[PAD]", eos_token="[END]")
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["[PAD]", "<s>", "[END]", "<unk>"]
    assert tokenizer("cat")["input_ids"][-1] == 2 == tokenizer.eos_token_id


def test_a_tag_keeps_the_space_after_it():
    tokenizer = train(special_tokens=["<2de>"])
    assert tokenizer.tokenize("<2de> the cat") == ["<2de>", "▁the", "▁cat"]


@pytest.mark.parametrize("model", MODELS)
def test_training_is_reproducible(model):
    first, second = train(model), train(model)
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert first.target_tokenizer.backend_tokenizer.to_str() == second.target_tokenizer.backend_tokenizer.to_str()


def test_iterators_are_read_once_and_sides_may_differ_in_length():
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(iter(ENGLISH), (text for text in GERMAN[:1]), "word")
    assert (len(tokenizer), tokenizer.target_vocab_size) == (12, 7)


def test_normalization_and_case():
    composed, decomposed = "é É", "e\u0301 E\u0301"
    for form, expected in {"NFC": "é É", "NFD": decomposed, "NFKC": "é É", "NFKD": decomposed, None: composed}.items():
        tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator([composed, decomposed], normalization=form)
        assert round_trip(tokenizer, composed) == expected
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator([composed], lowercase=True, normalization="NFC")
    assert round_trip(tokenizer, "É" + decomposed) == "éé é"


def test_frequency_and_size_limits():
    texts = ["a a a b b c"]
    frequent = AttentionSeq2SeqTokenizer.train_from_iterator(texts, model="word", min_frequency=2)
    assert frequent.get_vocab().keys() - {"<pad>", "<s>", "</s>", "<unk>"} == {"a", "b"}
    small = AttentionSeq2SeqTokenizer.train_from_iterator(texts, model="word", vocab_size=5)
    assert small.convert_ids_to_tokens(4) == "a"
    limited = AttentionSeq2SeqTokenizer.train_from_iterator(texts, model="char", limit_alphabet=2)
    assert limited.tokenize("a bc") == ["a", " ", "<unk>", "<unk>"]
    merged = AttentionSeq2SeqTokenizer.train_from_iterator(
        ["abab"], vocab_size=8, target=["abab"], target_vocab_size=7
    )
    assert (len(merged), merged.target_vocab_size) == (8, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "wordpiece"},
            "model='wordpiece' is unknown; allowed are 'bpe', 'unigram', 'word', 'text_word', 'char'",
        ),
        ({"target_model": "x"}, "model='x' is unknown"),
        ({"normalization": "nfc"}, "normalization='nfc' is unknown; allowed are None, 'NFC', 'NFD', 'NFKC', 'NFKD'"),
        ({"vocab_size": 4}, "vocab_size=4 is not allowed; it must be an integer of at least 5"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"target_vocab_size": 5}, "vocab_size=5 is too small for the target side.*Needed: 23"),
        ({"vocab_size": 10, "model": "unigram"}, "vocab_size=10 is too small for the source side"),
        ({"vocab_size": 10, "model": "char"}, "vocab_size=10 is too small for the source side.*Needed: 19"),
        ({"min_frequency": 0}, "min_frequency=0"),
        ({"min_frequency": 9, "model": "word"}, "min_frequency=9 leaves no unit on the source side"),
        ({"min_frequency": 2, "model": "unigram"}, "min_frequency=2 has no effect with unigram; allowed is 1"),
        ({"limit_alphabet": 0}, "limit_alphabet=0"),
        ({"limit_alphabet": 3, "model": "word"}, "limit_alphabet=3 has no effect"),
        ({"lowercase": "yes"}, "lowercase='yes' is unknown; allowed are False, True"),
        ({"special_tokens": "<2de>"}, "special_tokens='<2de>' is not allowed"),
        ({"special_tokens": [3]}, r"special_tokens=\[3\] is not allowed"),
        ({"special_tokens": ["<s>"]}, "special tokens must differ"),
        ({"target": None, "target_model": "char"}, "target_model given without target"),
        ({"source": []}, r"source holds no text \(0 items\)"),
        ({"target": [" ", ""]}, r"target holds no text \(2 items\)"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        AttentionSeq2SeqTokenizer.train_from_iterator(**{"source": ENGLISH, "target": GERMAN, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "the cat"}, "source must be an iterable of strings, got 'the cat' of type str"),
        ({"source": 3}, "source must be an iterable of strings, got 3 of type int"),
        ({"source": ["a", 3]}, "source item 1 is 3 of type int"),
        ({"target": [{"de": "Katze"}]}, "target item 0 is {'de': 'Katze'} of type dict"),
        ({"min_freqency": 2}, r"unknown options \['min_freqency'\]; allowed"),
    ],
)
def test_wrong_types(options, message):
    with pytest.raises(TypeError, match=message):
        AttentionSeq2SeqTokenizer.train_from_iterator(**{"source": ENGLISH, "target": GERMAN, **options})


def test_an_error_of_the_iterator_comes_through():
    def texts():
        yield "a"
        raise RuntimeError("lost the file")

    with pytest.raises(RuntimeError, match="lost the file"):
        AttentionSeq2SeqTokenizer.train_from_iterator(texts())


def test_no_vocabulary():
    with pytest.raises(ValueError, match="no vocabulary: make one with train_from_iterator"):
        AttentionSeq2SeqTokenizer()


# --- two sides


def test_which_side_is_used(separate):
    source, target = separate.source_tokenizer, separate.target_tokenizer
    assert separate.separate_vocabs and not source.separate_vocabs and not target.separate_vocabs
    assert len(separate) == separate.vocab_size == len(source) == len(separate.get_vocab())
    assert separate.target_vocab_size == len(target) == len(separate.get_target_vocab()) != len(separate)
    assert separate.get_vocab() == source.get_vocab() != separate.get_target_vocab() == target.get_vocab()

    both = separate(ENGLISH[0], text_target=GERMAN[0])
    assert set(both) == {"input_ids", "attention_mask", "labels"}
    assert both["input_ids"] == separate(ENGLISH[0])["input_ids"] == source(ENGLISH[0])["input_ids"]
    only_target = separate(text_target=GERMAN[0])
    assert set(only_target) == {"input_ids", "attention_mask"}
    assert both["labels"] == only_target["input_ids"] == target(GERMAN[0])["input_ids"]

    assert separate.convert_ids_to_tokens(both["input_ids"]) == ["▁the", "▁cat", "▁sat", ".", "</s>"]
    tokens = ["▁die", "▁Katze", "▁saß", ".", "</s>"]
    assert separate.convert_ids_to_target_tokens(both["labels"]) == tokens
    assert separate.convert_ids_to_target_tokens(both["labels"], skip_special_tokens=True) == tokens[:-1]
    assert target.convert_tokens_to_ids(tokens) == both["labels"]

    assert separate.decode(both["labels"]) == "die Katze saß.</s>"
    assert separate.batch_decode(torch.tensor([both["labels"]]), skip_special_tokens=True) == [GERMAN[0]]
    assert separate.decode(both["input_ids"], use_source_tokenizer=True, skip_special_tokens=True) == ENGLISH[0]
    assert source.decode(both["input_ids"], skip_special_tokens=True) == ENGLISH[0]


def test_one_vocabulary_serves_both_sides(shared):
    assert not shared.separate_vocabs
    assert shared.source_tokenizer is shared.target_tokenizer is shared
    assert shared.target_vocab_size == len(shared)
    both = shared(GERMAN[0], text_target=GERMAN[0])
    assert both["labels"] == both["input_ids"] == shared(text_target=GERMAN[0])["input_ids"]
    assert shared.decode(both["labels"], use_source_tokenizer=True) == shared.decode(both["labels"])


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_arguments_reach_both_sides(kind, request):
    tokenizer = request.getfixturevalue(kind)
    batch = tokenizer(ENGLISH, text_target=GERMAN, padding=True, truncation=True, max_length=4, return_tensors="pt")
    assert batch["input_ids"].shape == batch["labels"].shape == (3, 4)
    assert batch["input_ids"][:, -1].tolist() == batch["labels"][:, -1].tolist() == [2, 2, 2]
    padded = tokenizer(["the cat sat.", "the"], text_target=["die", "die Katze saß."], padding=True)
    assert padded["attention_mask"][1] == [1, 1, 0, 0, 0]
    assert padded["labels"][0][2:] == [0, 0, 0]
    assert len(tokenizer(text_target=GERMAN[0])["input_ids"]) == 5  # nothing is left over from the calls before


def test_settings_reach_the_target_side(separate):
    tokenizer = copy.deepcopy(separate)
    tokenizer.model_max_length, tokenizer.padding_side = 3, "left"
    assert len(tokenizer(text_target=GERMAN[0], truncation=True)["input_ids"]) == 3
    assert tokenizer(text_target=["die", GERMAN[0]], padding=True)["input_ids"][0][:3] == [0, 0, 0]


def test_offsets(separate):
    encoding = separate("the cat", return_offsets_mapping=True)
    assert encoding["offset_mapping"] == [(0, 3), (3, 7), (0, 0)]
    target = separate(text_target="die Katze", return_offsets_mapping=True)
    assert target["offset_mapping"] == [(0, 3), (3, 9), (0, 0)]


def test_words_given_as_lists(separate):
    batch = separate([["the", "cat"]], text_target=[["die", "Katze"]], is_split_into_words=True)
    assert separate.convert_ids_to_tokens(batch["input_ids"][0]) == ["▁the", "▁cat", "</s>"]
    assert separate.convert_ids_to_target_tokens(batch["labels"][0]) == ["▁die", "▁Katze", "</s>"]


def test_an_error_leaves_the_source_side(separate):
    expected = separate(ENGLISH)["input_ids"]
    with pytest.raises((ValueError, TypeError)):
        separate(text_target=[3])
    assert separate(ENGLISH)["input_ids"] == expected
    with pytest.raises(KeyError), separate.as_target_tokenizer():
        raise KeyError
    assert separate(ENGLISH)["input_ids"] == expected


def test_as_target_tokenizer(separate):
    with separate.as_target_tokenizer():
        for _ in range(2):
            assert separate(GERMAN)["input_ids"] == separate.target_tokenizer(GERMAN)["input_ids"]
        assert separate.encode(GERMAN[0]) == separate.target_tokenizer.encode(GERMAN[0])
    assert separate(ENGLISH)["input_ids"] == separate.source_tokenizer(ENGLISH)["input_ids"]


def test_threads_do_not_mix_sides(separate):
    expected = {"text": separate(ENGLISH)["input_ids"], "text_target": separate(text_target=GERMAN)["input_ids"]}

    def encode(number):
        name, texts = ("text", ENGLISH) if number % 2 else ("text_target", GERMAN)
        return separate(**{name: texts})["input_ids"] == expected[name]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(encode, range(400)))


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_ignored_labels_cannot_be_decoded(kind, request):
    tokenizer = request.getfixturevalue(kind)
    with pytest.raises(ValueError, match=r"\[5, -100\]; replace the -100 of ignored labels by pad_token_id=0"):
        tokenizer.decode([5, -100])


# --- added tokens


def test_added_tokens_go_to_both_sides(separate):
    tokenizer = copy.deepcopy(separate)
    sizes = len(tokenizer), tokenizer.target_vocab_size
    assert tokenizer.add_tokens(["xyz"]) == 1
    assert tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]}) == 1
    assert (len(tokenizer), tokenizer.target_vocab_size) == (sizes[0] + 2, sizes[1] + 2)
    batch = tokenizer("a xyz<new>", text_target="die xyz<new>")
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"])[-3:] == ["xyz", "<new>", "</s>"]
    assert tokenizer.convert_ids_to_target_tokens(batch["labels"])[-3:] == ["xyz", "<new>", "</s>"]
    assert tokenizer.decode(batch["labels"], skip_special_tokens=True) == "die xyz"

    tokenizer.target_tokenizer.add_tokens(["only"])
    assert (len(tokenizer), tokenizer.target_vocab_size) == (sizes[0] + 2, sizes[1] + 3)


def test_named_special_tokens_need_one_id(separate):
    tokenizer = copy.deepcopy(separate)
    with pytest.raises(ValueError, match=r"pad_token='\[P\]' has id \d+ in the source and id \d+ in the target"):
        tokenizer.add_special_tokens({"pad_token": "[P]"})
    assert (tokenizer.pad_token, len(tokenizer)) == ("<pad>", len(separate))
    assert tokenizer.add_special_tokens({"mask_token": "<unk>"}) == 0
    assert tokenizer.mask_token_id == 3
    with pytest.raises(ValueError, match="mask_token='<mask>' has id"):
        AttentionSeq2SeqTokenizer(
            tokenizer_object=separate.backend_tokenizer,
            target_tokenizer_object=separate.target_tokenizer.backend_tokenizer,
            mask_token="<mask>",
        )


def test_train_new_from_iterator(separate, shared):
    new = shared.train_new_from_iterator([["xyz xyz"]], vocab_size=20)
    assert new.tokenize("xyz") == ["▁xyz"] and new("xyz")["input_ids"][-1] == 2
    with pytest.raises(ValueError, match="this tokenizer has two: use train_from_iterator"):
        separate.train_new_from_iterator([["xyz"]], vocab_size=20)


# --- saving, copying, and use by other libraries


def behaviour(tokenizer):
    batch = tokenizer(ENGLISH + GERMAN, text_target=GERMAN + ENGLISH, return_offsets_mapping=True)
    texts = tokenizer.batch_decode(batch["labels"])
    return (
        dict(batch), texts, tokenizer.get_vocab(), tokenizer.get_target_vocab(), tokenizer.all_special_tokens,
        tokenizer.model_max_length, tokenizer.padding_side, tokenizer.separate_vocabs, tokenizer.model_input_names,
    )  # fmt: skip


@pytest.mark.parametrize("loader", [AttentionSeq2SeqTokenizer, AutoTokenizer])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("target", [GERMAN, None])
def test_saved_tokenizer_is_the_same(tmp_path, loader, model, target):
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        ENGLISH, target, model, special_tokens=["<2de>"], model_max_length=77, padding_side="left", lowercase=True
    )
    tokenizer(ENGLISH, text_target=GERMAN, truncation=True, max_length=3, padding=True)
    tokenizer.add_tokens(["xyz"])
    files = tokenizer.save_pretrained(tmp_path)
    assert all((tmp_path / file).exists() for file in files)
    assert (tmp_path / "target_tokenizer.json").exists() == (target is not None)
    loaded = loader.from_pretrained(tmp_path)
    assert type(loaded) is AttentionSeq2SeqTokenizer
    assert behaviour(loaded) == behaviour(tokenizer)
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    for file in ("tokenizer.json", "target_tokenizer.json")[: 1 + (target is not None)]:
        states = [json.loads((folder / file).read_text(encoding="utf-8")) for folder in (tmp_path, again)]
        assert states[0]["model"] == states[1]["model"] and states[0]["added_tokens"] == states[1]["added_tokens"]


def test_target_file_is_neither_forgotten_nor_mixed_up(tmp_path, separate, shared):
    assert "target_tokenizer.json" in AttentionSeq2SeqTokenizer.vocab_files_names.values()
    separate.save_pretrained(tmp_path)
    shared.save_pretrained(tmp_path)  # the target file of the tokenizer before is still there
    assert behaviour(AttentionSeq2SeqTokenizer.from_pretrained(tmp_path)) == behaviour(shared)
    separate.save_pretrained(tmp_path)
    (tmp_path / "target_tokenizer.json").unlink()
    with pytest.raises(ValueError, match="target_tokenizer.json must lie beside tokenizer.json"):
        AttentionSeq2SeqTokenizer.from_pretrained(tmp_path)


def test_one_side_can_be_saved_alone(tmp_path, separate):
    separate.target_tokenizer.save_pretrained(tmp_path)
    loaded = AttentionSeq2SeqTokenizer.from_pretrained(tmp_path)
    assert not loaded.separate_vocabs
    assert loaded.get_vocab() == separate.get_target_vocab()


def test_special_tokens_are_read_in_the_form_of_either_version(separate):
    backends = separate.backend_tokenizer, separate.target_tokenizer.backend_tokenizer
    for name in ("extra_special_tokens", "additional_special_tokens"):
        tokenizer = AttentionSeq2SeqTokenizer(
            tokenizer_object=backends[0], target_tokenizer_object=backends[1], **{name: ["<new>"]}
        )
        assert tokenizer.all_special_tokens[-1] == "<new>"
        assert tokenizer.decode([tokenizer.target_vocab_size - 1]) == "<new>"


def test_remote_code(tmp_path, separate):
    separate.save_pretrained(tmp_path / "tokenizer")
    script = """if True:
        import sys
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained("tokenizer", trust_remote_code=True)
        assert type(tokenizer).__module__.startswith("transformers_modules.")
        assert "hf_attention_seq2seq" not in sys.modules
        tokenizer.save_pretrained("again")
    """
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    for file in ("tokenization_attention_seq2seq.py", "vocabulary.py"):
        assert (tmp_path / "again" / file).exists()
    assert behaviour(AttentionSeq2SeqTokenizer.from_pretrained(tmp_path / "again")) == behaviour(separate)


@pytest.mark.parametrize("kind", ["separate", "shared"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies(kind, copied, request):
    tokenizer = request.getfixturevalue(kind)
    assert behaviour(copied(tokenizer)) == behaviour(tokenizer)


def test_a_deep_copy_has_its_own_vocabularies(separate):
    copied = copy.deepcopy(separate)
    copied.add_tokens(["xyz"])
    assert len(copied) == len(separate) + 1 and copied.target_vocab_size == separate.target_vocab_size + 1


def test_datasets(separate):
    tokenizer = copy.deepcopy(separate)
    before = Hasher.hash(tokenizer)
    data = Dataset.from_dict({"en": ENGLISH, "de": GERMAN})

    def encode(row):
        return tokenizer(row["en"], text_target=row["de"], truncation=True, max_length=4, padding="max_length")

    expected = tokenizer(ENGLISH, text_target=GERMAN, truncation=True, max_length=4, padding="max_length")
    assert data.map(encode, num_proc=2)["labels"][:] == expected["labels"]
    assert Hasher.hash(tokenizer) == before  # using it does not invalidate the cache


def test_collator(separate):
    features = [dict(separate(source, text_target=target)) for source, target in zip(ENGLISH, GERMAN, strict=True)]
    batch = DataCollatorForSeq2Seq(separate)(features)
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (3, 9)
    assert batch["labels"][0, 5:].tolist() == [-100] * (batch["labels"].shape[1] - 5)
    padded = separate.pad({"input_ids": [[5, 2], [5, 6, 2]]}, return_tensors="pt")
    assert padded["input_ids"].tolist() == [[5, 2, 0], [5, 6, 2]]
    labels = batch["labels"].masked_fill(batch["labels"] == -100, separate.pad_token_id)
    assert separate.batch_decode(labels, skip_special_tokens=True) == GERMAN


def test_what_models_are_given(separate):
    assert separate.model_input_names == ["input_ids", "attention_mask"]
    assert separate.is_fast and separate.padding_side == "right" and not separate.clean_up_tokenization_spaces
    assert "token_type_ids" not in separate("the cat", "sat")
