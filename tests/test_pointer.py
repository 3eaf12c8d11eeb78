"""The pointer-generator against its equations, in training, in search, and as a way to write words never seen."""

import math
import random

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer
from transformers import Seq2SeqTrainingArguments as Arguments
from transformers.trainer_pt_utils import LabelSmoother

from hf_attention_seq2seq import (
    PRESETS,
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqEnsemble,
    AttentionSeq2SeqForConditionalGeneration,
    AttentionSeq2SeqTokenizer,
    TranslationPipeline,
    align,
    alignments_from_generate,
    pointer,
)

from .helpers import continue_reordered, source_batch, target_batch, tiny_config, tiny_model

UNKNOWN = 3  # columns behind the 17 words
CASES = {
    "plain": {},
    "feeding": {"input_feeding": True},
    "previous_state": {"attention_query": "previous_state", "readout_type": "maxout", "rnn_type": "gru"},
    "heads": {"attention_heads": 2, "attention_values": "projected", "attention_size": 6},
    "coverage": {"coverage_type": "accumulated", "coverage_loss_weight": 0.5},
    "local_m": {"attention_span": "local_m", "attention_window": 1},
    "local_p": {"attention_span": "local_p", "attention_window": 2},
    "sparsemax": {"attention_normalizer": "sparsemax"},
    "monotonic": {"attention_selection": "monotonic", "monotonic_noise": 0.0},
    "see-2017": {
        **PRESETS["see-2017-pointer-generator"],
        **{"embedding_size": 6, "hidden_size": 8, "encoder_hidden_size": 10, "attention_size": 4},
    },
}
every_case = pytest.mark.parametrize("case", CASES)


def pointing(dtype=torch.float64, **fields):
    fields = {"decoder_vocab_size": None, "copy_mechanism": "pointer_generator", **fields}
    return tiny_model(dtype, **{**fields, "max_unknown_words": UNKNOWN})


def batch(model):
    """Sentences with repeated and unknown words, padding on either side, one without tokens; labels with both."""
    input_ids, mask = source_batch()
    input_ids[0] = torch.tensor([5, 17, 5, 18, 9, 17, 2])
    input_ids[1], mask[1] = torch.tensor([0, 0, 0, 19, 6, 17, 17]), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    mask[2] = 0
    labels = target_batch()
    labels[0, :3], labels[1, 1] = torch.tensor([17, 18, 5]), 17
    return input_ids, mask, labels


def naive(model, input_ids, mask, decoder_input_ids):
    """`P(w)`, `(rows, target_length, 20)`, in loops over positions."""
    config = model.config
    output = model.model(
        input_ids, mask, decoder_input_ids=decoder_input_ids, output_attentions=True, output_hidden_states=True
    )
    weights, states = output.cross_attentions[0], output.decoder_hidden_states[-1]
    attention, gate = model.get_decoder().attention, model.get_decoder().pointer.gate
    probabilities = torch.zeros(*decoder_input_ids.shape, 17 + UNKNOWN, dtype=torch.float64)
    for row, step in torch.cartesian_prod(*map(torch.arange, decoder_input_ids.shape)).tolist():
        context = []
        for head, alpha in enumerate(weights[row, :, step]):
            values = attention.value_projection(output.encoder_last_hidden_state[row])
            size = values.shape[-1] // config.attention_heads
            context.append(alpha @ values[:, head * size : (head + 1) * size])
        previous = decoder_input_ids[row, step].item()
        embedding = model.get_input_embeddings().weight[previous if previous < 17 else 3]
        features = torch.cat((*context, states[row, step], embedding))
        generate = torch.sigmoid(gate.weight[0] @ features + gate.bias[0])
        alpha = weights[row, :, step].mean(dim=0)
        if not alpha.sum():
            generate = 1.0
        elif config.attention_selection == "monotonic":
            generate = generate + (1 - generate) * (1 - alpha.sum())
        vocabulary = torch.softmax(
            model.lm_head.weight @ output.last_hidden_state[row, step] + model.lm_head.bias, dim=0
        )
        for word in range(17):
            probabilities[row, step, word] += generate * vocabulary[word]
        for place, word in enumerate(input_ids[row].tolist()):
            if mask[row, place]:
                probabilities[row, step, word] += (1 - generate) * alpha[place] / alpha.sum().clamp(min=1e-30)
    return probabilities


