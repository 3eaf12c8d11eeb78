"""
Greedy and beam search for recurrent decoders, with the results of the library's own and less work.

The library's search fits every model and every option. The plain cases, which `is_plain` tells apart, are searched
here: a step asks the model for the scores of the next words only (`next_logits`), sentences leave the batch once they
are finished, and hypotheses are kept as links to their predecessors, which are followed once at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from .compat import CACHE_NAME

UNREACHED = -1.0e9  # the score of a place that no hypothesis has taken yet
GROUP = 32  # continuations of which only the best is looked at first
SHRINK_BELOW = 0.85  # part of the batch still searched, at which the others are taken out


def is_plain(
    model: PreTrainedModel,
    generation_config: GenerationConfig,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    synced_gpus: bool = False,
    streamer: Any = None,
    **model_kwargs,
) -> bool:
    """
    Whether a search is one that this module does. All others are the library's: those that sample, change scores, stop
    at anything but length and end of sentence, report while they run, record what goes on inside the model, continue
    a cache, keep several processes in step; and models that somebody has changed or listens to.
    """
    config = generation_config
    ends, limit = config._eos_token_tensor, config.max_length
    records_inside = config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states)
    kept = 1 if config.num_beams == 1 else _kept(config)
    return not (
        config.do_sample
        or logits_processor
        or any(
            not (type(criterion) is EosTokenCriteria and criterion.eos_token_id is ends)
            and not (type(criterion) is MaxLengthCriteria and criterion.max_length == limit)
            for criterion in stopping_criteria
        )
        or streamer is not None
        or records_inside
        or not config.use_cache
        or model_kwargs.get(CACHE_NAME) is not None
        or synced_gpus
        or config.is_assistant
        or config.low_memory
        or config.prefill_chunk_size is not None
        or model.config.target_vocab_size < kept
        or not _steps_are_forward(type(model))
        or any(_is_changed(module) for module in model.modules() if isinstance(module, PreTrainedModel))
    )


def _steps_are_forward(model_class: type) -> bool:
    """Whether no subclass has overridden `forward` without `next_logits`, which computes the same for one word."""
    for base in model_class.__mro__:
        if "next_logits" in vars(base):
            return True
        if "forward" in vars(base) or "prepare_inputs_for_generation" in vars(base):
            return False
    return False


def _is_changed(module: PreTrainedModel) -> bool:
    """Whether a call of the module does more than its class says: in training, with hooks, or with another forward."""
    return module.training or bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module)


def _kept(config: GenerationConfig) -> int:
    """How many continuations of a sentence are looked at in a step: enough that `num_beams` of them do not end."""
    ends = config._eos_token_tensor
    return config.num_beams * max(2, 1 + (0 if ends is None else len(ends)))


class _Steps:
    """
    The scores of the next words, step by step, and what of them is to be returned.

    Attributes:
        logits: `(rows, target_vocab_size)` in single precision, of the words behind those read so far.
        cache: what the model keeps of the words read so far.
        whole: whether the scores or the cache are returned, so that no sentence may leave the batch.
        keeps_logits: whether others may see the logits later, so that nothing may be written over them.
    """

    def __init__(self, model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, model_kwargs: dict):
        self.model = model
        self.config = config
        self.device = input_ids.device
        self.whole = config.return_dict_in_generate
        self.keeps_logits = self.whole or any(module._forward_hooks for module in model.modules())
        self.scores, self.raw_scores = [], []
        inputs = model.prepare_inputs_for_generation(input_ids, **model_kwargs)
        output = model(**inputs, return_dict=True)
        self.cache = output[CACHE_NAME]
        self._keep(output.logits[:, -1])

    def advance(self, words: Tensor) -> None:
        """Reads one more word of each row, `(rows,)` int64."""
        self._keep(self.model.next_logits(words, self.cache))

    def log_probs(self) -> Tensor:
        """Of the next words, `(rows, target_vocab_size)`; in the place of the logits, if nobody else has these."""
        if self.keeps_logits:
            return self.logits.log_softmax(dim=-1)
        return torch.log_softmax(self.logits, dim=-1, out=self.logits)

    def record(self, scores: Tensor, repeats: int = 1) -> None:
        """Notes the scores `(rows, target_vocab_size)` of this step, each row `repeats` times."""
        if self.whole and self.config.output_scores:
            self.scores.append(scores.repeat_interleave(repeats, dim=0))
        if self.whole and self.config.output_logits:
            self.raw_scores.append(self.logits.repeat_interleave(repeats, dim=0))

    def outputs(self) -> dict[str, Any]:
        """What was recorded, by its names in the library's output classes."""
        return {
            "scores": tuple(self.scores) if self.config.output_scores else None,
            "logits": tuple(self.raw_scores) if self.config.output_logits else None,
            CACHE_NAME: self.cache,
        }

    def _keep(self, logits: Tensor) -> None:
        self.logits = logits.to(dtype=torch.float, device=self.device)


