"""Resolve a choice vector to plain columns, the only form that algorithms, evaluator and bounds accept.

A choice vector has one entry per group: the index of an alternative within the group. Alternative 0 leaves the
columns unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.errors import IllegalPlan
from planner.problem.columns import NO_CHOICES, Choices, Csr, Problem, frozen


def resolve_choices(problem: Problem, choices: Sequence[int] = ()) -> Problem:
    """The problem under `choices`, with no groups left; the problem itself if it has no groups. O(n + reads).

    The last four results are cached. Raises IllegalPlan if the length differs from the number of groups or an
    alternative does not exist.
    """
    if not len(problem.choices):
        if len(choices):
            raise IllegalPlan(f"{len(choices)} choices for a problem without groups of alternatives; omit choices")
        return problem
    return _resolved(problem, tuple(choices))


@lru_cache(maxsize=4)
def _resolved(problem: Problem, choices: tuple[int, ...]) -> Problem:
    table = problem.choices
    chosen = _alternatives(table, choices)
    entries = _entries_of(table.tasks, chosen)
    tasks = table.tasks.index[entries]
    cost, workspace, size = problem.cost.copy(), problem.workspace.copy(), problem.size.copy()
    cost[tasks], workspace[tasks] = table.cost[entries], table.workspace[entries]
    changed = _entries_of(table.buffers, chosen)
    size[table.buffers.index[changed]] = table.size[changed]
    return replace(
        problem,
        cost=frozen(cost),
        workspace=frozen(workspace),
        size=frozen(size),
        reads=_with_rows(problem.reads, tasks, table.reads, entries),
        choices=NO_CHOICES,
    )


def aligned(problem: Problem, alignment: int) -> Problem:
    """The problem with all sizes rounded up to multiples of `alignment`; the problem itself if they are. O(n + reads).

    A takeover that only the rounding makes possible is left out.
    """
    table = problem.choices
    columns = (problem.size, problem.workspace, table.size, table.workspace)
    if not any((column % alignment).any() for column in columns):
        return problem
    size, workspace, other_size, other_workspace = (frozen(-(-column // alignment) * alignment) for column in columns)
    taker, source = problem.takeover.row_of_entry(), problem.takeover.index
    kept = (problem.size[source] >= problem.size[taker]) | (size[source] < size[taker])
    return replace(
        problem,
        size=size,
        workspace=workspace,
        takeover=Csr.of_pairs(problem.buffers, taker[kept], source[kept]),
        choices=replace(table, size=other_size, workspace=other_workspace),
    )


def relax_choices(problem: Problem) -> Problem:
    """Relaxation over all choice vectors: a lower bound for it holds under every vector. O(n + reads).

    Minimum cost, workspace and size; the reads that all alternatives share. A buffer that can reuse an input's
    storage under some alternatives only counts as reusing it: size 0.
    """
    table = problem.choices
    if not len(table):
        return problem
    cost, workspace, size = problem.cost.copy(), problem.workspace.copy(), problem.size.copy()
    np.minimum.at(cost, table.tasks.index, table.cost)
    np.minimum.at(workspace, table.tasks.index, table.workspace)
    np.minimum.at(size, table.buffers.index, table.size)
    size[_conditional_takers(problem)] = 0
    task = problem.reads.row_of_entry()
    key = task * problem.buffers + problem.reads.index
    entry = table.reads.row_of_entry()
    listed, times = np.unique(table.tasks.index[entry] * problem.buffers + table.reads.index, return_counts=True)
    alternatives = np.bincount(table.tasks.index, minlength=problem.tasks)
    count = np.zeros(len(key), np.int64)  # alternatives that list this read
    at = np.searchsorted(listed, key)
    known = at < len(listed)
    known[known] = listed[at[known]] == key[known]
    count[known] = times[at[known]]
    always = count == alternatives[task]
    reads = Csr.of_pairs(problem.tasks, task[always], problem.reads.index[always])
    return replace(
        problem, cost=frozen(cost), workspace=frozen(workspace), size=frozen(size), reads=reads, choices=NO_CHOICES
    )


def _conditional_takers(problem: Problem) -> np.ndarray:
    """Buffers with a takeover whose sizes, or whose writer's reads, depend on a choice."""
    sized, written = np.zeros(problem.buffers, bool), np.zeros(problem.buffers, bool)
    sized[problem.choices.buffers.index] = True
    written[problem.writes.index[np.isin(problem.writes.row_of_entry(), problem.choices.tasks.index)]] = True
    taker, source = problem.takeover.row_of_entry(), problem.takeover.index
    return np.unique(taker[sized[taker] | sized[source] | written[taker]])


def _alternatives(table: Choices, choices: Sequence[int]) -> np.ndarray:
    """int64[g]: row of the chosen alternative of each group. Raises IllegalPlan."""
    count = table.counts()
    vector = np.asarray(choices, np.int64) if len(choices) else np.zeros(len(table), np.int64)
    if len(vector) != len(table):
        raise IllegalPlan(f"{len(vector)} choices for {len(table)} groups of alternatives; give one per group")
    wrong = np.flatnonzero((vector < 0) | (vector >= count))
    if len(wrong):
        group = int(wrong[0])
        raise IllegalPlan(f"group {group} has no alternative {vector[group]}; use 0 to {count[group] - 1}")
    return np.asarray(np.cumsum(count) - count + vector)


def _entries_of(rows: Csr, chosen: np.ndarray) -> np.ndarray:
    """Positions in `rows.index` of the entries of the chosen rows."""
    spans = [np.arange(rows.pointer[row], rows.pointer[row + 1]) for row in chosen.tolist()]
    return np.concatenate(spans) if spans else np.zeros(0, np.int64)


def _with_rows(rows: Csr, replaced: np.ndarray, new: Csr, new_rows: np.ndarray) -> Csr:
    """`rows` with row `replaced[i]` replaced by row `new_rows[i]` of `new`."""
    if not len(replaced):
        return rows
    unchanged = np.ones(len(rows), bool)
    unchanged[replaced] = False
    row = rows.row_of_entry()
    kept = unchanged[row]
    position, entry = new.entries(new_rows)
    return Csr.of_pairs(
        len(rows), np.concatenate([row[kept], replaced[position]]), np.concatenate([rows.index[kept], entry])
    )