@pytest.mark.parametrize("training", [False, True])
@every_case
@torch.no_grad()
def test_equations_8_and_9(case, training):
    model = pointing(**CASES[case]).train(training)
    input_ids, mask, labels = batch(model)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(input_ids, mask, decoder_input_ids=decoder_input_ids).logits
    expected = naive(model, input_ids, mask, decoder_input_ids)
    torch.testing.assert_close(logits.exp(), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(4, 5).double())
    impossible = expected == 0
    assert impossible.any() and (logits[impossible] == pointer.NO_WORD).all()
    if training or case != "monotonic":  # which stops elsewhere
        assert (expected[0, :, 17:19] > 0).any() and (expected[0, :, 19] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_in_lower_precision(dtype):
    model, precise = pointing(dtype), pointing()
    input_ids, mask, labels = batch(model)
    logits = model(input_ids, mask, labels=labels).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.exp().sum(dim=-1), torch.ones(4, 5))
    expected = precise(input_ids, mask, labels=labels).logits.exp().float()
    torch.testing.assert_close(logits.exp(), expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.03)


@every_case
def test_gradients_of_the_loss_agree_with_finite_differences(case):
    model = pointing(**CASES[case])
    input_ids, mask, labels = batch(model)
    names = [name for name, _ in model.named_parameters()]

    def loss(*parameters):
        inputs = {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
        logits = torch.func.functional_call(model, dict(zip(names, parameters)), (input_ids, mask), inputs).logits
        counted = labels != -100
        return logits[counted].gather(-1, labels[counted].unsqueeze(-1)).mean() + 0.01 * logits[counted].mean()

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()), fast_mode=True)


