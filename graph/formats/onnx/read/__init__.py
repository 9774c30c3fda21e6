"""ONNX models, opset 7 to the newest, as graphs with static shapes.

    bytes → ModelProto → checked → walked in order: dimensions bound, old ops upgraded, functions and
    constant branches inlined, shape arithmetic folded → Graph

`wire` reads bytes, `structure` judges the whole file, `dims` binds dimensions, `upgrade` rewrites old ops,
`weights` tells parameters from constants, `batch` lets baked shapes follow a new batch, `walk` makes nodes,
`bodies` makes nested graphs. No file a model names is ever opened.
"""

from __future__ import annotations

from graph.formats.onnx.read.reader import load
from graph.formats.onnx.read.wire import sniff

__all__ = ["load", "sniff"]
