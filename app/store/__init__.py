"""Where graphs, plans and operations are kept.

records.py, jobs/stored.py ──▶ store.py ──▶ database.py   rows: SQLite in the data folder, or PostgreSQL
        rows and blobs               ╰────▶ blobs.py      bytes by their hash: a folder, or an object store
collect.py takes out what is old; walk.py looks at everything; tables.py and migrations/ say what there is.
"""
