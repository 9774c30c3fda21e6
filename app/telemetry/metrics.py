"""Everything that is counted, and the spans of traces. Nothing is kept until `export.start` has been called.

No instrument has a label that a caller chooses, nor one that names a tenant: labels are planners, states, codes and
tasks of this program, so there are no more series than those.
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
from app.errors import AppError, ProblemDetails, error_row

#: Upper ends of buckets, in seconds.
SHORT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LONG_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
JOB_COUNTS_TTL_S = 5.0  # counts of the store are asked for again after that

_meter = metrics.get_meter("remat")
_tracer = trace.get_tracer("remat")
_solve = _meter.create_histogram(
    "remat.solve.duration",
    "s",
    "What making a plan took, by planner and status.",
    explicit_bucket_boundaries_advisory=LONG_BUCKETS,
)
_child = _meter.create_histogram(
    "remat.child.duration",
    "s",
    "What a child process took, by task and outcome.",
    explicit_bucket_boundaries_advisory=SHORT_BUCKETS,
)
_saved = _meter.create_counter("remat.plan.saved", "By", "Bytes of peak that plans save.")
_lookups = _meter.create_counter("remat.cache.lookups", "{lookup}", "Questions that were answered before, or not.")
_store_errors = _meter.create_counter("remat.store.errors", "{error}", "Times the database or the blobs failed.")
_refused = _meter.create_counter("remat.refused", "{request}", "Requests that were too much, by the limit they met.")


def count_plan(columns: Mapping[str, Any]) -> None:
    """Count a plan by its columns in the store."""
    labels = {"planner": columns["planner"]}
    _solve.record(columns["solver_seconds"], labels | {"status": columns["status"]})
    _saved.add(max(0, columns["saved_bytes"]), labels)


def count_lookup(found: bool) -> None:
    """Count a question that was looked for among the answers."""
    _lookups.add(1, {"result": "hit" if found else "miss"})


def count_store_error(part: str, error: BaseException) -> None:
    """Count a failure of the `part` "database" or "blobs"."""
    _store_errors.add(1, {"part": part, "code": getattr(error, "code", "") or error_row(error).code})


def count_refused(limit: str) -> None:
    """Count a request that was turned away for the setting of that name."""
    _refused.add(1, {"limit": limit})


@contextmanager
def measure_child(task: str) -> Iterator[Callable[[str], None]]:
    """Measure a child process. What it yields is told each stage; stages are events of the span."""
    began, outcome, last = time.monotonic(), "done", ""
    about = {f"remat.{name}": said for name, said in get_contextvars().items()}  # the request or the operation
    with _tracer.start_as_current_span(f"child {task}", attributes=about, record_exception=False) as span:

        def at(stage: str) -> None:
            nonlocal last
            if stage != last:
                span.add_event(stage)
                last = stage

        try:
            yield at
        except ProblemDetails:
            outcome = "problem"  # of the model or the question
            raise
        except BaseException as error:
            outcome = getattr(error, "code", "") or error_row(error).code
            raise
        finally:
            span.set_attribute("remat.outcome", outcome)
            _child.record(time.monotonic() - began, {"task": task, "outcome": outcome})


class ObservedService(Protocol):
    """What a service tells when it is looked at. All may block; what cannot be known raises AppError or CannotWrite."""

    def jobs_by_state(self) -> Mapping[str, int]: ...

    def waiting(self) -> Mapping[str, int]:
        """How many wait for their turn, by what they wait for."""

    def held_bytes(self) -> int:
        """Bytes of request bodies in memory."""

    def free_bytes(self) -> int:
        """Memory that may still be taken."""


_services: WeakSet[ObservedService] = WeakSet()
_jobs_seen: dict[int, tuple[float, Mapping[str, int]]] = {}


def register_service(service: ObservedService) -> None:
    """Show the service in the gauges, until `unregister_service`."""
    _services.add(service)


def unregister_service(service: ObservedService) -> None:
    _services.discard(service)
    _jobs_seen.pop(id(service), None)


def _gauge(name: str, unit: str, said: str, label: str, look: Callable[[ObservedService], Mapping[str, int]]) -> None:
    """A gauge that sums what every service of this process says, by the values of one label."""

    def observed(_: CallbackOptions) -> Iterable[Observation]:
        sums: Counter[str] = Counter()
        for service in tuple(_services):
            with suppress(AppError, CannotWrite):  # counted where it happened; the gauge has a gap
                sums.update(look(service))
        return [Observation(count, {label: key} if key else {}) for key, count in sums.items()]

    _meter.create_observable_gauge(name, [observed], unit, said)


def _jobs(service: ObservedService) -> Mapping[str, int]:
    """Counted at most every few seconds, however often somebody looks."""
    at, counts = _jobs_seen.get(id(service), (float("-inf"), {}))
    if time.monotonic() - at > JOB_COUNTS_TTL_S:
        counts = service.jobs_by_state()
        _jobs_seen[id(service)] = time.monotonic(), counts
    return counts


_gauge("remat.jobs", "{job}", "Operations that are kept, by state.", "state", _jobs)
_gauge(
    "remat.queue.depth",
    "{item}",
    "What waits for its turn: reads, and other short tasks.",
    "what",
    lambda service: service.waiting(),
)
_gauge("remat.bodies", "By", "Bodies in memory.", "", lambda service: {"": service.held_bytes()})
_gauge("remat.memory.free", "By", "Memory that may still be taken.", "", lambda service: {"": service.free_bytes()})
