"""Repeats that no optimizer of ONNX Runtime merges with their first run, in an order that data dependence keeps.

    gradient ──▶ gate ─┐ never true
    x ─────────────▶ If(gate) {empty} else {repeat} ──▶ x'

Consecutive repeats go into the branch of an `If` that always runs: its condition reads one element of what was computed
just before and of every result so far, and holds for no number. So no order runs the repeat earlier, and no optimizer
merges it: common-subexpression elimination does not look into branches, and a branch is inlined for a constant only.
The other branch returns empty tensors, so that ONNX Runtime knows no shape of the results: it would keep the buffer of
the first run for a repeat of the same shape, and allocate results before the branch runs. Two kinds of large values are
behind guards for their first run too (`_behind_guards`).

A mask of Dropout that nothing reads is read by a gate: ONNX Runtime 1.31 otherwise removes the Dropout in training mode
too (`onnxruntime/core/optimizer/dropout_elimination.cc`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from graph.ir.names import reserve_name

#: Key of the metadata on guards: the suffixes of names in the branches, or "gate" on what computes the condition.
GUARD_KEY = "remat.guard"
_GATE = "gate"
_AGAIN, _NEVER = "/again", "/never"
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})  # results in the bytes of an operand
_LARGE = 0.1  # of the elements of the largest value


def guard(graph: GraphProto, repeated: Sequence[bool], names: set[str]) -> None:
    """Put repeated nodes, and first runs that `_runs` names, into `If`s; `names` are those of values in use."""
    if not any(repeated):
        return
    writer = _Guards(graph, names)
    for nodes, is_guarded in _runs(graph, repeated):
        writer.add(nodes, is_guarded)
    del graph.node[:]
    graph.node.extend(writer.nodes)
    hidden = writer.inside | writer.results.difference(info.name for info in graph.output)
    kept = [info for info in graph.value_info if info.name not in hidden]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _runs(graph: GraphProto, repeated: Sequence[bool]) -> list[tuple[list[NodeProto], bool]]:
    """The nodes in runs, and whether each run goes behind a guard: repeats, and first runs with a large result that

    - would run early: it reads nothing that depends on the guard before;
    - would be kept once dead: ONNX Runtime frees a buffer only if no later value has its shape.

    A run has one large result, since ONNX Runtime allocates results of a branch before it runs, and ends with the last
    read of a large value, since it frees what a branch reads once the whole branch has run. It goes on while a value
    without a type crosses its end, which no branch can return.
    """
    sizes = _Sizes(graph)
    latest: dict[tuple[int, ...], int] = {}  # shape -> the last first run with such a result
    for place, node in enumerate(graph.node):
        if not repeated[place]:
            latest.update((sizes.shapes[name], place) for name in node.output if name in sizes.shapes)
    depth: dict[str, int] = {}  # value -> guards before it, by data dependence
    runs: list[tuple[list[NodeProto], bool]] = []
    written: set[str] = set()  # by the run
    is_open = crosses = False
    guards = 0
    for place, node in enumerate(graph.node):
        names = [name for name in node.output if name]
        large = [name for name in names if sizes.is_large(name)] if node.op_type not in _VIEWS else []
        reached = max((depth.get(name, 0) for name in _reads(node)), default=0)
        is_guarded = repeated[place]
        if not is_guarded and all(name in sizes.shapes for name in names):
            kept = [name for name in large if name in sizes.freed and latest[sizes.shapes[name]] > sizes.last[name]]
            is_guarded = bool(kept or (large and reached < guards))
        is_second = bool(large) and any(sizes.is_large(name) for name in written)
        if not (crosses or (is_open and is_guarded and not is_second)):
            runs.append(([], is_guarded))
            written = set()
            guards += is_guarded
        runs[-1][0].append(node)
        written.update(names)
        depth.update((name, guards if runs[-1][1] else reached) for name in names)
        outside = sizes.freed.intersection(_reads(node)) - written
        is_open = runs[-1][1] and not any(sizes.last[name] == place and sizes.is_large(name) for name in outside)
        crosses = runs[-1][1] and any(sizes.last[name] > place for name in written.difference(sizes.shapes))
    return runs


class _Sizes:
    """Shapes of values, and when ONNX Runtime may free them."""

    def __init__(self, graph: GraphProto):
        infos = (*graph.input, *graph.value_info, *graph.output)
        self.shapes = {info.name: _shape(info) for info in infos}
        self.last = {name: place for place, node in enumerate(graph.node) for name in (*_reads(node), *node.output)}
        written = {name for node in graph.node for name in node.output}
        self.freed = written.difference(info.name for info in graph.output)
        self._large = _LARGE * max(map(math.prod, self.shapes.values()), default=0)

    def is_large(self, name: str) -> bool:
        return math.prod(self.shapes.get(name, (0,))) >= max(1, self._large)


def _shape(info: ValueInfoProto) -> tuple[int, ...]:
    """Lengths of the axes, 0 where they are not known."""
    tensor = info.type.tensor_type
    return tuple(dimension.dim_value for dimension in tensor.shape.dim) if tensor.HasField("shape") else (0,)


class _Guards:
    """The nodes of a graph, written again with guards."""

    def __init__(self, graph: GraphProto, names: set[str]):
        self.graph, self.names = graph, names
        self.nodes: list[NodeProto] = []
        self.inside: set[str] = set()  # values that are now within branches only
        self.results: set[str] = set()  # of guards
        self._infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
        self._outputs = {info.name for info in graph.output}
        self._readers = _readers(graph.node)
        self._suffixes = [_free_suffix(suffix, names) for suffix in (_AGAIN, _NEVER)]
        self._pending: list[str] = []  # results that nothing reads, since the last gate
        data = [info.name for info in graph.input if self._first_element_is_known(info.name)]
        self._latest = data[:1]  # what the node before wrote; at first, what the graph reads
        self._condition = ""
        self._constants: dict[str, str] = {}

    def add(self, nodes: Sequence[NodeProto], is_guarded: bool) -> None:
        """Add nodes, behind a guard if something can be its condition."""
        if is_guarded and self._gate():
            self._guarded(nodes)
        else:
            self.nodes.extend(nodes)
        written = [name for node in nodes for name in node.output if name and name not in self.inside]
        self._pending += [name for name in written if name not in self._readers and self._first_element_is_known(name)]
        self._latest = [name for name in written if self._first_element_is_known(name)][:1] or self._latest

    def _first_element_is_known(self, name: str) -> bool:
        info = self._infos.get(name)
        if info is None or not info.type.HasField("tensor_type") or not info.type.tensor_type.HasField("shape"):
            return False
        tensor = info.type.tensor_type
        return tensor.elem_type not in (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128) and all(
            dimension.dim_value > 0 for dimension in tensor.shape.dim
        )

    def _gate(self) -> bool:
        """Make the condition depend on what was computed since the last gate; False if there is nothing yet."""
        for name in dict.fromkeys((*self._pending, *self._latest)):
            flat = self._op("Reshape", [name, self._constant("all", np.array([-1], np.int64))], f"{name}/flat")
            first = self._op("Gather", [flat, self._constant("first", np.array(0, np.int64))], f"{name}/first")
            if self._infos[name].type.tensor_type.elem_type != TensorProto.FLOAT:
                first = self._op("Cast", [first], f"{name}/float", to=TensorProto.FLOAT)
            low = self._constant("lowest", np.array(-np.inf, np.float32))
            holds = self._op("Less", [first, low], f"{name}/gate")
            self._condition = self._op("Or", [self._condition, holds], f"{name}/gates") if self._condition else holds
        self._pending, self._latest = [], []
        return bool(self._condition)

    def _op(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = reserve_name(output, self.names)
        node = helper.make_node(op, inputs, [name], name, **attributes)
        _mark(node, _GATE)
        self.nodes.append(node)
        return name

    def _constant(self, key: str, array: np.ndarray) -> str:
        if key not in self._constants:
            self._constants[key] = reserve_name(f"gate/{key}", self.names)
            self.graph.initializer.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def _guarded(self, nodes: Sequence[NodeProto]) -> None:
        readers = _readers(nodes)
        written = [name for node in nodes for name in node.output if name]
        results = [  # with what nothing reads: the next gate does, and frees it
            name
            for name in written
            if name in self._infos and (name in self._outputs or not 0 < self._readers[name] == readers[name])
        ]
        if not results:
            self.nodes.extend(nodes)
            return
        again, never = self._suffixes
        made = helper.make_node(
            "If",
            [self._condition],
            results,
            reserve_name(f"{nodes[0].name}/guard", self.names),
            else_branch=self._branch(nodes, written, results, again),
            then_branch=self._empty(results, never),
        )
        _mark(made, "".join(self._suffixes))
        self.nodes.append(made)
        self.inside.update(set(written).difference(results))
        self.results.update(results)

    def _branch(
        self, nodes: Sequence[NodeProto], written: Sequence[str], results: Sequence[str], suffix: str
    ) -> GraphProto:
        branch = GraphProto(name=f"{nodes[0].name}{suffix}")
        renamed = {name: name + suffix for name in written}
        for node in nodes:
            copy = branch.node.add()
            copy.CopyFrom(node)
            _rename(copy, renamed)
            copy.name += suffix
        for name in written:
            if name in self._infos:
                info = (branch.output if name in results else branch.value_info).add()
                info.CopyFrom(self._infos[name])
                info.name = renamed[name]
        ordered = sorted(branch.output, key=lambda info: results.index(info.name.removesuffix(suffix)))
        del branch.output[:]
        branch.output.extend(ordered)
        return branch

    def _empty(self, results: Sequence[str], suffix: str) -> GraphProto:
        """The branch that never runs: its results have other ranks, so that ONNX Runtime infers none."""
        branch = GraphProto(name=suffix)
        for name in results:
            tensor = self._infos[name].type.tensor_type
            content = np.zeros(() if tensor.shape.dim else (0,), helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            value = numpy_helper.from_array(content)
            branch.node.append(helper.make_node("Constant", [], [name + suffix], name + suffix, value=value))
            branch.output.append(helper.make_tensor_value_info(name + suffix, tensor.elem_type, content.shape))
        return branch


def unguarded(model: ModelProto) -> ModelProto:
    """The model, changed in place: the nodes of a branch stand for its `If`.

    A guard whose other branch computes something was edited and stays as it is.
    """
    graph = model.graph
    if not any(_mark_of(node) for node in graph.node):
        return model
    nodes: list[NodeProto] = []
    infos: list[ValueInfoProto] = []
    outputs = {info.name for info in graph.output}
    for node in graph.node:
        inside = _inside(node)
        if inside is None:
            nodes.append(node)
        else:
            nodes.extend(inside.node)
            infos.extend(info for info in (*inside.value_info, *inside.output) if info.name not in outputs)
    read = {info.name for info in graph.output}
    kept, read_by_gates = [], set()
    for node in reversed(nodes):
        if _mark_of(node) == _GATE and not read.intersection(node.output):
            read_by_gates.update(node.input)
        else:
            read.update(_reads(node))
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    graph.value_info.extend(infos)
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name in read_by_gates - read:
            del graph.initializer[place]
    return model


def freeing_at_once(model: ModelProto) -> ModelProto:
    """The model, changed in place, for a session that runs nodes in the order of the file and merges none of them.

    It has no guards, since ONNX Runtime frees what a branch reads once the whole branch has run, and allocates results
    of known shapes before it. A result that nothing reads is read at once: it is freed after its last read only.
    """
    graph = unguarded(model).graph
    read = {name for node in graph.node for name in _reads(node)} | {info.name for info in graph.output}
    names = {name for node in graph.node for name in (*node.input, *node.output)} | {node.name for node in graph.node}
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for name in node.output:
            if name and name not in read:
                shape = reserve_name(f"{name}/shape", names)
                nodes.append(helper.make_node("Shape", [name], [shape], shape))
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]  # the graph owns those of its list
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _inside(node: NodeProto) -> GraphProto | None:
    """The nodes of a guard's branch under their own names; None if the node is no guard, or was edited."""
    mark = _mark_of(node)
    branches = {attribute.name: attribute.g for attribute in node.attribute}
    if mark in ("", _GATE) or node.op_type != "If" or branches.keys() != {"else_branch", "then_branch"}:
        return None
    if any(each.op_type != "Constant" for each in branches["then_branch"].node):
        return None
    plain = _plain(branches["else_branch"], mark[: mark.find("/", 1)])
    return plain if [info.name for info in plain.output] == list(node.output) else None


