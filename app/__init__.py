"""The ways in: command line, HTTP service with jobs and pages, Python client, batches over many models.

May import `planner` and `graph`. Start at `cli/typer_app.py` for the command line and `api/main.py` for the service.
"""
