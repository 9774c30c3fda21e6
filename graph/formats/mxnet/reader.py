"""Reader of MXNet symbols: shapes of variables come from hints, from the caller and from the ops that read them.

The file does not mark weights: they are recognised by the input positions of their readers and by name suffixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graph.errors import BadGraph, Findings, quoted
from graph.formats.document.decode import is_json
from graph.formats.document.schema import NodeRow
from graph.formats.mxnet import control_flow
from graph.formats.mxnet.ops import MXNET, dtype_of
from graph.formats.mxnet.shapes import role_by_name, role_by_position, shapes_of_inputs
from graph.formats.mxnet.symbol import (
    VARIABLE,
    NodeRecord,
    Symbol,
    attribute_text,
    decode,
    output_counts,
    preserved_attributes,
    recompute_of,
    value_names,
)
from graph.formats.shared.attributes import Attributes, integer_list
from graph.formats.shared.op_helpers import checked_shape
from graph.formats.shared.program import Program, declared_type
from graph.formats.shared.rows import Origin
from graph.ir import Graph, TensorType
from graph.limits import Limits, ShapeOverrides


def sniff(data: bytes) -> bool:
    """True for a JSON object with the lists of a symbol."""
    return is_json(data) and b'"nodes"' in data and b'"heads"' in data


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """Graph of a symbol. Raises BadGraph with up to ten findings."""
    symbol = decode(data, "document", limits)
    reader = SymbolReader(symbol, Program(MXNET, limits, Findings()), shapes)
    reader.program.check_input_shapes(shapes, sorted({node.name for node in symbol.nodes if node.op == VARIABLE}))
    reader.read()
    outputs = [reader.entry(head) for head in symbol.heads]
    note: dict[str, Any] = {"attrs": symbol.attrs}
    if reader.program.losses:
        note["losses"] = reader.program.losses
    return reader.program.graph("", [*outputs, *reader.program.losses], {"mxnet": note})


class SymbolReader:
    """Reads one symbol into a program; for a nested symbol, `given` are the types bound to its variables."""

    def __init__(
        self,
        symbol: Symbol,
        program: Program,
        shapes: ShapeOverrides,
        given: Mapping[int, TensorType | None] | None = None,
    ):
        self.symbol, self.program, self.shapes, self.given = symbol, program, shapes, given
        self.batch = shapes.batch
        self.counts = output_counts(symbol)
        self.names = value_names(symbol, self.counts)
        self.roles = self._roles()
        self.last_row: list[str] = []  # per node the name of its last row; "" for variables

    def nested(self, symbol: Symbol, program: Program, given: Mapping[int, TensorType | None]) -> SymbolReader:
        """Reader of a symbol nested in an op; `given` are the types bound to its variables."""
        return SymbolReader(symbol, program, self.shapes, given)

    def entry(self, entry: Sequence[int]) -> str:
        """Name of the value of an input or head entry."""
        return self.names[entry[0], entry[1]]

    def read(self) -> None:
        """Add all nodes to the program. Raises BadGraph."""
        hints = _listed_types(self.symbol, self.names)
        stated: dict[str, Sequence[int]] = {}
        if not self._is_reshaped(hints):
            stated = {name: [length or -1 for length in type.shape] for name, type in hints.items()}
        for n, node in enumerate(self.symbol.nodes):
            if node.op == VARIABLE:
                self._variable(n, node, hints)
                self.last_row.append("")
                continue
            inputs = [self.entry(entry) for entry in node.inputs]
            self._fill(n, node, inputs)
            rows = self._node(n, node, inputs, hints if stated else {}, stated)
            self._after(node, rows)
            self.last_row.append(rows[-1].name)
        for n, node in enumerate(self.symbol.nodes):
            name = self.names[n, 0] if node.op == VARIABLE else ""
            if name and self.program.types[name] is None and self.given is None:
                self.program.untyped(name, "the ops that read it")

    def _is_reshaped(self, hints: Mapping[str, TensorType]) -> bool:
        """True when the caller gives a variable another shape than a compiled graph lists."""
        variables = [(n, self.names[n, 0]) for n, node in enumerate(self.symbol.nodes) if node.op == VARIABLE]
        listed = [(n, name, hints[name].shape) for n, name in variables if name in hints]
        return any(self.shapes.inputs.get(name, self._with_batch(n, shape)) != shape for n, name, shape in listed)

    def _with_batch(self, n: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of a variable with the caller's batch, if it is an input: at `N` of its layout, by default in front."""
        at = max(str(self.symbol.nodes[n].attributes.get("__layout__", "N")).find("N"), 0)
        if self.roles[n] != "input" or self.shapes.batch is None or at >= len(shape):
            return shape
        return (*shape[:at], self.shapes.batch, *shape[at + 1 :])

    def _variable(self, n: int, node: NodeRecord, hints: Mapping[str, TensorType]) -> None:
        name, attributes = self.names[n, 0], node.attributes
        if self.given is not None:
            self.program.types[name] = self.given.get(n)
            return
        kept = {k: attribute_text(v) for k, v in attributes.items() if k not in ("__shape__", "__dtype__", "__role__")}
        annotations = {"mxnet": {"attributes": kept}} if kept else None
        type = hints.get(name)
        if type is None or name in self.shapes.inputs:
            type = self._hinted(n, name, attributes)
        else:
            type = TensorType(type.dtype, self._with_batch(n, type.shape))
        role = str(attributes.get("__role__", self.roles[n]))
        role = role if role in ("input", "parameter", "state", "constant") else self.roles[n]
        self.program.give(name, type, role, annotations=annotations)

    def _hinted(self, n: int, name: str, attributes: Mapping[str, Any]) -> TensorType | None:
        """Type from the caller or the file, None without one; a length of 0 is unknown and filled by the batch."""
        try:
            dtype = dtype_of(str(attributes.get("__dtype__", "float32")))
        except ValueError as error:
            raise BadGraph.one(
                "unknown_dtype",
                f"{quoted(name)}.__dtype__",
                str(error),
                "an MXNet dtype number or name",
                "correct the attribute",
            ) from None
        if name in self.shapes.inputs:
            shape = self.shapes.inputs[name]
        elif "__shape__" in attributes:
            try:
                shape = integer_list(attributes["__shape__"])
            except (ValueError, TypeError, OverflowError):
                raise BadGraph.one(
                    "bad_attribute",
                    f"{quoted(name)}.__shape__",
                    str(attributes["__shape__"])[:80],
                    "lengths",
                    "correct the attribute",
                ) from None
            shape = self._with_batch(n, shape)
            if any(length <= 0 for length in shape):
                return None
        else:
            return None
        if self.roles[n] == "input" and self.batch is None and shape:
            self.batch = shape[0]
        return declared_type(name, dtype, shape)

    def _fill(self, n: int, node: NodeRecord, inputs: Sequence[str]) -> None:
        """Set the types of variables that follow from this op."""
        program = self.program
        known = [program.types.get(name) for name in inputs]
        if all(t is not None for t in known):
            return
        try:
            shapes = shapes_of_inputs(node.op, Attributes(node.attributes), known)
        except (ValueError, LookupError) as error:
            raise BadGraph.one(
                "bad_attribute",
                f"nodes[{n}]",
                f"{node.op} {quoted(node.name)}: {str(error)[:120]}",
                "attributes the op takes",
                "save the symbol again",
            ) from None
        default = next((t.dtype for t in known if t is not None and t.dtype.startswith("float")), "float32")
        for (source, _, *_), name, type, shape in zip(node.inputs, inputs, known, shapes, strict=True):
            record = self.symbol.nodes[source]
            if type is None and shape is not None and record.op == VARIABLE and self.given is None:
                dtype = record.attributes.get("__dtype__")
                inferred = TensorType(default if dtype is None else dtype_of(str(dtype)), shape)
                row = program.values[name]
                row.shape, row.dtype, program.types[name] = list(shape), inferred.dtype, inferred

    def _node(
        self,
        n: int,
        node: NodeRecord,
        inputs: list[str],
        hints: Mapping[str, TensorType],
        stated: Mapping[str, Sequence[int]],
    ) -> list[NodeRow]:
        attributes = node.attributes
        outputs = [self.names[n, k] for k in range(self.counts[n])]
        recompute = recompute_of(attributes)
        if node.subgraphs:
            return control_flow.control_flow_rows(self, node, inputs, outputs)
        parameters = node.parameters
        if node.op in ("_zeros", "_ones", "_full") and self.batch is not None and "shape" in parameters:
            shape = Attributes(parameters).integers("shape")
            parameters["shape"] = [self.batch if length == 0 else length for length in shape]
        return self.program.op(
            node.op,
            node.name,
            inputs,
            outputs,
            parameters,
            declared=[hints.get(name) for name in outputs],
            stated=[stated.get(name) for name in outputs],
            phase="backward" if node.op.startswith("_backward") else "forward",
            origin=Origin("", node.op, node.name, preserved_attributes(attributes), list(inputs), list(outputs)),
            fields={} if recompute is None else {"recompute": recompute},
        )

    def _after(self, node: NodeRecord, rows: list[NodeRow]) -> None:
        """Add control dependencies: the first row runs after the last row of each."""
        waits = [self.last_row[dep] for dep in node.control_deps if self.last_row[dep]]
        if waits:
            rows[0].after = list(dict.fromkeys([*rows[0].after, *waits]))

    def _roles(self) -> list[str]:
        """Per node its role as a variable."""
        nodes = self.symbol.nodes
        roles = [role_by_name(node.name) if node.op == VARIABLE else "" for node in nodes]
        for n, node in enumerate(nodes):
            if node.op == VARIABLE and {"__lr_mult__", "__wd_mult__", "__init__"} & node.attributes.keys():
                roles[n] = "parameter" if roles[n] == "input" else roles[n]
        for node in nodes:
            for place, (source, *_) in enumerate(node.inputs):
                if roles[source] == "input":
                    roles[source] = role_by_position(node.op, place)
        return roles


def _listed_types(symbol: Symbol, names: Mapping[tuple[int, int], str]) -> dict[str, TensorType]:
    """Types by name from the lists `shape` and `dtype` of a compiled graph, one entry per output."""
    shapes, dtypes = symbol.attrs.get("shape"), symbol.attrs.get("dtype")
    if not (isinstance(shapes, list) and len(shapes) == 2 and isinstance(shapes[1], list)):
        return {}
    words = dtypes[1] if isinstance(dtypes, list) and len(dtypes) == 2 and isinstance(dtypes[1], list) else []
    row = symbol.node_row_ptr
    found = {}
    for (n, k), name in names.items():
        at = row[n] + k if n < len(row) else n
        if not 0 <= at < len(shapes[1]):
            continue
        try:
            dtype = dtype_of(str(words[at])) if at < len(words) else "float32"
            found[name] = TensorType(dtype, checked_shape(integer_list(shapes[1][at])))
        except (ValueError, TypeError, OverflowError):
            continue
    return found
