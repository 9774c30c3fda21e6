"""Progress events of a solve, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graph.ir import Graph
from planner.formulation.search_result import SearchResult
from planner.lowering.realize import NodeSequence
from planner.problem.plan import Plan

OnPlanned = Callable[[dict[str, Any]], None]  # gets a report


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress event of a solve."""

    stage: str  # "read", "differentiate", "plan", "compile" (kernels, on first use), "layout", "rewrite" or "execute"
    seconds: float  # since the solve began
    incumbent_overhead: float | None = None  # share of the baseline's time
    incumbent_peak_bytes: int | None = None
    bound_overhead: float | None = None
    gap: float | None = None  # incumbent_overhead - bound_overhead
    nodes_run: int | None = None  # of stage "execute"
    nodes: int | None = None  # that run in stage "execute"


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """Result of a solve: the report, the planned graph, the plan and its node sequence."""

    report: dict[str, Any]
    source: Graph  # the graph that was planned
    runs: NodeSequence  # of the plan
    plan: Plan
    search_of: Callable[[], SearchResult] | None = None  # makes `search`; None: it is None

    @property
    def search(self) -> SearchResult | None:
        """Serves equivalent graphs, made when it is read; None: of a curve, or of several sets of shapes."""
        return None if self.search_of is None else self.search_of()

    @property
    def graph(self) -> Graph:
        """The rewritten graph, made when it is first needed."""
        return self.runs.rewritten

    @property
    def exit_code(self) -> int:
        """0 done, 1 over budget, 3 stopped, 4 internal error."""
        if self.report["executed"]["status"] == "different":
            return 4
        if self.report["plan"]["stopped"]:
            return 3
        return 1 if self.report["plan"]["status"] == "over_budget" else 0
