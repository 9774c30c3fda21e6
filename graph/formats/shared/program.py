"""A program of another framework under conversion to a document: ops in order, and the current type of each name.

Names are mutable: the type of a name is that of its latest write. Unknown types are collected and reported together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from graph.errors import BadGraph, Findings, quoted
from graph.formats.document.schema import ROWS, Document, NodeRow, ValueRow
from graph.formats.document.shape_overrides import check_names
from graph.formats.document.tensor_content import encode_array, write_attributes
from graph.formats.native.rows import graph_of
from graph.formats.shared.op_helpers import checked_shape
from graph.formats.shared.op_table import OpTable, Translation, Untranslated
from graph.formats.shared.rows import Origin, mark_origin, translation_rows
from graph.ir import IMPORT_WARNINGS, Graph, TensorType
from graph.ir.names import reserve_name
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry.onnx_fallback import numpy_dtype, type_of_array

#: Shape in a file; a length below 0 is unknown.
Lengths = Sequence[int]


@dataclass(frozen=True, slots=True)
class _Call:
    """One op of the program by the names it reads and writes."""

    type: str
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    declared: tuple[TensorType | None, ...]  # types of the leading outputs, where nothing infers them
    stated: Sequence[Lengths | None]  # shapes of the leading outputs in the file
    phase: str

    def declared_type(self, output: int) -> TensorType | None:
        return self.declared[output] if output < len(self.declared) else None


class Program:
    """Values and nodes of one block. `nested` programs share limits, findings, node names and translations."""

    def __init__(self, table: OpTable, limits: Limits, findings: Findings, outer: Program | None = None):
        self.table, self.limits, self.findings = table, limits, findings
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.values: dict[str, ValueRow] = {}
        self.nodes: list[NodeRow] = []
        self.types: dict[str, TensorType | None] = {}  # of the latest version; None: unknown
        self.contents: dict[str, np.ndarray] = {}  # constants by name
        self.losses: list[str] = []  # names of loss values added by translations
        self.warnings: dict[str, None] = {} if outer is None else outer.warnings  # on ops that stay opaque
        self._names: set[str] = set() if outer is None else outer._names
        self._translations: dict[bytes, Translation | Untranslated] = {} if outer is None else outer._translations
        if self.depth > limits.depth:
            raise BadGraph.one(
                "too_deep", "document", f"nested graphs {self.depth} deep", f"at most {limits.depth}", "flatten them"
            )

    def nested(self) -> Program:
        """An empty program for a nested graph."""
        return Program(self.table, self.limits, self.findings, self)

    def give(
        self,
        name: str,
        type: TensorType | None,
        role: str = "input",
        *,
        data: np.ndarray | None = None,
        annotations: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a value that exists before the program runs."""
        row = ValueRow(name, role=role, annotations=dict(annotations) if annotations else None)  # type: ignore[arg-type]
        if type is not None:
            row.shape, row.dtype = list(type.shape), type.dtype
        if data is not None:
            row.data = encode_array(data)
            self.contents[name] = data
        self.values[name] = row
        self.types[name] = type

    def op(
        self,
        type: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
        *,
        declared: Sequence[TensorType | None] = (),
        stated: Sequence[Lengths | None] = (),
        phase: str = "forward",
        origin: Origin | None = None,
        fields: Mapping[str, Any] | None = None,
        unmapped: str = "",
    ) -> list[NodeRow]:
        """Add an op by the names it reads and writes ("" where absent); its rows. `fields` are set on each row.

        An op without a translation, with an input of unknown type, or with a reason `unmapped` stays opaque and gets
        the types `declared`.
        `stated` are the shapes of the outputs in the file. Raises BadGraph where a translation gives another shape.
        """
        call = _Call(type, self.free_name(name or type), inputs, outputs, attributes, tuple(declared), stated, phase)
        is_translated = self._typed(inputs) and not unmapped
        translation = self._translated(call) if is_translated else Untranslated(unmapped)
        if isinstance(translation, Translation):
            rows = self._translation_rows(call, translation)
        else:
            rows = [self._opaque(call, translation.reason)]
        origin = origin or Origin("", type, call.name, dict(attributes), list(inputs), list(outputs))
        origin.id = call.name
        mark_origin(rows, self.table.framework, origin, self.values)
        for row in rows:
            for field, value in (fields or {}).items():
                setattr(row, field, value)
        self.nodes += rows
        return rows

    def add(self, row: NodeRow, types: Sequence[TensorType | None]) -> None:
        """Add a finished row, such as one with bodies; `types` are those of its outputs."""
        row.name = self.free_name(row.name)
        for output, type in zip(row.outputs, types, strict=False):
            if output:
                self.types[output] = type
        self.nodes.append(row)

    def free_name(self, name: str) -> str:
        """The node name, reserved; `name/1`, `name/2`, ... when taken."""
        return reserve_name(name, self._names)

    def untyped(self, value: str, source: str) -> None:
        """Report a value of unknown type; `source` is the place where its type was expected."""
        self.findings.add(
            "unknown_size",
            f"{self.table.framework} value {quoted(value)}",
            f"no shape given, and none follows from {source}",
            "a shape and an element type",
            "give its shape with --input NAME=SHAPE, or in the file",
        )

    def check_input_shapes(self, shapes: ShapeOverrides, names: Sequence[str]) -> None:
        """Raise BadGraph for shapes of unknown inputs, and for named dimensions, which these formats lack."""
        check_names(shapes, names, (), self.findings)
        self.findings.settle()

    def as_bool(self, condition: str, name: str) -> str:
        """Name of the condition as a scalar bool, as If and Loop require; adds a reshape and a cast where needed."""
        type = self.types.get(condition)
        if type is None or type == TensorType("bool", ()):
            return condition
        scalar = condition
        if type.shape:
            scalar, shape = f"{name}/one", self.constant(f"{name}/scalar", np.zeros(0, np.int64))
            self.add(NodeRow(f"{name}/flat", "Reshape", [condition, shape], [scalar]), [TensorType(type.dtype, ())])
        if type.dtype != "bool":
            row = NodeRow(f"{name}/cast", "Cast", [scalar], [f"{name}/holds"], {"to": 9})
            self.add(row, [TensorType("bool", ())])
            scalar = f"{name}/holds"
        return scalar

    def constant(self, name: str, data: np.ndarray) -> str:
        type = type_of_array(data)
        self.values[name] = ValueRow(name, list(type.shape), type.dtype, "constant", data=encode_array(data))
        self.types[name] = type
        return name

    def document(self, name: str, outputs: Sequence[str], inputs: Sequence[str] | None = None) -> Document:
        """The program as a document with mutable names. Raises BadGraph with the findings collected."""
        self.findings.settle()
        return Document(
            ROWS,
            list(self.values.values()),
            self.nodes,
            list(dict.fromkeys(outputs)),
            name,
            {"": 21},
            naming="mutable",
            inputs=None if inputs is None else list(inputs),
        )

    def graph(self, name: str, outputs: Sequence[str], annotations: Mapping[str, Any]) -> Graph:
        """The program as a graph in SSA form. Raises BadGraph."""
        document = self.document(name, outputs)
        warnings = {IMPORT_WARNINGS: list(self.warnings)} if self.warnings else {}
        document.annotations = {**annotations, **warnings} or None
        return graph_of(document, self.limits, ShapeOverrides(), 0)

    def _typed(self, inputs: Sequence[str]) -> bool:
        """True when every present input has a known type."""
        return all(not v or self.types.get(v) is not None for v in inputs)

    def _translation_rows(self, call: _Call, translation: Translation) -> list[NodeRow]:
        """Rows of a translated op, with the types of its outputs and losses recorded."""
        losses = [f"{call.name}_loss{i or ''}" for i in range(len(translation.losses))]
        self.losses += losses
        values, rows = translation_rows(
            translation, call.name, call.inputs, call.outputs, losses=losses, phase=call.phase, types=self.types
        )
        self.values.update((value.name, value) for value in values)
        self._check_shapes(call, translation)
        for v, output in zip((*translation.outputs, *translation.losses), (*call.outputs, *losses), strict=True):
            if output and v is not None:
                self.types[output] = translation.graph.values[v].type
                self._declare_if_opaque(translation, v, output)
            elif output:
                rows.insert(0, self._absent_output(call, output, len(rows)))
        return rows

    def _check_shapes(self, call: _Call, translation: Translation) -> None:
        for v, output, stated in zip(translation.outputs, call.outputs, call.stated, strict=False):
            type = None if v is None else translation.graph.values[v].type
            if type is None or stated is None or not output:
                continue
            if len(stated) != len(type.shape) or any(a != b for a, b in zip(stated, type.shape, strict=True) if a >= 0):
                raise BadGraph.one(
                    "type_conflict",
                    f"{self.table.framework} op {quoted(call.name)}",
                    f"{call.type} gives {quoted(output)} the shape {list(type.shape)}; the file states {list(stated)}",
                    "one shape",
                    "correct the attributes or the inputs of this op, or the stated shape",
                )

    def _absent_output(self, call: _Call, output: str, k: int) -> NodeRow:
        """Empty tensor for an output that the translation lacks, such as a saved shape."""
        known = call.declared_type(list(call.outputs).index(output))
        type = known if known is not None and not known.elements else TensorType("int64", (0,))
        self.types[output] = type
        shape = self.constant(f"{call.name}/none{k}", np.array(type.shape, np.int64))
        return NodeRow(f"{call.name}/none{k}", "ConstantOfShape", [shape], [output], {"value": zero_tensor(type.dtype)})

    def _translated(self, call: _Call) -> Translation | Untranslated:
        """Translation of an op; without constant inputs it is cached by op, attributes and types."""
        types = [self.types[v] if v else None for v in call.inputs]
        contents = [self.contents.get(v) for v in call.inputs]
        count = len(call.outputs)
        if any(c is not None for c in contents):
            return self.table.translate(
                call.type,
                call.attributes,
                types,
                name=call.name,
                outputs=count,
                declared=call.declared,
                contents=contents,
            )
        declared = [str(t) for t in call.declared]
        use = (call.type, sorted(call.attributes.items()), [str(t) for t in types], count, declared)
        key = msgspec.json.encode(use, enc_hook=str)
        if key not in self._translations:
            self._translations[key] = self.table.translate(
                call.type, call.attributes, types, name=call.name, outputs=count, declared=call.declared
            )
        return self._translations[key]

    def _opaque(self, call: _Call, reason: str) -> NodeRow:
        typed = self._typed(call.inputs)
        if reason:
            self.warnings[
                f"{call.type} {quoted(call.name)} is planned but has no gradient and cannot run: {reason}"
            ] = None
        for i, output in enumerate(call.outputs):
            if not output:
                continue
            known = self.types[output] = call.declared_type(i)
            if known is not None:
                row = self.values.setdefault(output, ValueRow(output))
                if row.role == "activation":
                    row.shape, row.dtype = list(known.shape), known.dtype
            elif typed:
                self.untyped(output, f"op {quoted(call.type)}")
        op, attributes = f"{self.table.framework}::{call.type}", plain_attributes(call.attributes) or None
        return NodeRow(call.name, op, list(call.inputs), list(call.outputs), attributes, call.phase)  # type: ignore[arg-type]

    def _declare_if_opaque(self, translation: Translation, v: int, output: str) -> None:
        type = translation.graph.values[v].type
        node = next(node for node in translation.graph.nodes if v in node.writes)
        if "::" in node.op and type is not None and output not in self.values:
            self.values[output] = ValueRow(output, list(type.shape), type.dtype)


def declared_type(name: str, dtype: str, shape: Sequence[int]) -> TensorType:
    """Type of a value declared by the file or the caller. Raises BadGraph for lengths out of range."""
    try:
        return TensorType(dtype, checked_shape(shape))
    except ValueError as error:
        raise BadGraph.one(
            "size_too_large",
            f"value {quoted(name)}",
            str(error),
            "lengths from 0 to 2^31 - 1, less than 2^60 in all",
            "correct the shape",
        ) from None


def zero_tensor(dtype: str) -> dict[str, Any]:
    """Tensor attribute with a single zero, as in a document."""
    tensor: dict[str, Any] = write_attributes({"value": np.zeros(1, numpy_dtype(dtype))})["value"]
    return tensor


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that a document can hold; nested graphs and other messages are left out."""
    kinds = (str, int, float, bool, list, tuple, bytes)
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, value in attributes.items()
        if isinstance(value, kinds)
    }
