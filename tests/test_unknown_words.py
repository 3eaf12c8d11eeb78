import pytest
import torch

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration, TranslationPipeline
from hf_attention_seq2seq.alignment import Alignment
from hf_attention_seq2seq.tokenization_attention_seq2seq import AttentionSeq2SeqTokenizer
from hf_attention_seq2seq.unknown_words import learn_lexicon, repeated_and_untranslated, replace_unknown


def an_alignment(rows, target="<unk> rennt <unk>", source="Rex runs home"):
    words = [source.split(), target.split()]
    offsets = [
        [(text.index(word, place), text.index(word, place) + len(word)) for place, word in _places(text)]
        for text in (source, target)
    ]
    return Alignment(
        source=source,
        target=target,
        source_tokens=[*words[0], "</s>"],
        target_tokens=[*words[1], "</s>"],
        weights=torch.tensor([rows]),
        source_offsets=[*offsets[0], None],
        target_offsets=[*offsets[1], None],
    )


def _places(text):
    place = 0
    for word in text.split():
        place = text.index(word, place)
        yield place, word
        place += len(word)


ROWS = [[0.6, 0.1, 0.1, 0.2], [0.0, 0.9, 0.1, 0.0], [0.0, 0.1, 0.3, 0.6], [0.0, 0.0, 0.0, 1.0]]


def test_the_most_attended_word_is_copied_or_looked_up():
    """The third row looks most at the end token, which is no word."""
    alignment = an_alignment(ROWS)
    assert replace_unknown(alignment, "<unk>") == "Rex rennt home"
    assert replace_unknown(alignment, "<unk>", {"home": "nach Hause", "runs": "läuft"}) == "Rex rennt nach Hause"
    assert replace_unknown(alignment, "unk") == "<unk> rennt <unk>"


def test_a_lexicon_is_the_most_frequent_link():
    one = an_alignment(ROWS, target="Rex rennt heim")
    other = an_alignment(ROWS, target="Rex läuft heim")
    assert learn_lexicon([one, other, one]) == {"Rex": "Rex", "runs": "rennt", "home": "heim"}
    assert learn_lexicon([one, other], least_count=2) == {"Rex": "Rex", "home": "heim"}


def test_attention_in_all_tells_what_was_left_out_or_taken_up_again():
    rows = [[0.0, 1.0, 0.0, 0.0], [0.0, 0.95, 0.05, 0.0], [0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.1, 0.9]]
    assert repeated_and_untranslated(an_alignment(rows)) == (["home"], ["runs"])
    assert repeated_and_untranslated(an_alignment(rows), least=0.05, most=3) == ([], [])
    with pytest.raises(ValueError, match="least=2 and most=1.8"):
        repeated_and_untranslated(an_alignment(rows), least=2)


def test_in_the_pipeline():
    """A model that always says <unk> (and looks somewhere): its words come from the source, or the lexicon."""
    torch.manual_seed(0)
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(["a b c"], ["x y z"], model="word")
    model = AttentionSeq2SeqForConditionalGeneration(
        AttentionSeq2SeqConfig(
            vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size, embedding_size=4, hidden_size=8
        )
    ).eval()
    with torch.no_grad():
        model.lm_head.bias[tokenizer.unk_token_id] = 50
    translate = TranslationPipeline(model=model, tokenizer=tokenizer, max_new_tokens=2, num_beams=2)
    plain = translate(["b", ""], replace_unknown=True)
    assert [record["translation_text"] for record in plain] == ["b b", ""]
    assert "alignment" not in plain[0]
    looked_up = translate("b", replace_unknown=True, lexicon={"b": "y"}, return_alignments=True)[0]
    assert looked_up["translation_text"] == "y y" and looked_up["alignment"].target == "<unk> <unk>"
    assert translate("b")[0]["translation_text"] == ""
    with pytest.raises(ValueError, match="lexicon.*replace_unknown"):
        translate("b", lexicon={"b": "y"})
    with pytest.raises(ValueError, match="replace_unknown.*return_tensors"):
        translate("b", replace_unknown=True, return_tensors=True)
