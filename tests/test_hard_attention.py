"""Estimators of hard attention against exact gradients, by enumeration, and the choices that they make."""

import copy
import itertools

import pytest
import torch
from torch.nn import functional as F

from hf_attention_seq2seq import AttentionSeq2SeqConfig, AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq.hard_attention import Choice, HardSelection

from .helpers import name_of, source_batch, target_batch, tiny_config, tiny_model

HARD = {"attention_selection": "hard", "attention_type": "general"}
REINFORCE = {**HARD, "hard_attention_estimator": "reinforce", "hard_attention_soft_probability": 0.0}
STRAIGHT_THROUGH = {**HARD, "hard_attention_estimator": "straight_through"}
VARIATIONAL = {**HARD, "hard_attention_estimator": "variational"}
SOURCE, TARGET = torch.tensor([[3, 4, 9]]), torch.tensor([[5, 7]])


def lively_model(**case):
    """In training, in double precision, with weights large enough that positions matter."""
    model = tiny_model(torch.float64, **case).train()
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.uniform_(-0.9, 0.9)
    return model


def gradients(loss, model) -> torch.Tensor:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(found, model.parameters())])


class Forced(torch.nn.Module):
    """Takes given positions, one for each query; keeps their log-probability and the entropy."""

    def __init__(self, positions):
        super().__init__()
        self.positions, self.done, self.log_probability, self.entropy = positions, 0, 0.0, 0.0

    def begin(self, sentences, device):
        return None

    def forward(self, log_weights, window, stays_soft):
        queries = log_weights.shape[2]
        picked = torch.tensor(self.positions[self.done : self.done + queries]).view(1, 1, queries, 1)
        self.done += queries
        self.log_probability = self.log_probability + log_weights.gather(-1, picked).sum()
        self.entropy = self.entropy - (log_weights.exp() * log_weights).sum()
        weights = torch.zeros_like(log_weights).scatter(-1, picked, 1.0)
        return weights, window, Choice(log_probability=log_weights.gather(-1, picked)[0, 0, :, 0][None])


def bound_of_all_alignments(model, entropy_weight):
    """`sum_a p(a) log p(y | a)`, plus the expected entropies: what REINFORCE climbs (Xu 2015, eq. 10)."""
    total = 0.0
    model = copy.copy(model)
    attention, hard = model.get_decoder().attention, model.get_decoder().attention.hard
    for positions in itertools.product(range(3), repeat=2):
        forced = attention.hard = Forced(positions)
        logits = (
            model.model(SOURCE, decoder_input_ids=torch.tensor([[1, 5]])).last_hidden_state @ model.lm_head.weight.T
        )
        logs = (logits + model.lm_head.bias).log_softmax(-1)[0]
        likelihood = logs[0, TARGET[0, 0]] + logs[1, TARGET[0, 1]]
        total = total + forced.log_probability.exp() * (likelihood + entropy_weight * forced.entropy)
    attention.hard = hard
    return total


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"input_feeding": True},
        {"attention_query": "previous_state", "rnn_type": "gru"},
        {"hard_attention_entropy_weight": 0.3},
    ],
    ids=name_of,
)
def test_the_mean_gradient_of_reinforce_is_that_of_the_bound(case):
    """4,000 alignments; each entry within five standard errors of the exact gradient, 98 % of them within three."""
    fields = {"hard_attention_entropy_weight": 0.0, "hard_attention_samples": 100}
    model = lively_model(**{**REINFORCE, **fields, **case})
    exact = -gradients(bound_of_all_alignments(model, model.config.hard_attention_entropy_weight), model) / 2
    torch.manual_seed(0)
    estimates = torch.stack([gradients(model(SOURCE, labels=TARGET).loss, model) for _ in range(40)])
    error = (estimates.mean(0) - exact).abs()
    standard = estimates.std(0) / len(estimates) ** 0.5 + 1e-6  # the library's loss is rounded to fp32
    assert (error < 5 * standard).all()
    assert (error < 3 * standard).float().mean() > 0.98
    assert exact.abs().max() > 100 * standard.median()  # the estimate says something


def test_reinforce_reports_the_likelihood_of_what_it_drew():
    model = lively_model(**REINFORCE, hard_attention_entropy_weight=0.5)
    torch.manual_seed(3)
    output = model(SOURCE, labels=TARGET, output_attentions=True)
    assert set(output.cross_attentions[0].unique().tolist()) <= {0.0, 1.0}
    expected = F.cross_entropy(output.logits[0].float(), TARGET[0])
    torch.testing.assert_close(output.loss, expected, check_dtype=False)


