"""The result of `remat.plan`."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from app.atomic_files import write_atomic

if TYPE_CHECKING:
    from graph.ir import Graph
    from planner.pipeline.progress import Outcome
    from planner.wraps.wraps import WrapPlan

# Imports inside functions: loaded when a report is saved, shown in a notebook, or turned into wraps.


class Report(Mapping[str, Any]):
    """A plan, its measurements and its bounds.

    Attributes are the common figures; as a mapping it is the whole report of the wire format (`remat schema report`),
    so `report.peak_bytes == report["plan"]["peak_bytes"]`. Sizes are bytes, times are seconds of one training step as
    the device profile predicts them, shares are fractions (0.034 is 3.4%).

    `source` is the graph that was planned, after differentiation; `graph` is the rewritten graph.
    """

    def __init__(self, outcome: Outcome):
        self._report = outcome.report
        self.source: Graph = outcome.source
        self.graph: Graph = outcome.graph

    @property
    def status(self) -> Literal["proven", "found", "over_budget"]:
        """`proven`: no better plan exists; `found`: see `gap`; `over_budget`: no plan within the budget was found."""
        return cast(Literal["proven", "found", "over_budget"], self._plan["status"])

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes live at once under the plan."""
        return int(self._plan["peak_bytes"])

    @property
    def arena_bytes(self) -> int | None:
        """Bytes of the arena after layout, alignment included; None without a layout. May exceed `peak_bytes`."""
        return cast("int | None", self._plan["arena_bytes"])

    @property
    def baseline_peak_bytes(self) -> int:
        """Peak in bytes without recomputation, in the order of the document."""
        return int(self._report["baseline"]["peak_bytes"])

    @property
    def saved_bytes(self) -> int:
        """`needed_bytes` of the baseline minus `needed_bytes` of the plan."""
        return int(self._plan["saved_bytes"])

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes; None if the goal was an overhead."""
        return cast("int | None", self._plan["budget_bytes"])

    @property
    def seconds(self) -> float:
        """Predicted time of one training step under the plan, in seconds."""
        return float(self._plan["seconds"])

    @property
    def baseline_seconds(self) -> float:
        """Predicted time of one training step without recomputation, in seconds."""
        return float(self._report["baseline"]["seconds"])

    @property
    def overhead(self) -> float:
        """Extra time over the baseline, as a fraction of it."""
        return float(self._plan["overhead"])

    @property
    def gap(self) -> float | None:
        """Distance to the proven lower bound, as a fraction: of the overhead, or of the peak if that is the goal.

        None for a plan over the budget.
        """
        return cast("float | None", self._plan["gap"])

    @property
    def bound(self) -> Mapping[str, Any]:
        """The proven lower bounds: `seconds`, `overhead`, `peak_bytes`, and their certificate."""
        return cast(Mapping[str, Any], self._plan["bound"])

    @property
    def needed_bytes(self) -> int:
        """Memory needed: `arena_bytes` if the runtime uses the planned addresses, else `peak_bytes`."""
        return int(self._plan["needed_bytes"])

    @property
    def within_budget(self) -> bool | None:
        """Whether `needed_bytes` is within the budget; None if the goal was an overhead or the lowest peak."""
        return cast("bool | None", self._plan["within_budget"])

    @property
    def fits_device(self) -> bool:
        """Whether all bytes, including residents and reserve, fit the memory of the device or of the request."""
        return bool(self._report["fits_device"])

    @property
    def fits(self) -> bool:
        """As `fits_device`."""
        return self.fits_device

    @property
    def order(self) -> list[tuple[str, int]]:
        """The sequence to execute: (node name, run), where run counts 0, 1, 2, ...; a run above 0 is recomputation."""
        return [(name, run) for name, run in self._plan["order"]]

    @property
    def recomputed(self) -> list[str]:
        """Names of the nodes that run more than once."""
        return list(self._plan["recomputed"])

    @property
    def kept(self) -> list[str]:
        """Names of the forward values that the backward pass reads from their first run."""
        return list(self._plan["kept"])

    @property
    def warnings(self) -> list[str]:
        """Warnings about the plan, one sentence each."""
        return list(self._report["warnings"])

    @property
    def executed(self) -> Mapping[str, Any]:
        """The execution check: `status` "equal", "different" or "not executed"; `how`, `why`, measured `peak_bytes`.

        `compared` says what was compared with what; `gradients` is the check of the gradients by finite differences.
        """
        return cast(Mapping[str, Any], self._report["executed"])

    @property
    def executed_equal(self) -> bool | None:
        """Whether the rewritten graph computed the same results; None if it was not executed."""
        status = self.executed["status"]
        return None if status == "not executed" else status == "equal"

    def wraps(self) -> WrapPlan:
        """The best plan of whole modules with the same goal, for PyTorch without remat; `patch` is its Python code.

        For steps that `remat.torch.capture` recorded. Raises BadRequest for others.
        """
        from planner.request.plan_request import parse_request
        from planner.wraps.wraps import wraps_for

        return wraps_for(self.source, parse_request(self._report["request"]), self._plan)

    def to_dict(self) -> dict[str, Any]:
        """A copy of the whole report as a dict of JSON types."""
        return copy.deepcopy(self._report)

    def to_json(self, indent: int | None = None) -> str:
        """The whole report as a JSON document.

        >>> json.loads(report.to_json())["plan"]["status"] == report.status
        True
        """
        return json.dumps(self._report, indent=indent)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report and its source graph to one file, which `remat verify` accepts. Atomic. Raises OSError."""
        from graph.formats.native.writer import document

        write_atomic(Path(path), json.dumps({**self._report, "source": document(self.source)}).encode())

    @property
    def _plan(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._report["plan"])

    def __getitem__(self, key: str) -> Any:
        return self._report[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._report)

    def __len__(self) -> int:
        return len(self._report)

    def __repr__(self) -> str:
        return (
            f"<Report {self['model']['name']!r}: {self.status}, peak {self.peak_bytes:,} bytes "
            f"({self._plan['saved']:.1%} saved), {self.overhead:.2%} slower, execution: {self.executed['status']}>"
        )

    def _repr_html_(self) -> str:
        """HTML for notebooks: the result, and memory before and after."""
        from app.render.notebook import report_html

        return report_html(self)
