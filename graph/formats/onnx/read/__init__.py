"""Reader of ONNX models, opset 7 to the newest, as graphs with static shapes.

    bytes → ModelProto → validated → walked in order: dimensions bound, old ops upgraded, functions and
    constant branches inlined, shape arithmetic folded → Graph

`wire` parses bytes, `structure` validates the file, `input_shapes` binds dimensions, `opset_upgrade` rewrites old ops,
`batch_rebinding` adapts baked shapes to a new batch, `node_walk` creates
nodes, `control_flow` creates nested graphs. External data files are never opened.

May import `graph.builder`, `graph.formats.document`, `graph.formats.onnx.guards`, `graph.formats.onnx.roles`,
`graph.ir`, `graph.limits` and `graph.ops.registry`. Start with `reader.py`.
"""

from __future__ import annotations

from graph.formats.onnx.read.reader import load
from graph.formats.onnx.read.wire import sniff

__all__ = ["load", "sniff"]
