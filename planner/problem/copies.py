"""Copies: a problem with an offload and a fetch for each of some buffers, on engines beside compute.

    task n + i        offload of buffer `buffer[i]`: reads it and writes the host buffer m + i
    task n + c + i    fetch: reads the host buffer and writes `buffer[i]`

Tasks 0 to n - 1 and buffers 0 to m - 1 are those of the problem without copies, so its orders stay legal.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from planner.problem.columns import (
    ALLOW,
    DEVICE,
    FORWARD,
    FREE,
    FROM_HOST,
    HOST,
    TO_HOST,
    TO_LAST_READ,
    Csr,
    Problem,
    frozen,
)

#: Longest copy, ticks (about sixteen training steps); keeps sums of ticks exact.
MAX_COPY_TICKS = 2**48
#: Buffers with copies, the largest first; bounds the size of the problem.
MAX_COPIES = 20_000


@dataclass(frozen=True, slots=True)
class Link:
    """The link between device and host memory."""

    to_host: float  # bytes per second, above 0
    from_host: float  # bytes per second, above 0
    is_shared: bool = False  # one direction at a time, each at its full bandwidth; else both at once
    launch_seconds: float = 0.0  # added to each copy


@dataclass(frozen=True, eq=False, slots=True)
class CopyProblem:
    """A problem with copies of c buffers."""

    problem: Problem
    original: Problem  # without the copies
    buffer: np.ndarray  # int64[c]  copied buffers, ascending

    @property
    def offload(self) -> np.ndarray:
        """int64[c]: offload tasks."""
        return self.original.tasks + np.arange(len(self.buffer))

    @property
    def fetch(self) -> np.ndarray:
        """int64[c]: fetch tasks."""
        return self.offload + len(self.buffer)


def copyable(problem: Problem) -> np.ndarray:
    """Buffers that copies may move: on the device, held to their last read, written by one task. int64[c], ascending.

    At most MAX_COPIES, the largest.
    """
    writers = np.bincount(problem.writes.index, minlength=problem.buffers)
    may = (writers == 1) & (problem.hold == TO_LAST_READ) & (problem.space == DEVICE) & (problem.size > 0)
    found = np.flatnonzero(may)
    return np.sort(found[np.argsort(-problem.size[found], kind="stable")[:MAX_COPIES]])


def with_copies(problem: Problem, link: Link, buffer: np.ndarray) -> CopyProblem:
    """The problem with copies of these buffers (ascending), without those that would take over MAX_COPY_TICKS.

    copies = with_copies(problem, Link(25e9, 25e9), copyable(problem))
    """
    size = problem.size[buffer]
    out = np.rint((size / link.to_host + link.launch_seconds) / problem.tick)
    back = np.rint((size / link.from_host + link.launch_seconds) / problem.tick)
    quick = np.maximum(out, back) <= MAX_COPY_TICKS
    buffer, size, out, back = buffer[quick], size[quick], out[quick], back[quick]
    count = len(buffer)
    host = [[problem.buffers + i] for i in range(count)]
    device = [[b] for b in buffer.tolist()]
    none: list[list[int]] = [[]] * (2 * count)
    engine = [TO_HOST] * count + [TO_HOST if link.is_shared else FROM_HOST] * count
    extended = dataclasses.replace(
        problem,
        cost=_joined(problem.cost, np.maximum(1, np.concatenate([out, back]))),
        workspace=_joined(problem.workspace, 0, 2 * count),
        phase=_joined(problem.phase, FORWARD, 2 * count),
        engine=_joined(problem.engine, np.array(engine)),
        repeat=_joined(problem.repeat, FREE, 2 * count),
        optional=_joined(problem.optional, True, 2 * count),
        heavy=_joined(problem.heavy, True, 2 * count),
        recompute=_joined(problem.recompute, ALLOW, 2 * count),
        size=_joined(problem.size, size),
        space=_joined(problem.space, HOST, count),
        hold=_joined(problem.hold, TO_LAST_READ, count),
        checkpoint=_joined(problem.checkpoint, False, count),
        reads=_with_rows(problem.reads, [*device, *host]),
        shape_reads=_with_rows(problem.shape_reads, none),
        writes=_with_rows(problem.writes, [*host, *device]),
        takeover=_with_rows(problem.takeover, none[:count]),
        after_every=_with_rows(problem.after_every, none),
        after_first=_with_rows(problem.after_first, none),
    )
    return CopyProblem(extended, problem, frozen(buffer))


def _joined(first: np.ndarray, second: np.ndarray | int, count: int | None = None) -> np.ndarray:
    """Read-only column with more entries: `second`, or `count` times the number `second`."""
    more = np.asarray(second) if count is None else np.full(count, second)
    return frozen(np.concatenate([first, more.astype(first.dtype)]))


def _with_rows(rows: Csr, more: list[list[int]]) -> Csr:
    added = Csr.of(more)
    pointer = np.concatenate([rows.pointer, rows.pointer[-1] + added.pointer[1:]])
    return Csr(frozen(pointer), frozen(np.concatenate([rows.index, added.index])))
