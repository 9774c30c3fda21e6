"""Export of metrics and traces: a Prometheus registry, and OTLP if an endpoint is set."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from app.catalogue import versions
from app.errors import BadUsage

# Imports inside functions: the OTLP exporter is loaded only if an endpoint is set.

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Attributes of FastAPI's request metrics that have bounded cardinality; clients choose the others.
REQUEST_DURATION_VIEW = View(
    instrument_name="http.server.request.duration",
    attribute_keys={"http.request.method", "http.route", "http.response.status_code"},
)
ACTIVE_REQUESTS_VIEW = View(instrument_name="http.server.active_requests", attribute_keys={"http.request.method"})


class SharedMeterProvider:
    """A meter provider whose instruments are created once for all applications of a process."""

    def __init__(self, provider: MeterProvider):
        self._provider = provider
        self._instruments: dict[str, Any] = {}

    def get_meter(self, name: str, version: str, **_: Any) -> SharedMeterProvider:
        return self

    def create_histogram(self, name: str, **options: Any) -> Any:
        return self._instruments.get(name) or self._instruments.setdefault(
            name, self._meter.create_histogram(name, **options)
        )

    def create_up_down_counter(self, name: str, **options: Any) -> Any:
        return self._instruments.get(name) or self._instruments.setdefault(
            name, self._meter.create_up_down_counter(name, **options)
        )

    @property
    def _meter(self) -> Any:
        return self._provider.get_meter("fastapi")


@dataclass(frozen=True, slots=True)
class TelemetryExport:
    """The exporters of a process; a singleton."""

    registry: CollectorRegistry
    requests: Any  # meter provider for FastAPI
    otlp_exporters: tuple[Any, ...]  # OTLP metric readers and tracer providers

    def text(self) -> bytes:
        """All metrics in the OpenMetrics text format. Blocks."""
        text: bytes = generate_latest(self.registry)  # type: ignore[no-untyped-call]
        return text

    def listen(self, address: str) -> None:
        """Serve the metrics at `HOST:PORT` in a thread. Raises BadUsage."""
        host, _, port = address.rpartition(":")
        try:
            start_http_server(int(port), host.strip("[]"), self.registry)
        except (OSError, ValueError, OverflowError) as error:
            message = f"REMAT_METRICS_ADDRESS: cannot listen on {address[:80]!r}: {error}"
            raise BadUsage(f"{message}; write it as 127.0.0.1:9100", code="cannot_listen") from error

    def flush(self) -> None:
        """Flush the OTLP exporters, each within 5 s."""
        for exporter in self.otlp_exporters:
            exporter.force_flush(5000)


_lock = threading.Lock()
_started: list[TelemetryExport] = []


def start(otlp_url: str | None = None) -> TelemetryExport:
    """The exporters of this process, created by the first call; later arguments are ignored."""
    with _lock:
        if not _started:
            _started.append(_start(otlp_url))
        return _started[0]


def _start(otlp_url: str | None) -> TelemetryExport:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    resource = Resource.create({"service.name": "remat", "service.version": versions()["remat"]})
    readers: list[MetricReader] = [PrometheusMetricReader(True, scope_info_enabled=False, registry=registry)]
    exporters: list[Any] = []
    if otlp_url is not None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        endpoint = otlp_url.rstrip("/")
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics")))
        exporters.append(readers[-1])
        tracer_provider = TracerProvider(resource=resource)
        tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
        trace.set_tracer_provider(tracer_provider)
        exporters.append(tracer_provider)
    meter_provider = MeterProvider(readers, resource, views=[REQUEST_DURATION_VIEW, ACTIVE_REQUESTS_VIEW])
    metrics.set_meter_provider(meter_provider)
    return TelemetryExport(registry, SharedMeterProvider(meter_provider), tuple(exporters))
