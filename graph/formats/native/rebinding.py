"""Shapes a caller sets on a document that declares others, and how far the document follows.

x: [N, 784], --dim N=8          every declared N is 8
x: [64, 784], --batch 8         x is [8, 784]; what ops make of it is inferred again
Reshape(x, constant [64, 28, 28])       the leading 64 was the batch: the constant follows
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from graph.errors import Findings, quoted
from graph.formats.document.faults import did_you_mean
from graph.ir import ABSENT, MAX_BYTES, Node, Role, TensorType
from graph.limits import ShapeOverrides

if TYPE_CHECKING:
    from graph.formats.document.type_inference import TypeInference
    from graph.formats.native.draft import Draft


class ShapeRebinding:
    """The change from declared to asked shapes. Making one binds dimensions and inputs of the draft."""

    def __init__(self, draft: Draft, shapes: ShapeOverrides, findings: Findings):
        self.draft = draft
        self.asked: dict[int, TensorType] = {}  # inputs that get another type
        self.before: dict[int, TensorType] = {}  # values whose type has changed so far -> what it was
        self.constants: dict[int, np.ndarray] = {}  # shape constants that followed
        self._copies: dict[tuple[int, int], int] = {}  # (constant, leading length) -> the one that followed
        if shapes.inputs or shapes.dims or shapes.batch is not None:
            _names_exist(draft, shapes, findings)
        if len(findings):
            return
        self._bind_dimensions(shapes, findings)
        self._bind_inputs(shapes, findings)

    def apply(self) -> None:
        """Give the inputs the types asked for; until then the draft is as it was sent."""
        for v, type in self.asked.items():
            self.changed_to(v, type)
            self.draft.types[v] = type

    def touches(self, node: Node) -> bool:
        """True when the node reads something of another type than the document declares."""
        return bool(self.before) and any(v in self.before for v in node.reads)

    def changed_to(self, v: int, type: TensorType) -> None:
        """Take note that value `v` gets this type instead of the one it had as sent."""
        old = self.draft.types[v]
        if old is not None and old != type:
            self.before.setdefault(v, old)

    def follow_batch(self, n: int, node: Node, inference: TypeInference) -> Node:
        """The node; the leading length of a constant shape it reshapes to becomes the new batch.

        `before` knows what the source was: [64, ...] then and a target that begins with 64 means the batch.
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
        """The node reading a constant of its own with this content."""
        draft, constant, lead = self.draft, node.inputs[1], int(content[0])
        v = self._copies.get((constant, lead))
        if v is None:
            v = self._copies[constant, lead] = draft.add_constant(constant)
            inference.contents[v] = self.constants[v] = content
        draft.nodes[n] = replace(node, inputs=(node.inputs[0], v, *node.inputs[2:]))
        return draft.nodes[n]

    def cannot_follow(self, n: int, node: Node, findings: Findings, why: str = "") -> None:
        """Collect a node whose outputs under the new shapes nobody can tell."""
        draft = self.draft
        constants = [quoted(draft.names[v]) for v in node.inputs if v != ABSENT and draft.roles[v] is Role.CONSTANT]
        baked = f" with constant {', '.join(constants)}" if constants else ""
        reason = why or ", whose outputs only the document knows"
        findings.add(
            "cannot_rebind",
            f"{draft.path}nodes[{n}]",
            f"{node.op} {quoted(node.name)}{baked}{reason[:400]}",
            "a node whose outputs follow the new input shapes",
            'declare the shapes with a named dimension such as "N" and bind it with --dim N=8',
        )

    def _bind_dimensions(self, shapes: ShapeOverrides, findings: Findings) -> None:
        """Give every named dimension its length and complete the declarations that use it."""
        draft = self.draft
        lengths = dict(shapes.dims)
        for v, (_, shape) in draft.partial.items():
            asked = shapes.inputs.get(draft.names[v]) if draft.roles[v] is Role.INPUT else None
            if shape is None or draft.roles[v] is not Role.INPUT:
                continue
            if asked is not None and len(asked) == len(shape):
                for symbol, length in zip(shape, asked, strict=True):
                    if isinstance(symbol, str) and lengths.setdefault(symbol, length) != length:
                        findings.add(
                            "dimension_conflict",
                            f"inputs.{draft.names[v]}",
                            f"{length} for dimension {quoted(symbol)}",
                            f"{lengths[symbol]}, as said elsewhere",
                            "give the dimension one length",
                        )
            elif asked is None and shapes.batch is not None and shape and isinstance(shape[0], str):
                lengths.setdefault(shape[0], shapes.batch)
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
                f"say --dim {symbol[:80]}=8",
            )

    def _bind_inputs(self, shapes: ShapeOverrides, findings: Findings) -> None:
        """Give inputs the shapes asked for."""
        draft = self.draft
        led = shapes.batch is None
        for v, role in enumerate(draft.roles):
            asked = shapes.inputs.get(draft.names[v])
            type = draft.types[v]
            if role is not Role.INPUT or v in draft.captured:
                continue
            if asked is None and shapes.batch is not None and type is not None and type.shape:
                asked, led = (shapes.batch, *type.shape[1:]), True
            if asked is None:
                continue
            if type is None:
                findings.add(
                    "cannot_rebind",
                    f"inputs.{draft.names[v]}",
                    f"{quoted(draft.names[v])}, of which only bytes are known",
                    "an input with shape and dtype",
                    "declare shape and dtype of the input",
                )
            elif TensorType(type.dtype, tuple(asked)).nbytes > MAX_BYTES:
                findings.add(
                    "size_too_large",
                    f"inputs.{draft.names[v]}",
                    "x".join(map(str, asked)),
                    f"at most {MAX_BYTES} bytes (2^63 - 1)",
                    "correct the shape",
                )
            elif tuple(asked) != type.shape:
                self.asked[v] = TensorType(type.dtype, tuple(asked))
        if not led and not any(v in draft.partial for v in range(len(draft.names))):
            findings.add(
                "cannot_rebind", "batch", str(shapes.batch), "an input with a leading length", "leave the batch out"
            )


def _names_exist(draft: Draft, shapes: ShapeOverrides, findings: Findings) -> None:
    inputs = [name for name, role in zip(draft.names, draft.roles, strict=True) if role is Role.INPUT]
    symbols = {n for _, shape in draft.partial.values() for n in shape or () if isinstance(n, str)}
    for name in shapes.inputs:
        if name not in inputs:
            findings.add(
                "unknown_input",
                f"inputs.{name}",
                f"{quoted(name)}, which is no input of the model",
                "one of " + ", ".join(map(quoted, inputs[:8])),
                did_you_mean(name, inputs, "correct the name"),
            )
    for name in shapes.dims:
        if name not in symbols:
            findings.add(
                "unknown_dimension",
                f"dims.{name}",
                f"{quoted(name)}, which is no dimension of the document",
                "one of " + ", ".join(map(quoted, sorted(symbols)[:8])) if symbols else "nothing: lengths are numbers",
                did_you_mean(name, symbols, "correct the name, or give the shape with --input NAME=16x3x224x224"),
            )
    for path, length in shapes.lengths():
        if length < 0:
            findings.add("negative_size", path, str(length), "a length of 0 or more", "correct it")
