"""
How fast, and in how much memory.

    python -m training.benchmark train | translate | scaling | attention | breakdown [--option value ...]

Each command prints a table and, with `--output FILE`, writes every measurement as JSON; `--help` lists its options.
What is measured and how is told in `training/benchmarks/README.md`.
"""

from __future__ import annotations

import sys

from transformers import HfArgumentParser

from .benchmarks import attention, breakdown, scaling, train, translate
from .benchmarks.measure import CASE, run_case

COMMANDS = {
    "train": (train.TrainArguments, train.run),
    "translate": (translate.TranslateArguments, translate.run),
    "scaling": (scaling.ScalingArguments, scaling.run),
    "attention": (attention.AttentionArguments, attention.run),
    "breakdown": (breakdown.BreakdownArguments, breakdown.run),
}
CASES = {
    "train": train.measure_case,
    "translate": translate.measure_case,
    "scaling": scaling.measure_case,
    "additive": attention.additive_step,
    "breakdown": breakdown.measure_case,
}


def main() -> None:
    """Reads the command line."""
    command, *rest = sys.argv[1:] or ["--help"]
    if command == CASE:
        run_case(CASES[rest[0]], rest[1])
    elif command in ("-h", "--help"):
        print(__doc__.strip())
    elif command in COMMANDS:
        arguments_class, run = COMMANDS[command]
        parser = HfArgumentParser(arguments_class, prog=f"python -m {__package__}.benchmark {command}")
        try:
            arguments, unknown = parser.parse_args_into_dataclasses(rest, return_remaining_strings=True)
            if unknown:
                raise ValueError(f"{' '.join(unknown)}: there is no such option; --help lists them")
            run(arguments)
        except (ValueError, OSError) as error:
            sys.exit(f"error: {error}")
    else:
        sys.exit(f"error: {command!r} is unknown; allowed: {', '.join(COMMANDS)}")


if __name__ == "__main__":
    main()
