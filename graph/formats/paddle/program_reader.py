"""Reader of Paddle programs (`.pdmodel`): block 0 in order, other blocks as bodies of loops and branches.

`op_role` determines the phase of an op; distribution attributes and checkpoints become annotations. Lengths of -1 are
bound by the batch or the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graph.errors import BadGraph, Findings, quoted
from graph.formats.document.schema import NodeRow, ValueRow
from graph.formats.paddle.mesh_attributes import AUTO_PARALLEL_SUFFIX, CHECKPOINT, annotate_mesh, mesh_annotations
from graph.formats.paddle.ops import DTYPES, PADDLE, slots_of
from graph.formats.paddle.proto import LOD_TENSOR, program_of, value_of
from graph.formats.shared.blocks import Block, add_if, add_loop, carried_states
from graph.formats.shared.program import Program, declared_type, zero_tensor
from graph.formats.shared.protobuf import message_to_dict
from graph.formats.shared.rows import Origin, mark_origin
from graph.ir import Graph, TensorType
from graph.limits import Limits, ShapeOverrides

#: Bits of `op_role`.
BACKWARD, OPTIMIZE, SCHEDULE = 1, 2, 16
#: Ops that pass values into and out of the program.
_FEED_FETCH = frozenset({"feed", "fetch"})
_BODIES = frozenset({"while", "conditional_block", "conditional_block_infer"})


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """The graph of a program. Raises BadGraph with up to ten findings."""
    message = program_of(data)
    ops = sum(len(block.ops) for block in message.blocks)
    if ops > limits.nodes or not len(message.blocks):
        raise BadGraph.one(
            "too_many_nodes" if ops else "not_a_model",
            "blocks",
            f"{ops} ops",
            f"at most {limits.nodes}, and a block",
            "send a smaller model, or raise the limit",
        )
    findings = Findings()
    reader = ProgramReader(message, Program(PADDLE, limits, findings), shapes)
    reader.declare_externals()
    reader.ops(message.blocks[0].ops, reader.program)
    findings.settle()
    return reader.program.graph("", reader.outputs(), reader.note())


class ProgramReader:
    """Walks the blocks of one program."""

    def __init__(self, message: Any, program: Program, shapes: ShapeOverrides):
        self.message, self.program, self.shapes = message, program, shapes
        self.blocks = {block.idx: block for block in message.blocks}
        self.vars = {var.name: var for block in reversed(message.blocks) for var in block.vars}
        self.fetched: list[str] = []
        self.read: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.open_blocks: list[int] = [0]
        self.is_reshaped = False  # the caller gives an input another shape than the program
        for block in message.blocks:
            for op in block.ops:
                self.read.update(dict.fromkeys(_arguments(op.inputs)))

    def declare_externals(self) -> None:
        """Declare the weights, states and inputs that ops read. Raises BadGraph."""
        fed, read_first = self._first_reads()
        persistable = [var.name for var in self.message.blocks[0].vars if var.persistable]
        names = [name for name in dict.fromkeys([*fed, *persistable, *read_first]) if self._is_tensor(name)]
        self.program.check_input_shapes(self.shapes, [name for name in names if not self.vars[name].persistable])
        for name in names:
            if name in self.read or name in fed:
                self._declare(name, self.vars[name])

    def _first_reads(self) -> tuple[list[str], list[str]]:
        """(fed names, names read before block 0 writes them), in order."""
        fed: dict[str, None] = {}
        reads: dict[str, None] = {}
        written: set[str] = set()
        for op in self.message.blocks[0].ops:
            if op.type == "feed":
                fed.update(dict.fromkeys(_arguments(op.outputs)))
                continue
            reads.update((name, None) for name in _arguments(op.inputs) if name not in written)
            written.update(_arguments(op.outputs))
        return list(fed), list(reads)

    def _is_tensor(self, name: str) -> bool:
        """True for a declared dense tensor."""
        var = self.vars.get(name)
        return var is not None and var.type.type == LOD_TENSOR and bool(var.type.HasField("lod_tensor"))

    def _declare(self, name: str, var: Any) -> None:
        role = "input"
        if var.persistable:
            role = "parameter" if var.is_parameter or not _is_state(name, self.message) else "state"
        type = self.shapes.inputs.get(name)
        declared = self._declared_type(name, role == "input")
        if type is not None:
            dtype = "float32" if declared is None and not var.type.lod_tensor.tensor.data_type else self._dtype(var)
            declared = declared_type(name, dtype, type)
        dims = list(var.type.lod_tensor.tensor.dims)
        if declared is None:
            self.program.untyped(name, f"the program ({dims})")
        elif len(dims) != len(declared.shape) or any(
            n not in (-1, m) for n, m in zip(dims, declared.shape, strict=True)
        ):
            self.is_reshaped = True
        annotations = mesh_annotations(var.attrs)
        self.program.give(name, declared, role, annotations=annotations or None)
        if var.stop_gradient and role != "state":
            self.program.values[name].stop_gradient = True

    def _dtype(self, var: Any) -> str:
        number = var.type.lod_tensor.tensor.data_type
        if number not in DTYPES:
            raise BadGraph.one(
                "unknown_dtype",
                f"var {quoted(var.name)}",
                str(number),
                "a number Paddle has for an element type",
                "export the program again",
            )
        return DTYPES[number]

    def _declared_type(self, name: str, is_input: bool = False) -> TensorType | None:
        """Declared type with the batch as leading length of inputs and for -1; None when unknown."""
        if not self._is_tensor(name):
            return None
        var = self.vars[name]
        dims = list(var.type.lod_tensor.tensor.dims)
        if dims and self.shapes.batch is not None and (dims[0] == -1 or is_input):
            dims[0] = self.shapes.batch
        if any(n < 0 for n in dims):
            return None
        return declared_type(name, self._dtype(var), dims)

    def _stated_shape(self, name: str) -> list[int] | None:
        """Shape of the program; None for other values than tensors, and for a program with other inputs."""
        if self.is_reshaped or not self._is_tensor(name):
            return None
        return list(self.vars[name].type.lod_tensor.tensor.dims)

    def ops(self, ops: Sequence[Any], program: Program) -> None:
        """Add the ops of a block in order. Raises BadGraph."""
        for op in ops:
            if op.type == "fetch":
                self.fetched += _arguments(op.inputs)
            elif op.type not in _FEED_FETCH:
                self._op(op, program)

    def _op(self, op: Any, program: Program) -> None:
        given = {attribute.name: attribute for attribute in op.attrs}
        attributes = {name: value_of(attribute) for name, attribute in given.items()}
        inputs, outputs = self._operands(op)
        unread = [slot.parameter for slot in op.inputs if slot.arguments and not _is_read(op.type, slot.parameter)]
        if unread:
            inputs += [name for slot in op.inputs if slot.parameter in unread for name in slot.arguments]
        self.written.update((name, None) for name in outputs if name)
        phase = _phase(attributes.get("op_role", 0))
        known = [name for name in _arguments(op.inputs) if name in program.types]
        origin = Origin("", op.type, "", _plain_op(op), known, [name for name in outputs if name])
        name = next((name for name in outputs if name), op.type)
        if op.type in _BODIES:
            rows = self._body(op, attributes, name, program)
            origin.id = rows[-1].name
            mark_origin(rows, "paddle", origin, program.values)
        else:
            parameters = _parameters(attributes)
            rows = program.op(
                op.type,
                name,
                inputs,
                outputs,
                parameters,
                declared=[self._declared_type(name) for name in outputs],
                stated=[self._stated_shape(name) for name in outputs],
                phase=phase,
                origin=origin,
                unmapped=f"input {', '.join(map(quoted, unread))} has no translation" if unread else "",
            )
        for row in rows:
            row.phase = phase  # type: ignore[assignment]
        of_values = {name: self.vars[name].attrs for name in (*inputs, *outputs) if name in self.vars}
        annotate_mesh(rows, op, given, program.types, of_values)
        for name in outputs:
            self._annotate(name, program)

    def _operands(self, op: Any) -> tuple[list[str], list[str]]:
        """(inputs, outputs) in the order of the rule; unread masks and saved shapes are left out."""
        input_slots, output_slots = slots_of(op.type)
        outputs = _ordered(op.outputs, output_slots)
        if "Out*" not in output_slots and "Y*" not in output_slots:
            outputs = [name if k == 0 or name in self.read else "" for k, name in enumerate(outputs)]
        return _ordered(op.inputs, input_slots), outputs

    def _annotate(self, name: str, program: Program) -> None:
        """Declare a value with the distribution annotations of its variable."""
        var = self.vars.get(name)
        if var is None or name in program.values or program is not self.program:
            return
        annotations = mesh_annotations(var.attrs)
        if annotations:
            program.values[name] = ValueRow(name, annotations=annotations)

    def _body(self, op: Any, attributes: Mapping[str, Any], name: str, program: Program) -> list[NodeRow]:
        """A loop or branch over another block."""
        index = attributes.get("sub_block")
        if not isinstance(index, int) or index not in self.blocks or index in self.open_blocks:
            raise BadGraph.one(
                "bad_body",
                f"op {quoted(op.type)}",
                f"sub_block {index!r}",
                "the number of another block",
                "export the program again",
            )
        parameter = "Condition" if op.type == "while" else "Cond"
        condition = next((name for slot in op.inputs if slot.parameter == parameter for name in slot.arguments), "")
        if condition not in program.types:
            raise BadGraph.one(
                "undefined_value",
                f"op {quoted(op.type)}",
                f"{parameter} {quoted(condition)}",
                "a value defined before",
                "export the program again",
            )
        before = len(program.nodes)
        self.open_blocks.append(index)
        if op.type == "while":
            block = Block(program)
            self.ops(self.blocks[index].ops, block.program)
            first = program.as_bool(condition, f"{name}/first")
            next_condition = block.program.as_bool(condition, f"{name}/again")
            states = [state for state in carried_states(block) if state.before != condition]
            add_loop(program, name, first, block, next_condition, states)
        else:
            self._define_outputs(op, program)
            block = Block(program)
            self.ops(self.blocks[index].ops, block.program)
            add_if(program, name, program.as_bool(condition, f"{name}/if"), block)
        self.open_blocks.pop()
        return program.nodes[before:]

    def _define_outputs(self, op: Any, program: Program) -> None:
        """Define names written by this branch only as zeros; they are not read when it does not run."""
        for name in _ordered(op.outputs, ["Out"]):
            type = self._declared_type(name)
            if name and name not in program.types and type is not None:
                lengths = program.constant(f"{name}/shape", np.array(type.shape, np.int64))
                row = NodeRow(f"{name}/unset", "ConstantOfShape", [lengths], [name], {"value": zero_tensor(type.dtype)})
                program.add(row, [type])

    def outputs(self) -> list[str]:
        """Fetched names; without any, names written and never read."""
        known = self.program.types
        fetched = [name for name in self.fetched if name in known]
        return fetched or [name for name in self.written if name not in self.read and name in known]

    def note(self) -> dict[str, Any]:
        """Rest of the program for the writer, and the names of checkpoints."""
        rest = type(self.message)()
        rest.CopyFrom(self.message)
        for block in rest.blocks[:1]:
            kept = [op for op in block.ops if op.type in _FEED_FETCH]
            del block.ops[:]
            block.ops.extend(kept)
        checkpoints = [var.name for var in self.vars.values() if any(a.name == CHECKPOINT for a in var.attrs)]
        note: dict[str, Any] = {"paddle": {"program": message_to_dict(rest)}}
        if checkpoints:
            note["checkpoints"] = checkpoints
        return note


#: Input slots with a shape that is not known before the program runs; the shapes that the program states replace it.
_SHAPE_SLOTS = frozenset({"ShapeTensor", "ShapeTensorList", "expand_shapes_tensor"})


def _is_read(type: str, slot: str) -> bool:
    """False for an input slot that the rule of an op does not take."""
    return type not in PADDLE.rules or slot in _SHAPE_SLOTS or slot in {name.rstrip("*") for name in slots_of(type)[0]}


def _arguments(slots: Sequence[Any]) -> list[str]:
    return [name for slot in slots for name in slot.arguments]


def _parameters(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes for the rule of the op, without those of distribution."""
    return {k: v for k, v in attributes.items() if v is not None and AUTO_PARALLEL_SUFFIX not in k}


