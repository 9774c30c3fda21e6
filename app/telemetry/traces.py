"""The trace of a job: that of the request that submitted it, carried through the queue (W3C Trace Context)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
_tracer = trace.get_tracer("remat")
_propagator = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """The position in the current trace, as the header `traceparent` states it; None outside a trace."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(TRACEPARENT)


@contextmanager
def job_span(kind: str, traceparent: str | None, attempt: int) -> Iterator[None]:
    """Span of one attempt at a job, below the request that submitted it; a malformed `traceparent` starts a trace."""
    parent = _propagator.extract({TRACEPARENT: traceparent} if traceparent else {})
    attributes = {"remat.attempt": attempt}
    with _tracer.start_as_current_span(f"job {kind}", parent, attributes=attributes, record_exception=False):
        yield