def test_the_baseline_is_the_moving_average_of_rewards_and_is_kept(tmp_path):
    model = tiny_model(**REINFORCE, hard_attention_baseline_decay=0.75).train()
    input_ids, mask = source_batch()
    average = weight = 0.0
    for _ in range(3):
        loss = model(input_ids, mask, labels=target_batch()).loss.item()
        average, weight = 0.75 * average - 0.25 * loss, 0.75 * weight + 0.25
    baseline = model.get_decoder().attention.hard.baseline
    torch.testing.assert_close(baseline, torch.tensor([average, weight]))
    model.save_pretrained(tmp_path)
    loaded = AttentionSeq2SeqForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded.get_decoder().attention.hard.baseline, baseline)


def test_a_soft_model_goes_on_as_a_hard_one(tmp_path):
    """A checkpoint without baseline and counter starts them at zero."""
    soft = tiny_model(attention_type="general")
    soft.save_pretrained(tmp_path)
    for case in (REINFORCE, STRAIGHT_THROUGH):
        hard = AttentionSeq2SeqForConditionalGeneration.from_pretrained(tmp_path, config=tiny_config(**case))
        assert all((buffer == 0).all() for buffer in hard.get_decoder().attention.hard.buffers())
        assert torch.equal(hard.lm_head.weight, soft.lm_head.weight)


def test_a_part_of_the_sentences_stays_soft():
    model = tiny_model(**{**REINFORCE, "hard_attention_soft_probability": 0.5}).train()
    torch.manual_seed(0)
    input_ids = torch.randint(3, 17, (400, 5))
    weights = model(input_ids, labels=torch.randint(3, 13, (400, 3)), output_attentions=True).cross_attentions[0]
    one_hot = (weights.amax(-1) == 1.0).all(-1).squeeze(1)
    mixed = (weights.amax(-1) < 1.0).all(-1).squeeze(1)
    assert (one_hot | mixed).all()  # a whole sentence is one or the other
    assert 150 < one_hot.sum() < 250


def test_samples_of_one_sentence_are_rows_of_the_loss_alone():
    model = tiny_model(**REINFORCE, hard_attention_samples=3).train()
    input_ids, mask = source_batch()
    output = model(input_ids, mask, labels=target_batch(), output_attentions=True, output_hidden_states=True)
    assert (
        output.logits.shape[0] == output.cross_attentions[0].shape[0] == output.decoder_hidden_states[1].shape[0] == 4
    )
    many = [model(input_ids, mask, labels=target_batch(), num_items_in_batch=30).loss.item() for _ in range(200)]
    alone = tiny_model(**REINFORCE).train()
    single = [alone(input_ids, mask, labels=target_batch(), num_items_in_batch=30).loss.item() for _ in range(600)]
    assert sum(many) / 200 == pytest.approx(sum(single) / 600, rel=0.01)
    with pytest.raises(ValueError, match="hard_attention_samples=3 needs labels"):
        model(input_ids, mask, decoder_input_ids=target_batch().clamp(min=0))


# Straight-through


@pytest.mark.parametrize("case", [{}, {"attention_heads": 2}, {"attention_span": "local_p", "attention_window": 2}])
def test_straight_through_reads_one_position_and_has_the_gradient_of_a_gumbel_softmax(case):
    torch.manual_seed(0)
    select = HardSelection(tiny_config(**STRAIGHT_THROUGH, **case, hard_attention_temperature=0.7)).train()
    logs = torch.randn(2, 2, 3, 5, dtype=torch.float64).log_softmax(-1).requires_grad_()
    outer = torch.randn(2, 2, 3, 5, dtype=torch.float64)
    torch.manual_seed(5)
    weights, _, _ = select(logs, None, None)
    assert torch.equal(weights, F.one_hot(weights.argmax(-1), 5).double())  # exactly
    (found,) = torch.autograd.grad((weights * outer).sum(), logs)
    torch.manual_seed(5)
    noise = -torch.log(-torch.log(torch.rand_like(logs)))
    soft = torch.softmax((logs + noise) / 0.7, dim=-1)
    assert torch.equal(weights.argmax(-1), soft.argmax(-1))
    (expected,) = torch.autograd.grad((soft * outer).sum(), logs)
    torch.testing.assert_close(found, expected)
    drawn = torch.stack([select(logs, None, None)[0] for _ in range(4000)]).mean(0)
    torch.testing.assert_close(drawn, logs.detach().exp(), atol=0.05, rtol=0)
    model = tiny_model(**STRAIGHT_THROUGH, **case).train()
    weights = model(*source_batch(), labels=target_batch(), output_attentions=True).cross_attentions[0]
    assert set(weights.unique().tolist()) == {0.0, 1.0}


