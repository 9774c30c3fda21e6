"""One call per thing a user wants; everything else is in the rooms below."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from app.atomic_files import write_whole
from app.cli.commands.files import read_report
from graph import cancellation
from graph.errors import BadGraph, Finding
from graph.ir import Graph
from planner.errors import BadRequest, IllegalPlan
from planner.pipeline import curve as curves
from planner.pipeline import fit as fits
from planner.pipeline.progress import Outcome
from planner.pipeline.solve import solve
from planner.report import saved_report
from planner.request.curve_and_fit_request import parse_curve, parse_fit
from planner.request.plan_request import parse_request

# Imports inside functions: loaded when first used, so that `import remat` stays quick.


class BadInput(ValueError):
    """The model or the request cannot be planned; `findings` say what, where and how to mend it."""

    def __init__(self, findings: tuple[Finding, ...]):
        self.findings = findings
        super().__init__("\n".join(map(str, findings)))


class Stopped(Exception):
    """The search was cancelled; `best` is the report of the best plan so far, None where there was none yet."""

    def __init__(self, best: Report | None = None):
        self.best = best
        super().__init__(
            "stopped before there was a plan" if best is None
            else "the search was stopped; the best plan so far is in .best"
        )  # fmt: skip


class Report(Mapping[str, Any]):
    """The report of the wire contract as a mapping, with the graphs it speaks of."""

    def __init__(self, outcome: Outcome):
        self._report = outcome.report
        self.source: Graph = outcome.source
        self.graph: Graph = outcome.graph

    def __getitem__(self, key: str) -> Any:
        return self._report[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._report)

    def __len__(self) -> int:
        return len(self._report)

    def __repr__(self) -> str:
        plan = self["plan"]
        return (
            f"<Report {self['model']['name']!r}: {plan['status']}, peak {plan['peak_bytes']:,} bytes "
            f"({plan['saved']:.1%} saved), {plan['overhead']:.2%} more time, executed: {self['executed']['status']}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, and memory before and after."""
        from app.render.notebook import report_html

        return report_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report with its source, so that `remat verify` needs this one file. Atomic."""
        from graph.formats.native.writer import document

        write_whole(Path(path), json.dumps({**self._report, "source": document(self.source)}).encode())


def plan(
    model: str | os.PathLike[str] | bytes | Graph,
    budget: str | float | int | None = None,
    *,
    cancel: threading.Event | None = None,
    **request: Any,
) -> Report:
    """A plan for a model file, its bytes or a Graph. `request` takes every field of the wire contract.

    Raises BadInput with findings, and Stopped with the best plan so far, if there is one, once `cancel` is set.
    """
    fields = {"execute": "auto", **request} | ({} if budget is None else {"budget": budget})
    try:
        outcome = solve(_read(model), parse_request(fields), cancel=cancel)
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except cancellation.Stopped:
        raise Stopped from None
    if outcome.report["plan"]["stopped"]:
        raise Stopped(Report(outcome))
    return Report(outcome)


def curve(
    model: str | os.PathLike[str] | bytes | Graph,
    budgets: Sequence[str | float | int],
    *,
    cancel: threading.Event | None = None,
    **request: Any,
) -> dict[str, Any]:
    """The least time found within each budget, and the bound beside it: `remat-curve/1`, a plan in every point.

    Raises BadInput with findings. Once `cancel` is set, points not searched yet get the best plan found by then;
    Stopped where there is none.
    """
    try:
        asked = parse_curve({**request, "budgets": list(budgets)})
        return curves.curve(_read(model), asked, cancel=cancel).document
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except cancellation.Stopped:
        raise Stopped from None


def fit(
    model: str | os.PathLike[str] | bytes | Graph,
    budget: str | int,
    grow: str = "batch",
    *,
    cancel: threading.Event | None = None,
    **request: Any,
) -> dict[str, Any]:
    """The largest batch, sequence or other dimension that fits a memory: `remat-fit/1`, with the plan at that size.

    Raises BadInput with findings. Once `cancel` is set, the largest size found by then is returned; Stopped where
    there is none.
    """
    try:
        asked = parse_fit({**request, "budget": budget, "grow": grow})
        return fits.fit(_read(model), asked, cancel=cancel).document
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except cancellation.Stopped:
        raise Stopped from None


def batch(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    budgets: Sequence[str | float | int],
    *,
    planners: Sequence[str] = ("auto",),
    seeds: Sequence[int] = (0,),
    batch_sizes: Sequence[int] = (),
    executor: Executor | None = None,
    workers: int | None = None,
    cancel: threading.Event | None = None,
    **request: Any,
) -> list[dict[str, Any]]:
    """A row a plan, in the order asked: every model at every size, budget, planner and seed, its `report` inside.

    `models` are files, folders, manifests of `remat zoo` or patterns. `executor` is any `concurrent.futures` executor,
    such as Dask's or Ray's, whose workers read the files under the same names; without it `workers` child processes
    of this machine do the work. What cannot be planned is a row in state `failed`. Raises BadInput, ValueError.
    """
    from app.errors import BadUsage
    from app.sweep import executors
    from app.sweep.items import items_of, models_of
    from app.sweep.run import outcomes

    stop = cancel or threading.Event()
    named = [models] if isinstance(models, str | os.PathLike) else models
    try:
        found = [model for name in named for model in models_of(Path(name))]
        items = items_of(found, budgets, planners, seeds, batch_sizes, request)
    except BadRequest as error:
        raise BadInput(error.findings) from None
    except BadUsage as error:
        raise ValueError(str(error)) from None
    if executor is not None:
        engine = executors.of(executor)
    else:
        engine = executors.local(workers or os.cpu_count() or 1, None, stop)
    rows = {}
    try:
        for outcome in outcomes(items, engine, stop):
            report = None if outcome.report is None else json.loads(outcome.report)
            rows[outcome.item.key] = {**outcome.row, "report": report}
    except BaseException:
        stop.set()  # what runs ends soon
        raise
    finally:
        if executor is None:
            engine.executor.shutdown()
    return [rows[item.key] for item in items if item.key in rows]


def _read(model: str | os.PathLike[str] | bytes | Graph) -> bytes | Graph:
    return model if isinstance(model, (bytes, Graph)) else Path(model).read_bytes()


def verify(report: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """What an independent check of a saved plan finds: `{"valid": True, ...}` or `{"valid": False, "why": ...}`.

    Raises BadInput where that is no report, or one that is damaged.
    """
    try:
        return saved_report.verify(report if isinstance(report, Mapping) else read_report(os.fspath(report)))
    except (BadGraph, BadRequest) as error:
        raise BadInput(error.findings) from None
    except IllegalPlan as error:
        return {"valid": False, "why": str(error)}
