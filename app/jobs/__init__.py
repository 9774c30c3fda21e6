"""Durable jobs: operations in the store, a queue over DBOS, and workers that run each attempt in a child process.

Imports app.solver, app.store, app.jobs.answers and app.settings; no pages, no command line. Start with interface.py.

durable_jobs.py ──▶ repository.py: operations, events, workers ◀── worker.py ──▶ attempt.py ──▶ app.solver
  implements Jobs ╰─▶ queue.py: waiting and claimed operations ◀──╯               one child process
"""
