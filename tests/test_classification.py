"""Text classification by attention pooling, against the equations, and with the library's tools."""

import json
import os
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

from hf_attention_seq2seq import (
    AttentionSeq2SeqConfig,
    AttentionSeq2SeqForSequenceClassification,
    AttentionSeq2SeqTokenizer,
)
from hf_attention_seq2seq.pooling import disagreement_penalty

from .helpers import name_of, source_batch, tiny_config, tiny_model

ENCODERS = [
    {"encoder_type": "rnn", "encoder_layers": 2},
    {"encoder_type": "pyramidal", "encoder_layers": 2},
    {"encoder_type": "self_attention"},
    {"encoder_type": "rnn_self_attention"},
]
POOLINGS = [
    {"pooling_type": "attention", "pooling_size": 5},
    {"pooling_type": "self_attentive", "pooling_hops": 3, "pooling_penalty_weight": 0.5},
]
HIERARCHICAL = {"encoder_type": "hierarchical", "sentence_separator_token_id": 4}
CASES = [{**encoder, **pooling} for encoder in ENCODERS for pooling in POOLINGS] + [HIERARCHICAL]
every_case = pytest.mark.parametrize("case", CASES, ids=name_of)


def classifier(dtype=torch.float32, num_labels=3, **fields):
    """In evaluation mode, all parameters random, biases too."""
    torch.manual_seed(0)
    config = tiny_config(num_labels=num_labels, initializer_range=0.5, **fields)
    model = AttentionSeq2SeqForSequenceClassification(config).to(dtype).eval()
    for parameter in (*model.pooling.parameters(), *model.classifier.parameters()):
        parameter.data.uniform_(-0.7, 0.7)
    return model


@every_case
@torch.no_grad()
def test_pooling_by_hand(case):
    model = classifier(torch.float64, **case)
    input_ids, mask = source_batch()
    encoded = model.get_encoder()(input_ids, mask)
    is_hierarchical = "sentence_separator_token_id" in case
    states, own = encoded.last_hidden_state, encoded.attention_mask
    if is_hierarchical:
        states, own = encoded.sentence_states, encoded.sentence_mask
    output = model(input_ids, mask, output_attentions=True)
    weights_found = output.sentence_attentions.unsqueeze(1) if is_hierarchical else output.pooling_attentions
    first, bias, context = model.pooling.projection.weight, model.pooling.projection.bias, model.pooling.context.weight
    assert (bias is None) == (case.get("pooling_type") == "self_attentive")
    assert first.shape == (case.get("pooling_size", 8), 8)
    assert context.shape[0] == (3 if bias is None else 1)
    for row in range(4):
        kept = states[row, own[row]]
        hidden = torch.tanh(kept @ first.T + (0 if bias is None else bias))
        vectors = []
        for hop, query in enumerate(context):
            weights = (hidden @ query).exp() / (hidden @ query).exp().sum()
            torch.testing.assert_close(weights_found[row, hop, own[row]], weights)
            assert not weights_found[row, hop, ~own[row]].any()
            vectors.append((weights[:, None] * kept).sum(0))
        logits = model.classifier.weight @ torch.cat(vectors) + model.classifier.bias
        torch.testing.assert_close(output.logits[row], logits)


@torch.no_grad()
def test_hierarchical_pooling_gives_the_weights_of_words_and_sentences():
    model = classifier(**HIERARCHICAL)
    ids = torch.tensor([[5, 6, 4, 7, 8, 9], [5, 6, 7, 0, 0, 0]])
    output = model(ids, output_attentions=True)
    words = output.pooling_attentions[:, 0]
    ones = torch.ones(())
    for part in (words[0, :2], words[0, 3:], words[1, :3], *output.sentence_attentions):
        torch.testing.assert_close(part.sum(), ones)
    assert words[0, 2] == 0 and not words[1, 3:].any() and output.sentence_attentions[1, 1] == 0