def test_the_temperature_moves_with_the_batches_and_goes_on_after_loading(tmp_path):
    fields = {"hard_attention_temperature": 2.0, "hard_attention_final_temperature": 0.5}
    model = tiny_model(**STRAIGHT_THROUGH, **fields, hard_attention_annealing_steps=4).train()
    seen = []
    for _ in range(6):
        model(*source_batch(), labels=target_batch())
        seen.append(float(model.get_decoder().attention.hard.temperature))
    assert seen == pytest.approx([2 * 0.25**0.25, 1.0, 2 * 0.25**0.75, 0.5, 0.5, 0.5])
    model.save_pretrained(tmp_path)
    loaded = AttentionSeq2SeqForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.get_decoder().attention.hard.updates == 6
    assert tiny_model(**STRAIGHT_THROUGH).get_decoder().attention.hard.temperature == 1.0


# The variational bound


def naive_bound(model):
    """`sum_i (sum_j q_ij log p(y_i | j) - sum_j q_ij log (q_ij / a_ij))` of one sentence (Deng 2018, eq. 4)."""
    decoder = model.get_decoder()
    inputs = torch.tensor([[1, 5]])
    output = model(SOURCE, decoder_input_ids=inputs, output_hidden_states=True, output_attentions=True)
    states, embeddings = output.decoder_hidden_states[-1][0], output.decoder_hidden_states[0][0]
    values, network = output.encoder_last_hidden_state[0], decoder.inference_network
    seen = network.rnn(model.model.get_decoder_input_embeddings()(TARGET))[0][0]
    total = 0.0
    for step in range(2):
        prior = torch.softmax(decoder.attention.score.key_projection(values) @ states[step], 0)
        posterior = torch.softmax(values @ (network.query_projection.weight @ seen[step]), 0)
        for place in range(3):
            readout = decoder.readout(states[step], values[place], embeddings[step])
            word = model.lm_head(readout).log_softmax(0)[TARGET[0, step]]
            total = total + posterior[place] * (word - torch.log(posterior[place] / prior[place]))
    return total


def test_the_enumerated_bound():
    model = lively_model(**VARIATIONAL)
    expected = -naive_bound(model) / 2
    for output_logits in (True, False):
        loss = model(SOURCE, labels=TARGET, output_logits=output_logits).loss
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients(loss, model), gradients(-naive_bound(model) / 2, model))
    assert model.eval()(SOURCE, labels=TARGET).loss < expected  # the likelihood itself


def test_the_mean_gradient_of_the_sampled_bound_is_that_of_the_enumerated_one():
    """As for REINFORCE: the mean of 3,000 draws within five standard errors."""
    model = lively_model(**VARIATIONAL, hard_attention_bound="sampled", hard_attention_entropy_weight=0.4)
    exact = gradients(-naive_bound(model) / 2, model)
    torch.manual_seed(0)
    sources, targets = SOURCE.expand(100, -1), TARGET.expand(100, -1)
    estimates = torch.stack([gradients(model(sources, labels=targets).loss, model) for _ in range(30)])
    error = (estimates.mean(0) - exact).abs()
    standard = estimates.std(0) / len(estimates) ** 0.5 + 1e-6
    assert (error < 5 * standard).all()
    assert exact.abs().max() > 100 * standard.median()


def test_the_bound_is_tight_where_the_posterior_is_that_of_the_model():
    """With one position only, both are certain, and the bound is the likelihood."""
    model = lively_model(**VARIATIONAL)
    single = torch.tensor([[5]])
    loss = model(single, labels=TARGET).loss
    torch.testing.assert_close(loss, model.eval()(single, labels=TARGET).loss)


# Training by the library


@pytest.mark.parametrize("case", [HARD, VARIATIONAL, {**HARD, "hard_attention_order": 1}], ids=name_of)
def test_the_library_s_label_smoothing_trains_the_same(case):
    """It takes the labels out and works on the logits alone; the model's own smoothing is the reference."""
    from transformers.trainer_pt_utils import LabelSmoother

    model = lively_model(**case)
    input_ids, mask = source_batch()
    labels = target_batch()
    for row, last in enumerate((4, 2, 4, 1)):
        labels[row, last] = model.config.eos_token_id
    ours = gradients(model(input_ids, mask, labels=labels, smoothing=0.1).loss, model)
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    logits = model(input_ids, mask, decoder_input_ids=inputs).logits
    theirs = gradients(LabelSmoother(epsilon=0.1)({"logits": logits}, labels.clone()), model)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", ["marginal", "reinforce", "straight_through", "variational"])
