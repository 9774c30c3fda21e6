"""Programs with shared value names: validation against the graph, and export as a document.

fc1: data ──▶ x     fc2: x ──▶ y     fc3: y ──▶ x          x is written twice; no node reads the first x after fc2
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from graph.analysis.aliasing import inplace_candidates, storage_roots
from graph.buffer_sharing.sharing import value_devices
from graph.errors import Findings, quoted
from graph.formats.document.schema import Document, NodeRow, ValueRow
from graph.formats.native.write import rows_of
from graph.ir import Graph, Node, Role, producers
from graph.ops.registry import find_op
from graph.ops.registry.registry import OutputInputPairs


def check_shared_names(graph: Graph, names: Sequence[str]) -> None:
    """Raise BadGraph if, with values called `names`, a value would be overwritten before its last use.

    A view has its own name and the bytes of its storage.
    """
    findings, roots, devices = Findings(), storage_roots(graph), value_devices(graph)
    content: dict[str, int] = {}  # name -> value it currently holds
    device_of: dict[str, int] = {}  # name -> its first value
    for v, n in enumerate(producers(graph)):
        if n < 0:
            _claim(graph, names, content, v, -1, findings)
    for n, node in enumerate(graph.nodes):
        for v in node.reads:
            _check_live(graph, names, content, roots[v], f"nodes[{n}]", f"{quoted(node.name)} reads", findings)
        own = [v for v in node.writes if roots[v] == v]
        pairs = (*node.in_place, *inplace_candidates(graph, node))
        _check_distinct(graph, names, node, n, own, findings)
        for v in own:
            _check_in_place(names, roots, pairs, node, n, v, findings)
            first = device_of.setdefault(names[v], v)
            if devices[first] != devices[v]:
                findings.add(
                    "shared_across_devices",
                    f"nodes[{n}]",
                    f"{quoted(names[v])} holds {quoted(graph.values[first].name)} on {devices[first]} and "
                    f"{quoted(graph.values[v].name)} on {devices[v]}",
                    "one device per name",
                    "use different names on different devices",
                )
            _claim(graph, names, content, v, n, findings)
    for i, v in enumerate(graph.outputs):
        _check_live(graph, names, content, roots[v], f"outputs[{i}]", "the result is", findings)
    findings.settle()


def _claim(graph: Graph, names: Sequence[str], content: dict[str, int], v: int, n: int, findings: Findings) -> None:
    """Set the content of the value's name; collect an overwritten resident."""
    held = content.get(names[v])
    if held is not None and graph.values[held].role is not Role.ACTIVATION and not _overwrites(graph, n, v, held):
        findings.add(
            "shared_resident",
            f"nodes[{n}]" if n >= 0 else f"values[{v}]",
            f"{quoted(graph.values[v].name)} under {quoted(names[v])}, the name of a resident",
            "a new name, or the name of an activation",
            "exclude residents from sharing",
        )
    content[names[v]] = v


def _overwrites(graph: Graph, n: int, v: int, held: int) -> bool:
    """True if node `n` writes `v` over `held` in place."""
    if n < 0:
        return False
    node = graph.nodes[n]
    return any(node.outputs[o] == v and node.inputs[i] == held for o, i in node.in_place)


def _check_live(
    graph: Graph, names: Sequence[str], content: dict[str, int], v: int, path: str, reader: str, findings: Findings
) -> None:
    held = content.get(names[v], v)
    if held != v:
        findings.add(
            "shared_while_live",
            path,
            f"{reader} {quoted(graph.values[v].name)}, but {quoted(names[v])} holds {quoted(graph.values[held].name)}",
            "a name that holds the value until its last reader",
            "rename one of them",
        )


def _check_distinct(
    graph: Graph, names: Sequence[str], node: Node, n: int, own: Sequence[int], findings: Findings
) -> None:
    written = [names[v] for v in own]
    for v, name in zip(own, written, strict=True):
        if written.count(name) > 1:
            findings.add(
                "output_twice",
                f"nodes[{n}]",
                f"{quoted(node.name)} writes {quoted(name)} more than once",
                "distinct names",
                f"give {quoted(graph.values[v].name)} another name",
            )
            return


def _check_in_place(
    names: Sequence[str], roots: Sequence[int], pairs: OutputInputPairs, node: Node, n: int, v: int, findings: Findings
) -> None:
    """Collect an output with the name of an input that it may not overwrite in place."""
    over = {roots[node.inputs[source]] for output, source in pairs if node.outputs[output] == v}
    if any(names[root] == names[v] and root not in over for root in (roots[read] for read in node.reads)):
        findings.add(
            "not_in_place",
            f"nodes[{n}]",
            f"{quoted(node.name)} reads and writes {quoted(names[v])}",
            "an op that may overwrite its input",
            "give the output another name, or declare `in_place`",
        )


def shared_document(graph: Graph, names: Sequence[str]) -> Document:
    """The graph as a document with `"naming": "mutable"` and values called `names`.

    Loading the document gives a graph with the same data flow. If the values of a name differ in type, the
    type is left to inference; if one of their ops is unknown, the name gets the bytes of the largest value.
    """
    check_shared_names(graph, names)
    table = {value.name: name for value, name in zip(graph.values, names, strict=True)}
    rows = rows_of(graph)
    return replace(
        rows,
        values=_declarations(graph, names, rows.values),
        nodes=[_renamed(node, table) for node in rows.nodes],
        outputs=[table[name] for name in rows.outputs],
        gradients={table[p]: table[g] for p, g in rows.gradients.items()},
        naming="mutable",
    )


def _declarations(graph: Graph, names: Sequence[str], rows: Sequence[ValueRow]) -> list[ValueRow]:
    """One row per name."""
    members: dict[str, list[int]] = {}
    for v, name in enumerate(names):
        members.setdefault(name, []).append(v)
    producer = producers(graph)
    result = []
    for name, values in members.items():
        row = replace(rows[values[0]], name=name)
        if len({(graph.values[v].type, graph.values[v].nbytes) for v in values}) > 1:
            opaque = any(producer[v] >= 0 and find_op(graph.nodes[producer[v]].op) is None for v in values)
            largest = max(graph.values[v].nbytes for v in values)
            row = replace(row, shape=None, dtype=None, bytes=largest if opaque else None, fixed_bytes=False)
        result.append(row)
    return result


def _renamed(node: NodeRow, table: dict[str, str]) -> NodeRow:
    """The row with new names; gradient reads are given by slot, since a name may be input and output."""
    reads = node.gradient_reads
    if reads is not None:
        reads = [_slot(node, name) for name in reads]
    return replace(
        node,
        inputs=[table.get(name, name) for name in node.inputs],
        outputs=[table.get(name, name) for name in node.outputs],
        alias_of={table[output]: table[source] for output, source in node.alias_of.items()},
        in_place={table[output]: table[source] for output, source in node.in_place.items()},
        gradient_reads=reads,
        bodies={
            key: replace(body, captures={inner: table[outer] for inner, outer in body.captures.items()})
            for key, body in node.bodies.items()
        },
    )


def _slot(node: NodeRow, name: str) -> str:
    """Slot of a value of the node, `inputs[0]` or `outputs[1]`."""
    if name in node.inputs:
        return f"inputs[{node.inputs.index(name)}]"
    return f"outputs[{node.outputs.index(name)}]"
