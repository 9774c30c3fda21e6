"""Retention intervals by CP-SAT: each run of a task has a time, each copy it writes an interval up to its last read.

Source: Bartan, Li, Teague, Lott, Dilkina, "Moccasin: Efficient Tensor Rematerialization for Neural Networks", ICML
2023, section 2. A task has at most two runs initially, and one more whenever the best order uses all of them.

    a, run 0  ├──────┤                    in a given order, first runs have fixed times: task i at i·(n + 2), its
    a, run 1              ├────┤          recomputations at k·(n + 1) + i for a stage k > i; in a free order times
    b              ├─┤                    are numbers from 0 on, with precedence constraints between them

Memory is one cumulative constraint over copies and workspaces. A copy may be read only if it is the supplier of
the reader, which is at least as strict as reading the latest copy; so solutions are legal, and scored like any other.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from planner.algorithms.greedy import planner
from planner.algorithms.greedy.gap_closing import without_unread_repeats
from planner.bounds.solvers.checkmate_model import MAX_TICKS, CheckmateModel
from planner.bounds.solvers.interruption import interruptible
from planner.problem import HANDED_OUT, RESIDENT, TO_LAST_READ, Problem, liveness
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import is_first_run

#: Maximum tasks with a free order, and maximum tasks.
MAX_FREE_TASKS, MAX_TASKS = 24, 250
#: Runs of one task: initial, maximum.
INITIAL_RUNS, MAX_RUNS = 2, 6
#: CP-SAT's deterministic time per iteration of the iteration limit, and its memory limit.
SECONDS_PER_ITERATION, MAX_MEGABYTES = 0.002, 1_500


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order within the budget, or the lowest peak within the overhead; over all orders in small graphs."""
    best = planner.initial_order(problem, goal, monitor)
    if problem.tasks > MAX_TASKS:
        monitor.note(f"cp_sat: more than {MAX_TASKS} tasks, so nothing is solved")
        return best
    search = _CpSatSearch(problem, goal, monitor, best)
    if problem.tasks and not monitor.should_stop():
        if not goal.order_is_given and problem.tasks > MAX_FREE_TASKS:
            monitor.note(
                f"cp_sat: more than {MAX_FREE_TASKS} tasks, so first runs stay in the order that is best so far"
            )
        with suppress(SearchCancelled):
            search.run()
    return search.best.order


