"""Options shared by several commands, their completion, and the conversion of flags to request fields.

Imports: typer, planner.request and planner.errors at the top; everything else lazily. Start reading: options.py.
"""
