"""Several processes on CPUs under `accelerate launch`."""

from __future__ import annotations

import os
import re

import psutil
import torch


def start_missing_processes(module: str, arguments: list[str]) -> bool:
    """
    Starts `module` in as many processes as `accelerate launch` was asked for, if it started one.

    On machines without accelerators, `accelerate launch` sets up several processes through MPI only; without it, it
    starts a single one. Here this one becomes the launcher of all, with gloo between them.

    Returns:
        whether the processes were started (and have ended).

    Raises:
        ValueError: several machines were asked for, or more processes than there are accelerators.
    """
    if "ACCELERATE_MIXED_PRECISION" not in os.environ or "MASTER_ADDR" not in os.environ:
        return False  # not under accelerate, or one process is what was asked for
    if any(name in os.environ for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")):
        return False
    options = launch_options(psutil.Process().parent().cmdline())
    if options is None:
        return False
    processes, machines, port = options
    if machines > 1:
        raise ValueError(
            f"num_machines={machines}: accelerate starts several machines without accelerators through MPI only; use "
            "torchrun --nnodes instead."
        )
    if torch.accelerator.is_available() and os.environ.get("ACCELERATE_USE_CPU") != "True":
        raise ValueError(
            f"num_processes={processes}, but there is {torch.accelerator.device_count()} accelerator; give "
            "accelerate launch --num_processes 1, or --cpu to train on CPUs."
        )
    from torch.distributed.run import main

    meeting = ["--standalone"] if port is None else ["--master_port", str(port)]
    main([*meeting, "--nproc_per_node", str(processes), "-m", module, *arguments])
    return True


def launch_options(command: list[str]) -> tuple[int, int, int | None] | None:
    """
    Processes, machines and port that the words of an `accelerate launch` command, or else its configuration file, ask
    for; `None` if it is another command.
    """
    from accelerate.commands.config.config_args import default_config_file, load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    launch = next((place for place, word in enumerate(command) if re.search(r"(^|[./-])launch(\.py)?$", word)), None)
    if launch is None:
        return None
    given = launch_command_parser().parse_args(command[launch + 1 :])
    configured = None
    if given.config_file is not None or (os.path.isfile(default_config_file) and not given.cpu):
        configured = load_config_from_file(given.config_file)
    names = ("num_processes", "num_machines", "main_process_port")
    values = [getattr(given, name) or getattr(configured, name, None) for name in names]
    return values[0] or 1, values[1] or 1, values[2]
