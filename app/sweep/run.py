"""Main loop of a batch: outcomes in order of completion, until all items end or the batch is stopped."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.errors import ClusterLost, problem_body
from app.sweep.executors import SweepEngine
from app.sweep.items import SweepItem
from app.sweep.results import FAILED, OVER_BUDGET, STOPPED, SUCCEEDED, Row
from app.sweep.tasks import ItemResult, item_problem

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """One item that has ended. `report`: its JSON; None without a plan to save."""

    item: SweepItem
    row: Row
    report: bytes | None


def run_items(items: Iterable[SweepItem], engine: SweepEngine, stop: threading.Event) -> Iterator[ItemOutcome]:
    """Outcomes in order of completion. After `stop` is set, no item starts and running ones return their best plan.

    Raises ClusterLost once the engine's cluster has gone away.
    """
    futures: dict[Future[ItemResult], SweepItem] = {}
    waiting = iter(items)
    try:
        while True:
            if stop.is_set():
                futures = {future: item for future, item in futures.items() if engine.stops and not future.cancel()}
            else:
                for item in itertools.islice(waiting, engine.ahead - len(futures)):
                    futures[engine.submit(item)] = item
            if not futures:
                return
            ended, _ = wait(futures, POLL_S, FIRST_COMPLETED)
            for future in ended:
                yield _outcome(futures.pop(future), future, stop.is_set())
    finally:
        for future in futures:
            future.cancel()


def _outcome(item: SweepItem, future: Future[ItemResult], is_stopping: bool) -> ItemOutcome:
    try:
        result = future.result()
    except ClusterLost:
        raise  # an error of all items that have not ended, and of none in particular
    except (Exception, CancelledError) as error:  # raised by the executor; `report_errors` catches those of the work
        result = {"problem": item_problem(error), "seconds": None}
    row: Row = {
        "key": item.key,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **item.axes,
        "file": item.file,
        "sha256": item.sha256,
    }
    row |= {"seconds": result["seconds"], "error": result.get("problem")}
    if "problem" in result:
        is_stopped = result["problem"]["code"] in ("stopped", *(("killed",) if is_stopping else ()))
        return ItemOutcome(item, row | {"state": STOPPED if is_stopped else FAILED, **EMPTY_SUMMARY}, None)
    report = msgspec.json.decode(result["report"])
    row |= {"state": SUCCEEDED, **summary_columns(report)}
    if report["executed"]["status"] == "different":
        message = "the rewritten graph computes different results; this is a bug in remat, please report it"
        row |= {"state": FAILED, "error": problem_body(500, "different", "The plan is wrong", message)}
        return ItemOutcome(item, row, None)  # never save a wrong plan
    if result["stopped"]:
        row["state"] = STOPPED
    elif report["plan"]["status"] == "over_budget":
        row["state"] = OVER_BUDGET
    return ItemOutcome(item, row, result["report"])


def summary_columns(report: dict[str, Any]) -> Row:
    """Columns of a report in tables."""
    plan, base = report["plan"], report["baseline"]
    return {
        "status": plan["status"],
        "fits": report["fits"],
        "within_budget": plan["within_budget"],
        "device": report["device"],
        "budget_bytes": plan["budget_bytes"],
        "baseline_peak_bytes": base["peak_bytes"],
        "peak_bytes": plan["peak_bytes"],
        "arena_bytes": plan["arena_bytes"],
        "saved_bytes": plan["saved_bytes"],
        "saved": plan["saved"],
        "baseline_seconds": base["seconds"],
        "step_seconds": plan["seconds"],
        "overhead": plan["overhead"],
        "bound_overhead": plan["bound"]["overhead"],
        "gap": plan["gap"],
        "by": plan["planner"],
        "reproducible": plan["reproducible"],
    }


#: `summary_columns` of an item without a plan.
EMPTY_SUMMARY: Row = dict.fromkeys(
    (
        "status",
        "fits",
        "within_budget",
        "device",
        "budget_bytes",
        "baseline_peak_bytes",
        "peak_bytes",
        "arena_bytes",
        "saved_bytes",
        "saved",
        "baseline_seconds",
        "step_seconds",
        "overhead",
        "bound_overhead",
        "gap",
        "by",
        "reproducible",
    )
)
