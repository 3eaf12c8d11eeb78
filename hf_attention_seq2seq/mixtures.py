"""Output distributions that are summed over the positions which attention may have chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .attention import PreparedMemory
from .hard_attention import Choice, gumbel_noise
from .losses import linear_log_likelihood

CHUNK = 1 << 23  # values of alternatives that are held at a time, 32 MB in fp32
NEVER = -1e9  # the logarithm of no probability at all, in single and double precision: exp(NEVER) is 0
UNSEEN = -1e4  # that of a place outside of a window, which counts only where no other place is left


@dataclass(frozen=True)
class Mixture:
    """
    The words' distributions given each position that may have been chosen, not yet computed (Wu 2018, eq. 5):
    `p(y_i) = sum_j a_ij softmax(W finish(state_i + context_j))`.

    Attributes:
        states: `(rows, target_length, size)`, what each decoder state gives to the readout.
        contexts: `(sentences, source, size)`, what each source position gives to it.
        scale: `(rows, target_length, 1)`, by which a state multiplies all contexts, or `None`.
        dropout: `(rows, target_length, readout_width)`, by which readout vectors are multiplied, or `None`.
        finish: from their sum to the readout vector.
        choice: the log-distribution over places.
        memory: the sentences, whose hypotheses are consecutive rows.
        posterior: `(rows, target_length, places)`, the log-distribution of the inference network, or `None`.
        divergence: `(rows, target_length)`, `KL(posterior || prior)` of each word's position, or `None`.
        log_probability: `(rows, target_length)` of places sampled from the posterior, or `None`.
        order: of the alignment's chain: `None`, 0 or 1, see `along_chain`.
        mask: `(rows, target_length)` bool, false where the decoder passed over a word; `None` if nowhere.
        chain: of the steps before: the last one's distribution `(rows, source)`, state part `(rows, size)` and scale
            `(rows, 1)`; nothing before the start.
        started: `(rows,)` bool, whether a row had a step before.
    """

    states: Tensor
    contexts: Tensor
    scale: Tensor | None
    dropout: Tensor | None
    finish: Callable[[Tensor], Tensor]
    choice: Choice
    memory: PreparedMemory
    posterior: Tensor | None = None
    divergence: Tensor | None = None
    log_probability: Tensor | None = None
    order: int | None = None
    mask: Tensor | None = None
    chain: tuple[Tensor, ...] = ()
    started: Tensor | None = None

    # What does each word's distribution look like?

    def log_probabilities(self, output_layer: nn.Module) -> Tensor:
        """
        `log sum_j a_ij p(y | j)`, `(rows, target_length, vocabulary)` fp32 at least; with a posterior the expectation
        `sum_j q_ij log p(y | j)`.

        Memory: a part of the alternatives at a time, computed again for the gradient.
        """
        weights, reduce = (self.choice.log_weights, _mix) if self.posterior is None else (self.posterior, _expect)

        def part(readouts: Tensor, weight: Tensor) -> Tensor:
            return reduce(_precise(output_layer(readouts)).log_softmax(dim=-1), weight.unsqueeze(-1))

        return self._in_parts(part, weights, output_layer.out_features, keep_small=False)

    def log_likelihoods(self, output_layer: nn.Module, words: Tensor, smoothing: float = 0.0) -> Tensor:
        """
        `log p(words_i | j)` for each place, `(rows, target_length, places)`, where `words` is `(rows, target_length)`
        int64; `smoothing` of it is the mean of the vocabulary's.
        """

        def part(readouts: Tensor, word: Tensor) -> Tensor:
            wanted = word.unsqueeze(-1).expand(readouts.shape[:-1])
            if type(output_layer) is nn.Linear:
                found = linear_log_likelihood(readouts.flatten(0, 2), output_layer, wanted.flatten(), smoothing)
                return found.view(wanted.shape)
            logs = _precise(output_layer(readouts)).log_softmax(dim=-1)
            found = logs.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
            return (1 - smoothing) * found + smoothing * logs.mean(dim=-1) if smoothing else found

        return self._in_parts(part, words, output_layer.in_features, keep_small=True)

    def _in_parts(self, function: Callable, arguments: Tensor, width: int, keep_small: bool) -> Tensor:
        """
        `function(readouts (sentences, queries, places, readout_width), arguments (sentences, queries, ...))` for some
        sentences or some of their queries at a time, so that `width` values for each place fit in a chunk.

        Args:
            keep_small: whether one part that is all needs not be computed again for the gradient.
        """
        sentences, places = self.memory.rows, self.choice.log_weights.shape[-1]
        tensors = {"states": self.states, "scale": self.scale, "dropout": self.dropout, "arguments": arguments}
        tensors |= {"positions": self.choice.positions}
        # Hypotheses of one sentence are further queries to the same memory.
        given = {
            name: tensor.reshape(sentences, -1, *tensor.shape[2:])
            for name, tensor in tensors.items()
            if tensor is not None
        }
        queries = given["states"].shape[1]

        def run(rows: slice, steps: slice) -> Tensor:
            part = {name: tensor[rows, steps] for name, tensor in given.items()}
            contexts = self.contexts[rows].unsqueeze(1)
            if "positions" in part:
                index = part["positions"].unsqueeze(-1).expand(-1, -1, -1, contexts.shape[-1])
                contexts = contexts.expand(-1, index.shape[1], -1, -1).gather(2, index)
            if "scale" in part:
                contexts = contexts * part["scale"].unsqueeze(2)
            readouts = self.finish(part["states"].unsqueeze(2) + contexts)
            if "dropout" in part:
                readouts = readouts * part["dropout"].unsqueeze(2)
            return function(readouts, part["arguments"])

        at_once = max(CHUNK // (places * width), 1)
        rows_at_once, queries_at_once = max(at_once // max(queries, 1), 1), max(min(at_once, queries), 1)
        parts = [
            (slice(row, row + rows_at_once), slice(step, step + queries_at_once))
            for row in range(0, sentences, rows_at_once)
            for step in range(0, max(queries, 1), queries_at_once)
        ]
        if torch.is_grad_enabled() and not (keep_small and len(parts) == 1):
            done = [checkpoint(run, *part, use_reentrant=False) for part in parts]
        else:
            done = [run(*part) for part in parts]
        if queries > queries_at_once:  # several parts of each sentence
            number = math.ceil(queries / queries_at_once)
            done = [torch.cat(done[start : start + number], dim=1) for start in range(0, len(done), number)]
        return torch.cat(done).reshape(*self.states.shape[:2], *done[0].shape[2:])

    # Where did attention look?

    def weights(self) -> Tensor:
        """`(rows, 1, target_length, source)`, the distribution over positions, tokens in front."""
        weights = self.choice.log_weights.exp()
        if self.choice.positions is not None:
            source = self.memory.mask.shape[1]
            spread = weights.new_zeros(*weights.shape[:2], source)
            weights = spread.scatter_add(2, self.choice.positions, weights)
        mask = self.memory.mask.repeat_interleave(len(weights) // self.memory.rows, dim=0)
        return torch.where(mask.unsqueeze(1), weights, 0.0).unsqueeze(1)

    def sum_places(self, log_likelihoods: Tensor) -> Tensor:
        """Each word's log-likelihood (or its expectation), `(rows, target_length)`, from `log_likelihoods`."""
        if self.posterior is not None:
            return (self.posterior.exp() * log_likelihoods).sum(dim=-1)
        return (self.choice.log_weights + log_likelihoods).logsumexp(dim=-1)

    # What the inference network adds

    def with_posterior(self, posterior: Tensor, sampled: bool) -> Mixture:
        """With the log-distribution of an inference network; or with one place drawn from it for each word."""
        possible = self.choice.log_weights > float("-inf")
        difference = torch.where(possible, posterior - self.choice.log_weights, 0.0)
        known = replace(self, posterior=posterior, divergence=(posterior.exp() * difference).sum(dim=-1))
        return known._sampled() if sampled else known

    def _sampled(self) -> Mixture:
        posterior = self.posterior.detach()
        picked = (posterior + gumbel_noise(posterior)).argmax(dim=-1, keepdim=True)
        positions = picked if self.choice.positions is None else self.choice.positions.gather(2, picked)
        certain = torch.zeros_like(picked, dtype=self.posterior.dtype)
        return replace(
            self,
            choice=Choice(log_weights=certain, positions=positions),
            posterior=None,
            log_probability=self.posterior.gather(2, picked).squeeze(-1),
        )

    # Alignments that move ahead only

    def along_chain(self, output_layer: nn.Module, words: Tensor) -> tuple[Mixture, tuple[Tensor, ...], Tensor]:
        """
        The distribution over the next position given all words before, where positions never go back: the forward
        algorithm of an HMM that starts at the first position (Wu and Cotterell 2019).

        Order 0: `p(a_i = j | a_(i-1) = k)` is the attention at step `i`, cut off before `k` and normalised again.
        Order 1: with `JumpScores` added to the scores.

        Args:
            words: `(rows, target_length)` int64, the decoder inputs: each is the word that the step before said.

        Returns:
            the mixture with these distributions, the chain after the last step, and `log p(words_i | j)` of all words
            but the first under the step that said them, `(rows, target_length - 1, source)`.
        """
        rows, length, _ = self.states.shape
        places = self.memory.mask.repeat_interleave(rows // self.memory.rows, dim=0)
        scores, mask, chain = self._scores(places), self.mask, self.chain
        seen = torch.ones_like(words, dtype=torch.bool) if mask is None else mask
        if chain:
            last, spoken = chain[0].to(scores.dtype), self._with_step_in_front(chain[1], chain[2])
            started = self.started
            last = torch.where(started[:, None], last, _first_position(last))
        else:
            last, spoken = _first_position(scores[:, 0]), self._with_step_in_front(self.states[:, 0], None)
            started = seen.new_zeros(rows)
        # The step that said each word, numbered from 1: the one before, or further back if words were passed over.
        numbers = torch.arange(length + 1, device=scores.device).expand(rows, -1)
        speakers = torch.where(F.pad(seen, (1, 0), value=True), numbers, 0).cummax(dim=1).values
        known = 0 if chain else 1
        evidence = spoken.at_steps(speakers[:, known:-1]).log_likelihoods(output_layer, words[:, known:])
        distributions = []
        for step in range(length):
            said = evidence[:, step - known] if step >= known else torch.zeros_like(last)
            if mask is not None or step == 0:  # nothing was said before the first word that counts
                said = torch.where((started | seen[:, :step].any(dim=1))[:, None], said, 0.0)
            posterior = (last + said).log_softmax(dim=-1)
            moved = _move(posterior, scores[:, step], None if self.order == 0 else self.choice.jumps[:, step])
            last = moved if mask is None else torch.where(seen[:, step, None], moved, last)
            distributions.append(last)
        mixture = replace(self, choice=Choice(log_weights=torch.stack(distributions, dim=1)))
        final = spoken.at_steps(speakers[:, -1:])
        scale = final.states.new_ones(rows, 1) if final.scale is None else final.scale.squeeze(1)
        return mixture, (last, final.states.squeeze(1), scale), evidence[:, 1 - known :]

    def _with_step_in_front(self, state: Tensor, scale: Tensor | None) -> Mixture:
        """One more step, of the call before, to ask by `at_steps`."""

        def join(first: Tensor | None, rest: Tensor | None) -> Tensor | None:
            if rest is None:
                return None
            first = torch.ones_like(rest[:, 0]) if first is None else first
            return torch.cat((first.unsqueeze(1), rest), dim=1)

        return replace(
            self, states=join(state, self.states), scale=join(scale, self.scale), dropout=join(None, self.dropout)
        )

    def at_steps(self, steps: Tensor) -> Mixture:
        """The steps `(rows, target_length)` int64, with all positions in order as their alternatives."""

        def pick(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor.gather(1, steps.unsqueeze(-1).expand(-1, -1, tensor.shape[-1]))

        alternatives = self.states.new_zeros(1).expand(*steps.shape, self.memory.mask.shape[1])
        return replace(
            self,
            states=pick(self.states),
            scale=pick(self.scale),
            dropout=pick(self.dropout),
            choice=Choice(log_weights=alternatives),
        )

    def _scores(self, open_places: Tensor) -> Tensor:
        """Finite scores of all positions, `(rows, target_length, source)`."""
        scores = self.choice.log_weights.clamp(min=UNSEEN)
        if self.choice.positions is not None:
            everywhere = scores.new_full((*scores.shape[:2], open_places.shape[1]), UNSEEN)
            scores = everywhere.scatter_reduce(2, self.choice.positions, scores, "amax")
        return torch.where(open_places.unsqueeze(1), scores, NEVER)


def _first_position(like: Tensor) -> Tensor:
    """The log-distribution `(rows, source)` of one that stands at the first position."""
    certain = torch.full_like(like, NEVER)
    certain[:, 0] = 0.0
    return certain


def _precise(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _mix(log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
    return (log_probabilities + log_weights).logsumexp(dim=-2)


def _expect(log_probabilities: Tensor, log_weights: Tensor) -> Tensor:
    return (log_probabilities * log_weights.exp()).sum(dim=-2)


def _move(posterior: Tensor, scores: Tensor, jumps: Tensor | None) -> Tensor:
    """
    `log sum_(k <= j) p(k) p(j | k)`, `(rows, source)`, from `log p(k)` and the scores of places, both `(rows,
    source)`, with those of jumps `(rows, source, jumps)`.
    """
    if jumps is None:  # one cumulative sum in each direction: no matrix of positions by positions
        remaining = scores.flip(-1).logcumsumexp(dim=-1).flip(-1)
        return scores + (posterior - remaining).logcumsumexp(dim=-1)
    places = torch.arange(scores.shape[-1], device=scores.device)
    distance = places - places[:, None]
    steps = distance.clamp(min=0, max=jumps.shape[-1] - 1).expand(len(scores), -1, -1)
    transitions = scores.unsqueeze(1) + _precise(jumps).gather(2, steps)
    transitions = transitions.masked_fill(distance < 0, NEVER).log_softmax(dim=-1)
    return (posterior.unsqueeze(-1) + transitions).logsumexp(dim=1)
