"""The position in a trace, as a job carries it."""

from __future__ import annotations

import pytest
from opentelemetry import trace

from app.telemetry.traces import current_traceparent, job_span

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_job_goes_on_with_the_trace_of_its_request() -> None:
    assert current_traceparent() is None
    with job_span("plan", HEADER, 1):
        found = current_traceparent()
        assert found is not None and found.split("-")[1] == HEADER.split("-")[1]
    assert current_traceparent() is None


@pytest.mark.parametrize("header", [None, "", "00-0-0-00", "nonsense"])
def test_without_a_trace_a_job_runs_all_the_same(header: str | None) -> None:
    with job_span("plan", header, 1):
        assert trace.get_current_span().get_span_context().trace_id != int(HEADER.split("-")[1], 16)
