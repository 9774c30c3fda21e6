"""Child processes that work on models: started, limited, stopped and killed by the parent.

Imports graph, planner, app.models, app.render and app.jobs.answers; no pages, no command line. Start with
child_process.py (parent), then child_tasks.py (child).
"""
