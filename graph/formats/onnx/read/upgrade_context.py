"""Implementation of `UpgradeContext`: names, types and constants for upgrade rules."""

from __future__ import annotations

import numpy as np

from graph.errors import BadGraph, quoted
from graph.formats.onnx.read.protos import RawNode
from graph.formats.onnx.read.scope import Scope
from graph.ir import Role, TensorType
from graph.ir.names import unique_name
from graph.ops.registry.onnx_fallback import type_of_array


class NodeUpgradeContext:
    """Context of an upgrade rule for one node in its scope."""

    def __init__(self, raw: RawNode, scope: Scope):
        self.raw, self.scope = raw, scope

    def type(self, name: str) -> TensorType:
        slot = self.scope.find(name) if name else None
        if slot is None or slot.type is None:
            raise BadGraph.one(
                "unknown_size",
                self.raw.path,
                f"input {quoted(name)} of {self.raw.shown}, of unknown type",
                "a static type",
                "give the value a static shape in the model's value_info",
            )
        return slot.type

    def constant(self, array: np.ndarray, like: str) -> str:
        name = self.fresh(f"{self.raw.name or self.raw.outputs[0]}/{like}")
        content = (array.dtype.str, array.shape, array.tobytes())
        shared = self.scope.frame.constants.get(content)
        if shared is None:
            shared = self.scope.define(name, type_of_array(array), role=Role.CONSTANT, data=array, is_baked=True)
            self.scope.frame.constants[content] = shared
        self.scope.slots[name] = shared
        return name

    def fresh(self, like: str) -> str:
        return unique_name(like, self.scope.slots)