def _plain(branch: GraphProto, suffix: str) -> GraphProto:
    found = GraphProto()
    found.CopyFrom(branch)
    found.name = ""
    renamed = {name: name.removesuffix(suffix) for node in branch.node for name in node.output if name}
    for node in found.node:
        _rename(node, renamed)
        node.name = node.name.removesuffix(suffix)
    for info in (*found.output, *found.value_info):
        info.name = renamed.get(info.name, info.name)
    return found


def _rename(node: NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename values in a node, and where graphs inside of it read them."""
    for names in (node.input, node.output):
        for place, name in enumerate(names):
            names[place] = renamed.get(name, name)
    for body in _bodies(node):
        for inner in body.node:
            _rename(inner, renamed)
        for info in body.output:
            info.name = renamed.get(info.name, info.name)


def _reads(node: NodeProto) -> Iterable[str]:
    """Names that a node reads, graphs inside of it included; those may be names of their own."""
    yield from filter(None, node.input)
    for body in _bodies(node):
        for inner in body.node:
            yield from _reads(inner)
        yield from (info.name for info in body.output)


def _readers(nodes: Iterable[NodeProto]) -> Counter[str]:
    """How many of the nodes read each name."""
    return Counter(name for node in nodes for name in {*_reads(node)})


def _bodies(node: NodeProto) -> list[GraphProto]:
    return [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs) if body.node]


def _free_suffix(suffix: str, names: Iterable[str]) -> str:
    while any(name.endswith(suffix) for name in names):
        suffix += "+"
    return suffix


def _mark(node: NodeProto, value: str) -> None:
    entry = node.metadata_props.add()
    entry.key, entry.value = GUARD_KEY, value


def _mark_of(node: NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == GUARD_KEY), "")
