"""The planning problem: numpy columns of n tasks that run kernels and m buffers that hold bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

# Phase of a task. With strict phases, first runs come in this order.
FORWARD, BACKWARD, UPDATE = 0, 1, 2
# Engine of a task. A link that copies in one direction at a time is one engine, TO_HOST, for both directions.
COMPUTE, TO_HOST, FROM_HOST, COMMUNICATION = 0, 1, 2, 3
# Whether a task may be recomputed.
FREE, NEVER, SAME_ORDER = 0, 1, 2  # SAME_ORDER: in the same order on all ranks
# The user's setting for recomputing a task.
ALLOW, FORBID, PREFER = 0, 1, 2
# Memory space of a buffer.
DEVICE, HOST = 0, 1
# How long a buffer's bytes are held.
TO_LAST_READ, TO_THE_END, HANDED_OUT, RESIDENT = 0, 1, 2, 3


@dataclass(frozen=True, eq=False, slots=True)
class Csr:
    """Rows of ints in compressed sparse row form: row i is `index[pointer[i]:pointer[i + 1]]`."""

    pointer: np.ndarray  # int64[rows + 1]
    index: np.ndarray  # int64[entries]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Csr:
        """From a list of rows; `Csr.of([[1], [], [0, 2]])`."""
        rows = list(rows)
        pointer = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(list(map(len, rows)), out=pointer[1:])
        index = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(pointer[-1]))
        return cls(frozen(pointer), frozen(index))

    @classmethod
    def empty(cls, rows: int) -> Csr:
        """`rows` rows without entries."""
        return cls(frozen(np.zeros(rows + 1, np.int64)), frozen(np.zeros(0, np.int64)))

    @classmethod
    def of_pairs(cls, rows: int, row: np.ndarray, column: np.ndarray) -> Csr:
        """From (row, column) pairs; columns keep their order within a row."""
        by_row = np.argsort(row, kind="stable")
        pointer = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=rows), out=pointer[1:])
        return cls(frozen(pointer), frozen(np.asarray(column, np.int64)[by_row]))

    def __len__(self) -> int:
        return len(self.pointer) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.index[self.pointer[row] : self.pointer[row + 1]]

    def lists(self) -> list[list[int]]:
        """All rows as Python lists, for loops that visit single elements."""
        if not len(self.index):
            return [[] for _ in range(len(self))]
        bounds, flat = self.pointer.tolist(), self.index.tolist()
        return [flat[begin:end] for begin, end in itertools.pairwise(bounds)]

    def row_of_entry(self) -> np.ndarray:
        """int64[entries]: the row of each entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.pointer))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Entries of the given rows, concatenated."""
        return self.entries(rows)[1]

    def entries(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(position in `rows`, entry) of every entry of the given rows, in order."""
        rows = np.asarray(rows, np.int64)
        count = self.pointer[rows + 1] - self.pointer[rows]
        position = np.repeat(np.arange(len(rows)), count)
        first = np.repeat(self.pointer[rows] - (np.cumsum(count) - count), count)
        return position, self.index[first + np.arange(int(count.sum()))]

    def transposed(self, columns: int) -> Csr:
        """The transpose: column -> rows that contain it, ascending."""
        return Csr.of_pairs(columns, self.index, self.row_of_entry())


@dataclass(frozen=True, eq=False, slots=True)
class Choices:
    """g groups with a alternatives in total; one alternative per group applies. See `alternatives.resolve_choices`.

    group          0       1       2          the first alternative of a group leaves the columns of the
    alternative    0 1 2   3 4     5 6 7      problem unchanged
    """

    group: np.ndarray  # int64[a]  group of each alternative, ascending
    kind: np.ndarray  # int64[g]  groups of one kind have the same alternatives on other tasks and buffers
    tasks: Csr  # alternative -> tasks it changes
    cost: np.ndarray  # int64[entries of tasks]  ticks for one run
    workspace: np.ndarray  # int64[entries of tasks]  bytes
    reads: Csr  # entry of tasks -> buffers the task reads
    buffers: Csr  # alternative -> buffers it changes
    size: np.ndarray  # int64[entries of buffers]  bytes; 0 for a buffer that the alternative does not write

    def __len__(self) -> int:
        return len(self.kind)

    def counts(self) -> np.ndarray:
        """int64[g]: number of alternatives of each group."""
        return np.bincount(self.group, minlength=len(self.kind))


