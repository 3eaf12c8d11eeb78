"""
Translating with 8-bit integers on a CPU.

`quantize_int8(model)` makes a model whose embeddings, linear maps and decoder steps have int8 weights, one scale for
each output; a third of the size, and several times as fast in its matrix products. Each input row gets a scale of its
own as it comes, so that no result depends on the other sentences of the batch. The encoder's recurrence, which runs
once a sentence, stays in float32, as does all arithmetic between the products.

    small = quantize_int8(model)                            # or from_pretrained("runs/mine", quantization="int8")
    small.save_pretrained("runs/mine-int8")                 # safetensors; loads again as it is

The products are torch's own of bytes, for which the processor must have instructions (on x86: VNNI). Elsewhere the
same numbers are multiplied in float32, and nothing is gained but memory. `torch.ao.quantization` and its
quantized tensors are deprecated, and torchao's dynamic linear layers are slower than float32 for single sentences.
"""

from __future__ import annotations

import copy
import functools
import math
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .configuration_attention_seq2seq import QUANTIZATIONS
from .decoders import RecurrentDecoder
from .loading import REPOSITORY_OPTIONS
from .recurrent import gru_gates
from .step_products import lstm_gates

if TYPE_CHECKING:
    from .modeling_attention_seq2seq import AttentionSeq2SeqPreTrainedModel

_LARGEST = 127
_SMALLEST_SCALE = 1e-12  # for a row of zeros


@functools.cache
def _has_exact_products() -> bool:
    """Whether products of bytes are added up in 32 bits; a processor without such instructions overflows 16."""
    largest = torch.full((1, 64), _LARGEST, dtype=torch.int8)
    return torch._int_mm(largest, largest.t()).item() == 64 * _LARGEST**2


