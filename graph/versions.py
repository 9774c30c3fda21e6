"""Programs whose names are written more than once: each write is a new version of the name.

w ──▶ step1 ──▶ w        the first write of a given name is w/1, the second w/2
w ──▶ step2 ──▶ w        a name nobody gives keeps its own name for its first write
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msgspec.structs import replace

from graph.errors import Findings, quoted
from graph.native.schema import BodyRow, Document, NodeRow, ValueRow

_SLOT = re.compile(r"(inputs|outputs)\[\d+\]\Z")


@dataclass(slots=True)
class _Versions:
    """Which version of each name is current while the program is read from top to bottom."""

    given: set[str]
    taken: set[str]
    current: dict[str, str] = field(default_factory=dict)  # name -> its latest version
    writer: dict[str, str] = field(default_factory=dict)  # version -> node
    readers: dict[str, list[str]] = field(default_factory=dict)  # version -> nodes
    source: dict[str, str] = field(default_factory=dict)  # version made here -> its name
    count: dict[str, int] = field(default_factory=dict)

    def read(self, name: str, node: str) -> str:
        version = self.current.get(name, name)
        self.readers.setdefault(version, []).append(node)
        return version

    def write(self, name: str, node: str) -> str:
        if name not in self.current and name not in self.given:
            version = name
        else:
            k = self.count.get(name, 0) + 1
            while f"{name}/{k}" in self.taken:
                k += 1
            self.count[name] = k
            version = f"{name}/{k}"
            self.taken.add(version)
            self.source[version] = name
        self.current[name] = version
        self.writer[version] = node
        return version


def single_definition(document: Document, findings: Findings) -> tuple[Document, frozenset[str]]:
    """The document with one name for each version, and the names that share a declaration with an older one.

    A write comes `after` the reads and the write of the version it replaces, so that the document
    can be turned back. New names are `NAME/1`, `NAME/2`, ... that nothing else has. O(reads + writes).
    """
    taken = {value.name for value in document.values}.union(*(node.outputs for node in document.nodes))
    versions = _Versions({value.name for value in document.values if value.role != "activation"}, taken)
    nodes = [_node(versions, n, node, findings) for n, node in enumerate(document.nodes)]
    declared = {value.name: value for value in document.values}
    more = [
        replace(declared[name], name=version, role="activation", data=None)
        for version, name in versions.source.items()
        if name in declared
    ]
    current = versions.current
    result = replace(
        document,
        values=document.values + more,
        nodes=nodes,
        outputs=[current.get(name, name) for name in document.outputs],
        naming="single",
        gradients={p: current.get(g, g) for p, g in document.gradients.items()},
    )
    rewritten = set(versions.source.values()) & declared.keys() - versions.given
    return result, frozenset(value.name for value in more) | frozenset(rewritten)


def _node(versions: _Versions, n: int, node: NodeRow, findings: Findings) -> NodeRow:
    """The node with versions for names, after everything its writes replace."""
    if not node.inputs and not node.outputs:
        return node
    inputs = {name: versions.read(name, node.name) for name in dict.fromkeys(node.inputs) if name}
    bodies = {key: _body(versions, body, node.name) for key, body in node.bodies.items()}
    replaced = [versions.current.get(name, name) for name in node.outputs if name]
    outputs = {name: versions.write(name, node.name) for name in dict.fromkeys(node.outputs) if name}
    before = dict.fromkeys(node.after)
    for old, name in zip(replaced, (name for name in node.outputs if name), strict=True):
        if old == outputs[name]:
            continue  # the first write of this name
        before.update(dict.fromkeys(versions.readers.pop(old, ())))
        if old in versions.writer:
            before[versions.writer[old]] = None
    before.pop(node.name, None)
    reads = node.gradient_reads
    return replace(
        node,
        inputs=[inputs.get(name, name) for name in node.inputs],
        outputs=[outputs.get(name, name) for name in node.outputs],
        after=list(before),
        alias_of={outputs.get(o, o): inputs.get(i, i) for o, i in node.alias_of.items()},
        in_place={outputs.get(o, o): inputs.get(i, i) for o, i in node.in_place.items()},
        gradient_reads=None if reads is None else [_own(inputs, outputs, name, n, findings) for name in reads],
        bodies=bodies,
    )


def _body(versions: _Versions, body: BodyRow, node: str) -> BodyRow:
    return replace(body, captures={inner: versions.read(outer, node) for inner, outer in body.captures.items()})


def _own(inputs: dict[str, str], outputs: dict[str, str], name: str, n: int, findings: Findings) -> str:
    """The version of one of the node's own names; a name it both reads and writes does not tell which."""
    if name in inputs and name in outputs and inputs[name] != outputs[name] and not _SLOT.match(name):
        findings.add(
            "ambiguous_name", f"nodes[{n}].gradient_reads", f"{quoted(name)}, which the node reads and writes",
            "the version before or after the write", "write inputs[0] or outputs[0] with its place instead",
        )  # fmt: skip
    return outputs.get(name) or inputs.get(name) or name


__all__ = ["ValueRow", "single_definition"]
