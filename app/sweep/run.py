"""A batch run to its end, or until it is stopped: outcomes as they come."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.errors import problem_body
from app.sweep.executors import SweepEngine
from app.sweep.items import SweepItem
from app.sweep.results import FAILED, OVER_BUDGET, STOPPED, SUCCEEDED, Row
from app.sweep.tasks import ItemResult, item_problem

POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """One item that has ended. `report` is its JSON, None where there is no plan to keep."""

    item: SweepItem
    row: Row
    report: bytes | None


def run_items(items: Iterable[SweepItem], engine: SweepEngine, stop: threading.Event) -> Iterator[ItemOutcome]:
    """Outcomes in the order they come; once `stop` is set, those that run give their best so far, and no more begin."""
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
        answer = future.result()
    except (Exception, CancelledError) as error:  # the executor lost it
        answer = {"problem": item_problem(error), "seconds": None}
    row: Row = {
        "key": item.key,
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **item.said,
        "file": item.file,
        "sha256": item.sha256,
    }
    row |= {"seconds": answer["seconds"], "error": answer.get("problem")}
    if "problem" in answer:
        is_stopped = answer["problem"]["code"] in ("stopped", *(("killed",) if is_stopping else ()))
        return ItemOutcome(item, row | {"state": STOPPED if is_stopped else FAILED, **EMPTY_SUMMARY}, None)
    report = msgspec.json.decode(answer["report"])
    row |= {"state": SUCCEEDED, **summary_columns(report)}
    if report["executed"]["status"] == "different":
        said = "the rewritten graph computes something else; that is our fault, please tell us"
        row |= {"state": FAILED, "error": problem_body(500, "different", "The plan is wrong", said)}
        return ItemOutcome(item, row, None)  # never kept as a plan
    if answer["stopped"]:
        row["state"] = STOPPED
    elif report["plan"]["status"] == "over_budget":
        row["state"] = OVER_BUDGET
    return ItemOutcome(item, row, answer["report"])


def summary_columns(report: dict[str, Any]) -> Row:
    """What tables say of a report."""
    plan, base = report["plan"], report["baseline"]
    return {
        "status": plan["status"],
        "fits": report["fits"],
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


#: The figures of an item that has none.
EMPTY_SUMMARY: Row = dict.fromkeys(
    (
        "status",
        "fits",
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
