"""Many questions at once: graphs x budgets x planners x seeds, each an item that is answered or fails by itself.

POST ──▶ asked.py ──▶ rows.py: batches, items ◀── feeder.py, in every worker: a window of items at a time
           the question         what is kept       ╰──▶ app.jobs: an operation a question, its end is the item's
results.py: items as JSON, CSV, Parquet      jobs.py: a batch as one operation
"""
