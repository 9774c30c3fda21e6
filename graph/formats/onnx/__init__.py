"""ONNX format: `read` imports models, `writer` exports graphs, `decompose` expands ops for other runtimes.

May import `graph.analysis`, `graph.builder`, `graph.execution`, `graph.loop_remat`, `graph.ops.registry` and
`graph.transforms`. Start with `read/__init__.py` (the stages of the import) and `writer.py`.
"""
