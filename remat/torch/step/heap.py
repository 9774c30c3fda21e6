"""Memory of a process between ops and steps on a CPU: PyTorch takes it from the C library and frees it there.

glibc returns what is freed to the system when it lies at the end of its heap, or was large; every page of it is faulted
in and cleared when it is next needed. A step under a plan then takes another time than the sum of its ops.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
NEVER, NONE = -1, 0


def keep_memory() -> bool:
    """Keep freed memory in this process, so that no page is faulted in twice; False where the C library is not glibc.

    >>> remat.torch.keep_memory()

    Call it before `optimize`. It concerns all of the process, which then holds the most memory that it ever needed, as
    it does on a GPU. The environment does the same from outside: `MALLOC_TRIM_THRESHOLD_=-1 MALLOC_MMAP_MAX_=0`.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, NEVER)) and bool(mallopt(M_MMAP_MAX, NONE))
