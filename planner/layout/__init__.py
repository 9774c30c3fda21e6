"""Arena layouts: the table LAYOUTS of modules with `place(lifetimes, size, workspace, alignment, monitor) -> offsets`.

May import `planner.errors`, `planner.problem`, `planner.verify` and (CSV input) `planner.request`.
Start reading at `storages.py`, then `best_fit.py`.

Offsets are int64[k + s]: one per instance of `Lifetimes`, then one per step's workspace. An instance that takes over a
storage has the offset of its source; a write into a resident storage has the offset of the storage; an instance
without bytes, or never live, has -1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from operator import itemgetter

import numpy as np

from planner.errors import BadRequest
from planner.layout import best_fit, canonical_search, ejection
from planner.layout.known_places import KnownPlaces
from planner.layout.storages import StoragePlacement, storage_placement
from planner.problem.monitor import Monitor
from planner.problem.plan import Lifetimes

Layout = Callable[[Lifetimes, np.ndarray, np.ndarray, int, Monitor], np.ndarray]

#: Of a search for a packing within a capacity, before the exhaustive search: share of the time for repairs, and under
#: an iteration limit moves of each repair for each storage.
REPAIR_SHARE, REPAIR_MOVES = 0.5, 8

#: Name -> module below this package, imported when first needed.
LAYOUTS = {"fast": "best_fit", "best": "randomized"}


def layout_named(name: str) -> Layout:
    """The layout function of that name. Raises BadRequest listing the known names."""
    if name not in LAYOUTS:
        raise BadRequest.one(
            "unknown_layout", "layout", repr(name), f"none, {', '.join(LAYOUTS)}", "choose one of these"
        )
    layout: Layout = import_module(f"{__name__}.{LAYOUTS[name]}").place
    return layout


def place(
    name: str, lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> tuple[np.ndarray, int]:
    """(offsets, bytes of the arena) by the named layout.

    `size` is int64[m], bytes per buffer, 0 outside device memory; `workspace` is int64[s], bytes per step.
    """
    offsets = layout_named(name)(lifetimes, size, workspace, alignment, monitor)
    return offsets, arena_of(offsets, lifetimes, size, workspace)


def place_by_sweeps(
    lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> tuple[np.ndarray, int]:
    """As `place`, by the sweeps of the layout `fast` alone."""
    placement = storage_placement(lifetimes, size, workspace, alignment)
    offsets = placement.offsets(best_fit.swept_offsets(placement.storages, monitor))
    return offsets, arena_of(offsets, lifetimes, size, workspace)


def place_within(
    capacity: int, lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> tuple[np.ndarray, int] | None:
    """As `place`, with an arena of at most `capacity` bytes; None if no such layout is found before `monitor` stops.

    Up to MAX_STORAGES, repairs of a sweep come first, which are quick where much room is left; under an iteration limit
    they count none. Above, they are all there is.
    """
    placement = storage_placement(lifetimes, size, workspace, alignment)
    storages, room = placement.storages, capacity - placement.base
    repairs_alone = len(storages.size) > canonical_search.MAX_STORAGES
    end = monitor.progress() + (1 - monitor.progress()) * REPAIR_SHARE

    def stop_repairs() -> bool:
        return monitor.should_stop() or (not repairs_alone and monitor.progress() >= end)

    begin = best_fit.sweep_from_peak(storages, storages.start)
    # Storages are rounded up to the alignment, which the one at the end of the arena need not be: it may fit above.
    for rounded in dict.fromkeys((room, -(-room // alignment) * alignment)):
        if repairs_alone or monitor.iterations is None:
            packed = ejection.packing_within(storages, rounded, stop_repairs)
        else:
            packed = ejection.repaired(storages, begin, rounded, REPAIR_MOVES, monitor.cancel_event.is_set)
        if packed is None and not repairs_alone:
            packed = canonical_search.packing_within(storages, rounded, monitor.should_stop)
        if packed is not None:
            offsets = placement.offsets(packed)
            if (arena := arena_of(offsets, lifetimes, size, workspace)) <= capacity:
                return offsets, arena
    return None


def place_again(
    capacity: int,
    known: KnownPlaces,
    origin: np.ndarray,
    lifetimes: Lifetimes,
    size: np.ndarray,
    workspace: np.ndarray,
    alignment: int,
    moves: int,
    stop: Callable[[], bool],
) -> tuple[np.ndarray, int] | None:
    """As `place_within`, by repair of the offsets of another order: at most `moves` for each storage, until `stop`.

    `origin` as of `KnownPlaces.begin`.
    """
    placement = storage_placement(lifetimes, size, workspace, alignment)
    begin = known.begin(placement, lifetimes, origin, size, alignment)
    ends = (begin + placement.storages.size)[begin >= 0]
    room = _room(placement, capacity, alignment, int(ends.max(initial=0)))
    begin[begin < 0] = room  # at the capacity, a storage waits for a place
    packed = ejection.repaired(placement.storages, begin, room, moves, stop)
    if packed is None:
        return None
    offsets = placement.offsets(packed)
    arena = arena_of(offsets, lifetimes, size, workspace)
    return (offsets, arena) if arena <= capacity else None


def _room(placement: StoragePlacement, capacity: int, alignment: int, end: int = 0) -> int:
    """Bytes of the capacity for storages: rounded up only for what they hold, or for an `end` of one of them.

    The storage at the end of the arena may fill its last unit in part.
    """
    rounded = (capacity - placement.base) // alignment * alignment
    if max(end, int(placement.storages.profile().max(initial=0))) <= rounded:
        return rounded
    return -(-(capacity - placement.base) // alignment) * alignment


def place_toward(
    capacity: int, lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray, alignment: int, monitor: Monitor
) -> tuple[np.ndarray, int]:
    """As `place`, with an arena of at most `capacity` bytes, or the smallest found before `monitor` stops.

    By the clock: a thread searches packings within the capacity, beside repairs that approach it.
    """
    placement, is_found = storage_placement(lifetimes, size, workspace, alignment), threading.Event()
    storages, room = placement.storages, _room(placement, capacity, alignment)
    within: list[np.ndarray] = []

    def stop() -> bool:
        return is_found.is_set() or monitor.should_stop()

    def search() -> None:
        packed = canonical_search.packing_within(storages, room, stop)
        if packed is not None:
            within.append(packed)
            if arena_of(placement.offsets(packed), lifetimes, size, workspace) <= capacity:
                is_found.set()

    beside = threading.Thread(target=search, daemon=True)
    beside.start()
    *_, smallest = ejection.packings_toward(storages, room, stop)
    is_found.set()
    beside.join()
    found = map(placement.offsets, (smallest, *within))
    return min(((offsets, arena_of(offsets, lifetimes, size, workspace)) for offsets in found), key=itemgetter(1))


def arena_of(offsets: np.ndarray, lifetimes: Lifetimes, size: np.ndarray, workspace: np.ndarray) -> int:
    """Bytes of the arena that these offsets need."""
    ends = offsets + np.concatenate([size[lifetimes.buffer], workspace])
    return int(ends[offsets >= 0].max(initial=0))