def test_the_penalty_by_hand():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[0.0] * 3] * 2])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    # A A^T - I is diag(-0.5, 0) for the first text and 1 off the diagonal for the second; the third has no words.
    torch.testing.assert_close(disagreement_penalty(weights, mask), torch.tensor((0.25 + 2.0 + 0.0) / 3))


@every_case
def test_padding_batch_mates_and_texts_without_words(case):
    model = classifier(torch.float64, **case)
    input_ids, mask = source_batch()
    expected = model(input_ids, mask).logits
    junk = torch.full((1, 3), 4)
    for row in range(4):
        own = input_ids[row : row + 1, : int(mask[row].sum())]
        none = torch.zeros(1, 3, dtype=torch.long)
        for ids, own_mask in (
            (own, torch.ones_like(own)),
            (torch.cat((junk, own), 1), torch.cat((none, torch.ones_like(own)), 1)),
            (torch.cat((own, junk), 1), torch.cat((torch.ones_like(own), none), 1)),
        ):
            torch.testing.assert_close(model(ids, own_mask).logits[0], expected[row])
    model.train()
    mask[1] = 0
    output = model(input_ids, mask, labels=torch.tensor([0, 1, 2, 2]))
    output.loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert output.logits.isfinite().all()
    torch.testing.assert_close(output.logits[1], model.classifier.bias)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite(case, dtype):
    input_ids, mask = source_batch()
    model = classifier(dtype, **case).train()
    model(input_ids, mask, labels=torch.tensor([0, 1, 2, 2])).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_losses():
    input_ids, mask = source_batch()
    model = classifier()
    labels = torch.tensor([0, 2, -100, 1])
    output = model(input_ids, mask, labels=labels)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, labels))
    assert model.config.problem_type == "single_label_classification"
    several = torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
    model = classifier()
    output = model(input_ids, mask, labels=several)
    torch.testing.assert_close(output.loss, F.binary_cross_entropy_with_logits(output.logits, several))
    number = torch.tensor([0.5, -1.0, 2.0, 0.0])
    output = classifier(num_labels=1)(input_ids, mask, labels=number)
    torch.testing.assert_close(output.loss, F.mse_loss(output.logits.squeeze(1), number))
    model = classifier(pooling_type="self_attentive", pooling_penalty_weight=0.5)
    output = model(input_ids, mask, labels=labels, output_attentions=True)
    penalty = disagreement_penalty(output.pooling_attentions, mask.bool())
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits, labels) + 0.5 * penalty)


def test_the_penalty_survives_a_loss_that_is_computed_outside():
    """As the Trainer does it for label smoothing."""
    input_ids, mask = source_batch()
    labels = torch.tensor([0, 2, 0, 1])
    gradients = []
    for inside in (True, False):
        model = classifier(pooling_type="self_attentive", pooling_penalty_weight=0.5).train()
        output = model(input_ids, mask, labels=labels if inside else None)
        (output.loss if inside else F.cross_entropy(output.logits, labels)).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


TEXTS = ["a good film", "good good", "a bad film", "so bad", "the film was good", "bad bad bad film"]
CLASSES = [1, 1, 0, 0, 1, 0]
TOKENIZER = AttentionSeq2SeqTokenizer.train_from_iterator(TEXTS, model="word", special_tokens=["<sep>"])
SMALL = {"vocab_size": len(TOKENIZER), "embedding_size": 8, "hidden_size": 8, "num_labels": 2}
NAMES = {"id2label": {0: "negative", 1: "positive"}, "label2id": {"negative": 0, "positive": 1}}