def test_half_precision_is_finite_and_close(estimator):
    case = {**HARD, "hard_attention_estimator": estimator}
    model = tiny_model(**case).train()
    input_ids, mask = source_batch()
    mask[1] = 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for output_logits in (True, False):
            model(input_ids, mask, labels=target_batch(), output_logits=output_logits).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    loss = tiny_model(**case)(input_ids, mask, labels=target_batch()).loss.item()
    for dtype in (torch.bfloat16, torch.float16):
        half = tiny_model(dtype, **case, input_feeding=estimator in ("reinforce", "straight_through"))
        assert half(input_ids, mask, labels=target_batch()).logits.isfinite().all()
    assert tiny_model(torch.bfloat16, **case)(input_ids, mask, labels=target_batch()).loss.item() == pytest.approx(
        loss, rel=0.03
    )


@pytest.mark.parametrize("estimator", ["marginal", "reinforce", "variational"])
def test_the_items_of_accumulated_batches_divide_all_losses(estimator):
    """Two halves divided by the words of both add up to the whole batch, gradients included."""
    model = lively_model(**HARD, hard_attention_estimator=estimator, hard_attention_soft_probability=1.0)
    input_ids, mask = source_batch()
    labels = target_batch()
    items = (labels != -100).sum()
    whole = gradients(model(input_ids, mask, labels=labels).loss, model)
    if estimator == "reinforce":  # the first batch's reward is the next one's baseline
        model.get_decoder().attention.hard.init_buffers()
    parts = [
        gradients(model(input_ids[rows], mask[rows], labels=labels[rows], num_items_in_batch=items).loss, model)
        for rows in (slice(0, 2), slice(2, 4))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-6)


# Choices in evaluation


@torch.no_grad()
def test_what_is_read_in_evaluation():
    models = {name: tiny_model(**HARD, hard_attention_inference=name) for name in ("argmax", "marginal", "sample")}
    input_ids, mask = source_batch()
    options = {"decoder_input_ids": target_batch().clamp(min=0), "output_attentions": True}
    outputs = {name: model(input_ids, mask, **options) for name, model in models.items()}
    weights = {name: output.cross_attentions[0] for name, output in outputs.items()}
    best = weights["marginal"].argmax(-1)
    assert torch.equal(weights["argmax"], F.one_hot(best, 7).float())
    torch.manual_seed(0)
    drawn = [models["sample"](input_ids, mask, **options).cross_attentions[0] for _ in range(600)]
    assert all(set(sample.unique().tolist()) == {0.0, 1.0} for sample in drawn)
    torch.testing.assert_close(torch.stack(drawn).mean(0), weights["marginal"], atol=0.12, rtol=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_feeding": True}, "input_feeding=True.*depend on the position"),
        ({"attention_query": "previous_state"}, "attention_query='previous_state'.*depend on the position"),
        ({"attention_heads": 2}, "attention_heads=2.*one head"),
        ({"coverage_type": "accumulated"}, "coverage_type='accumulated'.*remember"),
        ({"hard_attention_estimator": "guess"}, "'marginal', 'reinforce', 'straight_through', 'variational'"),
        ({"hard_attention_order": 2}, "hard_attention_order=2.*None, 0, 1"),
        ({"hard_attention_order": 0, "hard_attention_estimator": "reinforce"}, "needs hard_attention_estimator='marg"),
        ({"hard_attention_order": 0, "hard_attention_inference": "argmax"}, "summed over"),
        ({"hard_attention_order": 0, "attention_normalizer": "sparsemax"}, "softmax"),
        ({"hard_attention_order": 0, "hard_attention_positions": 3}, "hard_attention_positions=3"),
        ({"hard_attention_inference": "best"}, "'argmax', 'marginal', 'sample'"),
        ({"hard_attention_samples": 2}, "needs hard_attention_estimator='reinforce'"),
        ({"hard_attention_bound": "sampled"}, "needs hard_attention_estimator='variational'"),
        ({"hard_attention_final_temperature": 0.1}, "needs hard_attention_estimator='straight_through'"),
        ({"hard_attention_temperature": 0.0}, "above 0"),
        ({"hard_attention_soft_probability": 1.5}, "0 to 1"),
        ({"hard_attention_baseline_decay": 1.0}, "below 1"),
        ({"attention_selection": "soft", "hard_attention_order": 1}, "needs attention_selection='hard'"),
        ({"attention_selection": "soft", "hard_attention_positions": 1}, "needs attention_selection='hard'"),
        ({"attention_type": "none"}, "attention_type='none' has no such thing"),
    ],
)
def test_what_has_no_meaning_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        AttentionSeq2SeqConfig(**{**HARD, **fields})


@pytest.mark.parametrize("estimator", ["reinforce", "straight_through"])
def test_feeding_and_coverage_go_with_one_position(estimator):
    case = {"hard_attention_estimator": estimator, "input_feeding": True, "coverage_type": "accumulated"}
    model = tiny_model(**HARD, **case, coverage_loss_weight=1.0, attention_heads=2).train()
    model(*source_batch(), labels=target_batch()).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