def greedy_search(
    model: PreTrainedModel, input_ids: Tensor, generation_config: GenerationConfig, **model_kwargs
) -> GenerateEncoderDecoderOutput | Tensor:
    """
    The best word in each step.

    Args:
        input_ids: `(batch, prompt_length)` int64.
        model_kwargs: what `forward` is to be called with for the prompt.
    """
    config = generation_config
    ends, pad = config._eos_token_tensor, config._pad_token_tensor
    steps = _Steps(model, input_ids, config, model_kwargs)
    searched = torch.arange(len(input_ids), device=input_ids.device)  # the sentence of each row
    finished = torch.zeros_like(searched, dtype=torch.bool)
    columns = [input_ids]
    for length in range(input_ids.shape[1] + 1, config.max_length + 1):
        steps.record(steps.logits)
        words = steps.logits.argmax(dim=-1)
        if ends is not None:
            words = torch.where(finished, pad, words)
            finished = finished | torch.isin(words, ends)
        column = words
        if len(words) < len(input_ids):
            column = pad.repeat(len(input_ids)).index_copy(0, searched, words)
        columns.append(column[:, None])
        left = len(words) if ends is None else int((~finished).sum())
        if not left or length == config.max_length:
            break
        if not steps.whole and left <= SHRINK_BELOW * len(words):
            remaining = (~finished).nonzero().squeeze(1)
            steps.cache.select_sentences(remaining)
            searched, words, finished = searched[remaining], words[remaining], finished[remaining]
        steps.advance(words)
    sequences = torch.cat(columns, dim=1)
    if not config.return_dict_in_generate:
        return sequences
    return GenerateEncoderDecoderOutput(sequences=sequences, **steps.outputs())