def _quantize_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`(rows, columns)` to int8 of the same shape, and the scale of each row `(rows,)`."""
    matrix = matrix.detach().float()
    scale = matrix.abs().amax(dim=1).clamp(min=_SMALLEST_SCALE) / _LARGEST
    return torch.round(matrix / scale[:, None]).to(torch.int8), scale


class Int8Linear(nn.Module):
    """
    `x W^T + b` with `W` in int8 and `x` rounded to 8 bits row by row; float32 outside.

    Attributes:
        weight: `(out_features, in_features)` int8.
        weight_scale: `(out_features,)`; `weight * weight_scale[:, None]` is the matrix.
        bias: `(out_features,)` float32, or `None`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        quantized, scale = _quantize_rows(weight)
        self.register_buffer("weight", quantized)
        self.register_buffer("weight_scale", scale)
        self.bias = None if bias is None else nn.Parameter(bias.detach().float().clone(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """
        `(..., in_features)` to `(..., out_features)`.

        Raises:
            ValueError: in training mode, on another device than the CPU, or for another type than float32.
        """
        if self.training:
            raise ValueError("An int8 model cannot be trained; train it in float32, then call quantize_int8(model).")
        if inputs.device.type != "cpu" or inputs.dtype != torch.float32:
            raise ValueError(
                f"An int8 model computes on the CPU from float32, not on {inputs.device.type!r} from {inputs.dtype}; "
                "there use the model as it was before quantization, or move this one back with "
                "model.to('cpu', torch.float32)."
            )
        rows = inputs.reshape(-1, self.in_features)
        scale = torch.linalg.vector_norm(rows, math.inf, dim=1, keepdim=True).clamp_(min=_SMALLEST_SCALE) / _LARGEST
        rounded = (rows / scale).round_()
        if _has_exact_products():
            outputs = torch._int_mm(rounded.to(torch.int8), self.weight.t()).float()
        else:
            outputs = rounded @ self.weight.t().float()
        outputs.mul_(self.weight_scale)
        outputs = outputs.mul_(scale) if self.bias is None else torch.addcmul(self.bias, outputs, scale)
        return outputs.view(*inputs.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Int8Embedding(nn.Module):
    """Embeddings `(num_embeddings, embedding_dim)` in int8, with one scale for each token."""

    def __init__(self, embedding: nn.Embedding):
        super().__init__()
        self.num_embeddings, self.embedding_dim = embedding.weight.shape
        self.padding_idx = embedding.padding_idx
        quantized, scale = _quantize_rows(embedding.weight)
        self.register_buffer("weight", quantized)
        self.register_buffer("weight_scale", scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """`tokens` of any shape, int64, to `(*tokens.shape, embedding_dim)`."""
        return self.weight[tokens] * self.weight_scale[tokens].unsqueeze(-1)


class Int8Recurrent(nn.Module):
    """
    The unidirectional recurrent modules of `recurrent` with both of their products in int8.

    `cell` is one of `_CELLS`; it gets what the input and the state give to the gates.
    """

    def __init__(self, rnn: nn.RNNBase):
        super().__init__()
        self.cell = _CELLS[rnn.mode]
        self.input_map = Int8Linear(rnn.weight_ih_l0, rnn.bias_ih_l0)
        self.hidden_map = Int8Linear(rnn.weight_hh_l0, rnn.bias_hh_l0)

    def forward(self, inputs: Tensor, state: Tensor | tuple[Tensor, Tensor], step: bool = False, lengths: None = None):
        """See `recurrent`: one step `(rows, input_size)`, or sequences `(rows, length, input_size)` from a state."""
        mapped = self.input_map(inputs)
        if step:
            return self._step(mapped, state)
        state = tuple(part.squeeze(0) for part in state) if isinstance(state, tuple) else state.squeeze(0)
        outputs = []
        for gates in mapped.unbind(dim=1):
            state = self._step(gates, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        last = tuple(part.unsqueeze(0) for part in state) if isinstance(state, tuple) else state.unsqueeze(0)
        return torch.stack(outputs, dim=1), last

    def _step(self, mapped: Tensor, state: Tensor | tuple[Tensor, Tensor]) -> Tensor | tuple[Tensor, Tensor]:
        hidden = state[0] if isinstance(state, tuple) else state
        return self.cell(mapped, self.hidden_map(hidden), state)


def _lstm(mapped: Tensor, from_hidden: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return lstm_gates(mapped + from_hidden, state[1])[:2]


def _rnn(mapped: Tensor, from_hidden: Tensor, state: Tensor) -> Tensor:
    return (mapped + from_hidden).tanh()


_CELLS = {"LSTM": _lstm, "GRU": gru_gates, "RNN_TANH": _rnn}


def use_int8_modules(model: nn.Module) -> None:
    """Puts int8 modules, with the values of the present ones, in the places of a model's float32 modules."""
    for module in list(model.modules()):
        if isinstance(module, RecurrentDecoder):
            for layer in module.layers:
                if isinstance(layer.rnn, nn.RNNBase):
                    layer.rnn = Int8Recurrent(layer.rnn)
        for name, child in list(module.named_children()):
            if type(child) is nn.Embedding:
                setattr(module, name, Int8Embedding(child))
            elif type(child) is nn.Linear and min(child.weight.shape) > 1:  # a single number has nothing to gain
                setattr(module, name, Int8Linear(child.weight, child.bias))


def quantize_int8(model: AttentionSeq2SeqPreTrainedModel) -> AttentionSeq2SeqPreTrainedModel:
    """
    The same model in int8, for translation on a CPU; `model` stays as it is.

    The result works wherever `model` does in evaluation mode: `forward`, `generate`, pipelines, ensembles. Saved, its
    configuration has `quantization="int8"`, and it loads as int8. A tied output layer becomes a matrix of its own.

    Raises:
        ValueError: `model` is in int8 already, in another type than float32, or not on the CPU.
    """
    if model.config.quantization is not None:
        raise ValueError(f"The model is quantized already: quantization={model.config.quantization!r}.")
    if model.dtype != torch.float32 or model.device.type != "cpu":
        raise ValueError(
            f"The model is on {model.device.type!r} in {model.dtype}; only a model on the CPU in float32 can be "
            "quantized: quantize_int8(model.float().cpu())."
        )
    config = copy.deepcopy(model.config)
    config.quantization = "int8"
    config.readout_size, config.tie_word_embeddings = model.config.readout_width, False
    quantized = type(model)(config)
    source = copy.deepcopy(model)
    use_int8_modules(source)
    quantized.load_state_dict(source.state_dict())
    if model.can_generate():
        quantized.generation_config = copy.deepcopy(model.generation_config)
    quantized.name_or_path = model.name_or_path
    return quantized.requires_grad_(False).eval()


def take_quantization(config_class: type, name_or_path: str | os.PathLike | None, options: dict[str, Any]) -> bool:
    """
    Takes `quantization` out of the options of `from_pretrained`.

    Args:
        config_class: of the model.
        name_or_path: of the saved model.
        options: of `from_pretrained`; what asks for another type than the saved one's is taken out.

    Returns:
        whether the saved weights are float32 and int8 is asked for: load them, then quantize.

    Raises:
        ValueError: an unknown quantization.
    """
    config = options.get("config")
    asked = options.pop("quantization", getattr(config, "quantization", None))
    if asked not in QUANTIZATIONS:
        raise ValueError(f"quantization={asked!r} is not possible; allowed: {', '.join(map(repr, QUANTIZATIONS))}.")
    if asked is None or name_or_path is None:
        return False
    where = {name: options[name] for name in REPOSITORY_OPTIONS if options.get(name) is not None}
    if config_class.get_config_dict(name_or_path, **where)[0].get("quantization") == asked:
        return False
    if getattr(config, "quantization", None) is not None:
        options["config"] = copy.deepcopy(config)
        options["config"].quantization = None
    return True
