"""Phase 2, hard attention: one position in place of an average, and the ways to train such a choice."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .configuration_attention_seq2seq import AttentionSeq2SeqConfig
from .spans import Window


@dataclass(frozen=True)
class Choice:
    """
    How a hard attention came to its weights; tensors `(rows, queries, ...)`.

    Attributes:
        log_weights: `(rows, queries, places)`, the log-distribution over places, where the alternatives are to be
            summed over; `None` where one place was picked.
        positions: `(rows, queries, places)` int64, the source positions of the places; `None` if they are all of the
            sentence, in order.
        log_probability: `(rows, queries)` of the places that were sampled, summed over heads; 0 where none was.
        entropy: `(rows, queries)` of the distribution, summed over heads.
        jumps: `(rows, queries, source, jumps)`, the scores of moving ahead from each position (see `JumpScores`).
    """

    log_weights: Tensor | None = None
    positions: Tensor | None = None
    log_probability: Tensor | None = None
    entropy: Tensor | None = None
    jumps: Tensor | None = None

    def of_rows(self, rows: int) -> Choice:
        """The same for `rows` rows, which were consecutive queries of fewer rows before."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{n: v.reshape(rows, -1, *v.shape[2:]) for n, v in values.items() if v is not None})

    @classmethod
    def concatenate(cls, steps: list[Choice | None]) -> Choice | None:
        """Choices of following steps as one."""
        if steps[0] is None:
            return None
        values = {field.name: [getattr(step, field.name) for step in steps] for field in fields(cls)}
        return cls(**{name: None if parts[0] is None else torch.cat(parts, dim=1) for name, parts in values.items()})


class _StraightThrough(torch.autograd.Function):
    """The first argument, whose gradient goes to the second."""

    @staticmethod
    def forward(ctx, hard: Tensor, soft: Tensor) -> Tensor:
        return hard.view_as(hard)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return None, gradient


def gumbel_noise(like: Tensor) -> Tensor:
    """Standard Gumbel noise: the largest of `log p + noise` is at a place drawn from `p` (Maddison 2014)."""
    uniform = torch.rand_like(like).clamp(min=torch.finfo(like.dtype).tiny)
    return -torch.log((-torch.log(uniform)).clamp(min=torch.finfo(like.dtype).tiny))


