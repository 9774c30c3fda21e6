"""Copies: a problem with an offload and a fetch for each of some buffers, on engines beside compute.

Collectives run beside compute too, or in line with it.

    task n + i        offload of buffer `buffer[i]`: reads it and writes the host buffer m + i
    task n + c + i    fetch: reads the host buffer and writes `buffer[i]`

Tasks 0 to n - 1 and buffers 0 to m - 1 are those of the problem without copies, so its orders stay legal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.problem.alternatives import resolve_choices
from planner.problem.columns import (
    ALLOW,
    COMMUNICATION,
    COMPUTE,
    DEVICE,
    FORWARD,
    FREE,
    FROM_HOST,
    HOST,
    TO_HOST,
    TO_LAST_READ,
    Choices,
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
    overlaps: bool = False  # collectives run beside compute; else in line with it

    @property
    def offload(self) -> np.ndarray:
        """int64[c]: offload tasks."""
        return self.original.tasks + np.arange(len(self.buffer))

    def under(self, choices: Sequence[int]) -> CopyProblem:
        """The same copies under one alternative for each group of `problem.choices`."""
        problem, original = (resolve_choices(each, choices) for each in (self.problem, self.original))
        return dataclasses.replace(self, problem=problem, original=original)

    @property
    def fetch(self) -> np.ndarray:
        """int64[c]: fetch tasks."""
        return self.offload + len(self.buffer)


def copyable(problem: Problem) -> np.ndarray:
    """Buffers that copies may move: on the device, held to their last read, written by one task. int64[c], ascending.

    At most MAX_COPIES, the largest; sizes are the largest of any alternative.
    """
    size = _largest_sizes(problem)
    writers = np.bincount(problem.writes.index, minlength=problem.buffers)
    may = (writers == 1) & (problem.hold == TO_LAST_READ) & (problem.space == DEVICE) & (size > 0)
    found = np.flatnonzero(may)
    return np.sort(found[np.argsort(-size[found], kind="stable")[:MAX_COPIES]])


def with_copies(problem: Problem, link: Link, buffer: np.ndarray, overlaps: bool = False) -> CopyProblem:
    """The problem with copies of these buffers (ascending), without those that would take over MAX_COPY_TICKS.

    Collectives run on an engine of their own if `overlaps`, else in line with compute, as in a plan without copies.
    Each alternative of `problem.choices` has the host buffers and the copy times of its sizes.

    copies = with_copies(problem, Link(25e9, 25e9), copyable(problem))
    """
    largest = _largest_sizes(problem)
    buffer = buffer[_copy_ticks(problem, link, largest[buffer]).max(axis=0, initial=0) <= MAX_COPY_TICKS]
    size, count = problem.size[buffer], len(buffer)
    host = [[problem.buffers + i] for i in range(count)]
    device = [[b] for b in buffer.tolist()]
    none: list[list[int]] = [[]] * (2 * count)
    engine = [TO_HOST] * count + [TO_HOST if link.is_shared else FROM_HOST] * count
    in_line = problem.engine if overlaps else np.where(problem.engine == COMMUNICATION, COMPUTE, problem.engine)
    extended = dataclasses.replace(
        problem,
        cost=_joined(problem.cost, _copy_ticks(problem, link, size).ravel()),
        workspace=_joined(problem.workspace, 0, 2 * count),
        phase=_joined(problem.phase, FORWARD, 2 * count),
        engine=_joined(in_line.astype(problem.engine.dtype), np.array(engine)),
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
        choices=_choices_with_copies(problem, link, buffer),
    )
    return CopyProblem(extended, problem, frozen(buffer), overlaps)


def _largest_sizes(problem: Problem) -> np.ndarray:
    """int64[m]: bytes of each buffer under the alternatives that make it largest."""
    largest = problem.size.copy()
    np.maximum.at(largest, problem.choices.buffers.index, problem.choices.size)
    return largest


def _copy_ticks(problem: Problem, link: Link, size: np.ndarray) -> np.ndarray:
    """float64[2, c]: ticks of the offload and of the fetch of so many bytes each, at least 1."""
    seconds = np.stack([size / link.to_host, size / link.from_host]) + link.launch_seconds
    return np.asarray(np.maximum(1, np.rint(seconds / problem.tick)))


def _choices_with_copies(problem: Problem, link: Link, buffer: np.ndarray) -> Choices:
    """The alternatives of the problem, each with the copies of the buffers whose sizes it changes."""
    table, count = problem.choices, len(buffer)
    if not len(table):
        return table
    number = {b: i for i, b in enumerate(buffer.tolist())}
    columns = (table.tasks.index.tolist(), table.cost.tolist(), table.workspace.tolist(), table.reads.lists())
    old, changed = (
        list(zip(*columns, strict=True)),
        list(zip(table.buffers.index.tolist(), table.size.tolist(), strict=True)),
    )
    tasks: list[list[tuple[int, int, int, list[int]]]] = []  # (task, ticks, workspace, reads) of each alternative
    buffers: list[list[tuple[int, int]]] = []  # (buffer, bytes) of each alternative
    for a in range(len(table.group)):
        tasks.append(old[table.tasks.pointer[a] : table.tasks.pointer[a + 1]])
        buffers.append(changed[table.buffers.pointer[a] : table.buffers.pointer[a + 1]])
        for i, b, size in [(number[b], b, size) for b, size in buffers[a] if b in number]:
            out, back = _copy_ticks(problem, link, np.array([size])).astype(np.int64)[:, 0].tolist()
            host = problem.buffers + i
            tasks[a] += [(problem.tasks + i, out, 0, [b]), (problem.tasks + count + i, back, 0, [host])]
            buffers[a].append((host, size))
    entries, sizes = [entry for row in tasks for entry in row], [size for row in buffers for _, size in row]
    return Choices(
        table.group,
        table.kind,
        Csr.of([[task for task, *_ in row] for row in tasks]),
        frozen(np.array([ticks for _, ticks, _, _ in entries], np.int64)),
        frozen(np.array([held for _, _, held, _ in entries], np.int64)),
        Csr.of([read for *_, read in entries]),
        Csr.of([[b for b, _ in row] for row in buffers]),
        frozen(np.array(sizes, np.int64)),
    )


def _joined(first: np.ndarray, second: np.ndarray | int, count: int | None = None) -> np.ndarray:
    """Read-only column with more entries: `second`, or `count` times the number `second`."""
    more = np.asarray(second) if count is None else np.full(count, second)
    return frozen(np.concatenate([first, more.astype(first.dtype)]))


def _with_rows(rows: Csr, more: list[list[int]]) -> Csr:
    added = Csr.of(more)
    pointer = np.concatenate([rows.pointer, rows.pointer[-1] + added.pointer[1:]])
    return Csr(frozen(pointer), frozen(np.concatenate([rows.index, added.index])))
