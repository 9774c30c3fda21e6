"""Nested nets of Caffe2 ops: look-up, and reading with the types of the outer names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graph.errors import BadGraph, quoted
from graph.formats.caffe2.proto import net_of
from graph.formats.document.schema import BodyRow
from graph.ir import TensorType

if TYPE_CHECKING:
    from graph.formats.caffe2.reader import NetReader


def nested_net(attributes: Mapping[str, Any], *names: str) -> Any:
    """Net argument, stored as a message or as text; None when absent."""
    for name in names:
        found = attributes.get(name)
        if isinstance(found, str) and found.strip():
            return net_of(found.encode())
        if found is not None and not isinstance(found, str | list | int | float):
            return found
    return None


class NestedNet:
    """A nested net read with the types of the outer names."""

    def __init__(self, net: NetReader, nested: Any, bound: Mapping[str, TensorType | None]):
        self.program = net.program.nested()
        self.program.types.update(bound)
        self.walker = net.nested(self.program)
        self.first_reads: dict[str, None] = {}
        self.add(nested)

    def add(self, nested: Any) -> None:
        """Read a further net after the first."""
        for op in nested.op:
            for name in op.input:
                if name and name not in self.walker.written:
                    self.first_reads[name] = None
            self.walker.op(op)

    @property
    def written(self) -> dict[str, None]:
        return self.walker.written

    def body(self, formal: list[str], captures: Mapping[str, str], outputs: list[str]) -> BodyRow:
        return BodyRow(formal, self.program.nodes, outputs, list(self.program.values.values()), dict(captures))

    def type_of(self, name: str) -> TensorType | None:
        return self.program.types.get(name)


def captures_of(net: NetReader, what: str, inside: NestedNet, formal: Sequence[str] = ()) -> dict[str, str]:
    """Captures of a nested net: names it reads before writing them, without its formal inputs. Raises BadGraph."""
    reads = [name for name in inside.first_reads if name not in formal]
    for name in reads:
        if name not in net.program.types:
            raise undefined_error(what, f"{quoted(name)} is read inside, and nothing outside defines it")
    return {name: name for name in reads}


def undefined_error(what: str, found: str) -> BadGraph:
    return BadGraph.one(
        "undefined_value",
        f"op {quoted(what)}",
        found,
        "a name written before it is read",
        "write it first, or give it a value outside",
    )


def missing_net_error(what: str, op: str, net_name: str) -> BadGraph:
    return BadGraph.one(
        "missing_body", f"op {quoted(what)}", f"{op} without {net_name}", "a net to run", f"add the {net_name}"
    )
