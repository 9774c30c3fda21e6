"""Reader of Paddle 3.x programs (PIR in JSON).

{"base_code": {"magic": "pir", "version": 1}, "program": {"regions": [{"#": "region_0", "blocks": [{"#": "block_0",
  "args": [], "ops": [{"#": "1.matmul", "I": [{"%": 1}, {"%": 2}], "O": [{"%": 3, "TT": {"#": "0.t_dtensor",
  "D": [{"#": "0.t_f32"}, [32, 10], "NCHW", [], 0]}}],
  "A": [{"N": "transpose_x", "AT": {"#": "0.a_bool", "D": false}}]}]}]}]}}

Values are numbered; `p` is a parameter, `data` an input. Lists such as axes and shapes are results of constant ops.
Source: paddle/fluid/pir/serialize_deserialize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from graph.errors import BadGraph, Findings, quoted
from graph.formats.document.schema import NodeRow
from graph.formats.paddle.ops import PADDLE
from graph.formats.paddle.pir_ops import CONSTANTS, translated
from graph.formats.shared.blocks import Block, CarriedState, add_if, add_loop
from graph.formats.shared.op_helpers import checked_shape
from graph.formats.shared.program import Program
from graph.formats.shared.rows import Origin, mark_origin
from graph.ir import DTYPE_BITS, Graph, TensorType
from graph.limits import Limits, ShapeOverrides

_TYPES = {
    "t_bf16": "bfloat16",
    "t_f16": "float16",
    "t_f32": "float32",
    "t_f64": "float64",
    "t_i8": "int8",
    "t_u8": "uint8",
    "t_ui8": "uint8",
    "t_i16": "int16",
    "t_i32": "int32",
    "t_i64": "int64",
    "t_bool": "bool",
    "t_c64": "complex64",
    "t_c128": "complex128",
    "t_f8e4m3fn": "float8e4m3fn",
    "t_f8e5m2": "float8e5m2",
    "t_index": "int64",
}
PARAMETER, YIELD = "p", "yield"
CHECKPOINT = "recompute_checkpoint"
MAX_ELEMENTS = 4096  # of a vector of values


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """The graph of a program in JSON. Raises BadGraph with up to ten findings."""
    try:
        document = msgspec.json.decode(data)
    except RecursionError:
        raise BadGraph.one(
            "too_deep", "document", "objects nested hundreds deep", "a program", "export it again"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise BadGraph.one("not_parseable", "document", str(error), "JSON", "send the whole file") from None
    try:
        (region, *_) = document["program"]["regions"]
        (block, *_) = region["blocks"]
        reader = PirReader(Program(PADDLE, limits, Findings()), shapes)
        if len(block["ops"]) > limits.nodes:
            raise BadGraph.one("too_many_nodes", "ops", f"{len(block['ops'])}", f"at most {limits.nodes}", "send less")
        reader.declare_externals(block)
        reader.ops(block["ops"], reader.program)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise BadGraph.one(
            "not_a_model",
            "program",
            f"no {str(error)[:120]}" if isinstance(error, KeyError) else "a part of the wrong form",
            "a program as Paddle 3 saves it",
            "export the program again",
        ) from None
    rest = {key: value for key, value in document.items() if key != "program"}
    note: dict[str, Any] = {"paddle": {"json": rest, "ops": reader.skeleton, "outputs": reader.outputs()}}
    if reader.checkpoints:
        note["checkpoints"] = reader.checkpoints
    return reader.program.graph("", reader.outputs(), note)


def attributes_of(op: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an op as plain data."""
    found = {}
    for entry in op.get("A", ()):
        if isinstance(entry, Mapping) and "N" in entry:
            found[str(entry["N"])] = _plain(entry.get("AT", {}), 0)
    return found


def _plain(attribute: Any, depth: int) -> Any:
    if not isinstance(attribute, Mapping) or depth > 16:
        return None
    data = attribute.get("D")
    if isinstance(data, list) and data and all(isinstance(item, Mapping) for item in data):
        return [_plain(item, depth + 1) for item in data]
    return data


