"""Topological orders of the tasks: depth first and longest path first. Their peaks differ.

    0 ──▶ 1 ──▶ 3        depth first           4 5  2  0 1 3
          2 ──▶ 3        longest path first    0 1  2  3  4 5
          4 ──▶ 5

Longest path first starts the task with the longest remaining path, so that short branches are
computed right before their join. Source: the order of that name in Caffe2's memonger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.problem.columns import Csr, Problem


def edges(problem: Problem) -> Csr:
    """Task -> tasks that must run later, ascending: readers, shape readers, and `after_every` and `after_first`."""
    task = np.concatenate([problem.reads.row_of_entry(), problem.shape_reads.row_of_entry()])
    writers = problem.writes.transposed(problem.buffers)
    position, writer = writers.entries(np.concatenate([problem.reads.index, problem.shape_reads.index]))
    earlier = np.concatenate([writer, problem.after_every.row_of_entry(), problem.after_first.row_of_entry()])
    later = np.concatenate([task[position], problem.after_every.index, problem.after_first.index])
    # A reader bound to an earlier writer precedes the later writers in the order of the document.
    forward = earlier < later
    pair = np.unique(earlier[forward] * problem.tasks + later[forward])
    return Csr.of_pairs(problem.tasks, pair // max(1, problem.tasks), pair % max(1, problem.tasks))


def depth_first(after: Csr) -> np.ndarray:
    """int64[n]: depth-first topological order, branches of later tasks first. O(n + edges)."""
    return _reverse_postorder(after, range(len(after)))


def longest_path_first(after: Csr) -> np.ndarray:
    """int64[n]: topological order, branches with the longest path to the end first. O(n log n + edges).

    Sources are the leaves of a tree in which the parent of a task is the next task on its longest path.
    """
    rows = after.lists()
    following = _longest_path_successors(rows)
    children: list[list[int]] = [[] for _ in range(len(rows) + 1)]
    depth = np.where(np.bincount(after.index, minlength=len(rows)) == 0, 0, -1).tolist()  # -1: not in the tree
    depth.append(0)
    for task, then in enumerate(following):
        if depth[task] >= 0:
            children[then].append(task)
            depth[then] = max(depth[then], depth[task] + 1)
    return _reverse_postorder(after, _leaves(children, depth))


def _longest_path_successors(rows: Sequence[Sequence[int]]) -> list[int]:
    """The next task on each task's longest path to the end; n, the common end, after the last.

    Rows hold later tasks only, so one sweep from the last task suffices.
    """
    end = len(rows)
    height, following = [0] * end, [end] * end
    for task in range(end - 1, -1, -1):
        for later in rows[task]:
            if height[later] + 1 > height[task]:
                height[task], following[task] = height[later] + 1, later
    return following


def _leaves(children: Sequence[Sequence[int]], depth: Sequence[int]) -> list[int]:
    """Leaves of the tree whose root is the last entry, shallow branches first; ties: the larger task first."""
    leaves, pending = [], [len(children) - 1]
    while pending:
        task = pending.pop()
        branches = sorted(children[task], key=lambda child: (-depth[child], child))
        if branches:
            pending += branches
        elif task < len(children) - 1:
            leaves.append(task)
    return leaves


def _reverse_postorder(after: Csr, starts: Sequence[int]) -> np.ndarray:
    """Tasks in reverse postorder of a depth-first walk from `starts`."""
    rows = after.lists()
    left: list[int] = []
    state = bytearray(len(rows))  # 1: entered, 2: left
    for start in starts:
        pending = [start]
        while pending:
            task = pending[-1]
            if state[task] == 0:
                state[task] = 1
                pending += [later for later in rows[task] if state[later] == 0]
                continue
            pending.pop()
            if state[task] == 1:
                state[task] = 2
                left.append(task)
    return np.array(left[::-1], np.int64)
