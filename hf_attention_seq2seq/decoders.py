"""The recurrent decoder: when it attends, what it feeds back, and the two ways to run it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import Attended, PreparedMemory, restore_weights
from .attention_types import build_attention
from .bridges import build_bridge
from .cache import DecoderState
from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .encoders import EncoderOutput
from .hard_attention import Choice, InferenceNetwork
from .layout import PaddingLayout
from .mixtures import Mixture
from .pointer import Copying, PointerGenerator, first_places
from .readouts import READOUTS
from .recurrent import RecurrentLayer
from .step_products import shared_gradients


@dataclass(frozen=True)
class DecoderOutput:
    """
    Attributes:
        readouts: `(rows, target_length, readout_width)`.
        state: after the last token.
        layer_states: per layer `(rows, target_length, hidden_size)`.
        weights: `(rows, heads, target_length, source_length)`, or `None` without attention or if not asked for.
        coverage_loss: `(rows, target_length)`, or `None` if the configuration has none.
        choice: of a hard attention.
        mixture: the words' distributions where they are summed over hard alignments; `readouts` are those of the
            expected contexts then.
        contexts: `(rows, target_length, context_size)`, or `None` if the configuration has no `copy_mechanism`.
        copying: what the output has of the source, or `None` as above.
        sentence_weights: of hierarchical attention `(rows, heads, target_length, sentences)`.
    """

    readouts: Tensor
    state: DecoderState
    layer_states: tuple[Tensor, ...]
    weights: Tensor | None
    coverage_loss: Tensor | None = None
    choice: Choice | None = None
    mixture: Mixture | None = None
    contexts: Tensor | None = None
    copying: Copying | None = None
    sentence_weights: Tensor | None = None


class RecurrentDecoder(nn.Module):
    """
    A stack of recurrent layers that asks the attention before it is updated (`attention_query="previous_state"`,
    Bahdanau 2014) or after (`"current_state"`, Luong 2015).

    The first layer reads the embedding of the previous word, then the context if it was asked for before the
    update, then the last readout vector with input feeding.

    `_run_steps` follows the equations step by step. Where no step needs the attention of another one, `_run_at_once`
    runs whole sequences through each layer and attends for all steps together; a test holds the two equal.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        self.dropout = config.dropout
        self.memory_dropout = config.memory_dropout
        self.output_dropout = config.output_dropout
        self.residual = config.residual
        self.input_feeding = config.input_feeding
        self.attends_first = config.attention_query == "previous_state"
        self.attention = build_attention(config)
        needs_steps = self.input_feeding or self.attention.is_stateful
        self.runs_at_once = not needs_steps and (not self.attends_first or config.attention_type == "none")
        inputs = config.embedding_size
        inputs += self.attention.context_size if self.attends_first else 0
        inputs += config.readout_width if self.input_feeding else 0
        self.layers = nn.ModuleList(
            RecurrentLayer(config.rnn_type, inputs if index == 0 else config.hidden_size, config.hidden_size)
            for index in range(config.decoder_layers)
        )
        self.bridge = build_bridge(config)
        self.readout = READOUTS[config.readout_type](config, self.attention.context_size)
        self.readout_width = config.readout_width
        self.order = config.hard_attention_order
        self.sums_places = config.sums_places
        self.samples_posterior = config.hard_attention_bound == "sampled"
        if config.attention_selection == "hard" and config.hard_attention_estimator == "variational":
            self.inference_network = InferenceNetwork(config, self.attention.context_size)
        self.pointer = None
        if config.copy_mechanism is not None:
            self.pointer = PointerGenerator(config, self.attention.context_size)

    @property
    def reads_final_states(self) -> bool:
        """Whether the decoder needs more of the encoder than `last_hidden_state`."""
        return self.bridge.reads_final or hasattr(self.attention, "summary_projection")

    def prepare(self, encoder: EncoderOutput, mask: Tensor) -> PreparedMemory:
        """Projects the encoder states for attention, once a sentence. `mask`: `(batch, source_length)` bool."""
        states = self._drop(encoder.last_hidden_state, self.memory_dropout)
        if encoder.sentence_states is not None:
            encoder = replace(encoder, sentence_states=self._drop(encoder.sentence_states, self.memory_dropout))
        memory = self.attention.prepare(states, PaddingLayout.from_mask(mask), encoder)
        if self.pointer is not None:
            memory = replace(memory, source_ids=encoder.source_ids, first_places=first_places(encoder.source_ids))
        if not self.sums_places:
            return memory
        return replace(memory, readout_parts=self.readout.context_part(memory.values.squeeze(1)))

    def first_state(self, encoder: EncoderOutput, memory: PreparedMemory, rows: int) -> DecoderState:
        """The state before the first token, for `rows` hypotheses which the sentences share evenly."""
        steps = torch.zeros(memory.rows, dtype=torch.long, device=memory.mask.device)
        state = DecoderState(layers=self.bridge(encoder, memory), steps=steps)
        if rows != memory.rows:
            state = state.map(lambda tensor: tensor.repeat_interleave(rows // memory.rows, dim=0))
        if self.input_feeding:
            state = replace(state, feed=state.top.new_zeros(rows, self.readout_width))
        return replace(state, history=self.attention.first_history(memory, rows))

    def forward(
        self,
        embeddings: Tensor,
        memory: PreparedMemory,
        state: DecoderState,
        mask: Tensor | None = None,
        with_weights: bool = True,
        targets: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> DecoderOutput:
        """
        Args:
            embeddings: `(rows, target_length, embedding_size)` of the previous words.
            memory: of `rows` sentences or of fewer, which consecutive rows share.
            state: before the first of these tokens.
            mask: `(rows, target_length)` bool; a false entry leaves the row's state as it is. `None` if all are true.
            with_weights: whether the attention weights are wanted.
            targets, counted: embeddings of the words to predict, and where there are some, `(rows, target_length)`
                bool, for an inference network; `None` to do without.
        """
        with_weights = with_weights or self.pointer is not None
        run = self._run_at_once if self.runs_at_once and mask is None else self._run_steps
        output = run(embeddings, memory, state, mask, with_weights)
        if output.weights is not None:
            output = replace(output, weights=restore_weights(output.weights, memory))
        if output.choice is not None and output.choice.log_weights is not None:
            mixture = self._mixture(output, embeddings, memory)
            if targets is not None:
                values = memory.values.squeeze(1).repeat_interleave(len(embeddings) // memory.rows, dim=0)
                posterior = self.inference_network(targets, counted, values, output.choice)
                mixture = mixture.with_posterior(posterior, self.samples_posterior)
            started = state.steps > 0
            output = replace(output, mixture=replace(mixture, mask=mask, chain=state.chain, started=started))
        if self.pointer is not None:
            parts = (output.contexts, output.layer_states[-1], embeddings, output.weights)
            copying = self.pointer(*parts, memory.source_ids, memory.first_places)
            output = replace(output, copying=copying)
        return output

    def _mixture(self, output: DecoderOutput, embeddings: Tensor, memory: PreparedMemory) -> Mixture:
        states, gate = output.layer_states[-1], self.attention.gate
        dropout = None
        if self.training and self.output_dropout:
            dropout = self._drop(output.readouts.new_ones(output.readouts.shape), self.output_dropout)
        return Mixture(
            states=self.readout.state_part(states, embeddings),
            contexts=memory.readout_parts,
            scale=None if gate is None else torch.sigmoid(gate(states)),
            dropout=dropout,
            finish=self.readout.finish,
            choice=output.choice,
            memory=memory,
            order=self.order,
        )

    def _drop(self, tensor: Tensor, rate: float) -> Tensor:
        return F.dropout(tensor, rate, self.training) if rate else tensor

    def _run_at_once(
        self, embeddings: Tensor, memory: PreparedMemory, state: DecoderState, mask: None, with_weights: bool
    ) -> DecoderOutput:
        inputs = embeddings
        steps = state.steps[:, None] + torch.arange(embeddings.shape[1], device=embeddings.device)
        if self.attends_first:  # only a fixed context gets here, which asks no state
            inputs = torch.cat((inputs, self.attention(embeddings, memory, steps).contexts), dim=-1)
        layer_states, last = [], []
        for index, layer in enumerate(self.layers):
            inputs = self._drop(inputs, self.dropout if index else 0.0)
            outputs, new = layer(inputs, state.layers[index])
            inputs = outputs + inputs if self.residual and index else outputs
            layer_states.append(inputs)
            last.append(new)
        attended = self.attention(inputs, memory, steps, with_weights=with_weights)
        readouts = self._drop(self.readout(inputs, attended.contexts, embeddings), self.output_dropout)
        state = replace(state, layers=tuple(last), steps=steps[:, -1] + 1)
        contexts = None if self.pointer is None else attended.contexts
        return DecoderOutput(
            readouts,
            state,
            tuple(layer_states),
            attended.weights,
            choice=attended.choice,
            contexts=contexts,
            sentence_weights=attended.sentence_weights,
        )

    def _run_steps(
        self,
        embeddings: Tensor,
        memory: PreparedMemory,
        state: DecoderState,
        mask: Tensor | None,
        with_weights: bool,
    ) -> DecoderOutput:
        steps = []
        with shared_gradients(embeddings):
            for index, embedding in enumerate(embeddings.unbind(dim=1)):
                old = state
                state, step = self._step(embedding, memory, state, with_weights)
                if mask is not None:
                    state = state.where(mask[:, index], old)
                steps.append(step)
        readouts, contexts = _stack([step.readout for step in steps], dim=1), None
        if readouts is None or self.pointer is not None:
            contexts = torch.cat([step.attended.contexts for step in steps], dim=1)
        if readouts is None:  # not needed within the loop: one product for all steps
            tops = torch.stack([step.layer_states[-1] for step in steps], dim=1)
            readouts = self._drop(self.readout(tops, contexts, embeddings), self.output_dropout)
        return DecoderOutput(
            readouts=readouts,
            state=state,
            layer_states=tuple(torch.stack(layer, dim=1) for layer in zip(*(step.layer_states for step in steps))),
            weights=_concatenate([step.attended.weights for step in steps], dim=2),
            coverage_loss=_concatenate([step.attended.coverage_loss for step in steps], dim=1),
            choice=Choice.concatenate([step.attended.choice for step in steps]),
            contexts=contexts,
            sentence_weights=_concatenate([step.attended.sentence_weights for step in steps], dim=2),
        )

    def _step(
        self, embedding: Tensor, memory: PreparedMemory, state: DecoderState, with_weights: bool
    ) -> tuple[DecoderState, _Step]:
        """One token `(rows, embedding_size)`."""

        def attend(query: Tensor) -> Attended:
            return self.attention(query.unsqueeze(1), memory, state.steps[:, None], state.history, with_weights)

        inputs = [embedding]
        if self.attends_first:
            attended = attend(state.top)
            inputs.append(attended.contexts.squeeze(1))
        if self.input_feeding:
            inputs.append(state.feed)
        hidden = torch.cat(inputs, dim=-1) if len(inputs) > 1 else embedding
        layers, layer_states = [], []
        for index, layer in enumerate(self.layers):
            hidden = self._drop(hidden, self.dropout if index else 0.0)
            new = layer.step(hidden, state.layers[index])
            hidden = new[0] + hidden if self.residual and index else new[0]
            layers.append(new)
            layer_states.append(hidden)
        if not self.attends_first:
            attended = attend(hidden)
        readout = None
        if self.input_feeding:
            readout = self.readout(hidden, attended.contexts.squeeze(1), embedding)
            readout = self._drop(readout, self.output_dropout)
        state = replace(state, layers=tuple(layers), steps=state.steps + 1, feed=readout, history=attended.history)
        return state, _Step(layer_states, attended, readout)


@dataclass(frozen=True)
class _Step:
    """What `_run_steps` collects of one step."""

    layer_states: list[Tensor]
    attended: Attended
    readout: Tensor | None


def _concatenate(parts: list[Tensor | None], dim: int) -> Tensor | None:
    return None if parts[0] is None else torch.cat(parts, dim=dim)


def _stack(parts: list[Tensor | None], dim: int) -> Tensor | None:
    return None if parts[0] is None else torch.stack(parts, dim=dim)
