"""The columns under a choice of alternatives: plain ones, which every algorithm, evaluator and bound sees.

A choice is a vector with one number a group, counted within the group; 0 is what the columns say already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from planner.errors import IllegalPlan
from planner.problem.columns import NO_CHOICES, Choices, Csr, Problem


def resolve_choices(problem: Problem, choices: Sequence[int] = ()) -> Problem:
    """The problem as `choices` make it, with no choice left. O(n + reads); itself where there was none.

    The last few are remembered: a search asks for the same one again and again.
    Raises IllegalPlan for a vector of another length or an alternative that is not there.
    """
    if not len(problem.choices):
        if len(choices):
            raise IllegalPlan(f"{len(choices)} choices are made where there is none; leave them out")
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
        cost=_frozen(cost),
        workspace=_frozen(workspace),
        size=_frozen(size),
        reads=_with_rows(problem.reads, tasks, table.reads, entries),
        choices=NO_CHOICES,
    )


def relax_choices(problem: Problem) -> Problem:
    """Plain columns that are below those of every choice: what holds for them holds for all. O(n + reads).

    Least cost, workspace and size; of the reads those that all alternatives have. What may take a
    storage over under one alternative and not under another counts as taken over: nothing.
    """
    table = problem.choices
    if not len(table):
        return problem
    cost, workspace, size = problem.cost.copy(), problem.workspace.copy(), problem.size.copy()
    np.minimum.at(cost, table.tasks.index, table.cost)
    np.minimum.at(workspace, table.tasks.index, table.workspace)
    np.minimum.at(size, table.buffers.index, table.size)
    size[_takers(problem)] = 0
    task = problem.reads.row_of_entry()
    key = task * problem.buffers + problem.reads.index
    entry = table.reads.row_of_entry()
    seen = np.unique(table.tasks.index[entry] * problem.buffers + table.reads.index, return_counts=True)
    alternatives = np.bincount(table.tasks.index, minlength=problem.tasks)
    found = np.zeros(len(key), np.int64)
    at = np.searchsorted(seen[0], key)
    known = at < len(seen[0])
    known[known] = seen[0][at[known]] == key[known]
    found[known] = seen[1][at[known]]
    always = found == alternatives[task]
    reads = Csr.of_pairs(problem.tasks, task[always], problem.reads.index[always])
    return replace(
        problem, cost=_frozen(cost), workspace=_frozen(workspace), size=_frozen(size), reads=reads, choices=NO_CHOICES
    )


def _takers(problem: Problem) -> np.ndarray:
    """Buffers that may take one over where the sizes or the reads of the task depend on a choice."""
    sized, made = np.zeros(problem.buffers, bool), np.zeros(problem.buffers, bool)
    sized[problem.choices.buffers.index] = True
    made[problem.writes.index[np.isin(problem.writes.row_of_entry(), problem.choices.tasks.index)]] = True
    taker, source = problem.takeover.row_of_entry(), problem.takeover.index
    return np.unique(taker[sized[taker] | sized[source] | made[taker]])


def _alternatives(table: Choices, choices: Sequence[int]) -> np.ndarray:
    """int64[g]: the alternative of each group."""
    count = table.counts()
    vector = np.asarray(choices, np.int64) if len(choices) else np.zeros(len(table), np.int64)
    if len(vector) != len(table):
        raise IllegalPlan(f"{len(vector)} choices are made for {len(table)} groups; make one for each")
    wrong = np.flatnonzero((vector < 0) | (vector >= count))
    if len(wrong):
        group = int(wrong[0])
        raise IllegalPlan(f"group {group} has no alternative {vector[group]}; it has 0 to {count[group] - 1}")
    return np.asarray(np.cumsum(count) - count + vector)


def _entries_of(rows: Csr, chosen: np.ndarray) -> np.ndarray:
    """Places in `rows.index` of the entries of the chosen rows."""
    spans = [np.arange(rows.pointer[row], rows.pointer[row + 1]) for row in chosen.tolist()]
    return np.concatenate(spans) if spans else np.zeros(0, np.int64)


def _with_rows(rows: Csr, replaced: np.ndarray, new: Csr, new_rows: np.ndarray) -> Csr:
    """`rows` with row `replaced[i]` being row `new_rows[i]` of `new`."""
    if not len(replaced):
        return rows
    stays = np.ones(len(rows), bool)
    stays[replaced] = False
    row = rows.row_of_entry()
    kept = stays[row]
    place, entry = new.entries(new_rows)
    return Csr.of_pairs(
        len(rows), np.concatenate([row[kept], replaced[place]]), np.concatenate([rows.index[kept], entry])
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