class HardSelection(nn.Module):
    """
    From a distribution over places to the weights that attention reads with.

    In training as the estimator says: `marginal` and `variational` keep the distribution, which the output layer sums
    over (see `mixtures`); `reinforce` samples a place (Xu 2015, 4.1), for a part of the sentences it keeps the
    expectation; `straight_through` samples one-hot weights with the gradient of a Gumbel-softmax (Jang 2017). In
    evaluation mode as `hard_attention_inference` says.

    Buffers, kept in checkpoints: `updates`, the batches trained on, for the temperature; `baseline`, the moving
    average of REINFORCE's reward and the part of it that counts so far.
    """

    def __init__(self, config: AttentionSeq2SeqConfig):
        super().__init__()
        estimator = config.hard_attention_estimator
        self.in_training = {"reinforce": "sample", "straight_through": "straight_through"}.get(estimator, "marginal")
        self.in_evaluation = config.hard_attention_choice
        self.positions = config.hard_attention_positions
        self.temperatures = (config.hard_attention_temperature, config.hard_attention_final_temperature)
        self.annealing_steps = config.hard_attention_annealing_steps
        self.soft_probability = config.hard_attention_soft_probability if estimator == "reinforce" else 0.0
        self.decay = config.hard_attention_baseline_decay
        if estimator == "straight_through":
            self.register_buffer("updates", torch.zeros((), dtype=torch.long))
        if config.uses_score_function:
            self.register_buffer("baseline", torch.zeros(2))

    def init_buffers(self) -> None:
        """First values, where a checkpoint has none."""
        for buffer in self.buffers(recurse=False):
            buffer.zero_()

    @property
    def temperature(self) -> float | Tensor:
        """Of the Gumbel-softmax: from the first to the final one, by the same factor in each update."""
        first, final = self.temperatures
        if final is None:
            return first
        done = (self.updates / self.annealing_steps).clamp(max=1.0)
        return first * (final / first) ** done

    def begin(self, sentences: int, device: torch.device) -> Tensor | None:
        """At the start of a batch: which sentences read their expected context, `(sentences,)` bool, or `None`."""
        if not self.training:
            return None
        if hasattr(self, "updates"):
            self.updates += 1
        if not self.soft_probability:
            return None
        return torch.rand(sentences, device=device) < self.soft_probability

    def forward(
        self, log_weights: Tensor, window: Window | None, stays_soft: Tensor | None
    ) -> tuple[Tensor, Window | None, Choice]:
        """
        Args:
            log_weights: `(sentences, heads, queries, places)`, -inf where attention may not look.
            window: what the places are; the sentence if not given.
            stays_soft: from `begin`.

        Returns:
            weights of the same shape (or of the `hard_attention_positions` most probable places), their window, and
            the choice, with the sentences' queries as rows: the caller gives them their rows.
        """
        possible = (log_weights > float("-inf")).any(dim=-1, keepdim=True)
        way = self.in_training if self.training else self.in_evaluation
        if way == "marginal":
            return self._all_places(log_weights, window, possible)
        log_probability = entropy = None
        if way == "argmax":
            picked = log_weights.argmax(dim=-1, keepdim=True)
        else:
            noisy = log_weights + gumbel_noise(log_weights)
            picked = noisy.argmax(dim=-1, keepdim=True)
        weights = torch.zeros_like(log_weights).scatter(-1, picked, 1.0) * possible
        if way == "straight_through":
            soft = torch.softmax(torch.where(possible, noisy, 0.0) / self.temperature, dim=-1)
            weights = _StraightThrough.apply(weights, soft * possible)
        elif way == "sample" and self.training:
            log_probability = torch.where(possible, log_weights.gather(-1, picked), 0.0).squeeze(-1).sum(dim=1)
            finite = log_weights.masked_fill(log_weights == float("-inf"), 0.0)
            entropy = -(log_weights.exp() * finite).sum(dim=-1).sum(dim=1)
            if stays_soft is not None:
                weights = torch.where(stays_soft[:, None, None, None], log_weights.exp(), weights)
                log_probability = torch.where(stays_soft[:, None], 0.0, log_probability)
        return weights, window, Choice(log_probability=log_probability, entropy=entropy)

    def _all_places(
        self, log_weights: Tensor, window: Window | None, possible: Tensor
    ) -> tuple[Tensor, Window | None, Choice]:
        """The alternatives are one head's places; the most probable ones only, if the configuration says so."""
        places = log_weights.shape[-1]
        positions = None if window is None else window.positions
        if self.positions is not None and self.positions < places:
            # in their order, which no result depends on
            best = log_weights.topk(self.positions, dim=-1, sorted=False).indices.squeeze(1)
            positions = best if positions is None else positions.gather(-1, best)
            log_weights = log_weights.gather(-1, best.unsqueeze(1))
            log_weights = log_weights - torch.where(possible, log_weights, 0.0).logsumexp(dim=-1, keepdim=True)
            window = Window(positions, log_weights.squeeze(1) > float("-inf"))
        weights = log_weights.exp() * possible
        # A sentence without tokens has one alternative, an empty context.
        first = torch.zeros_like(log_weights[..., :1])
        rest = torch.full_like(log_weights[..., 1:], float("-inf"))
        log_weights = torch.where(possible, log_weights, torch.cat((first, rest), dim=-1))
        return weights, window, Choice(log_weights=log_weights.squeeze(1), positions=positions)

    def advantage(self, log_likelihoods: Tensor, counted: Tensor, to_the_end: bool) -> Tensor:
        """
        What each choice was worth, `(rows, queries)`: the log-likelihood of its word, or of all words from it on where
        they all depend on it, less the baseline, the moving average of words before (Xu 2015, eq. 11 and 12).

        Args:
            log_likelihoods: `(rows, queries)`.
            counted: `(rows, queries)` bool, true at target words.
            to_the_end: whether later words depend on a choice.
        """
        rewards = torch.where(counted, log_likelihoods.detach().to(self.baseline.dtype), 0.0)
        expected = self.baseline[0] / self.baseline[1].clamp(min=torch.finfo(self.baseline.dtype).tiny)
        if self.training:  # for the next batch: a baseline that knows its own samples would be biased
            mean = rewards.sum() / counted.sum().clamp(min=1)
            new = torch.stack((mean, torch.ones_like(mean)))
            self.baseline.mul_(self.decay).add_((1 - self.decay) * new)
        gains = torch.where(counted, rewards - expected, 0.0)
        return gains.flip(1).cumsum(dim=1).flip(1) if to_the_end else gains