def beam_search(
    model: PreTrainedModel, input_ids: Tensor, generation_config: GenerationConfig, **model_kwargs
) -> GenerateBeamEncoderDecoderOutput | Tensor:
    """
    The best hypotheses of each sentence.

    Args:
        input_ids: `(batch * num_beams, prompt_length)` int64; the rows of a sentence are equal.
        model_kwargs: what `forward` is to be called with for the prompt.
    """
    config, beams = generation_config, generation_config.num_beams
    if model_kwargs.get("decoder_attention_mask") is not None:
        model_kwargs["decoder_attention_mask"] = model_kwargs["decoder_attention_mask"][::beams]
    prompts = input_ids[::beams]
    steps = _Steps(model, prompts, config, model_kwargs)
    search = _Beams(prompts, config)
    while True:
        log_probs = steps.log_probs()
        steps.record(log_probs, beams // search.scores.shape[1])
        parents = search.extend(log_probs)
        if parents is None:
            steps.cache.batch_repeat_interleave(beams)
        else:
            steps.cache.reorder_cache(parents)
        left = search.left()
        if not left:
            break
        if not steps.whole and left <= SHRINK_BELOW * len(search.scores):
            steps.cache.select_sentences(search.drop_finished())
        steps.advance(search.words.flatten())
    output = search.results()
    if not config.return_dict_in_generate:
        return output["sequences"]
    if not config.output_scores:
        del output["sequences_scores"]
    return GenerateBeamEncoderDecoderOutput(**output, **steps.outputs())


class _Beams:
    """
    The hypotheses of a batch of sentences, most probable first.

    A hypothesis is kept as its last `place`, `parent * vocabulary + word`, where `parent` is its predecessor's rank
    one step before.

    Attributes:
        step: number of words that the running hypotheses have behind the prompt.
        scores: log-probabilities of the running hypotheses, `(sentences, num_beams)`; at first there is one.
        places: of the running hypotheses in each step, `(sentences, num_beams)` int64 each.
        ended_scores: of the best ended hypotheses, divided by the length penalty, `(sentences, num_beams)`.
        ended: where these ended, `step * num_beams * vocabulary + place`, `(sentences, num_beams)` int64.
        is_open: whether a running hypothesis may still become one of the best, `(sentences,)` bool.
    """

    def __init__(self, prompts: Tensor, config: GenerationConfig):
        self.prompts = prompts
        self.config = config
        self.beams = config.num_beams
        self.max_steps = config.max_length - prompts.shape[1]
        self.step = 0
        self.numbers = list(range(len(prompts)))  # which sentences are still here
        self.scores = prompts.new_zeros(len(prompts), 1, dtype=torch.float)
        self.places: list[Tensor] = []
        self.ended_scores = self.scores.new_full((len(prompts), self.beams), UNREACHED)
        self.ended = prompts.new_zeros(len(prompts), self.beams, dtype=torch.long)
        self.is_open = torch.ones(len(prompts), dtype=torch.bool, device=prompts.device)
        self.found: dict[int, list] = {}

    def extend(self, log_probs: Tensor) -> Tensor | None:
        """
        One more word.

        Args:
            log_probs: of the next word, `(sentences * beams, vocabulary)`.

        Returns:
            the row that each running hypothesis continues, `(sentences * num_beams,)`; `None` after the first step,
            when they all continue the one.
        """
        config, beams = self.config, self.beams
        ends, vocabulary = config._eos_token_tensor, log_probs.shape[-1]
        first, self.vocabulary = not self.step, vocabulary
        self.step += 1
        totals, places = best_continuations(log_probs, self.scores, _kept(config))
        if self.step == self.max_steps:
            ending = torch.ones_like(places, dtype=torch.bool)
        elif ends is None:
            ending = torch.zeros_like(places, dtype=torch.bool)
        else:
            ending = torch.isin(places % vocabulary, ends)

        # Only the best `num_beams` continuations may end here; the others replace them among the running ones.
        scores = totals[:, :beams] / self.step**config.length_penalty
        scores = torch.where(ending[:, :beams] & self.is_open[:, None], scores, UNREACHED)
        self.ended_scores, chosen = torch.cat((self.ended_scores, scores), dim=1).topk(beams)
        here = places[:, :beams] + self.step * beams * vocabulary
        self.ended = torch.cat((self.ended, here), dim=1).gather(1, chosen)

        self.scores, chosen = (totals + ending * UNREACHED).topk(beams)
        places = places.gather(1, chosen)
        self.places.append(places)

        length = self.max_steps if config.early_stopping == "never" and config.length_penalty > 0 else self.step
        worst = self.ended_scores[:, -1]
        self.is_open &= self.scores[:, 0] / length**config.length_penalty > worst
        if config.early_stopping is True:
            self.is_open &= worst <= UNREACHED
        if first:
            return None
        rows = torch.arange(0, len(places) * beams, beams, device=places.device)
        return (places // vocabulary + rows[:, None]).flatten()

    @property
    def words(self) -> Tensor:
        """The last word of each running hypothesis, `(sentences, num_beams)`."""
        return self.places[-1] % self.vocabulary

    def left(self) -> int:
        """The number of sentences for which to go on."""
        return 0 if self.step == self.max_steps else int(self.is_open.sum())

    def drop_finished(self) -> Tensor:
        """Keeps the open sentences, whose places among those before it returns, `(remaining,)` int64."""
        self._collect((~self.is_open).nonzero().squeeze(1))
        remaining = self.is_open.nonzero().squeeze(1)
        self.numbers = [self.numbers[row] for row in remaining.tolist()]
        self.places = [places[remaining] for places in self.places]
        for name in ("scores", "ended_scores", "ended", "is_open"):
            setattr(self, name, getattr(self, name)[remaining])
        return remaining

    def _collect(self, rows: Tensor) -> None:
        """Follows the best hypotheses of the sentences in `rows` to their beginnings."""
        wanted = self.config.num_return_sequences
        links = torch.stack(self.places, dim=1)[rows].tolist()
        scores, ended = self.ended_scores[rows, :wanted].tolist(), self.ended[rows, :wanted].tolist()
        for row, *sentence in zip(rows.tolist(), links, scores, ended):
            number = self.numbers[row]
            self.found[number] = [self._follow(number, sentence[0], *end) for end in zip(*sentence[1:])]

    def _follow(self, number: int, links: list[list[int]], score: float, end: int) -> tuple[float, list, list]:
        """Score, words and rows of a hypothesis; a row is that of the hypothesis which the word continues."""
        step, place = divmod(end, self.beams * self.vocabulary)
        words, rows = [], []
        while step:
            parent, word = divmod(place, self.vocabulary)
            words.append(word)
            rows.append(number * self.beams + parent)
            step -= 1
            place = links[step - 1][parent]
        return score, words[::-1], rows[::-1]

    def results(self) -> dict[str, Tensor]:
        """The best hypotheses by the names of the library's output."""
        config = self.config
        self._collect(torch.arange(len(self.numbers), device=self.prompts.device))
        scores, words, rows = zip(*(found for number in sorted(self.found) for found in self.found[number]))
        # As in the library: padding that is token 0 gives way to the end of sentence.
        pad, ends = config._pad_token_tensor, config._eos_token_tensor
        fill = -1 if ends is None else int(pad or ends[0])
        prompts = self.prompts.repeat_interleave(config.num_return_sequences, dim=0)
        return {
            "sequences": torch.cat((prompts, _padded(words, fill, prompts)), dim=1),
            "sequences_scores": self.scores.new_tensor(scores),
            "beam_indices": _padded(rows, -1, prompts).int(),
        }


def best_continuations(log_probs: Tensor, scores: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """
    The best sums of a hypothesis' score and a word's log-probability.

    A large vocabulary is looked at in groups: the best words are in the groups with the best maxima, so that only
    these have to be sorted.

    Args:
        log_probs: `(sentences * hypotheses, vocabulary)`.
        scores: `(sentences, hypotheses)`.
        number: how many of each sentence.

    Returns:
        sums and places (`hypothesis * vocabulary + word`), best first, both `(sentences, number)`.
    """
    (sentences, hypotheses), vocabulary = scores.shape, log_probs.shape[1]
    groups = vocabulary // GROUP
    if groups < 4 * number:
        return (log_probs.view(sentences, hypotheses, -1) + scores.unsqueeze(-1)).flatten(1).topk(number)
    rows = torch.arange(0, hypotheses * vocabulary, vocabulary, device=scores.device)
    maxima = log_probs[:, : GROUP * groups].unflatten(1, (groups, GROUP)).amax(dim=2) + scores.view(-1, 1)
    chosen = maxima.view(sentences, -1).topk(number).indices
    members = torch.arange(GROUP, device=scores.device)
    places = (rows[chosen // groups] + chosen % groups * GROUP).unsqueeze(-1) + members
    rest = rows[:, None] + torch.arange(GROUP * groups, vocabulary, device=scores.device)  # in no group
    places = torch.cat((places.flatten(1), rest.flatten().expand(sentences, -1)), dim=1)
    sums = log_probs.view(sentences, -1).gather(1, places) + scores.gather(1, places // vocabulary)
    sums, order = sums.topk(number)
    return sums, places.gather(1, order)


def _padded(rows: Sequence[list[int]], fill: int, like: Tensor) -> Tensor:
    longest = max(map(len, rows))
    return like.new_tensor([row + [fill] * (longest - len(row)) for row in rows])
