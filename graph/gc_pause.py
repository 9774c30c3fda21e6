"""Pausing of Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection inside the block: each run would visit millions of records that form no cycles.

    After the block they count as old, so that the next run of the young generation does not visit them either.
    """
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            if not gc.get_freeze_count():  # else `unfreeze` would return objects of others
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()
