"""Several processes on CPUs under `accelerate launch`."""

from __future__ import annotations

import os

import psutil


def start_missing_processes(module: str, arguments: list[str]) -> bool:
    """
    Starts `module` in as many processes as `accelerate launch --num_processes N` was asked for, if it started one.

    On machines without accelerators, `accelerate launch` sets up several processes through MPI only; without it, it
    starts a single one. Here this one becomes the launcher of N, with gloo between them.

    Returns:
        whether the processes were started (and have ended).

    Raises:
        ValueError: several machines were asked for, which need MPI or `torchrun`.
    """
    if "ACCELERATE_MIXED_PRECISION" not in os.environ or "MASTER_ADDR" not in os.environ:
        return False  # not under accelerate, or one process is what was asked for
    if any(name in os.environ for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")):
        return False
    words = psutil.Process().parent().cmdline()
    options = dict(zip(words, words[1:]))
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            options[name] = value

    def option(name: str, default: str) -> str:
        return options.get(f"--{name}", options.get(f"--{name.replace('_', '-')}", default))

    if option("num_machines", "1") != "1":
        raise ValueError(
            f"num_machines={option('num_machines', '1')}: accelerate starts several machines without accelerators "
            "through MPI only; use torchrun --nnodes instead."
        )
    from torch.distributed.run import main

    number, port = option("num_processes", "1"), os.environ["MASTER_PORT"]
    main(["--nproc_per_node", number, "--master_port", port, "-m", module, *arguments])
    return True
