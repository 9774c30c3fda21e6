"""Shape overrides of a document: named dimensions, inputs and the batch, and their propagation.

x: [N, 784], --dim N=8          every declared N is 8
x: [64, 784], --batch 8         x is [8, 784]; types downstream are re-inferred
Reshape(x, constant [64, 28, 28])       the leading 64 is the old batch: the constant is rewritten
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from graph.errors import Findings, quoted
from graph.formats.document.shape_overrides import bind_symbols, check_lengths, check_names
from graph.ir import ABSENT, MAX_BYTES, Node, Role, TensorType
from graph.limits import ShapeOverrides

if TYPE_CHECKING:
    from graph.formats.document.type_inference import TypeInference
    from graph.formats.native.draft import Draft


class ShapeRebinding:
    """Change from declared to requested shapes. The constructor binds dimensions and checks inputs of the draft."""

    def __init__(self, draft: Draft, shapes: ShapeOverrides, findings: Findings):
        self.draft = draft
        self.requested: dict[int, TensorType] = {}  # input -> requested type, where it differs
        self.before: dict[int, TensorType] = {}  # value whose type has changed -> its type before
        self.constants: dict[int, np.ndarray] = {}  # rewritten shape constants
        self._copies: dict[tuple[int, int], int] = {}  # (constant, leading length) -> rewritten copy
        self._named_batch = {v for v, (_, shape) in draft.partial.items() if shape and isinstance(shape[0], str)}
        if shapes.inputs or shapes.dims or shapes.batch is not None:
            inputs = [name for name, role in zip(draft.names, draft.roles, strict=True) if role is Role.INPUT]
            symbols = {n for _, shape in draft.partial.values() for n in shape or () if isinstance(n, str)}
            check_names(shapes, inputs, symbols, findings)
            check_lengths(shapes, findings)
        if len(findings):
            return
        self._bind_dimensions(shapes, findings)
        self._bind_inputs(shapes, findings)

    def apply(self) -> None:
        """Set the requested types of the inputs; before this call the draft is as received."""
        for v, type in self.requested.items():
            self.changed_to(v, type)
            self.draft.types[v] = type

    def touches(self, node: Node) -> bool:
        """True when the node reads a value whose type has changed."""
        return bool(self.before) and any(v in self.before for v in node.reads)

    def changed_to(self, v: int, type: TensorType) -> None:
        """Record the original type of value `v` when `type` differs from it."""
        old = self.draft.types[v]
        if old is not None and old != type:
            self.before.setdefault(v, old)

    def follow_batch(self, n: int, node: Node, inference: TypeInference) -> Node:
        """The node, reading a rewritten shape constant when it is a Reshape whose target begins with the old batch.

        The old batch is the leading length in `before` of the reshaped value.
        """
        if node.op != "Reshape" or len(node.inputs) < 2 or self.draft.roles[node.inputs[1]] is not Role.CONSTANT:
            return node
        source, target = node.inputs[0], inference.contents.get(node.inputs[1])
        old, new = self.before.get(source), self.draft.types[source]
        if (
            target is None
            or target.ndim != 1
            or not target.size
            or not old
            or not new
            or not old.shape
            or not new.shape
        ):
            return node
        if target[0] != old.shape[0] or target[0] == new.shape[0] or target[0] <= 0:
            return node
        changed = target.copy()
        changed[0] = new.shape[0]
        changed.flags.writeable = False
        return self._with_constant(n, node, changed, inference)

    def _with_constant(self, n: int, node: Node, content: np.ndarray, inference: TypeInference) -> Node:
        """The node reading a copy of its shape constant with this content."""
        draft, constant, lead = self.draft, node.inputs[1], int(content[0])
        v = self._copies.get((constant, lead))
        if v is None:
            v = self._copies[constant, lead] = draft.add_constant(constant)
            inference.contents[v] = self.constants[v] = content
        draft.nodes[n] = replace(node, inputs=(node.inputs[0], v, *node.inputs[2:]))
        return draft.nodes[n]

    def cannot_follow(self, n: int, node: Node, findings: Findings, reason: str = "") -> None:
        """Add a finding for a node whose outputs cannot be inferred under the new shapes."""
        draft = self.draft
        constants = [quoted(draft.names[v]) for v in node.inputs if v != ABSENT and draft.roles[v] is Role.CONSTANT]
        baked = f" with constant {', '.join(constants)}" if constants else ""
        reason = reason or ", whose output shapes are only declared"
        findings.add(
            "cannot_rebind",
            f"{draft.path}nodes[{n}]",
            f"{node.op} {quoted(node.name)}{baked}{reason[:400]}",
            "a node whose outputs follow the new input shapes",
            'declare the shapes with a named dimension such as "N" and bind it with --dim N=8',
        )

    def _bind_dimensions(self, shapes: ShapeOverrides, findings: Findings) -> None:
        """Bind every named dimension and complete the declarations that use it."""
        draft = self.draft
        lengths = self._dimension_lengths(shapes, findings)
        missing: dict[str, list[int]] = {}
        for v, (dtype, shape) in draft.partial.items():
            if shape is None:
                continue
            for symbol in shape:
                if isinstance(symbol, str) and symbol not in lengths:
                    missing.setdefault(symbol, []).append(v)
            bound = tuple(lengths.get(n, 0) if isinstance(n, str) else n for n in shape)
            draft.partial[v] = (dtype, bound)
            if dtype is not None:
                draft.types[v] = TensorType(dtype, bound)
        for symbol, where in missing.items():
            names = ", ".join(quoted(draft.names[v]) for v in where[:4])
            findings.add(
                "unbound_dimension",
                f"dims.{symbol[:80]}",
                f"{quoted(symbol)} without a length in {names}",
                "a length",
                f"pass --dim {symbol[:80]}=8",
            )

    def _dimension_lengths(self, shapes: ShapeOverrides, findings: Findings) -> dict[str, int]:
        """Length of each named dimension: from `dims`, then from the shapes of inputs, then from the batch."""
        draft = self.draft
        lengths = dict(shapes.dims)
        for v, (_, shape) in draft.partial.items():
            requested = shapes.inputs.get(draft.names[v]) if draft.roles[v] is Role.INPUT else None
            if shape is None or draft.roles[v] is not Role.INPUT:
                continue
            if requested is not None and len(requested) == len(shape):
                bind_symbols(draft.names[v], shape, requested, lengths, findings)
            elif requested is None and shapes.batch is not None and shape and isinstance(shape[0], str):
                lengths.setdefault(shape[0], shapes.batch)
        return lengths

    def _bind_inputs(self, shapes: ShapeOverrides, findings: Findings) -> None:
        """Collect the requested types of inputs in `requested`."""
        draft = self.draft
        if not shapes.inputs and shapes.batch is None:
            return
        for v, role in enumerate(draft.roles):
            shape = shapes.inputs.get(draft.names[v])
            type = draft.types[v]
            if role is not Role.INPUT or v in draft.captured:
                continue
            if v not in self._named_batch and shape is None and shapes.batch is not None and type is not None:
                shape = (shapes.batch, *type.shape[1:]) if type.shape else None  # named ones follow the dimensions
            if shape is None:
                continue
            if type is None:
                findings.add(
                    "cannot_rebind",
                    f"inputs.{draft.names[v]}",
                    f"{quoted(draft.names[v])}, declared in bytes only",
                    "an input with shape and dtype",
                    "declare shape and dtype of the input",
                )
            elif TensorType(type.dtype, tuple(shape)).nbytes > MAX_BYTES:
                findings.add(
                    "size_too_large",
                    f"inputs.{draft.names[v]}",
                    "x".join(map(str, shape)),
                    f"at most {MAX_BYTES:,} bytes (2^63 - 1)",
                    "correct the shape",
                )
            elif tuple(shape) != type.shape:
                self.requested[v] = TensorType(type.dtype, tuple(shape))
