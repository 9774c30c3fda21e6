"""Whether views and in-place outputs name storages that exist, fit and are not read after they are overwritten."""

from __future__ import annotations

from collections.abc import Collection

from graph.analysis.aliasing import storage_roots
from graph.errors import Findings, quoted
from graph.ir import ABSENT, Graph, Node, Role

# Content of a storage: a value and all views of it. An output in place begins a new content in the old bytes.
#   w ──▶ view ──▶ a          contents: {w, view}, {w'}
#   w ──▶ sgd (in place) ──▶ w'         a must come before sgd


def check_storage(graph: Graph, where: str, writer: list[int], captured: Collection[int], findings: Findings) -> None:
    """Collect wrong `alias_of` and `in_place`, and reads of a content that has been overwritten."""
    faults = len(findings)
    overwriting = []
    for n, node in enumerate(graph.nodes):
        if node.views or node.in_place:
            _pairs(graph, f"{where}nodes[{n}]", node, captured, findings)
            if node.in_place:
                overwriting.append(n)
    if overwriting and len(findings) == faults:
        _overwrites(graph, where, overwriting, findings)


def _pairs(graph: Graph, path: str, node: Node, captured: Collection[int], findings: Findings) -> None:
    outputs: set[int] = set()
    taken: set[int] = set()
    for field, pairs in (("alias_of", node.views), ("in_place", node.in_place)):
        for output, source in pairs:
            at = f"{path}.{field}"
            if not (0 <= output < len(node.outputs) and node.outputs[output] != ABSENT) or not (
                0 <= source < len(node.inputs) and node.inputs[source] != ABSENT
            ):
                findings.add(
                    "bad_alias",
                    at,
                    f"output {output} of input {source} of {quoted(node.name)}",
                    "an output and an input the node has",
                    "name an output of this node and one of its inputs",
                )
                continue
            if output in outputs:
                findings.add(
                    "bad_alias",
                    at,
                    f"output {output} of {quoted(node.name)} lies in two storages",
                    "one storage for each output",
                    "name it once, in `alias_of` or in `in_place`",
                )
            outputs.add(output)
            if node.inputs[source] in taken:
                findings.add(
                    "bad_alias",
                    at,
                    f"input {source} of {quoted(node.name)} is taken over twice",
                    "one output in place for each input",
                    "let only one output take this input's bytes",
                )
            if field == "in_place":
                shown = [node.inputs[i] for _, i in node.views]
                _in_place(graph, at, node, output, source, captured, shown, findings)
                taken.add(node.inputs[source])
            else:
                _view(graph, at, node, output, source, findings)


def _view(graph: Graph, path: str, node: Node, output: int, source: int, findings: Findings) -> None:
    view, storage = graph.values[node.outputs[output]], graph.values[node.inputs[source]]
    if view.nbytes != storage.nbytes:
        findings.add(
            "alias_size",
            path,
            f"view {quoted(view.name)} of {view.nbytes} bytes",
            f"{storage.nbytes} bytes, as {quoted(storage.name)} has",
            "leave `alias_of` out, or give the size of the whole storage by `bytes` and `fixed_bytes`",
        )


def _in_place(
    graph: Graph,
    path: str,
    node: Node,
    output: int,
    source: int,
    captured: Collection[int],
    shown: list[int],
    findings: Findings,
) -> None:
    new, old = graph.values[node.outputs[output]], graph.values[node.inputs[source]]
    if new.nbytes > old.nbytes:
        findings.add(
            "alias_size",
            path,
            f"{quoted(new.name)} of {new.nbytes} bytes",
            f"at most {old.nbytes} bytes, as {quoted(old.name)} has",
            "leave `in_place` out, or correct the sizes",
        )
    if old.role is Role.CONSTANT or node.inputs[source] in captured:
        what = "captured from outside" if node.inputs[source] in captured else "a constant"
        findings.add(
            "overwritten_constant",
            path,
            f"{quoted(old.name)}, which is {what}",
            "a value that may change",
            "leave `in_place` out, or give the value the role state",
        )
    if node.inputs[source] in shown:
        findings.add(
            "bad_alias",
            path,
            f"{quoted(old.name)} is overwritten and shown by one node",
            "one of both",
            "leave `alias_of` or `in_place` out",
        )


def _overwrites(graph: Graph, where: str, overwriting: list[int], findings: Findings) -> None:
    """Reads and holds of a content after it was overwritten."""
    content = storage_roots(graph)
    end_of: dict[int, int] = {}  # content -> node that overwrites it first
    for n in overwriting:
        node = graph.nodes[n]
        for _, source in node.in_place:
            end_of.setdefault(content[node.inputs[source]], n)
    for n, node in enumerate(graph.nodes):
        for v in node.reads:
            end = end_of.get(content[v], n)
            if end < n:
                name, overwriter = quoted(graph.values[v].name), quoted(graph.nodes[end].name)
                findings.add(
                    "read_after_overwrite",
                    f"{where}nodes[{n}]",
                    f"{quoted(node.name)} reads {name} after {overwriter} overwrote it",
                    "every reader of the old content before the node that writes over it",
                    f"move nodes[{n}] before nodes[{end}], or leave `in_place` out there",
                )
    for i, v in enumerate(graph.outputs):
        if content[v] in end_of:
            end = end_of[content[v]]
            findings.add(
                "read_after_overwrite",
                f"{where}outputs[{i}]",
                f"{quoted(graph.values[v].name)}, which {quoted(graph.nodes[end].name)} overwrites",
                "outputs that are still there at the end",
                "hand out the new value, or leave `in_place` out there",
            )
