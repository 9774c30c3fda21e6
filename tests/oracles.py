"""Oracles: obvious and slow. They look ahead along the whole sequence again at every step.

Nothing here is shared with `planner/problem/liveness.py` or `planner/verify/checker.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.problem import DEVICE, FORBID, HANDED_OUT, NEVER, RESIDENT, TO_THE_END, Problem
from planner.problem.plan import Goal


def legal(problem: Problem, goal: Goal, order: list[int]) -> bool:
    """Whether the sequence may run, each rule as one sentence."""
    n, m = problem.tasks, problem.buffers
    runs = [[step for step, task in enumerate(order) if task == t] for t in range(n)]
    writers = [[t for t in range(n) if b in problem.writes[t]] for b in range(m)]
    from_start = [not writers[b] or problem.hold[b] == RESIDENT for b in range(m)]
    ran = [t for t in range(n) if runs[t]]
    return (
        all(runs[t] or problem.optional[t] for t in range(n))
        and all(len(runs[t]) <= 1 for t in range(n) if problem.repeat[t] == NEVER or problem.recompute[t] == FORBID)
        and all(
            from_start[b] or any(other in order[:step] for other in writers[b])
            for step, t in enumerate(order)
            for b in [*problem.reads[t], *problem.shape_reads[t]]
        )
        and all(
            runs[writers[b][0]] and runs[writers[b][0]][0] < run
            for b in range(m)
            for other in writers[b][1:]
            for run in runs[other]
        )
        and all(x < y for a in range(n) for b in problem.after_every[a] for x in runs[a] for y in runs[b])
        and all(runs[a][0] < runs[b][0] for a in range(n) for b in problem.after_first[a] if runs[a] and runs[b])
        and (
            not goal.strict_phases
            or all(
                runs[early][0] < step
                for early in ran
                for late in ran
                for step in runs[late]
                if problem.phase[early] < problem.phase[late]
            )
        )
        and (not goal.order_is_given or sorted(ran, key=lambda t: runs[t][0]) == ran)
    )


@dataclass(eq=False)
class Content:
    """Bytes somewhere in memory that hold one content of one buffer."""

    buffer: int
    handed_out: bool = False


def step_bytes(problem: Problem, order: list[int], space: int = DEVICE) -> list[int]:
    """Bytes of every step in one memory space, by keeping a set of contents and looking ahead."""
    m = problem.buffers
    producer = [next((t for t in range(problem.tasks) if b in problem.writes[t]), None) for b in range(m)]
    memory: dict[int, Content] = {}  # the newest content of each buffer
    older: list[Content] = []  # handed out, then written again

    def needed(buffer: int, after: int) -> bool:
        """Whether the newest content, seen after step `after`, is read or held later on."""
        for task in order[after + 1 :]:
            if buffer in problem.reads[task]:
                return True
            if buffer in problem.writes[task] and problem.hold[buffer] != RESIDENT:
                return False
        return bool(problem.hold[buffer] in (TO_THE_END, RESIDENT))

    def handed_out_later(buffer: int, after: int) -> bool:
        """Whether the newest content will still be the newest when the buffer's phase has ended."""
        if problem.hold[buffer] != HANDED_OUT:
            return False
        phase = 0 if producer[buffer] is None else problem.phase[producer[buffer]]
        new = [s for s, t in enumerate(order) if problem.phase[t] == phase and t not in order[:s]]
        end = new[-1] if new else -1
        rewritten = any(buffer in problem.writes[t] for t in order[after + 1 : end + 1])
        return end >= after and not rewritten

    for b in range(m):
        if producer[b] is None or problem.hold[b] == RESIDENT:
            content = Content(b, handed_out=handed_out_later(b, -1))
            if needed(b, -1) or content.handed_out:
                memory[b] = content
    result = []
    for step, task in enumerate(order):
        outputs = [b for b in problem.writes[task].tolist() if problem.hold[b] != RESIDENT]
        given: set[int] = set()  # inputs whose storage went to an output
        free = set()  # outputs that take no bytes of their own
        for b in outputs:
            for source in problem.takeover[b].tolist():
                if (
                    problem.size[b] > 0
                    and source in problem.reads[task]
                    and source not in given
                    and problem.hold[source] != RESIDENT
                    and not memory[source].handed_out
                    and problem.space[source] == problem.space[b]
                    and problem.size[source] >= problem.size[b]
                    and (source in outputs or not needed(source, step))
                ):
                    given.add(source)
                    free.add(b)
                    break
        present = [*memory.values(), *older]
        fresh = [b for b in outputs if b not in free]
        here = [c.buffer for c in present] + fresh
        total = sum(int(problem.size[b]) for b in here if problem.space[b] == space)
        result.append(total + (int(problem.workspace[task]) if space == DEVICE else 0))
        for b in problem.writes[task].tolist():
            if problem.hold[b] == RESIDENT:
                continue
            if b in memory and memory[b].handed_out:
                older.append(memory[b])
            memory[b] = Content(b, handed_out=handed_out_later(b, step))
        memory = {b: c for b, c in memory.items() if needed(b, step) or c.handed_out}
    return result