def _phase(role: Any) -> str:
    """Phase of an op by its `op_role`."""
    bits = role if isinstance(role, int) else 0
    if bits & (OPTIMIZE | SCHEDULE):
        return "update"
    return "backward" if bits & BACKWARD else "forward"


def _ordered(given: Sequence[Any], slots: Sequence[str]) -> list[str]:
    """Names in the order of the slots, "" for an empty slot; without any, the names of all given slots."""
    by_slot = {slot.parameter: list(slot.arguments) for slot in given}
    found: list[str] = []
    for slot in slots:
        names = by_slot.pop(slot.rstrip("*"), [])
        found += names if slot.endswith("*") else (names[:1] or [""])
    if not slots or not any(found):
        found = [name for names in by_slot.values() for name in names]
    while found and not found[-1]:
        found.pop()
    return found


def _plain_op(op: Any) -> dict[str, Any]:
    """The op as plain data for the writer."""
    found = message_to_dict(op)
    found.pop("type", None)
    return found


def _is_state(name: str, message: Any) -> bool:
    """True for a persistable variable that an op writes, or that holds running statistics."""
    for block in message.blocks:
        for op in block.ops:
            if any(name in slot.arguments for slot in op.outputs):
                return True
            if any(slot.parameter in ("Mean", "Variance") and name in slot.arguments for slot in op.inputs):
                return True
    return False
