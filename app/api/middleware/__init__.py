"""ASGI middleware: request ids, admission control, HEAD, and connection limits.

Imports app.api.service, app.api.wire, app.errors, app.settings and app.telemetry. Start with request_admission.py.
"""
