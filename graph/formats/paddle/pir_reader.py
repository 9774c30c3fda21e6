"""A Paddle program of 3.x (JSON) as a graph.

{"base_code": {"magic": "pir", "version": 1}, "program": {"regions": [{"#": "region_0", "blocks": [{"#": "block_0",
  "args": [], "ops": [{"#": "1.matmul", "I": [{"%": 1}, {"%": 2}], "O": [{"%": 3, "TT": {"#": "0.t_dtensor",
  "D": [{"#": "0.t_f32"}, [32, 10], "NCHW", [], 0]}}],
  "A": [{"N": "transpose_x", "AT": {"#": "0.a_bool", "D": false}}]}]}]}]}}

Values have numbers; `p` is a parameter, `data` an input. Lists such as axes and shapes come from ops that make
constants. Source: paddle/fluid/pir/serialize_deserialize.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        reader.program.limits = limits
        if len(block["ops"]) > limits.nodes:
            raise BadGraph.one("too_many_nodes", "ops", f"{len(block['ops'])}", f"at most {limits.nodes}", "send less")
        reader.given(block)
        reader.ops(block["ops"], reader.program)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise BadGraph.one(
            "not_a_model",
            "program",
            f"{type(error).__name__}: {str(error)[:120]}",
            "a program as Paddle 3 saves it",
            "export the program again",
        ) from None
    rest = {key: value for key, value in document.items() if key != "program"}
    note: dict[str, Any] = {"paddle": {"json": rest, "ops": reader.skeleton}}
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


class PirReader:
    """Walks the ops of a block, and of those in its regions."""

    def __init__(self, program: Program, shapes: ShapeOverrides):
        self.program, self.shapes = program, shapes
        self.names: dict[int, str] = {}
        self.lists: dict[int, list[int]] = {}  # values that stand for several
        self.constants: dict[int, Any] = {}
        self.fetched: list[str] = []
        self.checkpoints: list[str] = []
        self.skeleton: list[dict[str, Any]] = []  # ops of the outermost block, for writing them again
        self.read: set[str] = set()
        self.written: list[str] = []

    def given(self, block: Mapping[str, Any]) -> None:
        """Give the program its parameters and inputs. Raises BadGraph."""
        inputs: list[str] = []
        for op in block["ops"]:
            kind = str(op["#"])
            if kind == PARAMETER:
                name = str(op["A"][3])
                self._give(op, name, "parameter" if op["A"][1] else "state")
            elif kind.partition(".")[2] in ("data", "feed"):
                name = str(attributes_of(op).get("name", f"input{len(inputs)}"))
                inputs.append(name)
                self._give(op, name, "input")
        self.program.check_input_shapes(self.shapes, inputs)

    def _give(self, op: Mapping[str, Any], name: str, role: str) -> None:
        (out, *_) = op["O"] if isinstance(op["O"], list) else [op["O"]]
        dtype, dims = _declared(out["TT"])
        if name in self.shapes.inputs:
            dims = list(self.shapes.inputs[name])
        elif role == "input" and dims and self.shapes.batch is not None:
            dims[0] = self.shapes.batch
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
        """Add ops in order; value numbers a final yield hands out. Raises BadGraph."""
        for op in ops:
            kind = str(op["#"])
            word = kind.partition(".")[2]
            if kind == PARAMETER or word in ("data", "feed"):
                self._keep(op, [], program)
                continue
            operands = [int(entry["%"]) for entry in op.get("I", ())]
            if word == YIELD:
                return operands
            before = len(program.nodes)
            self._op(op, word, operands, program)
            self._keep(op, program.nodes[before:], program)
        return []

    def _keep(self, op: Mapping[str, Any], rows: Sequence[NodeRow], program: Program) -> None:
        """Remember where an op stood: by itself, or by the rows it became."""
        if program is self.program:
            self.skeleton.append({"group": rows[-1].name} if rows else dict(op))

    def _op(self, op: Mapping[str, Any], word: str, operands: list[int], program: Program) -> None:
        attributes = attributes_of(op)
        made = op["O"] if isinstance(op["O"], list) else [op["O"]]
        results = [int(out["%"]) for out in made]
        if word in ("fetch", "shadow_output"):
            self.fetched += [self._name(v) for v in operands]
            return
        if word == "combine":
            self.lists[results[0]] = operands
            return
        if word in ("split", "slice") and operands and operands[0] in self.lists and str(op["#"]).startswith("0."):
            several = self.lists[operands[0]]
            picked = several if word == "split" else [several[int(attributes.get("index", 0))]]
            for v, source in zip(results, picked, strict=False):
                self.names[v] = self._name(source)
            return
        if word in CONSTANTS and not operands:
            self.constants[results[0]] = attributes.get("value")
        for out, v in zip(made, results, strict=True):
            self.names[v] = f"{word.rstrip('_')}_{v}" if out.get("TT", {}).get("#") != "NULL" else ""
        if "regions" in op:
            self._regions(op, word, operands, results, program)
            return
        self._plain_op(op, word, operands, made, results, attributes, program)

    def _plain_op(
        self,
        op: Mapping[str, Any],
        word: str,
        operands: list[int],
        made: Sequence[Any],
        results: list[int],
        attributes: dict[str, Any],
        program: Program,
    ) -> None:
        backward = word.endswith("_grad") or bool(int(attributes.get("op_role", 0) or 0) & 1)
        type, given, attributes, order = translated(word, operands, attributes, self.constants)
        inputs = [self._name(v) if v >= 0 else "" for part in given for v in self.lists.get(part, [part])]
        outputs: list[str] = []
        declared: list[TensorType | None] = []
        for out, v in zip(made, results, strict=True):
            if out.get("TT", {}).get("#", "").endswith("t_vec"):
                parts = [-(v * 4096 + k + 2) for k in range(min(len(out["TT"]["D"]), 4096))]
                self.lists[v] = parts
                for k, part in enumerate(parts):
                    self.names[part] = f"{self.names[v]}_{k}"
                    outputs.append(self.names[part])
                    declared.append(self._type(out["TT"]["D"][k]))
            else:
                outputs.append(self.names[v])
                declared.append(self._type(out["TT"]) if self.names[v] else None)
        if order is not None:
            outputs, declared = [outputs[i] for i in order], [declared[i] for i in order]
        name = next((name for name in outputs if name), word)
        self.read.update(inputs)
        self.written += [name for name in outputs if name]
        origin = Origin("", word, "", {"json": dict(op)}, [], [])
        phase = "backward" if backward else "forward"
        rows = program.op(type, name, inputs, outputs, attributes, declared=declared, phase=phase, origin=origin)
        for row in rows:
            row.phase = phase  # type: ignore[assignment]
        if attributes.get(CHECKPOINT):
            self.checkpoints += [name for name in outputs if name]

    def _name(self, v: int) -> str:
        """Name of a value; -1 is an absent operand. Raises KeyError."""
        return "" if v <= 0 and v not in self.names else self.names[v]

    def _type(self, type: Mapping[str, Any]) -> TensorType | None:
        dtype, dims = _declared(type)
        if dims and dims[0] == -1 and self.shapes.batch is not None:
            dims[0] = self.shapes.batch
        return None if dtype is None or any(n < 0 for n in dims) else TensorType(dtype, checked_shape(dims))

    def _regions(
        self, op: Mapping[str, Any], word: str, operands: list[int], results: list[int], program: Program
    ) -> None:
        """An if of two regions, or a while whose region is given the variables and yields condition and variables."""
        name = f"{word}_{results[0] if results else len(program.nodes)}"
        before = len(program.nodes)
        blocks = [region["blocks"][0] for region in op["regions"]]
        self.read.update(self._name(v) for v in operands)
        if word == "if" and len(blocks) == 2:
            condition = program.as_bool(self._name(operands[0]), f"{name}/if")
            sides = []
            for block in blocks:
                side = Block(program)
                handed = [self._name(v) for v in self.ops(block["ops"], side.program)]
                sides.append((side, handed))
            (then, a), (other, b) = sides
            outputs = [self.names[v] for v in results]
            add_if(program, name, condition, then, other, list(zip(outputs, a, b, strict=True)))
        elif word == "while" and len(blocks) == 1:
            self._while(blocks[0], name, operands, results, program)
        else:
            raise BadGraph.one(
                "bad_body",
                f"op {quoted(word)}",
                f"{len(blocks)} regions",
                "if of two regions, or while of one",
                "export the program again",
            )
        rows = program.nodes[before:]
        self.written += [self.names[v] for v in results]
        mark_origin(rows, "paddle", Origin(rows[-1].name, word, "", {"json": dict(op)}, [], []))

    def _while(
        self, block: Mapping[str, Any], name: str, operands: list[int], results: list[int], program: Program
    ) -> None:
        inside = Block(program)
        arguments = [int(arg["#"] if isinstance(arg["#"], int) else arg["%"]) for arg in block["args"]]
        for v, source in zip(arguments, operands[1:], strict=True):
            self.names[v] = f"{name}/{v}"
            inside.program.types[self.names[v]] = program.types.get(self._name(source))
        handed = [self._name(v) for v in self.ops(block["ops"], inside.program)]
        again = inside.program.as_bool(handed[0], f"{name}/again")
        first = program.as_bool(self._name(operands[0]), f"{name}/first")
        states = [
            CarriedState(self._name(source), self.names[v], after, self.names[result])
            for source, v, after, result in zip(operands[1:], arguments, handed[1:], results, strict=True)
        ]
        add_loop(program, name, first, inside, again, states)

    def outputs(self) -> list[str]:
        """What is fetched, else what is written and never read."""
        return self.fetched or [name for name in self.written if name not in self.read]


def _declared(type: Mapping[str, Any]) -> tuple[str | None, list[int]]:
    """(dtype, lengths, -1 where open) of a dense tensor type; (None, []) for anything else. Raises KeyError."""
    if not str(type.get("#", "")).endswith("dtensor"):
        return None, []
    data = type["D"]
    if isinstance(data[0], Mapping) and str(data[0].get("#", "")).endswith("t_dtensor"):
        data = data[0]["D"]  # a distributed tensor says its dense type first
    word = str(data[0]["#"]).rpartition(".")[2]
    dtype = _TYPES.get(word)
    dims = [int(n) for n in data[1]]
    return (dtype, dims) if dtype in DTYPE_BITS else (None, [])


def _flag(entry: Any, name: str) -> bool:
    """Whether an attribute of an op's outputs holds for the first of them."""
    if not isinstance(entry, Mapping) or entry.get("N") != name:
        return False
    found = _plain(entry.get("AT"), 0)
    return bool(found[0] if isinstance(found, list) and found else found)