def test_gradients_of_the_mixture_where_nothing_can_be_copied():
    """A weight of exactly zero, and a gate that is shut or open."""
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    gate = torch.tensor([[0.3, 200.0, -200.0], [1.0, -1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([0.5, 0.0, 0.5, 0.0], dtype=torch.float64)
    source_ids = torch.tensor([[2, 4, 5, 2], [1, 1, 1, 1]]).unsqueeze(1).expand(2, 3, 4)

    def mixture(logits, gate):
        mass = torch.sigmoid(-gate).unsqueeze(-1) * weights
        return pointer.log_mixture(logits, torch.nn.functional.logsigmoid(gate), mass, source_ids, unknown_words=2)

    assert torch.autograd.gradcheck(mixture, (logits, gate))
    (gradient,) = torch.autograd.grad(mixture(logits, gate)[..., 3].sum(), gate)
    assert gradient.isfinite().all()


# Training


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", ["plain", "see-2017"])
@pytest.mark.parametrize("rows", [1, 4, 1000])
def test_without_logits_and_by_the_trainers_label_smoother_the_loss_is_the_same(case, smoothing, rows, monkeypatch):
    monkeypatch.setattr(pointer, "CHUNK", 17 * rows)
    model = pointing(**{**CASES[case], "coverage_loss_weight": 0.0})
    input_ids, mask, labels = batch(model)
    options = {"labels": labels, "smoothing": smoothing}
    whole, parts = model(input_ids, mask, **options), model(input_ids, mask, **options, output_logits=False)
    assert parts.logits is None
    expected = gradients(model, whole.loss)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    outside = LabelSmoother(epsilon=smoothing)(model(input_ids, mask, decoder_input_ids=decoder_input_ids), labels)
    for loss in (parts.loss, outside):
        torch.testing.assert_close(loss, whole.loss, check_dtype=False, rtol=1e-6, atol=0)  # one is taken in fp32
        torch.testing.assert_close(gradients(model, loss), expected, rtol=1e-5, atol=1e-7)


def test_smoothing_is_over_all_columns():
    """Those that stand for no word add a constant."""
    model = pointing()
    input_ids, mask, labels = batch(model)
    logits = model(input_ids, mask, labels=labels).logits.detach()
    loss = model(input_ids, mask, labels=labels, smoothing=0.2).loss
    expected = 0.0
    for row, step in (labels != -100).nonzero().tolist():
        scores = logits[row, step]
        expected -= 0.8 * scores[labels[row, step]] + 0.2 * sum(scores) / 20
    assert loss.item() == pytest.approx(expected.item() / 15, rel=1e-6)


def test_no_labels_and_no_tokens():
    model = pointing()
    input_ids, mask, labels = batch(model)
    for options in ({"labels": labels, "output_logits": False}, {"labels": torch.full_like(labels, -100)}):
        for source_mask in (mask, torch.zeros_like(mask)):
            for output_logits in (True, False):
                loss = model(input_ids, source_mask, **{**options, "output_logits": output_logits}).loss
                assert all(gradient.isfinite().all() for gradient in gradients(model, loss).values())


def test_a_small_part_of_the_logits_is_held(monkeypatch):
    """With `output_logits=False`, no tensor that is kept for the gradient has a column for each word."""
    monkeypatch.setattr(pointer, "CHUNK", 10000)
    model = pointing(torch.float32, vocab_size=5000)
    input_ids, mask, labels = batch(model)
    parameters = {parameter.numel() for parameter in model.parameters()}
    largest = {}
    for output_logits in (True, False):
        sizes = []

        def keep(tensor, sizes=sizes):
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(input_ids, mask, labels=labels, output_logits=output_logits)
        largest[output_logits] = max(size for size in sizes if size not in parameters)
    assert largest[True] >= 4 * 5 * 5000 and largest[False] < 10 * 5000


# Search and invariance


@every_case
@torch.no_grad()
def test_rows_do_not_depend_on_their_batch_or_padding(case):
    model = pointing(**CASES[case])
    input_ids, mask, labels = batch(model)
    logits = model(input_ids, mask, labels=labels).logits
    for row in (0, 1, 3):
        own = input_ids[row][mask[row].bool()][None]
        alone = model(own, labels=labels[row : row + 1]).logits
        torch.testing.assert_close(alone, logits[row : row + 1])
        left = torch.nn.functional.pad(own, (3, 0))
        torch.testing.assert_close(model(left, labels=labels[row : row + 1]).logits, alone)


@pytest.mark.parametrize("case", ["plain", "heads", "monotonic", "see-2017"])
@torch.no_grad()
def test_beam_search(case):
    """With the cache as without, alone as in a batch; ids of unknown words are written, and scores are the model's."""
    model = pointing(**CASES[case], eos_token_id=2)
    model.lm_head.bias[2] -= 1
    model.get_decoder().pointer.gate.bias -= 3  # it mostly copies
    input_ids, mask, _ = batch(model)
    input_ids[2, :3], mask[2, :3] = torch.tensor([6, 17, 6]), 1
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 6}
    options |= {"return_dict_in_generate": True, "output_scores": True}
    found = model.generate(input_ids, attention_mask=mask, **options)
    other = model.generate(input_ids, attention_mask=mask, **options, use_cache=False)
    assert torch.equal(found.sequences, other.sequences) and ((found.sequences >= 17).any() or case == "monotonic")
    torch.testing.assert_close(found.sequences_scores, other.sequences_scores)
    steps = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    lengths = (found.beam_indices >= 0).sum(dim=1)
    torch.testing.assert_close(steps.sum(dim=1) / lengths, found.sequences_scores.to(steps.dtype))
    for row in range(4):
        own = input_ids[row : row + 1, mask[row].bool()]
        alone = model.generate(own, **options).sequences
        expected = found.sequences[2 * row : 2 * row + 2, : alone.shape[1]]
        assert torch.equal(alone, expected)
    logits = model(input_ids.repeat_interleave(2, 0), mask.repeat_interleave(2, 0), found.sequences[:, :-1]).logits
    for row, tokens in enumerate(found.sequences[:, 1:].tolist()):
        tokens = tokens[: lengths[row]]
        total = sum(logits[row, step, token] for step, token in enumerate(tokens)) / len(tokens)
        torch.testing.assert_close(total, found.sequences_scores[row].to(total.dtype))


@torch.no_grad()
def test_states_are_reordered():
    continue_reordered(pointing(**CASES["coverage"]))


@torch.no_grad()
def test_an_ensemble():
    models = [pointing(seed=seed) for seed in (0, 1)]
    input_ids, mask, _ = batch(models[0])
    tokens = torch.full((4, 1), 1)
    logits = AttentionSeq2SeqEnsemble(models)(input_ids, mask, decoder_input_ids=tokens).logits
    expected = sum(model(input_ids, mask, decoder_input_ids=tokens).logits.exp() for model in models) / 2
    torch.testing.assert_close(logits.exp(), expected)
    other = tiny_model(decoder_vocab_size=None)
    with pytest.raises(ValueError, match="max_unknown_words: member 0 has max_unknown_words=3.*max_unknown_words=0"):
        AttentionSeq2SeqEnsemble([models[0], other])


# What has no meaning


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"copy_mechanism": "copynet"}, "copy_mechanism='copynet' is not possible; allowed: None, 'pointer_gen"),
        ({"decoder_vocab_size": 13}, "copy_mechanism='pointer_generator' .*one vocabulary.*decoder_vocab_size=13"),
        ({"attention_type": "none"}, "copy_mechanism=.*attention_type='none' has no such thing"),
        ({"attention_selection": "hard"}, "copy_mechanism=.*needs attention_selection='soft'"),
        ({"copy_mechanism": None, "max_unknown_words": 2}, "max_unknown_words=2 .*needs a copy_mechanism"),
        ({"max_unknown_words": -1}, "max_unknown_words=-1 .*an integer from"),
        ({"max_unknown_words": 2, "unk_token_id": 17}, "unk_token_id=17 .*0 to 16"),
    ],
)
def test_configurations_without_meaning(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**{"decoder_vocab_size": None, "copy_mechanism": "pointer_generator", **fields})


