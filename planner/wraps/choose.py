"""Which modules to wrap: an integer program over modules and policies, with rows added where the evaluator finds more.

Source of the method: cutting planes (Kelley, "The Cutting-Plane Method for Solving Convex Programs", 1960), on a
linear model of the bytes of each step. Modules that are wrapped do not contain each other.

The model is exact as long as wrapped modules share no values. The evaluator judges each answer: a step that holds more
than the budget adds its row, and a row that understates the bytes is tightened by the difference. So a choice that is
returned fits; that none is cheaper is not proven.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from planner.wraps.candidates import Baseline, Candidate, candidates
from planner.wraps.checkpointed import Sequence, Wraps, checkpointed
from planner.wraps.eager import EagerStep, is_below

MAX_ROUNDS = 40
ROWS_OF_A_ROUND = 12
WORK_OF_A_SOLVE = 2.0  # deterministic seconds of CP-SAT

#: A step of a sequence: a task, and the module if the task runs again in it.
Row = tuple[int, str]


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """Wrapped modules, with the bytes and ticks of the step they make."""

    wraps: Wraps
    peak_bytes: int
    ticks: int


class Chooser:
    """Choices for one step."""

    def __init__(self, step: EagerStep):
        self.step, self.baseline = step, Baseline.of(step)
        self.candidates = candidates(step, self.baseline)
        self.unwrapped = self.judged({})

    def judged(self, wraps: Wraps) -> Choice:
        """The choice, as the evaluator sees it."""
        sequence = checkpointed(self.step, wraps)
        return Choice(wraps, int(sequence.bytes_of_steps().max(initial=0)), int(sequence.problem.cost.sum()))

    def within(self, budget_bytes: int) -> Choice | None:
        """The fastest choice found within a budget; None if there is none."""
        if self.unwrapped.peak_bytes <= budget_bytes:
            return self.unwrapped
        rows: dict[Row, int] = {}
        for _ in range(MAX_ROUNDS):
            wraps = self._solved(rows, budget_bytes, None)
            if wraps is None:
                return None
            choice = self.judged(wraps)
            if choice.peak_bytes <= budget_bytes:
                return self._without_idle_wraps(choice, budget_bytes)
            self._tighten(rows, wraps, budget_bytes)
        return None

    def lowest(self, limit_ticks: int | None = None) -> Choice:
        """The lowest peak found, in at most `limit_ticks`."""
        best, rows = self.unwrapped, dict[Row, int]()
        for _ in range(MAX_ROUNDS):
            wraps = self._solved(rows, None, limit_ticks)
            if wraps is None:
                break
            choice = self.judged(wraps)
            if limit_ticks is None or choice.ticks <= limit_ticks:
                best = min(best, choice, key=lambda c: (c.peak_bytes, c.ticks))
            if not self._tighten(rows, wraps, self._bytes_of_model(rows, wraps)):
                break
        return self._without_idle_wraps(best, best.peak_bytes)

    def _without_idle_wraps(self, choice: Choice, budget_bytes: int) -> Choice:
        """The choice without wraps that the budget does not need, the slowest first."""
        ticks = {(c.path, c.ops): c.ticks for c in self.candidates}
        for path in sorted(choice.wraps, key=lambda path: (-ticks[path, choice.wraps[path]], path)):
            fewer = self.judged({other: ops for other, ops in choice.wraps.items() if other != path})
            if fewer.peak_bytes <= budget_bytes and fewer.ticks <= choice.ticks:
                choice = fewer
        return choice

    def _model_bytes(self, row: Row, chosen: Items[Candidate]) -> int:
        """Bytes of a row by the linear model, of the candidates chosen."""
        task, path = row
        held = int(self.baseline.step_bytes[task]) - sum(c.freed_at(task) for c in chosen if c.path != path)
        if not path:
            return held
        own = next(c for c in chosen if c.path == path)
        return self._before(task) - sum(c.freed_at(task) for c in chosen if c is not own) + own.extra

    def _before(self, task: int) -> int:
        """Bytes held before a task begins, without wraps."""
        base, problem = self.baseline, self.step.problem
        live = (base.start < task) & (base.stop > task)
        return int(problem.size[live].sum())

    def _chosen(self, wraps: Wraps) -> list[Candidate]:
        return [c for c in self.candidates if wraps.get(c.path) == c.ops]

    def _bytes_of_model(self, rows: dict[Row, int], wraps: Wraps) -> int:
        """Largest bytes of the rows known, with their corrections."""
        chosen = self._chosen(wraps)
        paths = {c.path for c in chosen} | {""}
        return max((self._model_bytes(row, chosen) + more for row, more in rows.items() if row[1] in paths), default=0)

    def _tighten(self, rows: dict[Row, int], wraps: Wraps, limit: int) -> bool:
        """Add rows of steps that hold more than `limit`, or correct those that the model knew. False: there is none."""
        sequence = checkpointed(self.step, wraps)
        held, chosen = sequence.bytes_of_steps(), self._chosen(wraps)
        highest: dict[Row, int] = {}
        for n in np.flatnonzero(held > limit).tolist():
            row = self._row(sequence, n)
            highest[row] = max(highest.get(row, 0), int(held[n]))
        for row in sorted(highest, key=lambda row: -highest[row])[:ROWS_OF_A_ROUND]:
            rows[row] = max(rows.get(row, 0), highest[row] - self._model_bytes(row, chosen))
        return bool(highest)

    def _row(self, sequence: Sequence, n: int) -> Row:
        path = sequence.region[n]
        if not path:
            return sequence.task[n], ""
        return next(
            task for task, region in zip(sequence.task[n:], sequence.region[n:], strict=True) if not region
        ), path

    def _solved(self, rows: dict[Row, int], budget_bytes: int | None, limit_ticks: int | None) -> Wraps | None:
        """Best choice by the linear model: the least time within a budget, else the lowest peak."""
        from ortools.sat.python import cp_model  # heavy: imported where a model is solved

        model = cp_model.CpModel()
        base = self.baseline.step_bytes
        # Variables: whether each candidate is chosen, and the peak.
        x = [model.new_bool_var("") for _ in self.candidates]
        top = int(base.max()) + sum(max(0, c.extra) for c in self.candidates)
        peak = model.new_int_var(0, top, "") if budget_bytes is None else budget_bytes
        # A module has one policy, and none of the modules around it is wrapped.
        for path in {c.path for c in self.candidates}:
            model.add_at_most_one(v for v, c in zip(x, self.candidates, strict=True) if is_below(path, c.path))
        # Rows: bytes of a task without wraps, less what the chosen free there.
        for (task, path), more in rows.items():
            freed = sum(
                c.freed_at(task) * v
                for v, c in zip(x, self.candidates, strict=True)
                if c.path != path and c.freed_at(task)
            )
            if not path:
                model.add(int(base[task]) - freed + more <= peak)
                continue
            for v, c in zip(x, self.candidates, strict=True):
                if c.path == path:
                    model.add(self._before(task) - freed + c.extra + more <= peak).only_enforce_if(v)
        time = sum(c.ticks * v for v, c in zip(x, self.candidates, strict=True))
        if limit_ticks is not None:
            model.add(time <= limit_ticks - self.unwrapped.ticks)
        # Objective.
        model.minimize(time if budget_bytes is not None else peak)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = WORK_OF_A_SOLVE
        if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return {c.path: c.ops for v, c in zip(x, self.candidates, strict=True) if solver.value(v)}
