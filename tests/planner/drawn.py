"""Small problems from drawings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from planner.problem import ALLOW, BACKWARD, COMPUTE, DEVICE, FORWARD, FREE, NEVER, TO_LAST_READ, UPDATE, Csr, Problem
from planner.problem.plan import Order


def problem_of(
    reads: Sequence[Sequence[int]],
    writes: Sequence[Sequence[int]],
    buffers: int | None = None,
    *,
    shape_reads: Sequence[Sequence[int]] | None = None,
    takeover: Mapping[int, Sequence[int]] | None = None,
    after_every: Iterable[tuple[int, int]] = (),
    after_first: Iterable[tuple[int, int]] = (),
    tick: float = 1.0,
    **columns: Sequence[int] | Sequence[bool] | np.ndarray,
) -> Problem:
    """A problem from rows; every column not given is the plainest: one byte, one tick, forward, free."""
    n = len(reads)
    m = buffers if buffers is not None else 1 + max((b for row in [*reads, *writes] for b in row), default=-1)
    of_task = {
        "cost": (np.int64, 1),
        "workspace": (np.int64, 0),
        "phase": (np.int8, FORWARD),
        "engine": (np.int8, COMPUTE),
        "repeat": (np.int8, FREE),
        "optional": (np.bool_, False),
        "heavy": (np.bool_, False),
        "recompute": (np.int8, ALLOW),
    }
    of_buffer = {
        "size": (np.int64, 1),
        "space": (np.int8, DEVICE),
        "hold": (np.int8, TO_LAST_READ),
        "checkpoint": (np.bool_, False),
    }
    filled = {}
    for count, table in ((n, of_task), (m, of_buffer)):
        for name, (dtype, plain) in table.items():
            values = columns.pop(name, None)
            filled[name] = np.full(count, plain, dtype) if values is None else np.asarray(values, dtype)
    assert not columns, f"unknown columns {sorted(columns)}"
    return Problem(
        **filled,
        reads=Csr.of(reads),
        shape_reads=Csr.of(shape_reads if shape_reads is not None else [[]] * n),
        writes=Csr.of(writes),
        takeover=Csr.of([(takeover or {}).get(b, []) for b in range(m)]),
        after_every=_pairs(n, after_every),
        after_first=_pairs(n, after_first),
        tick=tick,
    )


def drawn(
    arcs: str,
    *,
    size: Mapping[str, int] | int = 1,
    cost: Mapping[str, int] | int = 1,
    workspace: Mapping[str, int] | int = 0,
    hold: Mapping[str, int] | int = TO_LAST_READ,
    backward: str = "",
    update: str = "",
    never: str = "",
    takeover: str = "",
    checkpoint: str = "",
    after_every: str = "",
    after_first: str = "",
) -> Problem:
    """Tasks named by letters in alphabetical order, each with one output; "a>d": d reads what a wrote.

    `takeover="a>b"`: b's output may take a's storage over. A lone letter is a task without arcs.
    """
    names = sorted({letter for arc in arcs.split() for letter in arc.split(">")})
    number = {name: i for i, name in enumerate(names)}
    reads: list[list[int]] = [[] for _ in names]
    for a, b in _arcs(arcs, number):
        reads[b].append(a)

    def column(values: Mapping[str, int] | int, plain: int) -> list[int]:
        return [values.get(name, plain) for name in names] if isinstance(values, Mapping) else [values] * len(names)

    def phase(name: str) -> int:
        return BACKWARD if name in backward else UPDATE if name in update else FORWARD

    taken: dict[int, list[int]] = {}
    for a, b in _arcs(takeover, number):
        taken.setdefault(b, []).append(a)
    return problem_of(
        reads,
        [[i] for i in range(len(names))],
        takeover=taken,
        after_every=_arcs(after_every, number),
        after_first=_arcs(after_first, number),
        size=column(size, 1),
        cost=column(cost, 1),
        workspace=column(workspace, 0),
        hold=column(hold, TO_LAST_READ),
        phase=[phase(name) for name in names],
        repeat=[NEVER if name in never else FREE for name in names],
        checkpoint=[name in checkpoint for name in names],
    )


def order_of(letters: str) -> Order:
    """The order that runs the tasks named by these letters; "abca" runs a twice."""
    names = sorted(set(letters))
    assert names == [chr(ord(names[0]) + i) for i in range(len(names))] if names else True
    return np.array([ord(letter) - ord("a") for letter in letters], np.int64)


def letters_of(order: Order) -> str:
    """An order as letters."""
    return "".join(chr(ord("a") + task) for task in order.tolist())


def _arcs(text: str, number: Mapping[str, int]) -> list[tuple[int, int]]:
    pairs = [arc.split(">") for arc in text.split() if ">" in arc]
    return [(number[a], number[b]) for a, b in pairs]


def _pairs(rows: int, pairs: Iterable[tuple[int, int]]) -> Csr:
    table: list[list[int]] = [[] for _ in range(rows)]
    for a, b in pairs:
        table[a].append(b)
    return Csr.of(table)
