"""What commands share: the files that they read and write, their output, and the signals that stop them.

Imports app.atomic_files, app.errors, app.models and graph.
"""
