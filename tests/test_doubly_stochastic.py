"""The loss of Xu 2015 that asks for attention to everything, and the gate on the context."""

import pytest
import torch
from torch.nn import functional as F
from transformers.trainer_pt_utils import LabelSmoother

from hf_attention_seq2seq import AttentionSeq2SeqConfig

from .helpers import source_batch, target_batch, tiny_model


def naive_loss(weights, mask, labels):
    """Eq. 14, sentence by sentence, over the heads' mean."""
    total = 0.0
    for row in range(len(weights)):
        for position in range(int(mask[row].sum())):
            per_head = [
                (1 - sum(head[step, position] for step in range(labels.shape[1]) if labels[row, step] != -100)) ** 2
                for head in weights[row]
            ]
            total += sum(per_head) / len(per_head)
    return total


@pytest.mark.parametrize("fields", [{}, {"attention_heads": 4}, {"attention_span": "local_p", "attention_window": 1}])
@pytest.mark.parametrize("items", [None, 60])
def test_it_is_added_to_the_likelihood(fields, items):
    model = tiny_model(torch.float64, doubly_stochastic_weight=0.7, **fields)
    input_ids, mask = source_batch()
    labels = target_batch()
    output = model(input_ids, mask, labels=labels, output_attentions=True, num_items_in_batch=items)
    items = items or 15
    likelihood = F.cross_entropy(output.logits.float().mT, labels, reduction="sum") / items
    extra = naive_loss(output.cross_attentions[0], mask, labels) / items
    torch.testing.assert_close(output.loss, likelihood + 0.7 * extra, check_dtype=False)
    assert extra > 0.1
    assert model(input_ids, mask, labels=labels).cross_attentions is None


def test_the_trainers_label_smoother_keeps_it():
    model = tiny_model(torch.float64, doubly_stochastic_weight=0.7).train()
    input_ids, mask = source_batch()
    labels = target_batch()
    labels[labels == 2] = 3
    for row, length in enumerate((5, 3, 5, 2)):
        labels[row, length - 1] = 2

    def gradients(loss):
        model.zero_grad()
        loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    expected = gradients(model(input_ids, mask, labels=labels).loss)
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    output = model(input_ids, mask, decoder_input_ids=decoder_input_ids)
    torch.testing.assert_close(gradients(LabelSmoother(epsilon=0.0)(output, labels)), expected, atol=1e-7, rtol=1e-6)


def test_what_has_no_meaning_is_refused():
    for field in ({"doubly_stochastic_weight": 1.0}, {"context_gate": True}):
        with pytest.raises(ValueError, match=f"{next(iter(field))}=.*attention_type='none'"):
            AttentionSeq2SeqConfig(attention_type="none", **field)
    with pytest.raises(ValueError, match="doubly_stochastic_weight=-1"):
        AttentionSeq2SeqConfig(doubly_stochastic_weight=-1)
    with pytest.raises(ValueError, match="readout_size=5 .*embedding_size=256"):
        AttentionSeq2SeqConfig(readout_type="deep", readout_size=5)