def test_inputs_without_meaning():
    model = pointing()
    input_ids, mask, labels = batch(model)
    allowed = r"allowed are 0 to 19 \(.*vocab_size=17 and max_unknown_words=3\)"
    with pytest.raises(ValueError, match=r"input_ids\[1, 3\] is 21.*" + allowed):
        model(input_ids + 2, mask, labels=labels)
    with pytest.raises(ValueError, match=r"labels\[0, 1\] is 20.*" + allowed):
        model(input_ids, mask, labels=labels + 2 * (labels == 18))
    with pytest.raises(ValueError, match=r"decoder_input_ids\[0, 0\] is 20.*" + allowed):
        model(input_ids, mask, decoder_input_ids=torch.full((4, 1), 20))
    embeddings = model.get_input_embeddings()(input_ids.clamp(max=16))
    with pytest.raises(ValueError, match="copies source tokens.*input_ids rather than inputs_embeds"):
        model(inputs_embeds=embeddings, attention_mask=mask, labels=labels)
    encoded = model.get_encoder()(input_ids, mask)
    expected = model(encoder_outputs=encoded, labels=labels).loss
    assert torch.equal(model(encoder_outputs=encoded.to_tuple(), labels=labels).loss, expected)
    encoded.source_ids = None
    with pytest.raises(ValueError, match="what get_encoder.. returns"):
        model(encoder_outputs=encoded, labels=labels)
    plain = tiny_model(decoder_vocab_size=None)
    with pytest.raises(ValueError, match=r"allowed are 0 to 16 \(vocab_size=17\)"):
        plain(input_ids, mask, decoder_input_ids=labels.clamp(0, 16))


# The tokenizer


def word_tokenizer(**options):
    texts = ["call anna please", "anna called bob"]
    return AttentionSeq2SeqTokenizer.train_from_iterator(texts, model="word", max_unknown_words=2, **options)


def test_unknown_words_have_ids_row_by_row():
    tokenizer = word_tokenizer()
    size, unknown = len(tokenizer), tokenizer.unk_token_id
    known = tokenizer.get_vocab()
    texts, targets = ["call Zed and Zed or Kim", "Kim please"], ["Zed called and Kim", "Zed Kim"]
    found = tokenizer(texts, text_target=targets)
    assert found["input_ids"] == [
        [known["call"], size, size + 1, size, unknown, unknown, 2],
        [size, known["please"], 2],
    ]
    assert found["labels"] == [[size, known["called"], size + 1, unknown, 2], [unknown, size, 2]]
    assert tokenizer.unknown_words(texts[0]) == ["Zed", "and"]
    one = tokenizer(texts[1], text_target=targets[1])
    assert (one["input_ids"], one["labels"]) == (found["input_ids"][1], found["labels"][1])
    padded = tokenizer(texts, text_target=targets, padding=True, return_tensors="pt")
    assert torch.equal(padded["input_ids"], pad_sequence([torch.tensor(ids) for ids in found["input_ids"]], True))
    assert padded["labels"][1].tolist() == [unknown, size, 2, 0, 0]
    assert tokenizer(texts[0], truncation=True, max_length=3)["input_ids"] == [known["call"], size, 2]
    assert tokenizer(text_target=targets[1])["input_ids"] == [unknown, unknown, 2]
    assert tokenizer(f"Zed {tokenizer.unk_token}")["input_ids"] == [size, unknown, 2]


