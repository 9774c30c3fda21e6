"""Metrics and traces go to a collector that is named."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.app.conftest import chain

Sent = dict[str, list[bytes]]
TRACE, OF_PLAN, OF_BATCH = (digit * 32 for digit in "abc")


def of_trace(trace: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}


@pytest.fixture
def collector() -> Iterator[tuple[str, Sent]]:
    """URL of a collector, and what it was sent by path."""
    sent: Sent = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            sent.setdefault(self.path, []).append(data)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", sent
    server.shutdown()
    server.server_close()


@pytest.mark.heavy
def test_a_request_and_the_children_and_jobs_it_needs_are_one_trace(
    collector: tuple[str, Sent], tmp_path: Path
) -> None:
    place, sent = collector
    command = [sys.executable, "-m", "remat", "serve", "--port", "0", "--data", str(tmp_path)]
    environment = os.environ | {"REMAT_OTLP_URL": place, "REMAT_LOG_LEVEL": "warning", "REMAT_WORKERS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.fullmatch(r"listening on (\S+)\n", process.stderr.readline())
        assert found is not None
        with httpx2.Client(base_url=found[1], timeout=60) as client:
            graph = client.post("/v1/graphs", json=chain(), headers=of_trace(TRACE) | {"x-request-id": "traced"})
            assert graph.status_code == 201
            goal, graph_id = {"planner": "greedy", "iterations": 5}, graph.json()["id"]
            headers = of_trace(OF_PLAN) | {"prefer": "respond-async"}
            plan = client.post("/v1/plans", json={"graph_id": graph_id, "budget": "90%", **goal}, headers=headers)
            batch = client.post(
                "/v1/batches",
                json={"graph_ids": [graph_id], "budgets": ["80%"], "planners": ["greedy"], "iterations": 5},
                headers=of_trace(OF_BATCH),
            )
            for operation in (plan.headers["location"], batch.json()["operation"]):
                client.get(f"{operation}/events")  # until it ends
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    requests = [ExportTraceServiceRequest.FromString(data) for data in sent["/v1/traces"]]
    scopes = [scope for request in requests for of in request.resource_spans for scope in of.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    by_name = {span.name: span for span in spans if span.trace_id.hex() == TRACE}
    assert set(by_name) == {"POST /v1/graphs", "child read"}
    assert by_name["child read"].parent_span_id == by_name["POST /v1/graphs"].span_id
    said = {pair.key: pair.value.string_value for pair in by_name["child read"].attributes}
    assert (said["remat.request"], said["remat.outcome"]) == ("traced", "done")
    for trace, path in ((OF_PLAN, "/v1/plans"), (OF_BATCH, "/v1/batches")):
        of_job = {span.name: span for span in spans if span.trace_id.hex() == trace}
        assert set(of_job) == {f"POST {path}", "job plan", "child solve"}
        assert of_job["job plan"].parent_span_id == of_job[f"POST {path}"].span_id
        assert of_job["child solve"].parent_span_id == of_job["job plan"].span_id
    metrics = [ExportMetricsServiceRequest.FromString(data) for data in sent["/v1/metrics"]]
    names = {
        metric.name
        for request in metrics
        for of in request.resource_metrics
        for scope in of.scope_metrics
        for metric in scope.metrics
    }
    assert {"http.server.request.duration", "remat.child.duration"} <= names
