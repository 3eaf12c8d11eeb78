"""What the C library does with freed memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's parameters
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; glibc takes no more


def keep_freed_memory() -> bool:
    """
    Lets a training process keep the memory that it frees. glibc gives large blocks back to the system, which hands
    them out anew page by page; in training that happens in each step, with the gradients. The peak may be higher.

    Returns:
        whether it could be done: glibc only, so Linux.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    )
