"""HTTP wire formats: request bodies, content negotiation and the OpenAPI document.

Imports app.api.schemas, app.api.service, app.models, app.errors and app.settings. Start with request_body.py.
"""
