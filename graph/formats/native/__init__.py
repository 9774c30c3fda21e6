"""Reader and writer of the project's own format: documents `remat/1` to graphs and back.

May import `graph.builder`, `graph.cancellation`, `graph.formats.document`, `graph.ops.control_flow` and `graph.ssa`.
Start with `reader.py` (then `rows.py`, `columns.py`, `draft.py`) and `writer.py`.
"""
