"""State of one serving process: settings, store, jobs, admission control and response cache.

Imports app.jobs, app.solver, app.store, app.telemetry and app.settings. Start with service.py.
"""
