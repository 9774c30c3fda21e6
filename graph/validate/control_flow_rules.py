"""Rules of control-flow nodes: which bodies exist, their formal inputs, their outputs."""

from __future__ import annotations

from graph.errors import Findings, quoted
from graph.ir import ABSENT, Body, Graph, Node, TensorType
from graph.ops.control_flow.interface import CALL, CONTROL_FLOW, LoopInterface, trip_count
from graph.ops.control_flow.type_inference import formal_types, output_types
from graph.validate.checkpointed_scan_rules import SCAN_RULES, check_checkpointed_scans

_MAX_TRIPS, _MAX_RANK = 2**31 - 1, 64
_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), CALL: ("body",)}


def check_control_flow(graph: Graph, where: str, findings: Findings) -> None:
    """Collect the findings of the control-flow nodes of one graph, whose bodies are valid graphs."""
    ops = {node.op for node in graph.nodes}
    for n, node in enumerate(() if CONTROL_FLOW.isdisjoint(ops) else graph.nodes):
        if node.op in CONTROL_FLOW:
            _Check(graph, node, f"{where}nodes[{n}]", findings).run()
    if not SCAN_RULES.keys().isdisjoint(ops):
        check_checkpointed_scans(graph, where, findings)


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number <= _MAX_TRIPS


