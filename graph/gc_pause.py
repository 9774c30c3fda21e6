"""Pausing of Python's cyclic garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: So many records of a pause are made old at its end. Fewer stay young: the collector does not count what is made old
#: here, so that cycles among them would wait long for the next run of the oldest generation.
MANY_RECORDS = 200_000


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection inside the block: each run would visit millions of records that form no cycles.

    After the block many records count as old, so that the next run of the young generation does not visit them either.
    """
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            is_large = gc.get_count()[0] >= MANY_RECORDS
            if is_large and not gc.get_freeze_count():  # else `unfreeze` would return objects of others
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()
