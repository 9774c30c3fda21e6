"""What operators see of a running service.

instruments.py ──▶ export.py ──▶ /metrics, for Prometheus
   (counted           ╰───────▶ OTLP, with traces, where an endpoint is named
 anywhere)
logs.py: a line an event, JSON unless a terminal reads it
"""
