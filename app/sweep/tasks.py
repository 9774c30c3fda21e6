"""Questions and answers of a batch as plain data, so that any executor takes them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.client.blocking import ClientError, ServiceProblem
from app.errors import BadUsage, problem, problem_of
from app.settings import Settings
from app.sweep.items import Item
from app.zoo.manifest import sha256

SECTIONS = ("timeline", "layout", "source")  # besides the figures, so that `remat verify` needs one file

Question = dict[str, Any]
#: {"report": JSON, "stopped": whether it is only the best so far}, or {"problem": ...}; always {"seconds": ...}.
Answer = dict[str, Any]
Told = Callable[[str, Mapping[str, Any]], None]  # key of the item, and how its search goes


def question_of(item: Item) -> Question:
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


def answering(work: Callable[..., Answer]) -> Callable[..., Answer]:
    """The work with its seconds unless it says others, and what goes wrong as a problem: one that fails is a state."""

    @functools.wraps(work)
    def answered(question: Question, *more: Any, **given: Any) -> Answer:
        began = time.monotonic()
        try:
            answer = work(question, *more, **given)
        except Exception as error:
            answer = {"problem": told_of(error)}
        return {"seconds": round(time.monotonic() - began, 3)} | answer

    return answered


def told_of(error: BaseException) -> dict[str, Any]:
    """The problem object that says what kept an item from its plan."""
    if isinstance(error, ServiceProblem):
        return error.problem
    if isinstance(error, ClientError):
        return problem(503, "unreachable", "The service did not answer", str(error))
    said = problem_of(error)
    if said["code"] == "internal":  # nobody looks into a log for it here
        said["detail"] = f"{type(error).__name__}: {error}"
    return said


def read(file: str, digest: str) -> bytes:
    """The model's file, as it was when the batch began. Raises BadUsage, OSError."""
    data = Path(file).read_bytes()
    if sha256(data) != digest:
        raise BadUsage(f"{file} is not what it was when the batch began; begin again", code="file_changed")
    return data