@dataclass(frozen=True, slots=True)
class PirOp:
    """One op of a block."""

    source: Mapping[str, Any]  # as in the file
    type: str  # without the dialect
    operands: list[int]
    outputs: list[Mapping[str, Any]]

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> PirOp:
        """Raises KeyError, TypeError, ValueError."""
        outputs = source["O"] if isinstance(source["O"], list) else [source["O"]]
        operands = [int(entry["%"]) for entry in source.get("I", ())]
        return cls(source, str(source["#"]).partition(".")[2], operands, outputs)

    @property
    def results(self) -> list[int]:
        """Value numbers of the outputs."""
        return [int(output["%"]) for output in self.outputs]


class PirReader:
    """Reads the ops of a block and of its nested regions."""

    def __init__(self, program: Program, shapes: ShapeOverrides):
        self.program, self.shapes = program, shapes
        self.names: dict[int, str] = {}
        self.lists: dict[int, list[int]] = {}  # value that combines several -> these
        self.constants: dict[int, Any] = {}
        self.fetched: list[str] = []
        self.checkpoints: list[str] = []
        self.skeleton: list[dict[str, Any]] = []  # ops of the outermost block, for the writer
        self.is_reshaped = False  # the caller gives an input another shape than the program
        self.read: set[str] = set()
        self.written: list[str] = []

    def declare_externals(self, block: Mapping[str, Any]) -> None:
        """Declare the parameters and inputs. Raises BadGraph."""
        inputs: list[str] = []
        for op in block["ops"]:
            kind = str(op["#"])
            if kind == PARAMETER:
                name = str(op["A"][3])
                self._declare(op, name, "parameter" if op["A"][1] else "state")
            elif kind.partition(".")[2] in ("data", "feed"):
                name = str(attributes_of(op).get("name", f"input{len(inputs)}"))
                inputs.append(name)
                self._declare(op, name, "input")
        self.program.check_input_shapes(self.shapes, inputs)

    def _declare(self, op: Mapping[str, Any], name: str, role: str) -> None:
        (out, *_) = op["O"] if isinstance(op["O"], list) else [op["O"]]
        dtype, dims = _declared(out["TT"])
        stated = list(dims)
        if name in self.shapes.inputs:
            dims = list(self.shapes.inputs[name])
        elif role == "input" and dims and self.shapes.batch is not None:
            dims[0] = self.shapes.batch
        if len(dims) != len(stated) or any(n not in (-1, m) for n, m in zip(stated, dims, strict=True)):
            self.is_reshaped = True
        type = None
        if dtype is None or any(n < 0 for n in dims):
            self.program.untyped(name, f"the program ({dims})")
        else:
            type = TensorType(dtype, checked_shape(dims))
        self.names[out["%"]] = name
        self.program.give(name, type, role)
        if role == "input" and any(_flag(entry, "stop_gradient") for entry in op.get("OA", ())):
            self.program.values[name].stop_gradient = True

    def ops(self, ops: Sequence[Mapping[str, Any]], program: Program) -> list[int]:
        """Add ops in order; the value numbers returned by a final yield. Raises BadGraph."""
        for source in ops:
            kind = str(source["#"])
            type = kind.partition(".")[2]
            if kind == PARAMETER or type in ("data", "feed"):
                if program is self.program:
                    name = self.names[PirOp.of(source).results[0]]
                    self.skeleton.append({"given": name, "op": dict(source)})
                continue
            if type == YIELD:
                return [int(entry["%"]) for entry in source.get("I", ())]
            before = len(program.nodes)
            self._op(PirOp.of(source), program)
            self._keep(source, program.nodes[before:], program)
        return []

    def _keep(self, source: Mapping[str, Any], rows: Sequence[NodeRow], program: Program) -> None:
        """Record an op of the outermost block for the writer: as is, or by the name of its last row."""
        if program is self.program:
            entry = {"group": rows[-1].name} if rows else dict(source)
            if str(source["#"]).partition(".")[2] in CONSTANTS:
                entry = {**entry, "op": dict(source)}  # stays when a pass removes its node: ops refer to its number
            self.skeleton.append(entry)

    def _op(self, op: PirOp, program: Program) -> None:
        attributes, results = attributes_of(op.source), op.results
        if op.type in ("fetch", "shadow_output"):
            self.fetched += [self._name(v) for v in op.operands]
        elif op.type == "combine":
            self.lists[results[0]] = op.operands
        elif self._reads_list(op):
            values = self.lists[op.operands[0]]
            selected = values if op.type == "split" else [values[int(attributes.get("index", 0))]]
            self.names.update((v, self._name(source)) for v, source in zip(results, selected, strict=False))
        else:
            if op.type in CONSTANTS and not op.operands:
                self.constants[results[0]] = attributes.get("value")
            for output, v in zip(op.outputs, results, strict=True):
                is_null = output.get("TT", {}).get("#") == "NULL"
                self.names[v] = "" if is_null else f"{op.type.rstrip('_')}_{v}"
            if "regions" in op.source:
                self._regions(op, program)
            else:
                self._plain_op(op, attributes, program)

    def _reads_list(self, op: PirOp) -> bool:
        """True for a builtin op that takes elements out of a combined value."""
        if op.type not in ("split", "slice") or not str(op.source["#"]).startswith("0."):
            return False
        return bool(op.operands) and op.operands[0] in self.lists

    def _plain_op(self, op: PirOp, attributes: dict[str, Any], program: Program) -> None:
        phase = "forward"
        if op.type.endswith("_grad") or int(attributes.get("op_role", 0) or 0) & 1:
            phase = "backward"
        type, operands, attributes, order = translated(op.type, op.operands, attributes, self.constants)
        inputs = [self._name(v) if v >= 0 else "" for operand in operands for v in self.lists.get(operand, [operand])]
        outputs, given = self._outputs(op)
        if order is not None:
            outputs, given = [outputs[i] for i in order], [given[i] for i in order]
        declared = [None if type is None else self._type(type) for type in given]
        stated = [None if type is None or self.is_reshaped else _stated_shape(type) for type in given]
        written = [name for name in outputs if name]
        self.read.update(inputs)
        self.written += written
        name, origin = next(iter(written), op.type), Origin("", op.type, "", {"json": dict(op.source)}, inputs, outputs)
        rows = program.op(
            type, name, inputs, outputs, attributes, declared=declared, stated=stated, phase=phase, origin=origin
        )
        for row in rows:
            row.phase = phase  # type: ignore[assignment]
        if attributes.get(CHECKPOINT):
            self.checkpoints += written

    def _outputs(self, op: PirOp) -> tuple[list[str], list[Mapping[str, Any] | None]]:
        """(names, types in the file) of the outputs; an output that is a vector becomes one value per element."""
        names: list[str] = []
        types: list[Mapping[str, Any] | None] = []
        for output, v in zip(op.outputs, op.results, strict=True):
            type = output.get("TT", {})
            if type.get("#", "").endswith("t_vec"):
                elements = type["D"][:MAX_ELEMENTS]
                self.lists[v] = [-(v * MAX_ELEMENTS + k + 2) for k in range(len(elements))]
                self.names.update((element, f"{self.names[v]}_{k}") for k, element in enumerate(self.lists[v]))
                names += [self.names[element] for element in self.lists[v]]
                types += elements
            else:
                names.append(self.names[v])
                types.append(type if self.names[v] else None)
        return names, types

    def _name(self, v: int) -> str:
        """Name of a value; -1 is an absent operand. Raises KeyError."""
        return "" if v <= 0 and v not in self.names else self.names[v]

    def _type(self, type: Mapping[str, Any]) -> TensorType | None:
        dtype, dims = _declared(type)
        if dims and dims[0] == -1 and self.shapes.batch is not None:
            dims[0] = self.shapes.batch
        return None if dtype is None or any(n < 0 for n in dims) else TensorType(dtype, checked_shape(dims))

    def _regions(self, op: PirOp, program: Program) -> None:
        """Add an if with two regions, or a while whose region takes the variables and yields condition, variables."""
        results = op.results
        name = f"{op.type}_{results[0] if results else len(program.nodes)}"
        before = len(program.nodes)
        blocks = [region["blocks"][0] for region in op.source["regions"]]
        self.read.update(self._name(v) for v in op.operands)
        if op.type == "if" and len(blocks) == 2:
            condition = program.as_bool(self._name(op.operands[0]), f"{name}/if")
            (then, a), (other, b) = (self._branch(block, program) for block in blocks)
            outputs = [self.names[v] for v in results]
            add_if(program, name, condition, then, other, list(zip(outputs, a, b, strict=True)))
        elif op.type == "while" and len(blocks) == 1:
            self._while(blocks[0], name, op, program)
        else:
            raise BadGraph.one(
                "bad_body",
                f"op {quoted(op.type)}",
                f"{len(blocks)} regions",
                "if of two regions, or while of one",
                "export the program again",
            )
        rows = program.nodes[before:]
        self.written += [self.names[v] for v in results]
        inputs, outputs = [self._name(v) for v in op.operands], [self.names[v] for v in results]
        origin = Origin(rows[-1].name, op.type, "", {"json": dict(op.source)}, inputs, outputs)
        mark_origin(rows, "paddle", origin, program.values)

    def _branch(self, block: Mapping[str, Any], program: Program) -> tuple[Block, list[str]]:
        """A branch of an if, and the names it yields."""
        branch = Block(program)
        return branch, [self._name(v) for v in self.ops(block["ops"], branch.program)]

    def _while(self, block: Mapping[str, Any], name: str, op: PirOp, program: Program) -> None:
        inside, (condition, *variables) = Block(program), op.operands
        arguments = [int(arg["#"] if isinstance(arg["#"], int) else arg["%"]) for arg in block["args"]]
        for v, source in zip(arguments, variables, strict=True):
            self.names[v] = f"{name}/{v}"
            inside.program.types[self.names[v]] = program.types.get(self._name(source))
        next_condition, *after = [self._name(v) for v in self.ops(block["ops"], inside.program)]
        next_condition = inside.program.as_bool(next_condition, f"{name}/again")
        first = program.as_bool(self._name(condition), f"{name}/first")
        states = [
            CarriedState(self._name(source), self.names[v], end, self.names[result])
            for source, v, end, result in zip(variables, arguments, after, op.results, strict=True)
        ]
        add_loop(program, name, first, inside, next_condition, states)

    def outputs(self) -> list[str]:
        """Fetched names; without any, names written and never read."""
        return self.fetched or [name for name in self.written if name not in self.read]


def _declared(type: Mapping[str, Any]) -> tuple[str | None, list[int]]:
    """(dtype, lengths with -1 for unknown) of a dense tensor type; (None, []) for other types. Raises KeyError."""
    if not str(type.get("#", "")).endswith("dtensor"):
        return None, []
    data = type["D"]
    if isinstance(data[0], Mapping) and str(data[0].get("#", "")).endswith("t_dtensor"):
        data = data[0]["D"]  # a distributed tensor: its dense type comes first
    dtype = _TYPES.get(str(data[0]["#"]).rpartition(".")[2])
    dims = [int(n) for n in data[1]]
    return (dtype, dims) if dtype in DTYPE_BITS else (None, [])


def _stated_shape(type: Mapping[str, Any]) -> list[int] | None:
    """Lengths with -1 for unknown; None for a type that is no tensor."""
    dtype, dims = _declared(type)
    return None if dtype is None else dims


def _flag(entry: Any, name: str) -> bool:
    """True when `entry` is the flag `name` of an op's outputs and is set for the first output."""
    if not isinstance(entry, Mapping) or entry.get("N") != name:
        return False
    found = _plain(entry.get("AT"), 0)
    return bool(found[0] if isinstance(found, list) and found else found)
