"""Structural validation of a model: names, node count, depth, single definition, definition before use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto
from onnx.defs import onnx_opset_version

from graph.errors import Findings, quoted
from graph.limits import Limits

MIN_OPSET = 7


class StructureChecker:
    """Validates a model and sorts graphs whose nodes are not in topological order."""

    def __init__(self, model: ModelProto, limits: Limits):
        self.limits, self.findings = limits, Findings()
        self.nodes = 0
        self.model = model

    def check(self) -> None:
        """Raise BadGraph listing the faults of the model; sort unordered graphs in place."""
        check_texts(self.model)
        self._opsets()
        self._graph(self.model.graph, "graph", frozenset(), 1)
        known: set[tuple[str, str, str]] = set()
        for i, function in enumerate(self.model.functions):
            key = (function.domain, function.name, function.overload)
            if key in known:
                self._duplicate("::".join(key[:2]), f"functions[{i}]")
            known.add(key)
            path, given = f"functions[{i}]", list(function.input)
            self._nodes(function.node, path, self._defined(given, path, frozenset()), 1)
            self._outputs(function.output, path, given, function.node)
        self.findings.settle()

    def _opsets(self) -> None:
        """Check that the standard opset of the model and of each function is supported."""
        imports = [("opset_import", self.model.opset_import, self.model.graph.node)]
        imports += [
            (f"functions[{i}].opset_import", f.opset_import, f.node) for i, f in enumerate(self.model.functions)
        ]
        for path, opsets, nodes in imports:
            version = next((o.version for o in opsets if o.domain in ("", "ai.onnx")), None)
            uses = any(node.domain in ("", "ai.onnx") for node in nodes)
            if uses and (version is None or not MIN_OPSET <= version <= onnx_opset_version()):
                self.findings.add(
                    "unsupported_opset",
                    path,
                    "no opset of the standard" if version is None else f"opset {version}",
                    f"opset {MIN_OPSET} to {onnx_opset_version()}",
                    "export the model again with a newer opset"
                    if version is None or version < MIN_OPSET
                    else "export it with an older opset, or update onnx",
                )

    def _graph(self, graph: GraphProto, path: str, outer: frozenset[str], depth: int) -> None:
        if depth > self.limits.depth:
            self.findings.add(
                "too_deep",
                path,
                f"{depth} graphs inside each other",
                f"at most {self.limits.depth}",
                "flatten the model, or raise the limit",
            )
            return
        weights = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
        held = set(weights)
        given = [v.name for v in graph.input if v.name not in held]  # in old files weights are listed as inputs too
        defined = self._defined(weights + given, path, outer)
        self._nodes(graph.node, path, defined, depth)
        self._outputs([v.name for v in graph.output], path, [*defined], graph.node)

    def _defined(self, names: Sequence[str], path: str, outer: frozenset[str]) -> set[str]:
        defined = set(outer)
        for name in names:
            self._name(name, path)
            if name in defined:
                self._duplicate(name, path)
            defined.add(name)
        return defined

    def _nodes(self, nodes: Sequence[NodeProto], path: str, defined: set[str], depth: int) -> None:
        """Check single definition and definition before use; adds the outputs of the nodes to `defined`."""
        self.nodes += len(nodes)
        if self.nodes > self.limits.nodes:
            if self.nodes - len(nodes) <= self.limits.nodes:
                self.findings.add(
                    "too_many_nodes",
                    f"{path}.node",
                    f"{self.nodes} nodes",
                    f"at most {self.limits.nodes}",
                    "send a smaller model, or raise the limit",
                )
            return
        written: dict[str, int] = {}
        for n, node in enumerate(nodes):
            self._name(node.name, f"{path}.node[{n}]")
            for name in node.output:
                self._name(name, f"{path}.node[{n}]")
                if name and (name in written or name in defined):
                    self._duplicate(name, f"{path}.node[{n}].output")
                written.setdefault(name, n)
        order = self._order(nodes, path, defined, written)
        if order is not None:
            moved = [NodeProto.FromString(nodes[n].SerializeToString()) for n in order]
            for proto, place in zip(moved, range(len(moved)), strict=True):
                nodes[place].CopyFrom(proto)
        for n, node in enumerate(nodes):
            for attribute in node.attribute:
                self._attribute(attribute, node, f"{path}.node[{n}]", frozenset(defined), depth)
            defined.update(name for name in node.output if name)

    def _attribute(
        self, attribute: AttributeProto, node: NodeProto, path: str, outer: frozenset[str], depth: int
    ) -> None:
        if attribute.type == AttributeProto.GRAPH:
            self._graph(attribute.g, f"{path}.{attribute.name}", outer, depth + 1)
        elif node.op_type != "Constant" and attribute.ByteSize() > self.limits.attribute_bytes:
            self.findings.add(
                "too_large",
                f"{path}.attribute[{attribute.name}]",
                f"{attribute.ByteSize():,} bytes",
                f"at most {self.limits.attribute_bytes}",
                "store the content as an initialiser, or raise the limit",
            )

    def _order(
        self, nodes: Sequence[NodeProto], path: str, given: set[str], written: dict[str, int]
    ) -> list[int] | None:
        """None when the nodes are in topological order, else such an order, closest to the order in the file."""
        before: list[list[int]] = []
        late = False
        for n, node in enumerate(nodes):
            needed = []
            for where, name in node_reads(node):
                if not name or name in given:
                    continue
                if name not in written:
                    self.findings.add(
                        "undefined_value",
                        f"{path}.node[{n}].{where}",
                        f"undefined {quoted(name)}, read by {node.op_type} {quoted(node.name)}",
                        "a graph input, an initialiser or the output of a node",
                        "add it, or correct the name",
                    )
                    continue
                needed.append(written[name])
                late = late or written[name] >= n
            before.append(needed)
        return self._sorted(nodes, path, before) if late else None

    def _sorted(self, nodes: Sequence[NodeProto], path: str, before: list[list[int]]) -> list[int] | None:
        """Depth-first topological order by position in the file; None with a finding for a cycle."""
        state, order = [0] * len(nodes), []
        for root in range(len(nodes)):
            stack = [(root, 0)]
            while stack:
                n, k = stack.pop()
                if state[n] == 2:
                    continue
                state[n] = 1
                if k == len(before[n]):
                    state[n] = 2
                    order.append(n)
                    continue
                stack.append((n, k + 1))
                b = before[n][k]
                if state[b] == 1:
                    cycle = [m for m, _ in stack[[m for m, _ in stack].index(b) :]]
                    shown = " -> ".join(quoted(nodes[m].name or nodes[m].op_type) for m in reversed(cycle[:8]))
                    self.findings.add(
                        "cycle",
                        f"{path}.node[{b}]",
                        f"a cycle of {len(cycle)} nodes: {shown}",
                        "an acyclic graph",
                        "break the cycle: one of these must read another value",
                    )
                    return None
                stack.append((b, 0))
        return order

    def _outputs(self, outputs: Sequence[str], path: str, given: list[str], nodes: Sequence[NodeProto]) -> None:
        known = set(given).union(*(node.output for node in nodes)) if nodes else set(given)
        for i, name in enumerate(outputs):
            if name not in known:
                self.findings.add(
                    "undefined_value",
                    f"{path}.output[{i}]",
                    f"undefined {quoted(name)}",
                    "the output of a node, an input or an initialiser",
                    "add the node that writes it, or correct the name",
                )

    def _name(self, name: str, path: str) -> None:
        if len(name) > self.limits.name_length:
            self.findings.add(
                "name_too_long",
                path,
                f"a name of {len(name)} characters, {quoted(name)}",
                f"at most {self.limits.name_length}",
                "shorten the name, or raise the limit",
            )

    def _duplicate(self, name: str, path: str) -> None:
        self.findings.add(
            "duplicate_name",
            path,
            f"{quoted(name)} defined a second time",
            "one definition for each name",
            "rename one of them",
        )


def check_texts(model: ModelProto) -> None:
    """Raise BadGraph for names that are not UTF-8; protobuf returns those as bytes."""
    findings = Findings()
    for path, texts in _texts(model):
        for text in texts:
            if isinstance(text, bytes):
                findings.add("not_text", path, f"{text[:32]!r}, which is not UTF-8", "UTF-8 text", "correct the name")
    findings.settle()


def _texts(model: ModelProto) -> Iterator[tuple[str, Iterable[object]]]:
    """(path, texts there) of the whole model."""
    yield "model", [*(o.domain for o in model.opset_import), *_entries(model)]
    yield from _texts_of_graph(model.graph, "graph")
    for i, f in enumerate(model.functions):
        path = f"functions[{i}]"
        yield path, [f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute]
        yield path, [*(o.domain for o in f.opset_import), *(a.name for a in f.attribute_proto)]
        yield from _texts_of_nodes(f.node, path)


def _texts_of_graph(graph: GraphProto, path: str) -> Iterator[tuple[str, Iterable[object]]]:
    yield path, [graph.name, *(t.name for t in graph.initializer), *(t.values.name for t in graph.sparse_initializer)]
    for info in (*graph.input, *graph.output, *graph.value_info):
        dims = info.type.tensor_type.shape.dim
        yield path, [info.name, *(d.dim_param for d in dims), *_entries(info)]
    yield path, [*_entries(graph), *(text for t in graph.initializer for text in _entries(t))]
    yield from _texts_of_nodes(graph.node, path)


def _texts_of_nodes(nodes: Sequence[NodeProto], path: str) -> Iterator[tuple[str, Iterable[object]]]:
    for n, node in enumerate(nodes):
        here = f"{path}.node[{n}]"
        yield here, [node.name, node.op_type, node.domain, node.overload, *node.input, *node.output, *_entries(node)]
        for a in node.attribute:
            yield here, [a.name, a.ref_attr_name, a.t.name]
            if a.HasField("g"):
                yield from _texts_of_graph(a.g, f"{here}.{a.name!s}")


def _entries(proto: Any) -> list[object]:
    return [text for entry in proto.metadata_props for text in (entry.key, entry.value)]


def node_reads(node: NodeProto) -> list[tuple[str, str]]:
    """(position, name) of every read of the node: its inputs, and the captures of its nested graphs."""
    reads = [(f"input[{i}]", name) for i, name in enumerate(node.input)]
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            reads += [(attribute.name, name) for name in free_names(attribute.g)]
    return reads


def free_names(graph: GraphProto) -> list[str]:
    """Free names of a nested graph (read but not defined), in order, without duplicates."""
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own.update(t.values.name for t in graph.sparse_initializer)
    for node in graph.node:
        own.update(node.output)
    read = [name for node in graph.node for _, name in node_reads(node)] + [v.name for v in graph.output]
    return list(dict.fromkeys(name for name in read if name and name not in own))
