"""Legal orders of tasks by what must come before what; several exist, and their peaks differ.

    0 ──▶ 1 ──▶ 3        depth first           4 5  2  0 1 3
          2 ──▶ 3        longest path first    0 1  2  3  4 5
          4 ──▶ 5

Longest path first starts the task with the longest way still ahead of it, so that short branches are
computed right before they are joined. Source: the order Caffe2's memonger offers under that name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.problem.columns import Csr, Problem


def edges(problem: Problem) -> Csr:
    """Task -> tasks that must come later, each once, ascending: readers, of shapes too, and what waits for it."""
    task = np.concatenate([problem.reads.row_of_entry(), problem.shape_reads.row_of_entry()])
    writers = problem.writes.transposed(problem.buffers)
    position, writer = writers.entries(np.concatenate([problem.reads.index, problem.shape_reads.index]))
    earlier = np.concatenate([writer, problem.after_every.row_of_entry(), problem.after_first.row_of_entry()])
    later = np.concatenate([task[position], problem.after_every.index, problem.after_first.index])
    # A reader bound to an earlier writer stands before the later ones in the document's order.
    forward = earlier < later
    pair = np.unique(earlier[forward] * problem.tasks + later[forward])
    return Csr.of_pairs(problem.tasks, pair // max(1, problem.tasks), pair % max(1, problem.tasks))


def depth_first(after: Csr) -> np.ndarray:
    """int64[n]: each task right before what only it was waiting for, later tasks' branches first. O(n + edges)."""
    return _reverse_postorder(after, range(len(after)))


def longest_path_first(after: Csr) -> np.ndarray:
    """int64[n]: branches by the length of the way from them to the end, the longest first. O(n log n + edges).

    Sources are the leaves of a tree in which each task hangs on the next one of its longest way.
    """
    rows = after.lists()
    following = _longest_ways(rows)
    children: list[list[int]] = [[] for _ in range(len(rows) + 1)]
    depth = np.where(np.bincount(after.index, minlength=len(rows)) == 0, 0, -1).tolist()  # -1: on no such way
    depth.append(0)
    for task, then in enumerate(following):
        if depth[task] >= 0:
            children[then].append(task)
            depth[then] = max(depth[then], depth[task] + 1)
    return _reverse_postorder(after, _leaves(children, depth))


def _longest_ways(rows: Sequence[Sequence[int]]) -> list[int]:
    """Per task the next one on the longest way to the end; n, the common end, behind the last.

    Rows name later tasks only, so one sweep from the last task finds both.
    """
    end = len(rows)
    height, following = [0] * end, [end] * end
    for task in range(end - 1, -1, -1):
        for later in rows[task]:
            if height[later] + 1 > height[task]:
                height[task], following[task] = height[later] + 1, later
    return following


def _leaves(children: Sequence[Sequence[int]], depth: Sequence[int]) -> list[int]:
    """Leaves of the tree whose root is the last entry, shallow branches first, equal ones the larger first."""
    found, pending = [], [len(children) - 1]
    while pending:
        task = pending.pop()
        branches = sorted(children[task], key=lambda child: (-depth[child], child))
        if branches:
            pending += branches
        elif task < len(children) - 1:
            found.append(task)
    return found


def _reverse_postorder(after: Csr, starts: Sequence[int]) -> np.ndarray:
    """Tasks in the reverse of the order in which a depth-first walk leaves them."""
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