class _Check:
    def __init__(self, graph: Graph, node: Node, path: str, findings: Findings):
        self.graph, self.node, self.path, self.findings = graph, node, path, findings
        self.given = list(graph.types_of(node.inputs))
        self.name = f"{node.op} {quoted(node.name)}"

    def run(self) -> None:
        faults = len(self.findings)
        self._attributes()
        if len(self.findings) > faults:
            return  # all other rules read the attributes
        self._bodies()
        self._inputs()
        if len(self.findings) > faults:
            return
        for key, body in self.node.bodies.items():
            self._formals(key, body)
            self._count(key, body)
        if len(self.findings) > faults:
            return
        self._conditions()
        self._states()
        self._outputs()

    def _attributes(self) -> None:
        """Attributes that must be integers or lists of integers."""
        node = self.node
        kinds = {"annotations": node.annotations, "attributes": node.attributes}
        for kind, given in kinds.items() if node.op == "Loop" else ():
            if given.get("max_trips") is not None and not _is_count(given["max_trips"]):
                self._bad(f"{kind}.max_trips", given["max_trips"], f"an integer from 0 to {_MAX_TRIPS}")
        if node.op != "Scan":
            return
        scanned = node.attributes.get("num_scan_inputs", 1)
        if not _is_count(scanned):
            self._bad("attributes.num_scan_inputs", scanned, "the number of sequences")
            return
        self._layouts(scanned)

    def _layouts(self, scanned: int) -> None:
        """Axes and directions of a Scan: one per sequence, and one per stack."""
        node, body = self.node, self.node.bodies.get("body")
        stacked = len(body.graph.outputs) - (len(node.inputs) - scanned) if body is not None else 0
        for side, count in (("input", scanned), ("output", stacked)):
            for kind, allowed in (("axes", range(-_MAX_RANK, _MAX_RANK)), ("directions", range(2))):
                key = f"scan_{side}_{kind}"
                value = node.attributes.get(key)
                if value is None or (isinstance(value, list | tuple) and not value):
                    continue
                fits = isinstance(value, list | tuple) and all(type(n) is int and n in allowed for n in value)
                if not fits or (body is not None and len(value) != count):
                    self._bad(f"attributes.{key}", value, f"{max(count, 0)} {kind}, one per scanned {side}")

    def _bad(self, place: str, found: object, expected: str) -> None:
        self.findings.add(
            "bad_attribute", f"{self.path}.{place}", f"{found!r:.80} of {self.name}", expected, "correct it"
        )

    def _bodies(self) -> None:
        keys = _BODIES[self.node.op]
        for key in keys:
            if key not in self.node.bodies and not (key == "else_branch" and self._keeps()):
                self.findings.add(
                    "missing_body",
                    f"{self.path}.bodies",
                    f"{self.name} without {key}",
                    f"a graph as {key}",
                    "add it; an If without else_branch takes the kept values as further inputs",
                )
        for key in self.node.bodies:
            if key not in keys:
                self.findings.add(
                    "unknown_body",
                    f"{self.path}.bodies.{key}",
                    f"{self.name} with a body {quoted(key)}",
                    " and ".join(keys),
                    "rename or remove it",
                )

    def _keeps(self) -> bool:
        """True if an If gives its outputs without else_branch as further inputs."""
        return len(self.node.inputs) > 1 or not self.node.outputs

    def _inputs(self) -> None:
        node, count = self.node, len(self.node.inputs)
        if node.op == "If":
            self._branch_inputs()
        if node.op in ("If", "Loop") and (not count or (node.op == "If" and node.inputs[0] == ABSENT)):
            self.findings.add(
                "missing_condition",
                f"{self.path}.inputs",
                f"{self.name} without inputs",
                "a condition first" if node.op == "If" else "a trip count and a condition, either of them absent",
                "name the condition",
            )
        scanned = int(node.attributes.get("num_scan_inputs", 1)) if node.op == "Scan" else 1
        if node.op == "Scan" and not 1 <= scanned <= count:
            self.findings.add(
                "body_inputs",
                f"{self.path}.attributes.num_scan_inputs",
                f"{scanned} of {count} inputs of {self.name}",
                "at least 1 and at most the number of inputs",
                "correct the number",
            )

    def _branch_inputs(self) -> None:
        """Inputs of an If: its condition, and without an else branch the values that it keeps."""
        node, count = self.node, len(self.node.inputs)
        if "else_branch" not in node.bodies and "then_branch" in node.bodies:
            expected = len(node.bodies["then_branch"].graph.outputs)
            if count and count - 1 != expected:
                self.findings.add(
                    "kept_values",
                    f"{self.path}.inputs",
                    f"{self.name} without else_branch that keeps {count - 1} values",
                    f"{expected}, one per output",
                    "list after the condition the value of each output if the condition is false",
                )
        elif count > 1:
            self.findings.add(
                "body_inputs",
                f"{self.path}.inputs",
                f"{self.name} with {count} inputs",
                "only the condition, since both branches exist",
                "let the branches capture the other values",
            )

    def _formals(self, key: str, body: Body) -> None:
        expected = formal_types(self.node, self.given)
        if expected is None:
            return
        formals = list(body.graph.types_of(body.graph.inputs))
        if len(formals) != len(expected):
            self.findings.add(
                "body_inputs",
                f"{self.path}.bodies.{key}.inputs",
                f"{len(formals)} formal inputs in {key} of {self.name}",
                f"{len(expected)}, one per value passed to the body",
                "correct the formal inputs",
            )
            return
        for i, (a, b) in enumerate(zip(formals, expected, strict=True)):
            if a is not None and b is not None and a != b:
                name = body.graph.values[body.graph.inputs[i]].name
                self.findings.add(
                    "type_conflict",
                    f"{self.path}.bodies.{key}.inputs[{i}]",
                    f"{quoted(name)} is {a} in {key} of {self.name}",
                    f"{b}, the type of the value passed to it",
                    "correct or remove the declaration",
                )

    def _count(self, key: str, body: Body) -> None:
        """Collect bodies with too few outputs for the node, and branches with different numbers of outputs."""
        node, count = self.node, len(body.graph.outputs)
        if node.op == "If":
            other = next((b for k, b in node.bodies.items() if k != key), body)
            if key == "then_branch" and len(other.graph.outputs) != count:
                self.findings.add(
                    "branch_outputs",
                    f"{self.path}.bodies",
                    f"{count} outputs of then_branch and {len(other.graph.outputs)} of else_branch of {self.name}",
                    "the same number from both",
                    "let both branches return the same values",
                )
                return
        extra = 1 if node.op == "Loop" else 0
        states = LoopInterface.of(node).states if node.op in ("Loop", "Scan") else 0
        if count < extra + states or count - extra < len(node.outputs):
            self.findings.add(
                "body_outputs",
                f"{self.path}.bodies.{key}.outputs",
                f"{count} outputs of {key} of {self.name}",
                f"at least {max(extra + states, extra + len(node.outputs))}: "
                + ("the condition, " if extra else "")
                + f"{states} states and the outputs of the node",
                "let the body return one value for each",
            )

    def _conditions(self) -> None:
        node = self.node
        place = {"If": 0, "Loop": 1}.get(node.op, -1)
        if 0 <= place < len(node.inputs) and node.inputs[place] != ABSENT:
            self._flag(self.graph, node.inputs[place], f".inputs[{place}]", "the condition")
        if node.op == "Loop":
            graph = node.bodies["body"].graph
            self._flag(graph, graph.outputs[0], ".bodies.body.outputs[0]", "the condition the body returns")

    def _flag(self, graph: Graph, v: int, place: str, name: str) -> None:
        type = graph.values[v].type
        if type is not None and (type.dtype != "bool" or type.elements != 1):
            self.findings.add(
                "bad_condition",
                f"{self.path}{place}",
                f"{name} of {self.name}, {quoted(graph.values[v].name)}, is {type}",
                "one element of bool",
                "compare or reduce it to one bool",
            )

    def _states(self) -> None:
        if self.node.op not in ("Loop", "Scan"):
            return
        trips = LoopInterface.of(self.node)
        graph = trips.body.graph
        for i in range(trips.states):
            before, after = (graph.values[v] for v in (trips.state_in(i), trips.state_out(i)))
            if before.type is not None and after.type is not None and before.type != after.type:
                self.findings.add(
                    "state_type",
                    f"{self.path}.bodies.body.outputs[{trips.lead_out + i}]",
                    f"state {quoted(before.name)} of {self.name} is {before.type} before a trip, {after.type} after it",
                    "the same type in every trip",
                    "give it its final shape before the loop",
                )
        stacks = [v for v in self.node.outputs[trips.states :] if v != ABSENT]
        if stacks and trip_count(self.graph.values, self.node).bound is None:
            self.findings.add(
                "unknown_trips",
                self.path,
                f"{self.name} stacks {quoted(self.graph.values[stacks[0]].name)} over an unknown number of trips",
                "a constant trip count or an upper bound",
                "set the annotation `max_trips`",
            )
        if self.node.op == "Scan":
            self._lengths(trips)

    def _lengths(self, trips: LoopInterface) -> None:
        lengths = {}
        for k, (axis, _) in enumerate(trips.input_layouts()):
            value = self.graph.values[trips.sequence(k)]
            if value.type is not None and -len(value.type.shape) <= axis < len(value.type.shape):
                lengths[quoted(value.name)] = value.type.shape[axis]
        if len(set(lengths.values())) > 1:
            self.findings.add(
                "type_conflict",
                f"{self.path}.inputs",
                f"{self.name} over sequences of lengths {lengths}",
                "equal lengths",
                "correct the shapes or axes",
            )

    def _outputs(self) -> None:
        node, graph = self.node, self.graph
        if node.op == "If" and len(node.bodies) == 2:
            then, other = (list(b.graph.types_of(b.graph.outputs)) for b in node.bodies.values())
            self._agree(then, other, "in one branch and {} in the other")
        inferred = output_types(node, graph.values) or []
        declared = list(graph.types_of(node.outputs))
        self._agree(declared, inferred, "as declared and {} by its bodies")

    def _agree(self, a: list[TensorType | None], b: list[TensorType | None], how: str) -> None:
        for i, (one, two) in enumerate(zip(a, b, strict=False)):
            if one is None or two is None or one == two:
                continue
            v = self.node.outputs[i] if i < len(self.node.outputs) else ABSENT
            name = quoted(self.graph.values[v].name) if v != ABSENT else f"output {i}"
            self.findings.add(
                "type_conflict",
                f"{self.path}.outputs[{i}]",
                f"{name} of {self.name} is {one} {how.format(two)}",
                "one type",
                "correct the declaration, or pad to one shape",
            )
