"""Pages for people: Jinja templates, one style sheet, own and vendored scripts; nothing is loaded from other hosts.

Imports app.api, app.jobs, app.models, app.render and app.store. Start with routes.py, then frame.py.
"""
