"""Peak memory, time and gradients of one training step with additive attention, printed as numbers."""

import resource
import sys
import time

import torch

from hf_attention_seq2seq import scoring

from .helpers import tiny_model


def straightforward(queries, keys, energy):
    """The formula as one writes it down."""
    hidden = torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3))
    return (hidden @ energy[:, None, :, None]).squeeze(-1)


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(kind: str) -> None:
    if kind == "straightforward":
        scoring.additive_energies = straightforward
    model = tiny_model(hidden_size=512, embedding_size=512, initializer_range=None).train()
    generator = torch.Generator().manual_seed(0)

    def step(batch: int, source: int, target: int) -> float:
        input_ids, labels = (torch.randint(3, 13, (batch, length), generator=generator) for length in (source, target))
        model.zero_grad()
        start = time.process_time()
        model(input_ids, labels=labels).loss.backward()
        return time.process_time() - start

    step(1, 10, 10)  # loads libraries, makes the gradients
    before = peak()
    seconds = [step(16, 400, 100)]
    memory = peak() - before
    generator.manual_seed(0)
    seconds.append(step(16, 400, 100))
    score = model.get_decoder().attention.score
    parameters = (score.energy, score.query_projection.weight, score.key_projection.weight)
    gradients = torch.cat([parameter.grad.flatten()[:50] for parameter in parameters])
    print(memory, min(seconds), *gradients.tolist())


if __name__ == "__main__":
    main(sys.argv[1])
