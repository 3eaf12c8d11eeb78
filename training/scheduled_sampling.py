"""Scheduled sampling: in training, the decoder now and then reads its own last word."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attention_seq2seq import AttentionSeq2SeqForConditionalGeneration
from hf_attention_seq2seq.pointer import copying_logits, known_tokens


@torch.no_grad()
def with_own_words(
    model: AttentionSeq2SeqForConditionalGeneration, inputs: dict[str, Tensor], probability: float
) -> Tensor:
    """
    Decoder inputs in which each word after the first is, with `probability`, one that the model draws (Bengio 2015,
    section 2.4).

    The model goes step by step over what has been chosen so far, so that a drawn word follows from drawn words. No
    gradient goes through the choice, as in the paper; the loss then comes from an ordinary pass over the result.

    Args:
        model: in training mode.
        inputs: `input_ids` and `attention_mask` `(batch, source_length)`, `decoder_input_ids` `(batch,
            target_length)`; padding in there stays.
        probability: from 0 to 1.

    Returns:
        `(batch, target_length)` int64.
    """
    given = inputs["decoder_input_ids"]
    encoded = model.get_encoder()(inputs["input_ids"], inputs["attention_mask"])
    decoder = model.get_decoder()
    memory = decoder.prepare(encoded, encoded.attention_mask)
    state = decoder.first_state(encoded, memory, len(given))
    ends = model.config.eos_token_id
    never = [model.config.pad_token_id, *(ends if isinstance(ends, list) else [ends])]  # a sentence goes on behind it
    chosen = [given[:, 0]]
    for step in range(1, given.shape[1]):
        embed = model.get_decoder_input_embeddings()
        embeddings = embed(known_tokens(chosen[-1].unsqueeze(1), embed.num_embeddings, model.config))
        output = decoder(embeddings, memory, state, with_weights=False)
        state = output.state
        logits = model.lm_head(output.readouts).float()
        if output.copying is not None:
            logits = copying_logits(logits, output.copying, model.config.max_unknown_words)
        logits = logits[:, 0]
        logits[:, never] = -torch.inf
        own = torch.multinomial(torch.softmax(logits, dim=-1), 1).squeeze(1)
        gold = given[:, step]
        replaced = (torch.rand(gold.shape, device=gold.device) < probability) & (gold != model.config.pad_token_id)
        chosen.append(torch.where(replaced, own, gold))
    return torch.stack(chosen, dim=1)
