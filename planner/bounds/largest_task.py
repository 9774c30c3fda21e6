"""Largest task: the memory one task needs while it runs bounds the peak of every plan from below.

Inputs, outputs, workspace and residents are live in every step that runs the task, in any order and
with any number of recomputations; only a takeover counts an output and an input once. O(n + reads) time.
The certificate is the task: its rows of `reads` and `writes` suffice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.bounds.claims import ANY_ORDER, Claim, peak_claim
from planner.problem import RESIDENT, Csr, Problem


@dataclass(frozen=True, slots=True)
class LargestTask:
    """Lower bound on the peak of any order, and the task that proves it."""

    bytes: int
    task: int  # -1: all tasks are optional


def bound(problem: Problem) -> LargestTask:
    """The largest memory need of a non-optional task; ties go to the smaller task."""
    always = problem.resident_bytes()
    if problem.optional.all():
        return LargestTask(always, -1)
    own = problem.planned_size()
    need = (
        _row_sums(problem.reads, own)
        + _row_sums(problem.writes, own)
        + problem.workspace
        - takeover_credit(problem, own)
    )
    need[problem.optional] = -1
    task = int(np.argmax(need))
    return LargestTask(always + int(need[task]), task)


def claim(found: LargestTask) -> Claim:
    """The claim of the bound: a cut at the task's first run with multiplier 1 and no other inequality."""
    steps, proof = ([found.task], {"price": [1], "windows": []}) if found.task >= 0 else ([], {})
    return peak_claim(ANY_ORDER, found.bytes, "largest-task", steps, proof)


def takeover_credit(problem: Problem, own: np.ndarray) -> np.ndarray:
    """int64[n]: upper bound on the bytes of a task's outputs that can reuse the storage of its inputs.

    Each output reuses at most one input and each input serves one output. So the credit is at most the sum over
    the outputs with a takeover, and at most the sum over inputs of the largest output each may serve.
    """
    if not len(problem.takeover.index):
        return np.zeros(problem.tasks, np.int64)
    task, output = problem.writes.row_of_entry(), problem.writes.index
    entry, source = problem.takeover.entries(output)
    task, output = task[entry], output[entry]
    pair = task * problem.buffers + source
    read = problem.reads.row_of_entry() * problem.buffers + problem.reads.index
    fits = (
        (problem.hold[source] != RESIDENT)  # an early copy of an output is not held
        & (problem.space[source] == problem.space[output])
        & (problem.size[source] >= problem.size[output])
        & np.isin(pair, read)
    )
    task, output, pair = task[fits], output[fits], pair[fits]
    credits = []
    for key in (task * problem.buffers + output, pair):
        group, at = np.unique(key, return_inverse=True)
        largest = np.zeros(len(group), np.int64)
        np.maximum.at(largest, at, own[output])
        credit = np.zeros(problem.tasks, np.int64)
        np.add.at(credit, group // max(1, problem.buffers), largest)
        credits.append(credit)
    return np.asarray(np.minimum(*credits))


def _row_sums(rows: Csr, of: np.ndarray) -> np.ndarray:
    """int64[rows]: the sum of `of` over each row's entries."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(of[rows.index])])
    return np.asarray(total[rows.pointer[1:]] - total[rows.pointer[:-1]])