def test_unknown_words_are_written_for_their_source():
    tokenizer = word_tokenizer()
    size = len(tokenizer)
    ids = [1, size + 1, size, tokenizer.get_vocab()["called"], 2, 0]
    reader = tokenizer.with_source("call Zed and Zed")
    assert reader.decode(ids) == "<s> and Zed called </s> <pad>"
    assert reader.decode(torch.tensor(ids), skip_special_tokens=True) == "and Zed called"
    assert reader.batch_decode([ids, ids[3:]], skip_special_tokens=True) == ["and Zed called", "called"]
    assert reader.convert_ids_to_tokens(ids[1:3]) == ["and", "Zed"] and reader.convert_ids_to_tokens(size) == "Zed"
    for nothing in (tokenizer, tokenizer.with_source("call anna")):
        assert nothing.decode(ids) == "<s> <unk> <unk> called </s> <pad>"
        assert nothing.decode(ids, skip_special_tokens=True) == "called"
        assert nothing.convert_ids_to_tokens(ids[:2]) == ["<s>", "<unk>"]
    assert reader.decode(ids[3], skip_special_tokens=True) == "called" and reader.decode([]) == ""


@pytest.mark.parametrize("model", ["bpe", "unigram", "char", "codepoint", "word"])
def test_unknown_characters_of_every_unit(model):
    texts = ["call anna please", "anna called bob", "lab bed", "ten men sell it"]
    options = {"vocab_size": 40, "max_unknown_words": 9, "lowercase": True}
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(texts, model=model, **options)
    text = "Call 日本, anna ÉÖ"
    encoded = tokenizer(text)
    assert tokenizer.unk_token_id not in encoded["input_ids"] and max(encoded["input_ids"]) >= len(tokenizer)
    assert tokenizer.with_source(text).decode(encoded["input_ids"], skip_special_tokens=True) == text.lower()


def test_tokenizers_without_meaning(tmp_path):
    tokenizer = word_tokenizer()
    for options in ({"text_pair": "b"}, {"is_split_into_words": True}):
        with pytest.raises(ValueError, match="max_unknown_words=2 is for whole texts"):
            tokenizer("a", **options)
    with pytest.raises(ValueError, match="max_unknown_words=2 needs one vocabulary"):
        AttentionSeq2SeqTokenizer.train_from_iterator(["a"], ["b"], model="word", max_unknown_words=2)
    for number in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"max_unknown_words={number} is not allowed"):
            AttentionSeq2SeqTokenizer(tokenizer_object=tokenizer.backend_tokenizer, max_unknown_words=number)
    tokenizer.save_pretrained(tmp_path)
    assert AttentionSeq2SeqTokenizer.from_pretrained(tmp_path).max_unknown_words == 2


# Names that were never seen

SYLLABLES = ("ba", "ko", "li", "mu", "ne", "ra", "si", "to", "vu", "zé")
NAMES = ["".join((a, b, c)).title() for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES[:3]]
SENTENCES = [("call {} please", "{} called"), ("{} must meet {}", "met {} and {}"), ("ask {}", "{} was asked")]


def examples(names, number, seed):
    """Sentences about two of the names, a shared one of each pair of indices, with what is written of them."""
    chance = random.Random(seed)
    chosen = [(*chance.choice(SENTENCES), chance.sample(names, 2)) for _ in range(number)]
    return [source.format(*two) for source, _, two in chosen], [target.format(*two) for _, target, two in chosen]


@pytest.fixture(scope="module")
def names():
    """Names for training and others for testing."""
    order = random.Random(0).sample(NAMES, len(NAMES))
    return order[:200], order[200:]


def name_model(names, copies: bool, known: bool, steps: int = 120):
    """
    A model that has learned the sentences with the training names, and its tokenizer. The names are all in the
    vocabulary (`known`) or none of them.
    """
    texts = [*SENTENCES[0], *SENTENCES[1], *SENTENCES[2], *(NAMES if known else [])]
    tokenizer = AttentionSeq2SeqTokenizer.train_from_iterator(
        [text.replace("{}", "") for text in texts], model="word", max_unknown_words=0 if known or not copies else 4
    )
    torch.manual_seed(0)
    config = AttentionSeq2SeqConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        rnn_type="gru",
        copy_mechanism="pointer_generator" if copies else None,
        max_unknown_words=tokenizer.max_unknown_words,
        embedding_dropout=0.1 if known else 0.0,
    )
    model = AttentionSeq2SeqForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        sources, targets = examples(names, 32, step)
        batch = tokenizer(sources, text_target=targets, padding=True, return_tensors="pt")
        batch["labels"] = batch["labels"].masked_fill(batch["labels"] == 0, -100)
        model(**batch, output_logits=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), tokenizer


