"""What must hold for every encoder under every kind of attention and with every bridge."""

import pytest
import torch

from .encoder_grid import ENCODERS, frames, grid
from .helpers import name_of, source_batch, target_batch, tiny_model
from .test_invariants import check_everything, check_gradients, check_padding, check_steps


@pytest.mark.parametrize("case", grid(), ids=name_of)
def test_every_encoder_with_every_choice(case, tmp_path):
    check_everything(case, tmp_path)


@pytest.mark.parametrize("case", frames(), ids=name_of)
def test_every_encoder_with_every_bridge(case):
    check_gradients(case)
    with torch.no_grad():
        check_padding(case)
        check_steps(case)


@pytest.mark.parametrize("encoder", ENCODERS, ids=name_of)
def test_every_encoder_with_losses_on_the_attention(encoder):
    """Xu 2015, eq. 14 (only where there is a position), and See 2017, eq. 12, of the weights that come out."""
    fields = {"doubly_stochastic_weight": 1.0, "coverage_type": "accumulated", "coverage_loss_weight": 1.0}
    model = tiny_model(torch.float64, **encoder, **fields)
    plain = tiny_model(torch.float64, **encoder, coverage_type="accumulated")
    plain.load_state_dict(model.state_dict())
    input_ids, mask = source_batch()
    labels = target_batch()
    output = plain(input_ids, mask, labels=labels, output_attentions=True)
    weights = output.cross_attentions[0][:, 0] * (labels != -100)[..., None]
    is_position = plain.get_encoder()(input_ids, mask).attention_mask
    evenness = ((1 - weights.sum(1)).square() * is_position).sum()
    before = weights.cumsum(1) - weights
    repeated = torch.minimum(weights, before).sum()
    expected = output.loss + (evenness + repeated) / (labels != -100).sum()
    torch.testing.assert_close(model(input_ids, mask, labels=labels).loss, expected)
