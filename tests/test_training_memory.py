"""Keeping freed memory."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from training.memory import keep_freed_memory

print(keep_freed_memory())
faults = []
for step in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [torch.ones(1 << 21) for _ in range(20)]  # 8 MB each, like gradients
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(faults[3:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not the C library of the GNU project")
def test_freed_memory_is_used_again_without_page_faults():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    assert kept == "True"
    assert int(faults) < 100
