"""Batches: graphs x budgets x planners x seeds, each combination an item that succeeds or fails independently.

Imports app.jobs, app.store, app.render, app.settings and app.api.schemas. Start with repository.py.

POST ──▶ app.api.schemas.batch_request ──▶ repository.py ◀── scheduler.py, in every worker: a window of queued items
           the request                   batches, items        ╰──▶ app.jobs: one operation per item
results.py: items as JSON, CSV, Parquet      operations.py: a batch as one operation
"""
