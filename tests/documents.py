"""Strategies: legal documents of opaque and standard ops, graphs that run, and documents with something broken."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from graph.builder.builder import Builder
from graph.ir import Cost, Graph, Phase, Role, TensorType

Document = dict[str, Any]
SIZES = st.one_of(
    st.builds(lambda n: {"bytes": n}, st.sampled_from([0, 1, 64, 1000])),
    st.builds(
        lambda dtype, shape: {"dtype": dtype, "shape": shape},
        st.sampled_from(["float32", "bfloat16", "int4", "bool"]),
        st.lists(st.integers(0, 5), max_size=3),
    ),
    st.just({"dtype": "float16", "shape": [2], "bytes": 100, "fixed_bytes": True}),
)
OPAQUE = st.dictionaries(
    st.sampled_from(["a", "axis", "mesh"]),
    st.one_of(st.integers(-3, 3), st.text(max_size=3), st.lists(st.integers(0, 3), max_size=3), st.just({"k": [None]})),
    max_size=2,
)


@dataclass
class _Growing:
    """A document being made: what may still be read, and which names show the same bytes."""

    draw: Any
    values: list[Document] = field(default_factory=list)
    nodes: list[Document] = field(default_factory=list)
    readable: list[str] = field(default_factory=list)
    content: dict[str, str] = field(default_factory=dict)  # name -> first name of the bytes it shows

    def value(self, name: str, size: Document, role: str = "activation") -> None:
        self.values.append({"name": name, **size} | ({} if role == "activation" else {"role": role}))
        if annotations := self.draw(st.one_of(st.just({}), OPAQUE)):
            self.values[-1]["annotations"] = annotations
        self.readable.append(name)
        self.content[name] = name

    def size(self, name: str) -> Document:
        value = next(value for value in self.values if value["name"] == name)
        return {key: value[key] for key in ("dtype", "shape", "bytes", "fixed_bytes") if key in value}

    def node(self, n: int, phase: int) -> None:
        draw = self.draw
        inputs = draw(st.lists(st.sampled_from([*self.readable, ""]), max_size=3))
        row: Document = {"name": f"n{n}", "op": draw(st.sampled_from(["my::Op", "Strange"])), "inputs": inputs}
        outputs = [f"n{n}:{i}" for i in range(draw(st.integers(0, 3)))]
        sizes = {name: draw(SIZES) for name in outputs}
        self._alias(row, inputs, outputs, sizes)
        for name in outputs:
            self.value(name, sizes[name])
        for output, source in row.get("alias_of", {}).items():
            self.content[output] = self.content[source]
        if outputs and draw(st.booleans()):
            outputs = [*outputs, ""]
        row["outputs"] = outputs
        if phase:
            row["phase"] = ("forward", "backward", "update")[phase]
        row |= self._optional(n, [name for name in (*inputs, *outputs) if name])
        self.nodes.append(row)

    def _alias(self, row: Document, inputs: list[str], outputs: list[str], sizes: dict[str, Document]) -> None:
        """Perhaps the first output is a view of an input, or takes its bytes over and ends its content."""
        kind = self.draw(st.sampled_from([None, None, "alias_of", "in_place", "takeover"]))
        sources = [name for name in inputs if name and self._role(name) != "constant"]
        if kind is None or not sources or not outputs:
            return
        source = sources[0]
        sizes[outputs[0]] = self.size(source)
        row[kind] = {outputs[0]: [source] if kind == "takeover" else source}
        if kind == "in_place":
            self.readable = [name for name in self.readable if self.content[name] != self.content[source]]

    def _role(self, name: str) -> str:
        return str(next(value for value in self.values if value["name"] == name).get("role", "activation"))

    def _optional(self, n: int, own: list[str]) -> Document:
        choices: dict[str, st.SearchStrategy[Any]] = {
            "attributes": OPAQUE,
            "annotations": OPAQUE,
            "after": st.lists(st.sampled_from([f"n{m}" for m in range(n)]), unique=True, max_size=2)
            if n
            else st.just([]),
            "cost": st.fixed_dictionaries(
                {},
                optional={
                    "seconds": st.sampled_from([0.0, 0.25]),
                    "flops": st.integers(0, 9),
                    "traffic_bytes": st.integers(0, 9),
                    "workspace_bytes": st.integers(0, 500),
                },
            ),
            "effect": st.sampled_from(["pure", "random", "once", "collective", "unstable"]),
            "stream": st.sampled_from(["s", "t"]),
            "recompute": st.sampled_from(["allow", "never", "prefer"]),
            "heavy": st.booleans(),
            "gradient_reads": st.lists(st.sampled_from(own), unique=True) if own else st.just([]),
        }
        chosen = self.draw(st.lists(st.sampled_from(sorted(choices)), unique=True, max_size=3))
        return {key: self.draw(choices[key]) for key in chosen}


@st.composite
def documents(draw: st.DrawFn, most_nodes: int = 8) -> Document:
    """A legal document of ops nobody knows: every optional field, views, in place, empty graphs."""
    growing = _Growing(draw)
    for i in range(draw(st.integers(0, 3))):
        growing.value(f"x{i}", draw(SIZES), draw(st.sampled_from(["input", "parameter", "constant", "state"])))
    phases = sorted(draw(st.lists(st.integers(0, 2), max_size=most_nodes)))
    for n, phase in enumerate(phases):
        growing.node(n, phase)
    made = growing.readable
    document: Document = {
        "format": "remat/1",
        "values": growing.values,
        "nodes": growing.nodes,
        "outputs": draw(st.lists(st.sampled_from(made), unique=True, max_size=3)) if made else [],
    }
    if draw(st.booleans()):
        document |= {"name": "déjà", "order": "given", "annotations": {"from": [1]}, "opset": {"": 20, "my": 2}}
    return document


@st.composite
def executable_graphs(draw: st.DrawFn, most_nodes: int = 8) -> Graph:
    """A graph of standard ops on float32[3,4]: broadcasting, views, several outputs, in place, workspaces."""
    builder = Builder("runs")
    shape = (3, 4)
    type = TensorType("float32", shape)
    live = [builder.value("x", type, Role.INPUT), builder.value("w", type, Role.PARAMETER)]
    square = builder.value("square", TensorType("float32", (4, 4)), Role.PARAMETER)
    flat = builder.constant(np.array([2, -1]), "flat")
    back = builder.constant(np.array(shape), "back")
    for n in range(draw(st.integers(0, most_nodes))):
        kind = draw(st.sampled_from(["unary", "binary", "product", "view", "split", "in_place"]))
        x = draw(st.sampled_from(live))
        cost = Cost(workspace_bytes=draw(st.sampled_from([None, 64])))
        phase = Phase.UPDATE if kind == "in_place" else Phase.FORWARD
        if kind == "unary":
            made = builder.node(draw(st.sampled_from(["Relu", "Tanh", "Neg", "Softmax"])), [x], cost=cost)
        elif kind == "binary":
            made = builder.node(
                draw(st.sampled_from(["Add", "Mul", "Max"])), [x, draw(st.sampled_from(live))], cost=cost
            )
        elif kind == "product":
            made = builder.node("MatMul", [x, square], cost=cost)
        elif kind == "view":
            made = builder.node("Reshape", [*builder.node("Reshape", [x, flat]), back])
        elif kind == "split":
            halves = builder.node("Split", [x], outputs=2, attributes={"axis": 1, "num_outputs": 2})
            made = builder.node("Concat", halves[::-1], attributes={"axis": 1})
        else:
            state = builder.value(f"state{n}", type, Role.STATE)
            builder.node("Add", [state, x], in_place=((0, 0),), phase=phase)
            made = ()
        live += made
    chosen = draw(st.lists(st.sampled_from(live[2:]), unique=True, max_size=2)) if live[2:] else []
    return builder.build(chosen)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in plain data, outermost first."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


WORDS = [
    "",
    "x0",
    "n0",
    "n0:0",
    "n1:0",
    "float32",
    "MatMul",
    "Reshape",
    "Conv",
    "forward",
    "N",
    "inputs[0]",
    "a" * 5000,
    "\x00",
    "😀",
]
NUMBERS = [0, -1, 1, 3, 2**31, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e300]
SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, [], {}, [[]], {"a": {}}, ["x0"], *NUMBERS, *WORDS]  # what may stand where something else should
)


@st.composite
def mutated(draw: st.DrawFn, document: Document) -> Document:
    """The document with one to three things broken somewhere; it may still be legal."""
    broken = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        everything = [path for path in places(broken) if path]
        if not everything:
            break
        path = draw(st.sampled_from(everything))
        holder = broken
        for key in path[:-1]:
            holder = holder[key]
        key = path[-1]
        what = draw(st.sampled_from(["delete", "replace", "repeat", "swap", "wrap", "field", "scale", "borrow"]))
        if what == "delete":
            del holder[key]
        elif what == "replace":
            holder[key] = copy.deepcopy(draw(SCALARS))
        elif what == "repeat" and isinstance(holder, list):
            holder.insert(draw(st.integers(0, len(holder))), copy.deepcopy(holder[key]))
        elif what == "swap" and isinstance(holder, list):
            other = draw(st.integers(0, len(holder) - 1))
            holder[key], holder[other] = holder[other], holder[key]
        elif what == "wrap":
            holder[key] = [holder[key]] if draw(st.booleans()) else {"data": holder[key]}
        elif what == "field" and isinstance(holder, dict):
            holder[draw(st.sampled_from(["colour", "bodies", "dtype", "data", "in_place", "extras"]))] = draw(SCALARS)
        elif what == "scale" and isinstance(holder[key], int | float) and math.isfinite(holder[key]):
            holder[key] = -holder[key] - 1 if draw(st.booleans()) else holder[key] + 1
        else:
            source = draw(st.sampled_from(everything))
            piece: Any = broken
            for step in source:
                piece = piece[step] if isinstance(piece, dict | list) and _has(piece, step) else None
            holder[key] = copy.deepcopy(piece)
    return broken


def _has(piece: Any, step: Any) -> bool:
    return step in piece if isinstance(piece, dict) else isinstance(step, int) and step < len(piece)
