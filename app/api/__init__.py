"""HTTP service on FastAPI: app factory in main.py; middleware, authentication, routes, schemas and wire formats.

Imports app.jobs, app.solver, app.store, app.models, app.render, app.pages, app.telemetry and app.settings. Start with
main.py, then routes/__init__.py.
"""
