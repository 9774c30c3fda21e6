"""Many plans at once, from the command line or Python: models, times sizes, budgets, planners and seeds.

items ──▶ engine (an executor, and what it calls) ──▶ outcomes as they come ──▶ results, report, table
"""