def reinforce_loss(choice: Choice, advantages: Tensor, entropy_weight: float) -> Tensor:
    """
    A loss `(rows, queries)` of value zero, whose gradient is that of the choice: the score function times the
    advantage, and the entropy (Xu 2015, eq. 11 and section 4.1).
    """
    surrogate = -advantages * choice.log_probability
    if entropy_weight:
        surrogate = surrogate - entropy_weight * choice.entropy
    return surrogate - surrogate.detach()


class JumpScores(nn.Module):
    """
    What moving from one position to the next adds to the score, for first-order alignments (Wu and Cotterell 2019):
    a linear map of the decoder state and of the encoder state at the last position, one score for each number of
    positions ahead, the last for all that are further.
    """

    def __init__(self, config: AttentionSeq2SeqConfig, value_size: int):
        super().__init__()
        self.of_state = nn.Linear(config.hidden_size, config.hard_attention_jumps + 1)
        self.of_place = nn.Linear(value_size, config.hard_attention_jumps + 1, bias=False)

    def forward(self, states: Tensor, values: Tensor) -> Tensor:
        """
        Args:
            states: `(sentences, queries, hidden_size)`.
            values: `(sentences, source, value_size)`.

        Returns:
            `(sentences, queries, source, jumps)`.
        """
        return self.of_state(states).unsqueeze(2) + self.of_place(values).unsqueeze(1)


class InferenceNetwork(nn.Module):
    """
    The variational posterior over positions, which knows the target (Deng 2018, section 4): a bidirectional LSTM over
    the target words, compared with the encoder states by a bilinear score.
    """

    def __init__(self, config: AttentionSeq2SeqConfig, value_size: int):
        super().__init__()
        self.rnn = nn.LSTM(config.embedding_size, config.hidden_size // 2, batch_first=True, bidirectional=True)
        self.query_projection = nn.Linear(2 * (config.hidden_size // 2), value_size, bias=False)

    def forward(self, targets: Tensor, counted: Tensor, values: Tensor, choice: Choice) -> Tensor:
        """
        Args:
            targets: embeddings `(rows, target_length, embedding_size)` of the words to predict.
            counted: `(rows, target_length)` bool, true at words.
            values: `(rows, source, value_size)`.
            choice: the distribution that does not know the target.

        Returns:
            the log-distribution over the places of `choice`, `(rows, target_length, places)`.
        """
        last = counted.shape[1] - counted.flip(1).byte().argmax(dim=1)
        lengths = torch.where(counted.any(dim=1), last, 1).cpu()
        packed = pack_padded_sequence(targets, lengths, batch_first=True, enforce_sorted=False)
        hidden = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=targets.shape[1])[0]
        scores = self.query_projection(hidden) @ values.transpose(1, 2)
        if choice.positions is not None:
            scores = scores.gather(2, choice.positions)
        scores = scores.to(choice.log_weights.dtype)
        return F.log_softmax(scores.masked_fill(choice.log_weights == float("-inf"), float("-inf")), dim=-1)
