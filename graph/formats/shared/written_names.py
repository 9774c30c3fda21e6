"""Names of operands in a written file, taken from the graph: what a pass renamed, replaced or removed is written so.

read      fc: x w -> y       relu: y -> y           the annotation of each row notes the names it had in the file
renamed   fc: x w -> q       relu: q -> y/2         op fc {y: q}, op relu reads {y: q}, writes {y: y}

Versions of a name share it where that overwrites no value that an op of the file still reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from graph.errors import quoted
from graph.formats.shared.groups import OpGroup, not_representable, note_of, op_groups, origin_of, run_of
from graph.formats.shared.rows import Origin
from graph.ir import ABSENT, OPERAND_OF, Graph, Node, Role
from graph.ssa.naming import base_name, naming_of

#: Formats whose readers annotate nodes with the op that they were.
FRAMEWORKS = frozenset({"caffe2", "mxnet", "paddle"})


@dataclass(slots=True)
class WrittenOp:
    """One op of the file, with the names of its operands: name when it was read -> name to write."""

    group: OpGroup
    node: Node  # the row that notes the op
    reads: dict[str, str] = field(default_factory=dict)  # operands, and outer names that nested graphs read
    writes: dict[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> list[str]:
        return [self.reads.get(name, name) for name in self.group.origin.inputs]

    @property
    def outputs(self) -> list[str]:
        return [self.writes.get(name, name) for name in self.group.origin.outputs]

    def nested_names(self) -> dict[str, str]:
        """Changed names, for nested graphs that refer to outer values by name.

        Raises BadGraph where an op reads and writes one name in place of which there are two.
        """
        for name in self.reads.keys() & self.writes.keys():
            if self.reads[name] != self.writes[name]:
                raise not_representable(
                    f"node {quoted(self.group.name)}",
                    f"{self.group.origin.op}, which reads {quoted(self.reads[name])} and writes "
                    f"{quoted(self.writes[name])}",
                    f"one name for both, such as {quoted(name)}",
                )
        return {old: new for old, new in (self.reads | self.writes).items() if old != new}

    def refuse_clash(self, names: Mapping[str, str], used: set[str], nested: str) -> None:
        """Raise BadGraph if a new name of `nested_names` is one that the nested graph uses for a value of its own."""
        if clash := sorted(set(names.values()) & used):
            raise not_representable(
                f"node {quoted(self.group.name)}",
                f"{self.group.origin.op}, whose {nested} has another value {quoted(clash[0])}",
                f"an outer name that its {nested} does not use",
            )


@dataclass(slots=True)
class WrittenProgram:
    """The ops of a file in order, and the names of its values."""

    ops: list[WrittenOp]
    names: list[str]  # per value of the graph
    given: list[int]  # values that exist before the first op and that an op reads or the graph has as inputs
    outputs: list[str]  # of the graph, without losses
    old_names: dict[str, str]  # name to write -> name when it was read


def written_program(graph: Graph, groups: Sequence[OpGroup], framework: str) -> WrittenProgram:
    """Names for the ops of a file. Raises BadGraph naming a value that the ops of the file cannot compute or name."""
    return _Names(graph, groups, framework).program()


class _Names:
    """Values of each op by the name they had in the file, then names for these values."""

    def __init__(self, graph: Graph, groups: Sequence[OpGroup], framework: str):
        self.graph, self.groups = graph, groups
        noted = note_of(graph, framework).get("losses", ())
        self.losses = frozenset(map(str, noted if isinstance(noted, list | tuple) else ()))
        self.first_run = _first_runs(graph)
        self.origins = {n: origin_of(graph.nodes[n], framework) or Origin() for group in groups for n in group.nodes}
        self.overwritten: list[tuple[int, int]] = []  # values that one op writes under one name, first and next
        self.reads: list[dict[str, int]] = []  # per op: name -> value from outside
        self.writes: list[dict[str, int]] = []  # per op: name -> value
        self.added: list[list[tuple[str, int]]] = []  # per op: (name, constant or value that the reader added)
        self.file_names = self._file_names()
        self.unread = self._unread_operands()
        for group in groups:
            self._collect(group)

    def _collect(self, group: OpGroup) -> None:
        """Values of one op by name. Raises BadGraph for two values of one name."""
        made = {v for n in group.nodes for v in self.graph.nodes[n].writes}
        reads: dict[str, int] = {}
        writes: dict[str, int] = {}
        added: list[tuple[str, int]] = []
        for n in group.nodes:
            for name, v in self._slots(n):
                if v in made:
                    continue
                if self.graph.values[v].role is Role.CONSTANT and name not in self.file_names:
                    added.append((name, v))
                elif name not in self.file_names or name in self.origins[n].inner:
                    raise not_representable(
                        f"node {quoted(group.name)}",
                        f"{group.origin.op}, which reads {quoted(self.graph.values[v].name)} in place of a value "
                        "that it computes",
                        "the operands of the file",
                    )
                elif reads.setdefault(name, v) != v:
                    names = [quoted(self.graph.values[u].name) for u in (reads[name], v)]
                    raise not_representable(
                        f"node {quoted(self.graph.nodes[n].name)}",
                        f"{group.origin.op}, which reads {names[0]} and {names[1]} as its operand {quoted(name)}",
                        "one value for each operand",
                    )
            row, node = self.origins[n], self.graph.nodes[n]
            names = row.outputs if row.row_outputs is None else row.row_outputs
            for name, v in zip(names, node.outputs, strict=False):
                if name and v != ABSENT and name in self.file_names:
                    self.overwritten += [(writes[name], v)] if name in writes else []
                    writes[name] = v
                elif name and v != ABSENT:
                    added.append((name, v))
        for name in group.origin.inputs:
            if name not in reads and (group.origin.id, name) in self.unread:
                reads[name] = self.unread[group.origin.id, name]
        self.reads.append(reads)
        self.writes.append(writes)
        self.added.append(added)

    def _file_names(self) -> set[str]:
        """Names that the file has: operands of its ops, and outer names in their nested graphs."""
        names = {name for group in self.groups for name in (*group.origin.inputs, *group.origin.outputs)}
        for origin in self.origins.values():
            names.update(*origin.captures.values())
        return names

    def _unread_operands(self) -> dict[tuple[str, str], int]:
        """(op, operand) -> the given value that it is, though no row reads it."""
        found: dict[tuple[str, str], int] = {}
        for v, value in enumerate(self.graph.values):
            ops = value.annotations.get(OPERAND_OF)
            if value.role is not Role.ACTIVATION and isinstance(ops, Mapping):
                for op, name in ops.items():
                    found.setdefault((op, name), v)
        return found

    def _slots(self, n: int) -> list[tuple[str, int]]:
        """(name, value) of the inputs of a node and of the captures of its bodies."""
        node, row = self.graph.nodes[n], self.origins[n]
        names = row.inputs if row.row_inputs is None else row.row_inputs
        slots = list(zip(names, node.inputs, strict=False))
        for key, body in node.bodies.items():
            slots += zip(row.captures.get(key, ()), (outer for _, outer in body.captures), strict=False)
        return [(name, self.first_run.get(v, v)) for name, v in slots if name and v != ABSENT]

    def program(self) -> WrittenProgram:
        graph = self.graph
        constants = {v for v, value in enumerate(graph.values) if value.role is Role.CONSTANT}
        nodes = [
            Node(
                str(g),
                "",
                tuple(dict.fromkeys(reads.values())),
                tuple(v for v in dict.fromkeys([*(v for _, v in added), *writes.values()]) if v not in constants),
            )
            for g, (reads, writes, added) in enumerate(zip(self.reads, self.writes, self.added, strict=True))
        ]
        read = {v for node in nodes for v in node.inputs}
        # Results of the backward pass and of slots that a pass added are no values of the file.
        in_file = {v for found in self.writes for v in found.values()}
        in_file.update(v for found in self.added for _, v in found)
        in_file.update(v for v, value in enumerate(graph.values) if value.role is not Role.ACTIVATION)
        outputs = [v for v in (self.first_run.get(v, v) for v in graph.outputs) if v in in_file]
        # Gradients that the framework computes itself are no values of the file.
        names = naming_of(replace(graph, nodes=tuple(nodes), gradients=()), one_declaration=False).names
        ops = [WrittenOp(group, graph.nodes[group.nodes[-1]]) for group in self.groups]
        for first, last in self.overwritten:
            found = [base_name(graph.values[v]) for v in (first, last)]
            if found[0] != found[1]:
                raise not_representable(
                    f"values.{found[0]}",
                    f"{quoted(found[0])} and {quoted(found[1])}, which one op of the file writes in turn",
                    "one name for both",
                )
        losses: list[int] = []
        for op, reads, writes, added in zip(ops, self.reads, self.writes, self.added, strict=True):
            op.reads = {name: names[v] for name, v in reads.items()}
            op.writes = {name: names[v] for name, v in writes.items()}
            self._check_added(op, added, names)
            losses += [v for name, v in added if name in self.losses]
        in_groups = sum(len(group.nodes) for group in self.groups)
        if in_groups == len(graph.nodes) and losses != outputs[len(outputs) - len(losses) :]:
            raise not_representable(
                "outputs",
                "outputs without all losses of the file, or in another order",
                "the outputs of the file, then the losses of its ops",
            )
        given = [
            v
            for v, value in enumerate(graph.values)
            if value.role is not Role.ACTIVATION and (value.role is not Role.CONSTANT or v in read)
        ]
        kept = [v for v in outputs if v not in losses]
        self._check_order(ops, names, kept)
        old = {new: name for op in ops for side in (op.reads, op.writes) for name, new in side.items()}
        return WrittenProgram(ops, names, given, [names[v] for v in kept], old)

    def _check_added(self, op: WrittenOp, added: Sequence[tuple[str, int]], names: list[str]) -> None:
        """Raise BadGraph for a value that the reader adds under another name than it chooses."""
        origin = op.group.origin
        for name, v in added:
            chosen = op.group.name.removesuffix(origin.id) + name if op.group.name.endswith(origin.id) else name
            # A plan that repeats a node numbers the values of its runs.
            if names[v] not in (name, chosen, f"{name}/0", f"{chosen}/0"):
                raise not_representable(
                    f"values.{names[v]}",
                    f"{quoted(names[v])}, which is no operand of {origin.op} {quoted(op.group.name)} in the file",
                    f"the name that its reader chooses: {quoted(chosen)}",
                )

    def _check_order(self, ops: Sequence[WrittenOp], names: list[str], outputs: list[int]) -> None:
        """Raise BadGraph where the value of a name is not the one to read, as the ops run in order."""
        given = (v for v, value in enumerate(self.graph.values) if value.role is not Role.ACTIVATION)
        held = {names[v]: v for v in given}
        for op, reads, writes in zip(ops, self.reads, self.writes, strict=True):
            for v in reads.values():
                self._check_held(held, names[v], v, f"node {quoted(op.group.name)}")
            for name in op.group.origin.inputs:
                if name and name not in reads and name not in held:
                    raise not_representable(
                        f"node {quoted(op.group.name)}",
                        f"{op.group.origin.op} with the operand {quoted(name)}, which is no longer in the graph",
                        "the operands of the file",
                    )
            for name in op.group.origin.outputs:
                if name and name not in writes:
                    held[name] = ABSENT
            held.update((names[v], v) for v in writes.values())
        for v in outputs:
            self._check_held(held, names[v], v, f"values.{self.graph.values[v].name}")

    def _check_held(self, held: Mapping[str, int], name: str, v: int, place: str) -> None:
        if held.get(name, ABSENT) != v:
            raise not_representable(
                place,
                f"{quoted(self.graph.values[v].name)}, which no op in the file computes, or which is overwritten",
                "values that the ops of the file compute",
            )


def _first_runs(graph: Graph) -> dict[int, int]:
    """Value of a recomputed node -> the value that the first run writes."""
    first = {node.name: node for node in graph.nodes if run_of(node) == 0}
    found: dict[int, int] = {}
    for node in graph.nodes:
        if run_of(node) > 0:
            source = first.get(node.annotations["origin"][0])
            if source is not None:
                found.update(zip(node.outputs, source.outputs, strict=False))
    return found


def added_values(graph: Graph) -> set[int]:
    """Values that the reader of a framework's file added, which no op of the file names."""
    read_from = FRAMEWORKS.intersection(graph.annotations)
    found = [_Names(graph, op_groups(graph, framework, strict=False), framework) for framework in read_from]
    return {v for names in found for added in names.added for _, v in added}
