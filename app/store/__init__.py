"""Persistent storage of graphs, plans and operations.

Imports app.errors, app.settings, app.telemetry, app.catalogue and app.atomic_files. Start with store.py.

records.py, app.jobs.repository ──▶ store.py ──▶ database.py   rows: SQLite in the data folder, or PostgreSQL
         rows and blobs                   ╰────▶ blobs.py      content-addressed: a folder, or an object store
maintenance/: deletion, retention, verification. tables.py, schema.py, migrations/: schema.
"""
