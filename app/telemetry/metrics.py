"""Metric instruments and trace spans. Measurements are discarded until `export.start` is called.

Labels are planners, states, codes and tasks of this program, never tenants or text from callers, so the number of
series is bounded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakSet

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from structlog.contextvars import get_contextvars

from app.atomic_files import CannotWrite
from app.catalogue import versions
from app.errors import AppError, ProblemDetails, error_row

#: Upper bounds of histogram buckets in seconds.
SHORT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LONG_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
JOB_COUNTS_TTL_S = 5.0  # cache of the counts from the store

_meter = metrics.get_meter("remat")
_tracer = trace.get_tracer("remat")
_solve = _meter.create_histogram(
    "remat.solve.duration",
    "s",
    "Time to compute a plan, by planner and status.",
    explicit_bucket_boundaries_advisory=LONG_BUCKETS,
)
_child = _meter.create_histogram(
    "remat.child.duration",
    "s",
    "Time of a child process, by task and outcome.",
    explicit_bucket_boundaries_advisory=SHORT_BUCKETS,
)
_wait = _meter.create_histogram(
    "remat.job.wait",
    "s",
    "Time of a job in the queue before its latest attempt, by kind.",
    explicit_bucket_boundaries_advisory=LONG_BUCKETS,
)
_job = _meter.create_histogram(
    "remat.job.duration",
    "s",
    "Time of the latest attempt at a job that ended, by kind, state and code of the error.",
    explicit_bucket_boundaries_advisory=LONG_BUCKETS,
)
_takeovers = _meter.create_counter("remat.job.takeovers", "{job}", "Jobs of dead workers that were queued again.")
_saved = _meter.create_counter("remat.plan.saved", "By", "Peak bytes saved by plans.")
_lookups = _meter.create_counter("remat.cache.lookups", "{lookup}", "Lookups of stored plans, hits and misses.")
_store_errors = _meter.create_counter("remat.store.errors", "{error}", "Errors of the database or the blob store.")
_refused = _meter.create_counter("remat.refused", "{request}", "Requests rejected by a limit, by setting.")


def count_plan(columns: Mapping[str, Any]) -> None:
    """Count a plan, given its columns in the store."""
    labels = {"planner": columns["planner"]}
    _solve.record(columns["solver_seconds"], labels | {"status": columns["status"]})
    _saved.add(max(0, columns["saved_bytes"]), labels)


def count_job(kind: str, state: str, code: str, wait_seconds: float, run_seconds: float) -> None:
    """Count a job that this process ended; `code` is that of its error, or empty."""
    _wait.record(wait_seconds, {"kind": kind})
    _job.record(run_seconds, {"kind": kind, "state": state, "code": code})


def count_takeovers(jobs: int) -> None:
    """Count jobs of dead workers that this process queued again."""
    _takeovers.add(jobs)


def count_lookup(found: bool) -> None:
    """Count a lookup of a stored result."""
    _lookups.add(1, {"result": "hit" if found else "miss"})


def count_store_error(part: str, error: BaseException) -> None:
    """Count a failure of the `part` "database" or "blobs"."""
    _store_errors.add(1, {"part": part, "code": getattr(error, "code", "") or error_row(error).code})


def count_refused(limit: str) -> None:
    """Count a request that the setting `limit` rejected."""
    _refused.add(1, {"limit": limit})


@contextmanager
def measure_child(task: str) -> Iterator[Callable[[str], None]]:
    """Measure a child process; call the yielded function with each stage, which becomes an event of the span."""
    began, outcome, last = time.monotonic(), "done", ""
    attributes = {f"remat.{name}": value for name, value in get_contextvars().items()}  # request or operation id
    with _tracer.start_as_current_span(f"child {task}", attributes=attributes, record_exception=False) as span:

        def at(stage: str) -> None:
            nonlocal last
            if stage != last:
                span.add_event(stage)
                last = stage

        try:
            yield at
        except ProblemDetails:
            outcome = "problem"  # error in the model or the request
            raise
        except BaseException as error:
            outcome = getattr(error, "code", "") or error_row(error).code
            raise
        finally:
            span.set_attribute("remat.outcome", outcome)
            _child.record(time.monotonic() - began, {"task": task, "outcome": outcome})


class ObservedService(Protocol):
    """Source of the gauges of one service. All methods may block and raise AppError or CannotWrite."""

    def jobs_by_state(self) -> Mapping[str, int]: ...

    def workers(self) -> Mapping[str, int]:
        """Number of registered workers, of their slots, and of slots that run a job."""

    def waiting(self) -> Mapping[str, int]:
        """Number of waiting tasks by queue."""

    def stored_bytes(self) -> Mapping[str, int]:
        """Bytes of the database and of the blobs."""

    def streams(self) -> int:
        """Number of open event streams and waits for results."""

    def held_bytes(self) -> int:
        """Bytes of request bodies in memory."""

    def free_bytes(self) -> int:
        """Bytes of free memory."""


_services: WeakSet[ObservedService] = WeakSet()
_seen: dict[tuple[str, int], tuple[float, Mapping[str, int]]] = {}  # by gauge and id of the service


def register_service(service: ObservedService) -> None:
    """Include the service in the gauges until `unregister_service`."""
    _services.add(service)


def unregister_service(service: ObservedService) -> None:
    _services.discard(service)
    for key in [key for key in _seen if key[1] == id(service)]:
        del _seen[key]


def _gauge(
    name: str, unit: str, description: str, label: str, read: Callable[[ObservedService], Mapping[str, int]]
) -> None:
    """Create a gauge that sums `read` over the services of this process, by the values of one label."""

    def observed(_: CallbackOptions) -> Iterable[Observation]:
        sums: Counter[str] = Counter()
        for service in tuple(_services):
            with suppress(AppError, CannotWrite):  # counted by `count_store_error`; the gauge has a gap
                sums.update(read(service))
        return [Observation(count, {label: key} if key else {}) for key, count in sums.items()]

    _meter.create_observable_gauge(name, [observed], unit, description)


def _seldom(read: Callable[[ObservedService], Mapping[str, int]], name: str) -> Callable[[Any], Mapping[str, int]]:
    """`read`, whose counts come from the store, cached for JOB_COUNTS_TTL_S."""

    def cached(service: ObservedService) -> Mapping[str, int]:
        at, counts = _seen.get((name, id(service)), (float("-inf"), {}))
        if time.monotonic() - at > JOB_COUNTS_TTL_S:
            counts = read(service)
            _seen[name, id(service)] = time.monotonic(), counts
        return counts

    return cached


def _build(_: CallbackOptions) -> Iterable[Observation]:
    return [Observation(1, {"version": versions()["remat"]})]


_gauge(
    "remat.jobs", "{job}", "Stored operations by state.", "state", _seldom(lambda each: each.jobs_by_state(), "jobs")
)
_gauge("remat.workers", "{count}", "Workers and slots.", "what", _seldom(lambda each: each.workers(), "workers"))
_gauge("remat.stored", "By", "Bytes stored.", "what", _seldom(lambda each: each.stored_bytes(), "stored"))
_gauge("remat.streams", "{stream}", "Open event streams and waits.", "", lambda service: {"": service.streams()})
_meter.create_observable_gauge("remat.build.info", [_build], "", "1, labelled with the version.")
_gauge("remat.queue.depth", "{item}", "Waiting reads and other short tasks.", "what", lambda service: service.waiting())
_gauge("remat.bodies", "By", "Request bodies in memory.", "", lambda service: {"": service.held_bytes()})
_gauge("remat.memory.free", "By", "Free memory.", "", lambda service: {"": service.free_bytes()})
