"""Cases with branches, loops and scoped subgraphs as programs: ops nested in ops become nodes with bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graph.errors import Findings
from graph.formats.caffe2.compat.scopes import DoOp, SavedScopes
from graph.formats.document.schema import BodyRow, NodeRow
from graph.formats.mxnet.shapes import shapes_of_inputs
from graph.formats.paddle.loops import while_loop
from graph.formats.shared.attributes import Attributes
from graph.formats.shared.blocks import Block, add_if, add_loop, carried_states, check_condition_written
from graph.formats.shared.program import Program
from graph.ir import Graph, TensorType
from graph.limits import Limits
from graph.ops.registry.onnx_fallback import type_of_array
from tests.seeds.conditions import add_condition
from tests.seeds.programs import TABLES

Op = Mapping[str, Any]
MOST_TRIPS = 100  # of loops of cases, which say no bound
_INT64 = 10  # as Caffe2 numbers element types
SHOWN = frozenset({"Print"})  # ops that only show a value


def array_of(content: Any) -> np.ndarray:
    """A number or list of a case: whole numbers without a list are counters, the rest is floating."""
    array = np.asarray(content)
    if array.dtype == bool or (array.shape == () and array.dtype.kind == "i"):
        return array
    return array.astype(np.float32)


class Reading:
    """A case being read into a program."""

    def __init__(self, system: str, identities: Sequence[str] = ()):
        self.program = Program(TABLES[system], Limits(), Findings())
        self.scopes = SavedScopes()
        self.identities = frozenset(identities)
        self.open: list[Block] = []  # lists being read, outermost first
        self.usual: dict[tuple[str, int], TensorType] = {}  # what an op of a type is given there elsewhere
        self.scan: set[str] = set()  # inputs of the ops around them

    def graph(self, ops: Sequence[Op], contents: Mapping[str, np.ndarray], outputs: Sequence[str]) -> Graph:
        """The ops as a graph; names nobody gives are inputs of the types their readers are given elsewhere."""
        for name, array in contents.items():
            self.program.give(name, type_of_array(array))
        self.usual = {
            (op["type"], i): type_of_array(contents[name])
            for op in every_op(ops)
            for i, name in enumerate(op["inputs"])
            if name in contents
        }
        self.scopes.reused = {op["inputs"][-1] for op in ops if op["attrs"].get("reuse_workspace")}
        self.ops(self.program, ops)
        known = [name for name in outputs if name in self.program.types]
        return self.program.graph("case", known or list(contents)[:1], {})

    def ops(self, program: Program, ops: Sequence[Op]) -> None:
        for op in ops:
            kind = {"cond": "if", "while_loop": "paddle_loop"}.get(op["type"], op["type"].lower())
            special = getattr(self, f"_{kind}", None)
            if special is not None:
                self.scan.update(op["inputs"])
                special(program, op)
            elif op["type"] in self.identities:
                name = op["outputs"][0]
                program.add(NodeRow(name, "Identity", list(op["inputs"]), [name]), [program.types[op["inputs"][0]]])
            elif op["type"] not in SHOWN:
                self._give_missing(program, op)
                program.op(op["type"], op["outputs"][0], op["inputs"], op["outputs"], _attributes(op))

    def _give_missing(self, program: Program, op: Op) -> None:
        """Names nobody gives are inputs of the whole, seen from every list around the op that reads them."""
        types = [program.types.get(name) for name in op["inputs"]]
        shapes = shapes_of_inputs(op["type"], Attributes(op["attrs"]), types)
        for i, (name, type, shape) in enumerate(zip(op["inputs"], types, shapes, strict=True)):
            if type is None and (program is self.program or name in self.scan):
                like = self.usual.get((op["type"], i), TensorType("float32", shape or (1,)))
                self.program.give(name, like)
                for block in self.open:
                    block.program.types[name] = self.program.types[name]
                    block.outside.add(name)

    def _block(self, outer: Program, graph: Op) -> Block:
        block = Block(outer, local=graph.get("local", ()))
        self.open.append(block)
        self.ops(block.program, graph["ops"])
        self.open.pop()
        return block

    def _if(self, program: Program, op: Op) -> None:
        attrs, name = op["attrs"], op["outputs"][0] if op["outputs"] else "branches"
        condition = add_condition(program, attrs["condition"], {}) if "condition" in attrs else op["inputs"][0]
        then = self._block(program, attrs["then_graph"])
        other = self._block(program, attrs["else_graph"]) if "else_graph" in attrs else None
        returns = None
        if "returns" in attrs["then_graph"]:
            sides = (attrs["then_graph"]["returns"], attrs["else_graph"]["returns"])
            returns = list(zip(op["outputs"], *sides, strict=True))
        else:
            written = [*then.handed_out(), *(other.handed_out() if other is not None else ())]
            returns = [(word, word, word) for word in dict.fromkeys([*op["outputs"], *written])]
        add_if(program, f"if/{name}", condition, then, other, returns)

    def _while(self, program: Program, op: Op) -> None:
        attrs, name = op["attrs"], f"while/{op['outputs'][0]}"
        test, flag = attrs.get("cond_graph"), op["inputs"][0]
        body = attrs["body_graph"] if "body_graph" in attrs else attrs["loop_graph"]
        if test is not None:
            flag = test.get("condition", flag)
            before = len(program.nodes)
            self.ops(program, test["ops"])
            check_condition_written(name, flag, program.nodes[before:])
        block = self._block(program, body)
        if test is not None:
            self.ops(block.program, test["ops"])
        add_loop(program, name, flag, block, flag, carried_states(block), MOST_TRIPS)

    def _paddle_loop(self, program: Program, op: Op) -> None:
        attrs = op["attrs"]

        def body(block: Block) -> list[str]:
            self.ops(block.program, attrs["body_graph"]["ops"])
            return list(attrs["body_graph"]["returns"])

        while_loop(
            program,
            f"while/{op['outputs'][0]}",
            lambda there, names: add_condition(there, attrs["condition"], names),
            body,
            list(op["inputs"]),
            list(op["outputs"]),
            MOST_TRIPS,
        )

    def _onnxwhile(self, program: Program, op: Op) -> None:
        """A standard Loop, its body given with formal inputs and outputs."""
        attrs, given = op["attrs"], list(op["inputs"])
        lead = [given.pop(0) if attrs.get(flag) else "" for flag in ("has_trip_count", "has_cond")]
        graph = attrs["body_graph"]
        scalars = dict(zip(graph["inputs"][:2], (TensorType("int64", ()), TensorType("bool", ())), strict=True))
        carried_types = dict(zip(graph["inputs"][2:], (program.types[name] for name in given), strict=True))
        block = Block(program, {**scalars, **carried_types})
        self.ops(block.program, graph["ops"])
        body: BodyRow = block.body(graph["outputs"], "the loop")
        rows = [
            TensorType(t.dtype, (MOST_TRIPS, *t.shape))
            for t in (block.program.types[name] for name in graph["outputs"][1 + len(given) :])
        ]
        row = NodeRow(
            f"while/{op['outputs'][0]}",
            "Loop",
            [*lead, *given],
            list(op["outputs"]),
            bodies={"body": body},
            annotations={"max_trips": MOST_TRIPS},
        )
        program.add(row, [*carried_types.values(), *rows])

    def _createscope(self, program: Program, op: Op) -> None:
        self.scopes.create(op["outputs"][0])

    def _do(self, program: Program, op: Op) -> None:
        do = do_of(op)
        block = self.scopes.block(program, do)
        self.ops(block.program, op["attrs"]["graph"]["ops"])
        self.scopes.add(program, do, block)


def every_op(ops: Sequence[Op]) -> Iterator[Op]:
    """The ops and those nested in them."""
    for op in ops:
        yield op
        for graph in op["attrs"].values():
            if isinstance(graph, Mapping) and isinstance(graph.get("ops"), list):
                yield from every_op(graph["ops"])


def do_of(op: Op) -> DoOp:
    """A Do of a case, with what the case leaves out."""
    attrs, outputs = op["attrs"], op["outputs"]
    return DoOp(
        f"do/{outputs[0] if outputs else ''}",
        op["inputs"],
        outputs,
        "graph" in attrs or "subgraph" in attrs or "net" in attrs,
        attrs.get("bindings"),
        attrs.get("inner_names"),
        attrs.get("outer_index"),
        bool(attrs.get("reuse_workspace")),
    )


def _attributes(op: Op) -> Mapping[str, Any]:
    """Attributes of an op; a constant that is a whole number is a counter."""
    value = op["attrs"].get("value")
    if op["type"] == "Const" and isinstance(value, int) and not isinstance(value, bool):
        return {**op["attrs"], "dtype": _INT64}
    return op["attrs"]
