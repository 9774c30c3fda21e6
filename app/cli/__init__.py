"""Command line `remat`: typer app, options, and one module per command.

Imports: app, planner, graph (see tests/test_rooms.py); not app.pages, not remat. Start reading: typer_app.py.
"""
