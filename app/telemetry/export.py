"""Where what is counted goes: a registry that Prometheus reads, and OTLP where an endpoint is named."""

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

# Imports inside functions: the OTLP exporter is loaded where an endpoint is named.

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Of what FastAPI says of a request, what has few values: a client may write any of a hundred versions of HTTP.
REQUEST_DURATION_VIEW = View(
    instrument_name="http.server.request.duration",
    attribute_keys={"http.request.method", "http.route", "http.response.status_code"},
)
ACTIVE_REQUESTS_VIEW = View(instrument_name="http.server.active_requests", attribute_keys={"http.request.method"})


class SharedMeterProvider:
    """A provider of one meter whose instruments are made once, however many applications a process has."""

    def __init__(self, provider: MeterProvider):
        self._provider = provider
        self._made: dict[str, Any] = {}

    def get_meter(self, name: str, version: str, **_: Any) -> SharedMeterProvider:
        return self

    def create_histogram(self, name: str, **said: Any) -> Any:
        return self._made.get(name) or self._made.setdefault(name, self._meter.create_histogram(name, **said))

    def create_up_down_counter(self, name: str, **said: Any) -> Any:
        return self._made.get(name) or self._made.setdefault(name, self._meter.create_up_down_counter(name, **said))

    @property
    def _meter(self) -> Any:
        return self._provider.get_meter("fastapi")


@dataclass(frozen=True, slots=True)
class TelemetryExport:
    """What a process sends and shows; there is one."""

    registry: CollectorRegistry
    requests: Any  # provider of the meter of FastAPI
    otlp_exporters: tuple[Any, ...]  # over OTLP

    def text(self) -> bytes:
        """Every metric as Prometheus reads it. Blocks."""
        text: bytes = generate_latest(self.registry)  # type: ignore[no-untyped-call]
        return text

    def listen(self, address: str) -> None:
        """Show the metrics at `HOST:PORT`, in a thread of its own. Raises BadUsage."""
        host, _, port = address.rpartition(":")
        try:
            start_http_server(int(port), host.strip("[]"), self.registry)
        except (OSError, ValueError, OverflowError) as error:
            said = f"REMAT_METRICS_ADDRESS: cannot listen on {address[:80]!r}: {error}"
            raise BadUsage(f"{said}; write it as 127.0.0.1:9100", code="cannot_listen") from error

    def flush(self) -> None:
        """Send what is left; at most a few seconds."""
        for sender in self.otlp_exporters:
            sender.force_flush(5000)


_lock = threading.Lock()
_started: list[TelemetryExport] = []


def start(otlp_url: str | None = None) -> TelemetryExport:
    """Begin to count in this process; what was started before stays as it is."""
    with _lock:
        if not _started:
            _started.append(_start(otlp_url))
        return _started[0]


def _start(otlp_url: str | None) -> TelemetryExport:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    resource = Resource.create({"service.name": "remat", "service.version": versions()["remat"]})
    readers: list[MetricReader] = [PrometheusMetricReader(True, scope_info_enabled=False, registry=registry)]
    sending: list[Any] = []
    if otlp_url is not None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        place = otlp_url.rstrip("/")
        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(f"{place}/v1/metrics")))
        sending.append(readers[-1])
        tracing = TracerProvider(resource=resource)
        tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{place}/v1/traces")))
        trace.set_tracer_provider(tracing)
        sending.append(tracing)
    metering = MeterProvider(readers, resource, views=[REQUEST_DURATION_VIEW, ACTIVE_REQUESTS_VIEW])
    metrics.set_meter_provider(metering)
    return TelemetryExport(registry, SharedMeterProvider(metering), tuple(sending))