def accuracy(model, tokenizer, names, **options):
    sources, targets = examples(names, 200, "test")
    translate = TranslationPipeline(model=model, tokenizer=tokenizer, device="cpu", max_new_tokens=8)
    found = translate(sources, batch_size=100, **options)
    return sum(record["translation_text"] == target for record, target in zip(found, targets)) / len(targets)


@pytest.fixture(scope="module")
def copier(names):
    return name_model(names[0], copies=True, known=False)


def test_names_outside_of_the_vocabulary_are_copied(names, copier):
    assert accuracy(*copier, names[1], num_beams=1) >= 0.99
    assert accuracy(*copier, names[1], num_beams=3) >= 0.99
    plain = name_model(names[0], copies=False, known=False, steps=30)
    assert accuracy(*plain, names[1], num_beams=1) == 0


def test_names_of_the_vocabulary_that_were_not_trained_are_copied(names):
    assert accuracy(*name_model(names[0], copies=True, known=True), names[1], num_beams=1) >= 0.99


@pytest.mark.slow
def test_without_a_pointer_they_are_not(names):
    """Though such a model has learned the sentences and most of the names that it was shown."""
    plain = name_model(names[0], copies=False, known=True, steps=400)
    assert accuracy(*plain, names[1], num_beams=1) < 0.05 and accuracy(*plain, names[0], num_beams=1) > 0.9


def test_saved_and_used_with_ordinary_tools(names, copier, tmp_path):
    model, tokenizer = copier
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, reader = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert accuracy(loaded, reader, names[1][:50], num_beams=1) >= 0.99
    source = "Xyz must meet Ärger"
    batch = reader([source, "ask Q"], padding=True, return_tensors="pt")
    options = {"output_attentions": True, "return_dict_in_generate": True, "num_beams": 2, "max_new_tokens": 8}
    output = loaded.generate(**batch, **options)
    texts = [
        reader.with_source(text).decode(ids, skip_special_tokens=True)
        for text, ids in zip([source, "ask Q"], output.sequences)
    ]
    assert texts == ["met Xyz and Ärger", "Q was asked"]
    alignment = alignments_from_generate(output, reader, batch, [source, "ask Q"])[0]
    assert alignment.target_tokens == ["met", "Xyz", "and", "Ärger", "</s>"]
    forced = align(loaded, reader, [source], [alignment.target])[0]
    assert forced.matrix.argmax(dim=1)[[1, 3]].tolist() == [0, 3] == alignment.matrix.argmax(dim=1)[[1, 3]].tolist()
    translate = TranslationPipeline(model=loaded, tokenizer=reader, device="cpu")
    record = translate(source, return_alignments=True, replace_unknown=True, num_beams=2)[0]
    assert record["translation_text"] == record["alignment"].target == "met Xyz and Ärger"
    assert record["alignment"].source_tokens == ["Xyz", "must", "meet", "Ärger", "</s>"]
    assert translate(["", "ask Q"], batch_size=2)[0] == {"translation_text": ""}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_trainer(names, copier, tmp_path, smoothing):
    model, tokenizer = copier
    sources, targets = examples(names[1], 16, "trainer")
    rows = tokenizer(sources, text_target=targets)
    rows = [{name: rows[name][row] for name in rows} for row in range(16)]
    arguments = Arguments(
        tmp_path,
        max_steps=1,
        learning_rate=0.0,
        label_smoothing_factor=smoothing,
        predict_with_generate=True,
        per_device_eval_batch_size=8,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    assert math.isfinite(trainer.train().training_loss)
    output = trainer.predict(rows, max_new_tokens=8)
    written = [
        tokenizer.with_source(source).decode(ids[ids >= 0], skip_special_tokens=True)
        for source, ids in zip(sources, output.predictions)
    ]
    assert written == targets
    arguments.predict_with_generate = False
    assert trainer.predict(rows).predictions[0].shape[-1] == len(tokenizer) + 4