@pytest.mark.parametrize("case", [POOLINGS[1], {**HIERARCHICAL, "encoder_hidden_size": 16}], ids=name_of)
def test_trained_by_the_trainer_saved_and_used_by_the_pipeline(case, tmp_path, capfd):
    set_seed(0)
    model = AttentionSeq2SeqForSequenceClassification(AttentionSeq2SeqConfig(**{**SMALL, **NAMES, **case}))
    data = Dataset.from_dict({**TOKENIZER(TEXTS), "labels": CLASSES})
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=40,
        learning_rate=0.03,
        label_smoothing_factor=0.1,
        per_device_train_batch_size=6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    collator = DataCollatorWithPadding(TOKENIZER)
    trainer = Trainer(
        model, arguments, train_dataset=data, eval_dataset=data, data_collator=collator, processing_class=TOKENIZER
    )
    trainer.train()
    predictions = trainer.predict(data)
    assert predictions.predictions.argmax(-1).tolist() == CLASSES
    trainer.save_model(str(tmp_path / "model"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert type(loaded) is AttentionSeq2SeqForSequenceClassification
    batch = TOKENIZER(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model.eval()(**batch).logits)
    classify = pipeline("text-classification", model=str(tmp_path / "model"), device="cpu")
    records = classify(TEXTS, batch_size=3)
    assert [record["label"] for record in records] == [NAMES["id2label"][label] for label in CLASSES]
    assert "is not supported for" not in capfd.readouterr().err
    one = torch.softmax(loaded(**TOKENIZER(TEXTS[:1], return_tensors="pt")).logits, -1).max().item()
    assert records[0]["score"] == pytest.approx(one, abs=1e-5)


SCRIPT = """
import json, sys
sys.modules["hf_attention_seq2seq"] = None
from transformers import AutoModelForSequenceClassification, pipeline
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules."), type(model)
classify = pipeline("text-classification", model=sys.argv[1], trust_remote_code=True, device="cpu")
print(json.dumps(classify(json.loads(sys.argv[2]))))
"""


def test_without_the_package(tmp_path):
    model = classifier(**{**SMALL, **NAMES}, decoder_vocab_size=None)
    model.save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model" / "generation_config.json").exists()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment.update(HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model"), json.dumps(TEXTS)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    expected = pipeline("text-classification", model=model, tokenizer=TOKENIZER, device="cpu")(TEXTS)
    for found, record in zip(json.loads(run.stdout.splitlines()[-1]), expected):
        assert found == {"label": record["label"], "score": pytest.approx(record["score"], abs=1e-6)}


def test_a_translation_models_encoder_is_a_start(tmp_path):
    translator = tiny_model()
    translator.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2)
    for name, value in translator.get_encoder().state_dict().items():
        assert torch.equal(model.get_encoder().state_dict()[name], value)
    assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is type(translator)


def test_the_vocabulary_can_grow():
    model = classifier()
    model.resize_token_embeddings(20)
    assert model.config.vocab_size == 20
    assert model(torch.tensor([[19, 5]])).logits.shape == (1, 3)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pooling_type": "max"}, ["pooling_type='max'", "'self_attentive'"]),
        ({"pooling_type": "hierarchical"}, ["pooling_type='hierarchical'", "encoder_type"]),
        ({**HIERARCHICAL, "pooling_type": "attention"}, ["pooling_type='attention'", "'hierarchical'"]),
        ({"pooling_hops": 2}, ["pooling_hops=2", "'self_attentive'"]),
        ({"pooling_type": "self_attentive", "pooling_hops": 0}, ["pooling_hops=0"]),
        ({"pooling_penalty_weight": 1.0}, ["pooling_penalty_weight=1.0", "'self_attentive'"]),
        ({"pooling_type": "self_attentive", "pooling_penalty_weight": -1}, ["pooling_penalty_weight=-1"]),
        ({"pooling_size": 0}, ["pooling_size=0"]),
    ],
)
def test_what_has_no_meaning_is_refused(fields, words):
    with pytest.raises(ValueError) as error:
        AttentionSeq2SeqConfig(**fields)
    for word in words:
        assert word in str(error.value)


def test_wrong_labels_are_refused():
    model = classifier()
    input_ids, mask = source_batch()
    with pytest.raises(ValueError, match="class 3; allowed are 0 to 2"):
        model(input_ids, mask, labels=torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"labels has the shape \(2,\), but there are 4 texts"):
        model(input_ids, mask, labels=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"shape \(4, 3\); classes have the shape \(batch,\)"):
        model(input_ids, mask, labels=torch.ones(4, 3).long())
