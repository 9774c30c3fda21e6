"""User commands of `remat`, one module each; a module is imported when its command runs.

Imports: as app.cli. Start reading: plan.py.
"""
