"""Shared parts of the MXNet, Caffe2 and Paddle formats: attributes, op tables, programs, nested blocks, protobuf.

May import `graph.builder`, `graph.ops.registry`, `graph.formats.document`, `graph.formats.native` and `graph.ssa`.
Start with `program.py` (reading), `groups.py` and `written_names.py` (writing). `op_table.py` holds the translation of
ops; its rules are built from `elementwise.py`, `layers.py` and `reshaping.py`.
"""
