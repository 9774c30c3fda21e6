"""Metrics, traces and logs of the service.

Imports app.errors, app.atomic_files and app.catalogue. Start with metrics.py.

metrics.py ──▶ export.py ──▶ /metrics, for Prometheus
                  ╰────────▶ OTLP, with traces, if an endpoint is set
logs.py: one line per event, JSON unless written to a terminal
"""
