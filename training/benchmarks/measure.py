"""Clocks, the machine's own rate, processes for single cases, and tables."""

from __future__ import annotations

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

CASE = "case"
LARGE = (1024, 1024, 1024)
SKINNY = (64, 1024, 2048)  # the product of one LSTM step with 512 units on 64 rows of 1024 inputs
_MEBIBYTE = 2**20


class PositiveNumbers:
    """Base of options: refuses numbers of things to do that are not positive."""

    def __post_init__(self):
        for name in ("repeats", "threads", "steps", "sentences", "batch_size", "hidden_size"):
            if getattr(self, name, 1) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not possible; it must be 1 or more")


@dataclass
class CommonArguments(PositiveNumbers):
    """Options of most benchmarks."""

    repeats: int = field(default=3, metadata={"help": "rounds; in each all cases run once, in turn"})
    threads: int = field(default=1, metadata={"help": "CPU threads of each process"})
    output: str | None = field(default=None, metadata={"help": "JSON file for all measurements"})


def check_names(field_name: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Raises `ValueError` for a name that is none of those allowed."""
    for name in given:
        if name not in allowed:
            raise ValueError(f"{field_name}: {name!r} is unknown; allowed: {', '.join(map(repr, allowed))}")


class Clock:
    """Wall and CPU seconds (of this process) since the `with` began, after it ended."""

    def __enter__(self) -> Clock:
        self._started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: Any) -> None:
        self.wall, self.cpu = time.perf_counter() - self._started[0], time.process_time() - self._started[1]


def product_rate(rows: int, inner: int, columns: int, seconds: float = 0.3) -> float:
    """Floating point operations per CPU second and thread of a float32 matrix product, the best of three tries."""
    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    left @ right
    rates = []
    for _ in range(3):
        products = 0
        with Clock() as clock:
            started = time.process_time()
            while time.process_time() - started < seconds / 3:
                left @ right
                products += 1
        rates.append(2 * rows * inner * columns * products / clock.cpu)
    return max(rates)


def count_operations(function: Callable[[], Any]) -> int:
    """Floating point operations of the matrix products in a call."""

    def product_in_place(total: tuple, left: tuple, right: tuple, out_shape: tuple | None = None, **_) -> int:
        return 2 * left[0] * left[1] * right[1]

    # The products of oneDNN are hidden from the counter, and it does not know the one in place.
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: product_in_place})
    with torch.backends.mkldnn.flags(enabled=False), counter:
        function()
    return counter.get_total_flops()


def measure(function: Callable[[], int], operations: int) -> dict[str, float]:
    """
    One measurement of `function`, which returns the number of tokens it made.

    Returns:
        tokens, wall and CPU seconds, and which part of the CPU time its matrix products alone would take: at the rate
        of a large product (`of_large`) and at that of a recurrent step (`of_skinny`), both measured around the call.
    """
    before = {shape: product_rate(*shape) for shape in (LARGE, SKINNY)}
    with Clock() as clock:
        tokens = function()
    rates = {shape: max(rate, product_rate(*shape)) for shape, rate in before.items()}
    return {
        "tokens": tokens,
        "wall": clock.wall,
        "cpu": clock.cpu,
        "large_gflops": rates[LARGE] / 1e9,
        "skinny_gflops": rates[SKINNY] / 1e9,
        "of_large": operations / rates[LARGE] / clock.cpu,
        "of_skinny": operations / rates[SKINNY] / clock.cpu,
    }


def peak_memory() -> float:
    """The most memory this process has had, in MiB; on Linux without what its parent had before it."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MEBIBYTE if sys.platform == "darwin" else peak / 1024


def run_case(function: Callable[..., dict], options: str) -> None:
    """The child's side of `in_own_process`."""
    options = json.loads(options)
    torch.set_num_threads(options.pop("threads"))
    transformers.logging.set_verbosity_error()
    before = peak_memory()
    result = function(**options)
    print(json.dumps({**result, "peak_mib": peak_memory(), "imports_mib": before}))


def in_own_process(name: str, threads: int, **options: Any) -> dict[str, Any]:
    """
    Runs a case of `benchmark.CASES` in a process of its own, whose peak memory is then that of the case.

    Raises:
        RuntimeError: the process failed; the message ends with what it printed.
    """
    package = __package__.rpartition(".")[0]
    command = [sys.executable, "-m", f"{package}.benchmark", CASE, name, json.dumps({"threads": threads, **options})]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"The case {name} {options} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rounds(cases: dict[str, Callable[[], dict]], repeats: int) -> dict[str, list[dict]]:
    """
    Runs all cases in turn, `repeats` times, so that what the machine does meanwhile meets all of them; the error
    stream says where it is.
    """
    results: dict[str, list[dict]] = {name: [] for name in cases}
    for number in range(1, repeats + 1):
        for name, case in cases.items():
            print(f"round {number} of {repeats}: {name}", file=sys.stderr, flush=True)
            results[name].append(case())
    return results


def spread(values: Iterable[float], digits: int = 0) -> str:
    """Median, and in brackets the least and the greatest."""
    values = sorted(values)
    return f"{statistics.median(values):,.{digits}f} ({values[0]:,.{digits}f}-{values[-1]:,.{digits}f})"


def rates(results: list[dict], clock: str) -> list[float]:
    """Tokens per second of the clock `"wall"` or `"cpu"`."""
    return [result["tokens"] / result[clock] for result in results]


def print_speeds(title: str, results: dict[str, list[dict]]) -> None:
    """A line for each case: tokens per second, how near to the limit, memory."""
    print(f"\n{title}; median (least-greatest)")
    width = max(map(len, results))
    head = f"{'tokens/CPU s':>24}{'tokens/s':>24}{'of large':>10}{'of skinny':>11}{'peak MiB':>10}"
    print(" " * width + head)
    for name, values in results.items():
        line = f"{name:<{width}}{spread(rates(values, 'cpu')):>24}{spread(rates(values, 'wall')):>24}"
        for key, column in (("of_large", 10), ("of_skinny", 11)):
            known = [value[key] for value in values if key in value]
            line += f"{statistics.median(known):>{column}.0%}" if known else " " * (column - 1) + "-"
        print(line + f"{max(value['peak_mib'] for value in values):>10,.0f}")
    speeds = [value for values in results.values() for value in values if "large_gflops" in value]
    for key in ("large_gflops", "skinny_gflops"):
        if speeds:
            print(f"{key}: {spread(value[key] for value in speeds)}")


def print_ratios(results: dict[str, list[dict]], ours: Iterable[str], peers: Iterable[str]) -> None:
    """How many times as many tokens per CPU second, round by round."""
    for own in ours:
        for peer in peers:
            ratio = [a / b for a, b in zip(rates(results[own], "cpu"), rates(results[peer], "cpu"))]
            print(f"{own} / {peer}: {spread(ratio, 2)}")


def save(output: str | None, **contents: Any) -> None:
    """Writes the measurements, with the versions they were made with."""
    if output is None:
        return
    machine = {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, **contents}, indent=1), encoding="utf-8")
