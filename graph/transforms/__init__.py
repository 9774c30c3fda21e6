"""Graph passes (`Graph` -> `Graph`) and graph queries, one file each; all work on SSA values.

May import graph.analysis, builder, errors, execution, formats.document, ir, ops.control_flow, ssa and validate.
Start at `dead_code.py`; names with several versions are restored by `graph.formats.native.mutable_names`.
"""
