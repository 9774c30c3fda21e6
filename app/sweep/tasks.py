"""Tasks and results of a batch as plain, picklable data for any executor."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.client.blocking import ClientError, ServiceProblem
from app.errors import BadUsage, about_file, problem_body, to_problem
from app.settings import Settings
from app.sweep.items import SweepItem
from app.zoo.manifest import sha256
from planner.request.field_kinds import DEFAULT_SEARCH_SECONDS

SECTIONS = ("timeline", "layout", "source")  # sections of a saved report that `remat verify` needs

ItemTask = dict[str, Any]
#: {"report": JSON, "stopped": whether the search was stopped} or {"problem": ...}; always {"seconds": ...}.
ItemResult = dict[str, Any]
ProgressCallback = Callable[[str, Mapping[str, Any]], None]  # key of the item, progress of its search


def task_of(item: SweepItem) -> ItemTask:
    """The item as plain data, with the limits of this process's settings."""
    settings = Settings()
    return {
        "key": item.key,
        "file": item.file,
        "sha256": item.sha256,
        "fields": dict(item.fields),
        "limits": asdict(settings.limits()),
        "memory_bytes": settings.solve_memory_bytes,
        "kill_seconds": settings.kill_seconds,
        "overtime_seconds": settings.overtime_seconds,
    }


def search_deadline(task: ItemTask) -> float:
    """Seconds after which the task's search is requested to stop."""
    return float(task["fields"].get("search_seconds", DEFAULT_SEARCH_SECONDS)) + float(task["overtime_seconds"])


def report_errors(work: Callable[..., ItemResult]) -> Callable[..., ItemResult]:
    """Decorator: return an exception as a `problem`, and add `seconds` unless the result has them."""

    @functools.wraps(work)
    def run(task: ItemTask, *arguments: Any, **keywords: Any) -> ItemResult:
        began = time.monotonic()
        try:
            result = work(task, *arguments, **keywords)
        except Exception as error:
            result = {"problem": item_problem(error)}
        return {"seconds": round(time.monotonic() - began, 3)} | result

    return run


def item_problem(error: BaseException) -> dict[str, Any]:
    """The problem object of an item's error."""
    if isinstance(error, ServiceProblem):
        return error.problem
    if isinstance(error, ClientError):
        return problem_body(503, "unreachable", "The service did not answer", str(error))
    problem = to_problem(error)
    if problem["code"] == "internal":  # no server log here, so show the exception
        problem["detail"] = f"{type(error).__name__}: {error}"
    return problem


def read_model_file(file: str, digest: str) -> bytes:
    """Bytes of the model's file, unchanged since the batch began. Raises BadUsage, OSError."""
    with about_file(file):
        data = Path(file).read_bytes()
    if sha256(data) != digest:
        raise BadUsage(f"{file} has changed since the batch began; start a new batch", code="file_changed")
    return data
