"""Durable jobs: operations in the store, the queue they form, and workers that run each attempt in a child process.

Imports app.solver, app.store, app.jobs.answers and app.settings; no pages, no command line. Start with interface.py.

durable_jobs.py ──▶ repository.py: operations, events, the queue ◀── worker.py ──▶ attempt.py ──▶ app.solver
  implements Jobs       ╰─▶ wakeups.py: NOTIFY, writes to the WAL ──────╯           one child process
"""
