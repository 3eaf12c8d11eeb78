"""Unknown words of an output, replaced by the source words that they are aligned to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from .alignment import Alignment


def replace_unknown(alignment: Alignment, unk_token: str, lexicon: Mapping[str, str] | None = None) -> str:
    """
    The target text with each unknown word replaced by the source word that got most attention when it was predicted,
    translated by the lexicon if it is in there, else copied (Luong 2015b, "Addressing the Rare Word Problem"; Jean
    2015, section 3.3).

    Args:
        alignment: of the source and the output, as the pipelines give it.
        unk_token: what stands for an unknown word.
        lexicon: target words by source words, such as `learn_lexicon` makes; words stand between white space.

    Raises:
        ValueError: the tokenizer does not tell where tokens stand in the texts.
    """
    if unk_token not in alignment.target_tokens:
        return alignment.target
    words = alignment.merge("word", "token")
    text = alignment.target
    if not words.source_tokens:
        return text
    chosen = words.matrix.argmax(dim=1).tolist()
    for row in reversed(range(len(chosen))):
        if words.target_tokens[row] == unk_token:
            start, end = words.target_offsets[row]
            word = words.source_tokens[chosen[row]]
            text = text[:start] + (lexicon or {}).get(word, word) + text[end:]
    return text


def learn_lexicon(alignments: Iterable[Alignment], least_count: int = 2) -> dict[str, str]:
    """
    For each source word the target word that is most often aligned to it (of equally frequent ones the first seen).

    Args:
        alignments: of pairs of texts that belong together, as `align` gives them.
        least_count: a pair of words that occurs less often is left out.

    Raises:
        ValueError: the tokenizer does not tell where tokens stand in the texts.
    """
    counts: dict[str, Counter] = defaultdict(Counter)
    for alignment in alignments:
        words = alignment.merge("word")
        for source, target in words.links():
            counts[words.source_tokens[source]][words.target_tokens[target]] += 1
    best = {source: targets.most_common(1)[0] for source, targets in counts.items()}
    return {source: target for source, (target, count) in best.items() if count >= least_count}


def repeated_and_untranslated(
    alignment: Alignment, least: float = 0.2, most: float = 1.8
) -> tuple[list[str], list[str]]:
    """
    Source words that the output passes over, and those that it takes up again, by the attention they get in all.

    Args:
        alignment: of the source and the output.
        least: a word with less attention in all counts as untranslated.
        most: a word with more counts as repeated; a word whose translation has more words gets more attention, too.

    Returns:
        the untranslated words and the repeated ones, in the order of the source.

    Raises:
        ValueError: `least` is not below `most`, or the tokenizer does not tell where tokens stand in the texts.
    """
    if not 0 <= least < most:
        raise ValueError(f"least={least!r} and most={most!r} are not possible; allowed: 0 <= least < most.")
    words = alignment.merge("word")
    received = words.matrix.sum(dim=0).tolist()
    untranslated = [word for word, weight in zip(words.source_tokens, received) if weight < least]
    return untranslated, [word for word, weight in zip(words.source_tokens, received) if weight > most]


__all__ = ["learn_lexicon", "repeated_and_untranslated", "replace_unknown"]
