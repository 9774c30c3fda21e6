"""Values that XLA puts into the buffers of results, which are there from start to end and written late.

As XLA's `BufferAssigner`: an addition writes over a partial sum that nothing else reads, and a value lies in a buffer
that is large enough and free over its life, the largest values first.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import Counter
from collections.abc import Sequence

from remat.jax.step.costs import array_of, size_of
from remat.jax.step.program import Equation, Value
from remat.jax.step.tasks import Task

ADDITIONS = {"add", "add_any"}


def in_buffers_of_results(
    tasks: Sequence[Task], results: Sequence[Value], order: Sequence[Task] | None = None
) -> set[Value]:
    """Values that lie in buffers of results, in an order of the tasks with repeats: without one, that of the trace."""
    order = tasks if order is None else order
    lives = _lives(order)
    sums = _partial_sums(tasks, results)
    buffers = []  # of each result: bytes, and what lies in it
    for result in results:
        if result in lives:
            chain = [result, *(part for part, total in sums.items() if total is result)]
            buffers.append((size_of(result.aval), [(min(lives[value][0][0] for value in chain), len(order))]))
    buffers.sort(key=lambda buffer: buffer[0])
    found = set(sums)
    others = [value for value in lives if value not in results and value not in sums]
    for value in sorted(others, key=lambda value: -size_of(value.aval)):
        size = size_of(value.aval)
        if all(any(_lay(life, taken) for room, taken in buffers if size <= room) for life in lives[value]):
            found.add(value)
    return found


def _lives(order: Sequence[Task]) -> dict[Value, list[tuple[int, int]]]:
    """First and last place of every life of every value."""
    lives: dict[Value, list[tuple[int, int]]] = {}
    for place, task in enumerate(order):
        for value in task.reads:
            if value in lives:
                lives[value][-1] = (lives[value][-1][0], place)
        for value in task.writes:
            lives.setdefault(value, []).append((place, place))
    return lives


def _lay(life: tuple[int, int], taken: list[tuple[int, int]]) -> bool:
    """Add a life to those of a buffer, sorted and disjoint, if it meets none of them."""
    place = bisect(taken, life)
    free = (place == 0 or taken[place - 1][1] < life[0]) and (place == len(taken) or life[1] < taken[place][0])
    if free:
        insort(taken, life)
    return free


def _partial_sums(tasks: Sequence[Task], results: Sequence[Value]) -> dict[Value, Value]:
    """Partial sum -> the result that is written over it: of several the one computed first."""
    made = {value: place for place, task in enumerate(tasks) for value in task.writes}
    readers = Counter(value for task in tasks for value in task.reads)
    found: dict[Value, Value] = {}
    for result in results:
        total = result
        while total in made:
            task = tasks[made[total]]
            parts = [
                part
                for part in _summands(task, total)
                if part in made
                and part not in results
                and readers[part] == 1
                and size_of(part.aval) == size_of(total.aval)
                and array_of(part.aval)[1] == array_of(total.aval)[1]
            ]
            if not parts:
                break
            total = min(parts, key=made.__getitem__)
            found[total] = result
    return found


def _summands(task: Task, total: Value) -> list[Value]:
    """What a task adds, reshapes and transposes taken away."""
    by_value: dict[Value, Equation] = {value: equation for equation in task.equations for value in equation.writes}
    if by_value[total].primitive not in ADDITIONS:
        return []
    found = []
    for atom in by_value[total].inputs:
        while isinstance(atom, Value) and atom in by_value and by_value[atom].primitive in ("transpose", "reshape"):
            atom = by_value[atom].inputs[0]
        if isinstance(atom, Value):
            found.append(atom)
    return found
