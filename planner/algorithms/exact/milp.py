"""Checkmate's integer program, solved to optimality on small graphs; memory rows at recomputations are added lazily.

Source: Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez, "Checkmate: Breaking the Memory Wall with
Optimal Tensor Rematerialization", MLSys 2020. The model and its reductions are in `bounds/solvers/checkmate_model.py`.

First runs keep the order of the best known order, whose cost is the upper limit: recomputations that cannot be part of
a cheaper order are left out of the model. Without memory rows at recomputations the optimum is a lower bound for these
first runs.
"""

from __future__ import annotations

from contextlib import suppress

from planner.algorithms.greedy import planner
from planner.algorithms.greedy.gap_closing import without_unread_repeats
from planner.bounds import held_at_end, largest_task
from planner.bounds.solvers.checkmate_model import MAX_TICKS, CheckmateModel
from planner.bounds.solvers.linear import solve_integer
from planner.problem import Problem, liveness
from planner.problem.best_order import BestOrder
from planner.problem.monitor import Monitor, SearchCancelled
from planner.problem.plan import Goal, Order
from planner.problem.recompute import is_first_run

#: Maximum tasks, recomputations and rows of a model.
MAX_TASKS, MAX_REPEATS, MAX_ROWS = 400, 20_000, 40_000
#: Maximum recomputations if no order within the budget is known, or no clock ends the search.
LARGE = 3_000
#: Maximum models solved for one budget; each adds rows.
ROUNDS = 12
#: Relative precision of the lowest peak.
CLOSE = 0.001


def plan(problem: Problem, goal: Goal, monitor: Monitor) -> Order:
    """The cheapest order within the budget, or the lowest peak, with the first runs of the best known order."""
    best = planner.initial_order(problem, goal, monitor)
    if len(best) > 2 * MAX_TASKS or problem.tasks > MAX_TASKS:
        monitor.note(f"milp: more than {MAX_TASKS} tasks, so the form is not solved")
        return best
    if problem.tasks and not monitor.should_stop():
        search = _MilpSearch(problem, goal, monitor, best)
        with suppress(SearchCancelled):
            search.run()
        best = search.best.order
    return best


class _MilpSearch:
    """One problem with one order of first runs, and the best order so far."""

    def __init__(self, problem: Problem, goal: Goal, monitor: Monitor, best: Order):
        self.problem, self.goal, self.monitor = problem, goal, monitor
        self.best = BestOrder(monitor, best, monitor.judge(best))
        self.first_runs = best[is_first_run(problem, best)]
        self.once_ticks = liveness.cost(problem, self.first_runs)

    def run(self) -> None:
        self.best.offer(self.first_runs)
        budget = self.goal.budget_bytes
        if budget:
            over = self.best.score.peak_bytes > budget
            most = MAX_TICKS if over else self.best.score.cost - self.once_ticks
            if not self.within(budget, most) and over:
                self.lowest(MAX_TICKS)
            return
        limit = self.goal.cost_limit(self.problem)
        self.lowest(MAX_TICKS if budget == 0 else limit - self.once_ticks + 1)

    def lowest(self, most_ticks: int) -> None:
        """Bisect between the lower bound and the lowest known peak, with recomputation below `most_ticks`."""
        low = max(largest_task.bound(self.problem).bytes, held_at_end.bound(self.problem))
        high = self.best.score.peak_bytes
        while low < high and (high - low > CLOSE * high or high < 1 / CLOSE) and not self.monitor.should_stop():
            middle = (low + high) // 2
            if self.within(middle, most_ticks):
                high = min(middle, self.best.score.peak_bytes)
            else:
                low = middle + 1

    def within(self, budget: int, most_ticks: int) -> bool:
        """Whether an order within the budget, with recomputation below `most_ticks`, was found; it is offered."""
        checkmate = self._model(budget, most_ticks)
        if checkmate is None:
            return False
        rows, refused = checkmate.rows, set[tuple[int, int]]()
        for _ in range(ROUNDS):
            if len(rows.least) > MAX_ROWS:
                self.note(f"milp: the form has more than {MAX_ROWS} rows and is not solved")
                return False
            found = solve_integer(rows, self.monitor)
            if found.values is None:
                return False
            order, places = checkmate.sequence(found.values)
            self.best.offer(without_unread_repeats(self.problem, order).order)
            profile = liveness.profile(self.problem, order)
            over = [place for place, held in zip(places, profile.tolist(), strict=True) if held > budget]
            if not over:
                return True
            if not found.ended or self.monitor.should_stop():
                return False
            _refuse(checkmate, over, refused)
        return False

    def _model(self, budget: int, most_ticks: int) -> CheckmateModel | None:
        """The model of orders within the budget; None, with a note, if there is none or it is too large."""
        if most_ticks <= 0:
            return None
        checkmate = CheckmateModel(self.problem, self.first_runs, budget, most_ticks)
        if not checkmate.repeats:
            return None
        most = LARGE if most_ticks == MAX_TICKS or self.monitor.iterations is not None else MAX_REPEATS
        if checkmate.repeats > most:
            self.note(f"milp: more than {most} repeats may be worth it, so the form is not solved")
            return None
        rows = checkmate.build(self.monitor.check)
        if most_ticks < MAX_TICKS:
            rows.add_row([(i, -ticks) for i, ticks in enumerate(rows.ticks) if ticks], 1 - most_ticks)
        return checkmate

    def note(self, text: str) -> None:
        if text not in self.monitor.notes:
            self.monitor.note(text)


def _refuse(checkmate: CheckmateModel, over: list[tuple[int, int]], refused: set[tuple[int, int]]) -> None:
    """Add the memory rows of the runs that exceed the budget; a run that exceeds it in spite of its row is excluded."""
    for stage, position in over:
        if stage == position:
            checkmate.add_no_takeover_memory(stage)
        elif (stage, position) in refused:
            checkmate.rows.high[checkmate.repeat[stage, position]] = 0
        else:
            checkmate.add_repeat_memory(stage, position)
            refused.add((stage, position))