class _CpSatSearch:
    """One problem, and the best order so far."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, best: Order):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.best = BestOrder(monitor, best, monitor.judge(best))
        self.first_runs = best[is_first_run(problem, best)]
        self.once_ticks = liveness.cost(problem, self.first_runs)
        self.free = not goal.order_is_given and problem.tasks <= MAX_FREE_TASKS

    def run(self) -> None:
        self.best.offer(self.first_runs)
        budget = self.goal.budget_bytes
        if budget and self.grown(budget, MAX_TICKS if self.best.score.peak_bytes > budget else self.best.score.cost):
            return
        if budget and self.best.score.bytes_over_budget == 0:
            return  # proven optimal
        limit = MAX_TICKS if budget is not None else self.goal.cost_limit(self.problem) + 1
        if self.grown(None, limit) or budget is not None:
            self.grown(self.best.score.peak_bytes, self.best.score.cost)

    def grown(self, budget: int | None, most_ticks: int) -> bool:
        """Whether a better order was found; tasks that use all runs get one more. No budget: minimise the peak."""
        runs, found = np.full(self.problem.tasks, INITIAL_RUNS), False
        while not self.monitor.should_stop():
            before = self.best.score
            if budget is not None and before.peak_bytes <= budget:
                most_ticks = min(most_ticks, before.cost)
            model = _CpSatModel(self, budget, most_ticks, runs)
            ended = model.solve()
            full = model.recomputable & (np.bincount(self.best.order, minlength=len(runs)) >= runs) & (runs < MAX_RUNS)
            if self.best.score == before or not ended or not full.any():
                return found or self.best.score < before
            runs, found = np.where(full, runs + 1, runs), True
        return found


@dataclass(slots=True)
class _TaskRun:
    """One run of a task: its presence, time and copies."""

    task: int
    present: Any  # Boolean; True: the first run
    time: Any  # integer expression
    ends: dict[int, Any]  # buffer -> last time its copy is read

    @property
    def literals(self) -> list[Any]:
        """The condition of constraints that hold if the task has this run."""
        return [] if self.present is True else [self.present]


class _CpSatModel:
    """The CP model for a number of runs of each task."""

    def __init__(self, search: _CpSatSearch, budget: int | None, most_ticks: int, runs: np.ndarray):
        from ortools.sat.python import cp_model  # heavy: imported where a model is solved

        self.search, self.problem = search, search.problem
        self.model = cp_model.CpModel()
        problem, order = self.problem, search.first_runs
        self.size, self.always = problem.planned_size().tolist(), problem.resident_bytes()
        self.peak = search.best.score.peak_bytes if budget is None else budget
        self._domains(most_ticks)
        free, n = search.free, len(order)
        counts = np.where(self.recomputable, runs, 1)
        self.horizon = int(counts[order].sum()) if free else (n + 1) * (n + 1)
        self.runs = {task: self._runs_of(task, int(counts[task])) for task in order.tolist()}
        self.all_runs = [run for rows in self.runs.values() for run in rows]
        at_start = [b for b in np.flatnonzero(problem.producer() < 0).tolist() if self.size[b]]
        self.start = {b: self.model.new_int_var(-1, self.horizon, "") for b in at_start}
        self.intervals: list[Any] = []
        self.demands: list[int] = []
        self._supply()
        self._hold_bytes()
        if free:
            self._run_one_by_one()
            self._precede()
        self._fit(budget)
        ticks = [(run.present, int(problem.cost[task])) for task, rows in self.runs.items() for run in rows[1:]]
        cost = sum(present * cost for present, cost in ticks) if ticks else 0
        if most_ticks < MAX_TICKS and ticks:
            self.model.add(cost <= most_ticks - 1 - search.once_ticks)
        self.model.minimize(self.top if budget is None else cost)
        self._hint()

    def _domains(self, most_ticks: int) -> None:
        """Fill `recomputable` (bool[n]) and, for a given order, the allowed times."""
        search = self.search
        once = search.once_ticks
        most = MAX_TICKS if most_ticks >= MAX_TICKS or search.free else most_ticks - once
        checkmate = CheckmateModel(self.problem, search.first_runs, self.peak, max(most, 0))
        n = len(search.first_runs)
        self.recomputable = np.zeros(self.problem.tasks, bool)
        handed = self.problem.hold == HANDED_OUT  # a second copy would be live in addition to the one handed out
        plain = np.array([not handed[self.problem.writes[t]].any() for t in search.first_runs.tolist()], bool)
        may = checkmate.recomputable[:n] if search.free else checkmate.allowed[:, :n].any(0)
        self.recomputable[search.first_runs] = may & plain
        self.times = {
            int(t): [int(k) * (n + 1) + i for k in np.flatnonzero(checkmate.allowed[:, i])]
            for i, t in enumerate(search.first_runs)
        }
        self.fixed = {int(t): i * (n + 2) for i, t in enumerate(search.first_runs)}

    def _runs_of(self, task: int, count: int) -> list[_TaskRun]:
        from ortools.sat.python import cp_model  # heavy: imported where a model is solved

        model, rows = self.model, list[_TaskRun]()
        for r in range(count):
            present: Any = True if r == 0 else model.new_bool_var("")
            if self.search.free:
                time: Any = model.new_int_var(0, self.horizon - 1, "")
            elif r == 0:
                time = self.fixed[task]
            else:
                time = model.new_int_var_from_domain(cp_model.Domain.from_values(self.times[task]), "")
            ends = {
                b: model.new_int_var(0, self.horizon, "") for b in self.problem.writes[task].tolist() if self.size[b]
            }
            for end in ends.values():
                model.add(end >= time)
            if r >= 1:
                model.add(time > rows[-1].time).only_enforce_if(present)
                if r >= 2:
                    model.add_implication(present, rows[-1].present)
            rows.append(_TaskRun(task, present, time, ends))
        return rows

    def _supply(self) -> None:
        """Constrain every read to one supplier, whose copy is live until then; held buffers have one at the end."""
        self.writers: dict[int, list[_TaskRun]] = {}
        for run in self.all_runs:
            for b in run.ends:
                self.writers.setdefault(b, []).append(run)
        self.supplier: dict[tuple[int, int], list[tuple[Any, Any]]] = {}  # (run, buffer) -> (chosen, end of the copy)
        for run in self.all_runs:
            for b in self.problem.reads[run.task].tolist():
                if self.size[b]:
                    self.supplier[id(run), b] = self._supplied(b, run.time, run.present, run)
        for b in np.flatnonzero(~np.isin(self.problem.hold, (TO_LAST_READ, RESIDENT))).tolist():
            if self.size[b] and (b in self.start or b in self.writers):
                self._supplied(b, self.horizon, True, None)

    def _supplied(self, buffer: int, time: Any, present: Any, reader: _TaskRun | None) -> list[tuple[Any, Any]]:
        """(chosen, end of the copy) of each copy that may supply a read at `time`; one is chosen if it takes place."""
        self.search.monitor.check()
        model, rows = self.model, list[tuple[Any, Any]]()
        if buffer in self.start:
            chosen = model.new_bool_var("")
            model.add(self.start[buffer] >= time).only_enforce_if(chosen)
            rows.append((chosen, self.start[buffer]))
        for run in self.writers.get(buffer, ()):
            if run is reader:
                continue
            chosen = model.new_bool_var("")
            model.add(run.time < time).only_enforce_if(chosen)
            model.add(run.ends[buffer] >= time).only_enforce_if(chosen)
            for literal in run.literals:
                model.add_implication(chosen, literal)
            rows.append((chosen, run.ends[buffer]))
        model.add(sum(chosen for chosen, _ in rows) == present)
        return rows

    def _hold_bytes(self) -> None:
        """Add the intervals of workspaces, of buffers that exist from the start, and of the copies of each run."""
        problem, model = self.problem, self.model
        for run in self.all_runs:
            if int(problem.workspace[run.task]):
                self._add_interval(run.time, 1, run.time + 1, run.literals, int(problem.workspace[run.task]))
        read = {buffer for _, buffer in self.supplier}
        for b, end in self.start.items():
            if b in read or problem.hold[b] not in (TO_LAST_READ, RESIDENT):
                self._add_interval(0, end + 1, end + 1, [], self.size[b])
        for run in self.all_runs:
            taken = self._takeovers(run)
            for b, end in run.ends.items():
                begin = run.time
                if b in taken:
                    begin = model.new_int_var(0, self.horizon, "")
                    model.add(begin == run.time + taken[b])
                length = model.new_int_var(0, self.horizon + 1, "")
                self._add_interval(begin, length, end + 1, run.literals, self.size[b])

    def _takeovers(self, run: _TaskRun) -> dict[int, Any]:
        """Per output that may reuse an input's storage, the 0/1 expression of whether it does."""
        model = self.model
        pairs = [(out, source, model.new_bool_var("")) for out, source in self._takers(run)]
        for _, source, takes in pairs:
            for chosen, end in self.supplier[id(run), source]:
                model.add(end <= run.time).only_enforce_if([takes, chosen])
        for end in (0, 1):
            for b in sorted({pair[end] for pair in pairs}):
                model.add_at_most_one(pair[2] for pair in pairs if pair[end] == b)
        result: dict[int, list[Any]] = {}
        for out, _, takes in pairs:
            result.setdefault(out, []).append(takes)
        return {out: sum(takes) for out, takes in result.items()}

    def _takers(self, run: _TaskRun) -> list[tuple[int, int]]:
        """(output, input whose storage it may reuse) of a run."""
        size, space = self.size, self.problem.space
        pairs = [(out, source) for out in run.ends for source in self.problem.takeover[out].tolist()]
        return [
            (out, source)
            for out, source in pairs
            if (id(run), source) in self.supplier and size[source] >= size[out] and space[source] == space[out]
        ]

    def _add_interval(self, begin: Any, length: Any, end: Any, literals: list[Any], bytes_: int) -> None:
        """Add an interval of memory, which holds `bytes_` if the run takes place."""
        add: Any = self.model.new_optional_interval_var if literals else self.model.new_interval_var
        self.intervals.append(add(begin, length, end, *literals, ""))
        self.demands.append(bytes_)

    def _run_one_by_one(self) -> None:
        """Constrain runs not to overlap; their times are 0, 1, 2, ... without a gap."""
        model = self.model
        model.add_no_overlap(
            model.new_optional_fixed_size_interval_var(run.time, 1, run.present, "")
            if run.literals
            else model.new_fixed_size_interval_var(run.time, 1, "")
            for run in self.all_runs
        )
        last = sum(run.present for run in self.all_runs) - 1
        for run in self.all_runs:
            model.add(run.time <= last).only_enforce_if(run.literals)

    def _precede(self) -> None:
        """Constrain first runs and recomputations to follow their predecessors."""
        for a, b in sorted(self._first_run_pairs()):
            if a != b and a in self.runs and b in self.runs:
                self.model.add(self.runs[a][0].time < self.runs[b][0].time)
        for task, rows in self.runs.items():
            for later in self.problem.after_every[task].tolist():
                for run in rows if later in self.runs else ():
                    self.model.add(run.time < self.runs[later][0].time).only_enforce_if(run.literals)

    def _first_run_pairs(self) -> set[tuple[int, int]]:
        """(earlier, later) tasks by first runs; -1 for "no producer"."""
        problem, producer = self.problem, self.problem.producer().tolist()
        pairs: set[tuple[int, int]] = set()
        for task in self.runs:
            needs = [*problem.reads[task].tolist(), *problem.shape_reads[task].tolist()]
            pairs |= {(producer[b], task) for b in needs if problem.hold[b] != RESIDENT}
            pairs |= {(producer[b], task) for b in problem.writes[task].tolist()}
            pairs |= {(task, later) for later in problem.after_first[task].tolist()}
            if self.search.goal.strict_phases:
                pairs |= {(other, task) for other in self.runs if problem.phase[other] < problem.phase[task]}
        return pairs

    def _fit(self, budget: int | None) -> None:
        """Constrain memory at all times."""
        self.top: Any = self.peak - self.always
        if budget is None:
            self.top = self.model.new_int_var(0, max(0, self.peak - self.always), "")
        if self.demands and (budget is None or self.top >= 0):
            self.model.add_cumulative(self.intervals, self.demands, self.top)
        elif budget is not None and self.top < 0:
            self.model.add_bool_or([])

    def _hint(self) -> None:
        """Add the best known order as a hint, as far as the model has enough runs."""
        model, search, n = self.model, self.search, len(self.search.first_runs)
        seen: dict[int, int] = {}
        position = {int(t): i for i, t in enumerate(search.first_runs)}
        stage = 0
        for step, task in enumerate(search.best.order.tolist()):
            count = seen[task] = seen.get(task, -1) + 1
            rows = self.runs[task]
            if count < len(rows) and not isinstance(rows[count].time, int):
                model.add_hint(rows[count].time, step if search.free else stage * (n + 1) + position[task])
                if count:
                    model.add_hint(rows[count].present, True)
            stage += count == 0
        for task, rows in self.runs.items():
            for run in rows[seen[task] + 1 :]:
                model.add_hint(run.present, False)

    def solve(self) -> bool:
        """Whether CP-SAT completed; solutions are offered as they are found."""
        from ortools.sat.python import cp_model  # heavy: imported where a model is solved

        monitor, solver = self.search.monitor, cp_model.CpSolver()
        monitor.check()
        part = monitor.child(monitor.judge)
        solver.parameters.random_seed = self.search.goal.seed % (1 << 31)
        solver.parameters.max_memory_in_mb = MAX_MEGABYTES
        if part.iterations is None:
            solver.parameters.max_time_in_seconds = max(0.01, part.seconds)
            solver.parameters.num_workers = 2
        else:
            solver.parameters.max_deterministic_time = SECONDS_PER_ITERATION * max(1, part.iterations)
            solver.parameters.num_workers = 1
        callback = _solution_callback(self)
        solve = partial(solver.solve, self.model, callback)
        status = interruptible(solve, solver.stop_search, lambda: monitor.cancelled)
        monitor.calls += int(solver.response_proto.deterministic_time / SECONDS_PER_ITERATION)
        return status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)

    def found(self, value: Any) -> Order:
        """The sequence of a solution; `value` reads an expression."""
        present = [run for run in self.all_runs if run.present is True or value(run.present)]
        present.sort(key=lambda run: run.time if isinstance(run.time, int) else value(run.time))
        return without_unread_repeats(self.problem, np.array([run.task for run in present], np.int64)).order


def _solution_callback(model: _CpSatModel) -> Any:
    """Callback that offers each solution when CP-SAT has it."""
    from ortools.sat.python import cp_model  # heavy: imported where a model is solved

    class Callback(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            model.search.best.offer(model.found(self.value))

    return Callback()
