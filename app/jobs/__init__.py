"""Work that outlives a request, and the process that took it.

durable.py ──▶ stored.py: operations, events, workers ◀── worker.py ──▶ attempt.py ──▶ app.solver.child_process
  the port ╰─▶ queue.py: who waits, who has what, by DBOS ◀──╯            one child
"""