def _no_choices() -> Choices:
    none = frozen(np.zeros(0, np.int64))
    return Choices(none, none, Csr.empty(0), none, none, Csr.empty(0), Csr.empty(0), none)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Problem:
    """n tasks that run kernels, m buffers that hold bytes.

    A buffer is a storage: `planner.lowering` has already resolved views to their storage. A buffer without
    a writer, or a RESIDENT one, exists from the start. Tasks are numbered in the order of the document.
    """

    cost: np.ndarray  # int64[n]  ticks for one run; `tick` is seconds
    workspace: np.ndarray  # int64[n]  bytes held only while the task runs
    phase: np.ndarray  # int8[n]   FORWARD, BACKWARD or UPDATE
    engine: np.ndarray  # int8[n]   COMPUTE, TO_HOST, FROM_HOST or COMMUNICATION
    repeat: np.ndarray  # int8[n]   FREE, NEVER or SAME_ORDER
    optional: np.ndarray  # bool[n]   may run zero times
    heavy: np.ndarray  # bool[n]   mirroring does not recompute it unless `recompute` is PREFER
    recompute: np.ndarray  # int8[n]   ALLOW, FORBID or PREFER: the user's setting
    size: np.ndarray  # int64[m]  bytes, exact, as the target runtime rounds them
    space: np.ndarray  # int8[m]   DEVICE or HOST
    hold: np.ndarray  # int8[m]   TO_LAST_READ, TO_THE_END, HANDED_OUT or RESIDENT
    checkpoint: np.ndarray  # bool[m]   marked by the user to be kept
    reads: Csr  # task -> buffers, each once
    shape_reads: Csr  # task -> buffers of which only the shape is read; they hold no bytes
    writes: Csr  # task -> buffers; a buffer may have several writers: the lowest number is its producer
    takeover: Csr  # buffer -> buffers its producer reads whose storage it may take, first fit
    after_every: Csr  # task a -> tasks whose every run follows every run of a
    after_first: Csr  # task a -> tasks whose first run follows the first run of a
    tick: float  # seconds per tick of cost
    choices: Choices = field(default_factory=lambda: NO_CHOICES)  # alternative costs, sizes and reads

    @property
    def tasks(self) -> int:
        """n, the number of tasks."""
        return len(self.cost)

    @property
    def buffers(self) -> int:
        """m, the number of buffers."""
        return len(self.size)

    def resident_bytes(self) -> int:
        """Bytes of the residents in device memory, which every step holds."""
        return int(self.size[(self.hold == RESIDENT) & (self.space == DEVICE)].sum())

    def planned_size(self) -> np.ndarray:
        """int64[m]: bytes in device memory of each buffer that is not resident; 0 for all others."""
        return np.where((self.space == DEVICE) & (self.hold != RESIDENT), self.size, 0)

    def single_run_ticks(self) -> int:
        """Ticks of one run of every task that is not optional: no order takes fewer."""
        return int(self.cost[~self.optional].sum())

    def repeatable(self) -> np.ndarray:
        """bool[n]: whether the task may appear more than once in an order."""
        return np.asarray((self.repeat == FREE) & (self.recompute != FORBID))

    def is_copy(self) -> np.ndarray:
        """bool[n]: whether the task copies a buffer to the host or back; copies belong to no phase."""
        return np.asarray((self.engine == TO_HOST) | (self.engine == FROM_HOST))

    def producer(self) -> np.ndarray:
        """int64[m]: the lowest task that writes each buffer; -1 for a buffer without a writer."""
        producer = np.full(self.buffers, -1, np.int64)
        producer[self.writes.index[::-1]] = self.writes.row_of_entry()[::-1]
        return producer

    def has_several_writers(self) -> np.ndarray:
        """bool[m]: whether more than one task writes the buffer."""
        return np.asarray(np.bincount(self.writes.index, minlength=self.buffers) > 1)


def same_dataflow(one: Problem, two: Problem) -> bool:
    """Whether the orders of `one` are legal for `two`: equal relations, phases, holds and recompute settings."""
    relations = ("reads", "writes", "shape_reads", "after_every", "after_first")
    columns = ("phase", "hold", "repeat", "recompute", "optional")
    if one.tasks != two.tasks or one.buffers != two.buffers or len(one.choices) != len(two.choices):
        return False
    rows = [(getattr(one, name), getattr(two, name)) for name in relations]
    return all(a.pointer.tolist() == b.pointer.tolist() and a.index.tolist() == b.index.tolist() for a, b in rows) and (
        all(getattr(one, name).tolist() == getattr(two, name).tolist() for name in columns)
    )


def frozen(array: np.ndarray) -> np.ndarray:
    """The array, made read-only."""
    array.flags.writeable = False
    return array


def sum_over_intervals(start: np.ndarray, stop: np.ndarray, amount: np.ndarray | int, length: int) -> np.ndarray:
    """int64[length]: at each place the sum of `amount` over the intervals [start, stop) that contain it."""
    change = np.zeros(length + 1, np.int64)
    np.add.at(change, start, amount)
    np.subtract.at(change, stop, amount)
    return np.asarray(np.cumsum(change)[:length])


def true_intervals(mask: np.ndarray) -> list[tuple[int, int]]:
    """The intervals [start, stop) of successive true entries, longest possible, ascending."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]]).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


NO_CHOICES: Choices = _no_choices()
