"""Rules of `alias_of`, `in_place` and `takeover`: pairs exist, sizes fit, no overwritten content is read."""

from __future__ import annotations

from collections.abc import Collection

from graph.analysis.aliasing import storage_roots
from graph.errors import Findings, quoted
from graph.ir import ABSENT, Graph, Node, Role

# Content of a storage: a value and all its views. An output in place starts a new content in the same bytes.
#   w ──▶ view ──▶ a          contents: {w, view}, {w'}
#   w ──▶ sgd (in place) ──▶ w'         a must come before sgd


def check_storage(graph: Graph, where: str, writer: list[int], captured: Collection[int], findings: Findings) -> None:
    """Collect invalid `alias_of`, `in_place` and `takeover`, and reads of an overwritten content."""
    faults = len(findings)
    overwriting = []
    for n, node in enumerate(graph.nodes):
        if node.views or node.in_place:
            _check_pairs(graph, f"{where}nodes[{n}]", node, captured, findings)
            if node.in_place:
                overwriting.append(n)
        if node.takeover:
            _check_takeover(graph, f"{where}nodes[{n}].takeover", node, findings)
    if overwriting and len(findings) == faults:
        _check_overwrites(graph, where, overwriting, findings)


def _check_pairs(graph: Graph, path: str, node: Node, captured: Collection[int], findings: Findings) -> None:
    outputs: set[int] = set()
    overwritten: set[int] = set()
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
                    "an output and an input of this node",
                    "name an output of this node and one of its inputs",
                )
                continue
            if output in outputs:
                findings.add(
                    "bad_alias",
                    at,
                    f"output {output} of {quoted(node.name)} is declared in two storages",
                    "one storage for each output",
                    "declare it once, in `alias_of` or in `in_place`",
                )
            outputs.add(output)
            if node.inputs[source] in overwritten:
                findings.add(
                    "bad_alias",
                    at,
                    f"input {source} of {quoted(node.name)} is overwritten by two outputs",
                    "one output in place for each input",
                    "let only one output overwrite this input",
                )
            if field == "in_place":
                viewed = [node.inputs[i] for _, i in node.views]
                _check_in_place(graph, at, node, output, source, captured, viewed, findings)
                overwritten.add(node.inputs[source])
            else:
                _check_view(graph, at, node, output, source, findings)


def _check_takeover(graph: Graph, path: str, node: Node, findings: Findings) -> None:
    """Collect pairs that do not exist or differ in bytes or type, and outputs whose storage is declared elsewhere."""
    settled = {output for output, _ in (*node.views, *node.in_place)}
    for output, source in node.takeover:
        exists = 0 <= output < len(node.outputs) and 0 <= source < len(node.inputs)
        if not exists or node.outputs[output] == ABSENT or node.inputs[source] == ABSENT or output in settled:
            findings.add(
                "bad_alias",
                path,
                f"output {output} over input {source} of {quoted(node.name)}",
                "an output without `alias_of` and `in_place`, and an input of this node",
                "name an output of this node and some of its inputs",
            )
            continue
        new, old = graph.values[node.outputs[output]], graph.values[node.inputs[source]]
        new_type, old_type = (None if v.type is None else (v.type.elements, v.type.dtype) for v in (new, old))
        if new.nbytes > old.nbytes or new_type != old_type:
            findings.add(
                "alias_size",
                path,
                f"{quoted(new.name)}: {new.type}, {new.nbytes:,} bytes",
                f"the elements and at most the bytes of {quoted(old.name)}: {old.type}, {old.nbytes:,} bytes",
                "remove the input from `takeover`, or correct shapes and sizes",
            )


def _check_view(graph: Graph, path: str, node: Node, output: int, source: int, findings: Findings) -> None:
    view, storage = graph.values[node.outputs[output]], graph.values[node.inputs[source]]
    if view.nbytes != storage.nbytes:
        findings.add(
            "alias_size",
            path,
            f"view {quoted(view.name)} of {view.nbytes:,} bytes",
            f"{storage.nbytes:,} bytes, the size of {quoted(storage.name)}",
            "remove `alias_of`, or declare the size of the storage with `bytes` and `fixed_bytes`",
        )


def _check_in_place(
    graph: Graph,
    path: str,
    node: Node,
    output: int,
    source: int,
    captured: Collection[int],
    viewed: list[int],
    findings: Findings,
) -> None:
    new, old = graph.values[node.outputs[output]], graph.values[node.inputs[source]]
    if new.nbytes > old.nbytes:
        findings.add(
            "alias_size",
            path,
            f"{quoted(new.name)} of {new.nbytes:,} bytes",
            f"at most {old.nbytes:,} bytes, the size of {quoted(old.name)}",
            "remove `in_place`, or correct the sizes",
        )
    if old.role is Role.CONSTANT or node.inputs[source] in captured:
        kind = "captured from outside" if node.inputs[source] in captured else "a constant"
        findings.add(
            "overwritten_constant",
            path,
            f"{quoted(old.name)}, which is {kind}",
            "a mutable value",
            "remove `in_place`, or give the value the role state",
        )
    if node.inputs[source] in viewed:
        findings.add(
            "bad_alias",
            path,
            f"{quoted(old.name)} is overwritten and viewed by the same node",
            "only one of `alias_of` and `in_place`",
            "remove `alias_of` or `in_place`",
        )


def _check_overwrites(graph: Graph, where: str, overwriting: list[int], findings: Findings) -> None:
    """Collect nodes and graph outputs that read a content after its first overwrite."""
    content = storage_roots(graph)
    end_of: dict[int, int] = {}  # content -> first node that overwrites it
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
                    "every reader of the old content before the node that overwrites it",
                    f"move nodes[{n}] before nodes[{end}], or remove `in_place` there",
                )
    for i, v in enumerate(graph.outputs):
        if content[v] in end_of:
            end = end_of[content[v]]
            findings.add(
                "read_after_overwrite",
                f"{where}outputs[{i}]",
                f"{quoted(graph.values[v].name)}, which {quoted(graph.nodes[end].name)} overwrites",
                "outputs that keep their content to the end",
                "return the new value, or remove `in_place` there",
            )
