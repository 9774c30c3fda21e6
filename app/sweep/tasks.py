"""Questions and answers of a batch as plain data, so that any executor takes them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.client.blocking import ClientError, ServiceProblem
from app.errors import BadUsage, problem_body, to_problem
from app.settings import Settings
from app.sweep.items import SweepItem
from app.zoo.manifest import sha256

SECTIONS = ("timeline", "layout", "source")  # besides the figures, so that `remat verify` needs one file

ItemTask = dict[str, Any]
#: {"report": JSON, "stopped": whether it is only the best so far}, or {"problem": ...}; always {"seconds": ...}.
ItemResult = dict[str, Any]
ProgressCallback = Callable[[str, Mapping[str, Any]], None]  # key of the item, and how its search goes


def task_of(item: SweepItem) -> ItemTask:
    """The item as plain data, with the limits that the settings here set."""
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


def report_errors(work: Callable[..., ItemResult]) -> Callable[..., ItemResult]:
    """The work with its seconds unless it says others, and what goes wrong as a problem: one that fails is a state."""

    @functools.wraps(work)
    def answered(question: ItemTask, *more: Any, **given: Any) -> ItemResult:
        began = time.monotonic()
        try:
            answer = work(question, *more, **given)
        except Exception as error:
            answer = {"problem": item_problem(error)}
        return {"seconds": round(time.monotonic() - began, 3)} | answer

    return answered


def item_problem(error: BaseException) -> dict[str, Any]:
    """The problem object that says what kept an item from its plan."""
    if isinstance(error, ServiceProblem):
        return error.problem
    if isinstance(error, ClientError):
        return problem_body(503, "unreachable", "The service did not answer", str(error))
    said = to_problem(error)
    if said["code"] == "internal":  # nobody looks into a log for it here
        said["detail"] = f"{type(error).__name__}: {error}"
    return said


def read_model_file(file: str, digest: str) -> bytes:
    """The model's file, as it was when the batch began. Raises BadUsage, OSError."""
    data = Path(file).read_bytes()
    if sha256(data) != digest:
        raise BadUsage(f"{file} is not what it was when the batch began; begin again", code="file_changed")
    return data
