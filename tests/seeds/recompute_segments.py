"""Segments from checkpoints, and ops run again in the backward part, as the recompute pass has them.

case ──▶ forward graph of opaque ops ──▶ seeds ──▶ gradients ──▶ segments run again ──▶ updates
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from graph.autodiff.differentiate import differentiate
from graph.autodiff.resolve_names import GradientOptions
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.formats.paddle.ops import PADDLE, slots_of
from graph.formats.paddle.recompute import SEGMENT_BUILDERS, recompute_pass
from graph.formats.readers import load
from graph.formats.shared.op_table import Translation
from graph.formats.shared.rows import translation_rows
from graph.ir import Graph, Node, Phase, Role, TensorType
from graph.training.random_seeds import FIXED_SEED_ATTRIBUTES, with_seeds
from graph.training.recompute_segments import RecomputedGraph
from graph.training.segments import ForwardPath, Segments, select_segments
from graph.training.step import training_step
from graph.transforms.structural_equality import difference
from tests.seeds.harness import Area, Case

#: Ops that draw by themselves unless a seed is among their inputs.
RANDOM = ("dropout",)
#: Attributes that name the segment of an op.
TAGS = {"segment": "segment", "op_namescope": "segment"}
OF_OURS = {"remat::Seed": "seed"}


class Recomputed:
    """One case, or one variant of it; what is asked of it is worked out when it is looked at."""

    def __init__(self, case: Case, checkpoints: Sequence[str] | None = None):
        self.case, self.given = case, case["given"]
        self.checkpoints = checkpoints if checkpoints is not None else self.given.get("checkpoints")

    @cached_property
    def ops(self) -> list[dict[str, Any]]:
        return self.case["ops"] or PERCEPTRON

    @property
    def loss(self) -> str:
        """What is differentiated; else the last value written before the first op that makes a gradient."""
        targets = list(self.case["wanted_gradients"].get("targets", {}))
        if targets:
            return str(targets[0])
        return str(self.ops[self._forward_ops() - 1]["outputs"][0])

    def _forward_ops(self) -> int:
        is_gradient = [any("@GRAD" in name for name in op["outputs"]) for op in self.ops]
        return is_gradient.index(True) if True in is_gradient else len(self.ops)

    @cached_property
    def forward(self) -> Graph:
        """The ops as opaque nodes; with a backward part where the case brings its own."""
        return load(msgspec.json.encode(self._document()))

    def _document(self) -> dict[str, Any]:
        parameters = set(self.given.get("parameters", []))
        written = {name for op in self.ops for name in op["outputs"]}
        names = dict.fromkeys(name for op in self.ops for name in (*op["inputs"], *op["outputs"]))
        shapes = self.given.get("shapes", {})
        seeds = {name for op in self.ops if op["type"] == "seed" for name in op["outputs"]}

        def role(name: str) -> str:
            return "parameter" if name in parameters else "activation" if name in written else "input"

        nodes = []
        for i, op in enumerate(self.ops):
            draws = (op["type"] in RANDOM and seeds.isdisjoint(op["inputs"])) or op["type"] == "seed"
            nodes.append(
                {
                    "name": f"op{i}",
                    "op": f"paddle::{op['type']}",
                    "inputs": op["inputs"],
                    "outputs": op["outputs"],
                    "attributes": op["attrs"],
                    "effect": "random" if draws else "pure",
                    "phase": "forward" if i < self._forward_ops() else "backward",
                    "annotations": {name: op["attrs"][tag] for tag, name in TAGS.items() if tag in op["attrs"]},
                }
            )
        read = {name for op in self.ops for name in op["inputs"]}
        values = [
            {
                "name": name,
                "shape": [1] if name in seeds else shapes.get(name, [4]),
                "dtype": "int32" if name in seeds else "float32",
                "role": role(name),
            }
            for name in names
        ]
        return {
            "format": "remat/1",
            "values": values,
            "nodes": nodes,
            "outputs": [name for name in names if name in written and name not in read],
        }

    @cached_property
    def training(self) -> Graph:
        """Forward with its seeds, and backward."""
        if self._forward_ops() < len(self.ops):
            return self.forward
        statistics = ForwardPath.of(self.forward, [self.forward.value_named(self.loss)])
        seeded = with_seeds(self.forward, statistics.path)
        trained = any(value.role is Role.PARAMETER for value in seeded.values)
        inputs = None if trained else [seeded.values[v].name for v in seeded.inputs]
        return differentiate(seeded, [self.loss], inputs, options=GradientOptions(gradient_rules=self._rules()))

    def _rules(self) -> dict[str, Any]:
        """What gradient ops read, by slots as `backward_reads` names them; X and Out where it says nothing."""
        reads = self.given.get("backward_reads", {})
        rules = {}
        for op in self.ops:
            takes, gives = slots_of(op["type"])
            said = reads.get(op["type"], [*takes, "Out@GRAD"])
            found = []
            for slot in said:
                if slot.endswith("@GRAD"):
                    found.append("incoming[0]")
                elif slot in takes:
                    found.append(f"inputs[{takes.index(slot)}]")
                else:
                    found.append(f"outputs[{gives.index(slot)}]")
            rules[f"paddle::{op['type']}"] = {
                "op": f"paddle::{op['type']}_grad",
                "reads": [place for place in dict.fromkeys(found) if _place(place) < len(op["inputs"])],
            }
        return rules

    @cached_property
    def statistics(self) -> ForwardPath:
        forward = self.training
        return ForwardPath.of(forward, [forward.value_named(self.loss)])

    def segments(self, rule: str) -> Segments:
        return select_segments(
            self.statistics, self.checkpoints, self.ranges, self.opt_out, build=SEGMENT_BUILDERS[rule]
        )

    @property
    def ranges(self) -> list[list[int]] | None:
        return self.given.get("segments")  # type: ignore[no-any-return]

    @property
    def opt_out(self) -> list[int]:
        """Numbers of segments that stay as they are."""
        found = (self.given.get(name) for name in ("opt_out", "no_recompute_segments"))
        return next((numbers for numbers in found if numbers), [])

    @cached_property
    def result(self) -> RecomputedGraph:
        return recompute_pass(
            self.training, self.loss, self.checkpoints, rule=self.rule, ranges=self.ranges, opt_out=self.opt_out
        )

    @property
    def rule(self) -> str:
        """Optimisers append gradients themselves; inserting into what is there is the pass's way."""
        return "append_backward" if "optimizer" in self.given else "pass"

    @cached_property
    def final(self) -> Graph:
        """With an update of every parameter."""
        builder = Builder.from_graph(self.result.graph)
        optimizer = self.given.get("optimizer")
        for n, (parameter, gradient) in enumerate(self.result.graph.gradients if optimizer else ()):
            if self.result.graph.values[parameter].name in self.given["parameters"]:
                builder.node(
                    f"paddle::{optimizer}",
                    [parameter, gradient],
                    name=f"update{n}",
                    phase=Phase.UPDATE,
                    types=[self.result.graph.values[parameter].type],
                    in_place=((0, 0),),
                )
        return builder.build(self.result.graph.outputs)

    def kinds(self, graph: Graph) -> list[str]:
        return [kind_of(graph, node) for node in graph.nodes]


#: Two dense layers with tanh and a classifier, where a case names no ops.
PERCEPTRON = [
    {"type": "mul", "inputs": ["x", "w1"], "outputs": ["fc1"], "attrs": {}},
    {"type": "elementwise_add", "inputs": ["fc1", "b1"], "outputs": ["fc1_b"], "attrs": {}},
    {"type": "tanh", "inputs": ["fc1_b"], "outputs": ["fc1_t"], "attrs": {}},
    {"type": "mul", "inputs": ["fc1_t", "w2"], "outputs": ["fc2"], "attrs": {}},
    {"type": "elementwise_add", "inputs": ["fc2", "b2"], "outputs": ["fc2_b"], "attrs": {}},
    {"type": "tanh", "inputs": ["fc2_b"], "outputs": ["fc2_t"], "attrs": {}},
    {"type": "mean", "inputs": ["fc2_t"], "outputs": ["cost"], "attrs": {}},
]


def _place(place: str) -> int:
    return int(place[7:-1]) if place.startswith("inputs") else -1


def kind_of(graph: Graph, node: Node) -> str:
    """The op as the original calls it; what makes the head gradient fills a constant."""
    if node.name.endswith("/head"):
        return "fill_constant"
    return OF_OURS.get(node.op, node.op.removeprefix("paddle::"))


def check_op_types(run: Recomputed, types: list[str]) -> None:
    assert run.kinds(run.final) == types


def check_op_types_after_loss(run: Recomputed, types: list[str]) -> None:
    graph = run.final
    assert [kind_of(graph, node) for node in graph.nodes if node.phase is not Phase.FORWARD] == types


def check_recomputed(run: Recomputed, names: Mapping[str, str] | list[str]) -> None:
    renamed = dict(run.result.renamed)
    made = {run.result.graph.values[v].name for node in run.result.graph.nodes for v in node.writes}
    assert set(renamed.values()) <= made
    if isinstance(names, Mapping):
        assert renamed == dict(names)
    else:
        assert sorted(renamed) == sorted(names)


def check_segments(run: Recomputed, ranges: list[list[int]]) -> None:
    assert [list(segment) for segment in run.segments(run.rule).ranges] == ranges


def check_held(run: Recomputed, names: list[str]) -> None:
    assert sorted(run.result.saved) == sorted(names)


def check_held_includes(run: Recomputed, what: list[str]) -> None:
    graph = run.result.graph
    for text in what:
        match = re.fullmatch(r"output of the (\w+) op", text)
        if match is None:
            assert text in run.result.saved
            continue
        made = [graph.values[v].name for node in graph.nodes if kind_of(graph, node) == match[1] for v in node.writes]
        assert made and set(made) <= set(run.result.saved)
        assert not set(made) & run.result.renamed.keys()


def check_seed_value(run: Recomputed, text: str) -> None:
    """The seed of an op that draws, and of the same op with a fixed seed."""
    match = re.fullmatch(r"(\d+) \(draw at run time\) unless the random op had a fixed seed, then that seed", text)
    assert match is not None, text
    for fixed, expected in ((None, int(match[1])), (11, 11)):
        ops = [_with_fixed_seed(op, fixed) for op in run.ops]
        graph = Recomputed({**run.case, "ops": ops}).result.graph
        seeds = [node.attributes["seed"] for node in graph.nodes if node.op == "remat::Seed"]
        assert seeds == [expected]


def _with_fixed_seed(op: dict[str, Any], seed: int | None) -> dict[str, Any]:
    if op["type"] not in RANDOM or seed is None:
        return op
    return {**op, "attrs": {**op["attrs"], "fix_seed": True, "seed": seed}}


def check_removed_attributes(run: Recomputed, texts: list[str]) -> None:
    ops = [_with_fixed_seed(op, 11) for op in run.ops]
    graph = Recomputed({**run.case, "ops": ops}).result.graph
    for text in texts:
        match = re.fullmatch(r"(\w+) and (\w+) of the random op( and of its gradient op)?", text)
        assert match is not None and {match[1], match[2]} == set(FIXED_SEED_ATTRIBUTES), text
        kinds = [kind for name in RANDOM for kind in (name, f"{name}_grad")][: None if match[3] else 1]
        found = [node for node in graph.nodes if kind_of(graph, node) in kinds]
        assert len(found) > 2
        assert not any(name in node.attributes for node in found for name in FIXED_SEED_ATTRIBUTES)


def check_pass_segments(run: Recomputed, expected: list[list[list[int]]]) -> None:
    _check_variants(run, "pass", expected)


def check_append_backward_segments(run: Recomputed, expected: list[list[list[int]]]) -> None:
    _check_variants(run, "append_backward", expected)


def _check_variants(run: Recomputed, rule: str, expected: list[list[list[int]]]) -> None:
    variants = [Recomputed(run.case, checkpoints) for checkpoints in run.given["variants"]]
    assert [[list(r) for r in variant.segments(rule).ranges] for variant in variants] == expected


def check_held_crossing(run: Recomputed, expected: Mapping[str, list[str]]) -> None:
    for text, names in expected.items():
        match = re.fullmatch(r"segment \[(\d+),(\d+)\]", text)
        assert match is not None, text
        statistics = run.statistics
        crossing = statistics.crossing((int(match[1]), int(match[2])))
        inputs = set(statistics.inputs())
        assert [statistics.graph.values[v].name for v in sorted(crossing) if v not in inputs] == names


def check_crossing(run: Recomputed, names: list[str]) -> None:
    assert sorted(run.result.crossing) == sorted(names)


def check_not_recomputed(run: Recomputed, names: list[str]) -> None:
    known = {value.name for value in run.training.values}
    for name in names:
        assert name in known and name not in run.result.renamed


def check_inputs(run: Recomputed, names: list[str]) -> None:
    assert sorted(run.statistics.graph.values[v].name for v in run.statistics.inputs()) == sorted(names)


def check_unchanged(run: Recomputed, unchanged: bool) -> None:
    """The program stays as it is, and why is told."""
    assert (run.result.graph == run.training) == unchanged
    assert any("nothing is recomputed" in note for note in run.result.notes) == unchanged


AREA = Area(
    Recomputed,
    {
        "op_types": check_op_types,
        "op_types_after_loss": check_op_types_after_loss,
        "recomputed": check_recomputed,
        "renamed": check_recomputed,
        "segments": check_segments,
        "held": check_held,
        "held_includes": check_held_includes,
        "seed_value": check_seed_value,
        "removed_attributes": check_removed_attributes,
        "seed_pass_segments": check_pass_segments,
        "append_backward_segments": check_append_backward_segments,
        "held_crossing": check_held_crossing,
        **dict.fromkeys(("crossing", "cross_vars", "hint"), check_crossing),
        "not_recomputed": check_not_recomputed,
        "input_nodes": check_inputs,
        "unchanged": check_unchanged,
    },
    force=lambda run: run.final,
)


def executable(run: Recomputed) -> Graph:
    """The training graph in ops of ours, seeds as values."""
    written = {name for op in run.ops for name in op["outputs"]}
    types: dict[str, TensorType] = {}
    for name, shape in run.given["shapes"].items():
        if name not in written:
            integral = any(op["type"].startswith("cross_entropy") and name == op["inputs"][1] for op in run.ops)
            types[name] = TensorType("int64" if integral else "float32", tuple(shape))
    values: list[dict[str, Any]] = []
    nodes: list[Any] = []
    for i, op in enumerate(run.ops):
        if op["type"] == "fc":
            x, w, b = (*op["inputs"], "")[:3]
            types.setdefault(w, TensorType("float32", (types[x].shape[-1], 2)))
            types.setdefault(b, TensorType("float32", (2,)))
        made = PADDLE.translate(
            op["type"], op["attrs"], [types[x] for x in op["inputs"]], name=f"op{i}", outputs=len(op["outputs"])
        )
        assert isinstance(made, Translation), op["type"]
        more, rows = translation_rows(made, f"op{i}", op["inputs"], op["outputs"])
        values += msgspec.to_builtins(more)
        nodes += msgspec.to_builtins(rows)
        for v, output in zip(made.outputs, op["outputs"], strict=True):
            types[output] = made.graph.values[v].type  # type: ignore[index, assignment]
    read = {name for op in run.ops for name in op["inputs"]}
    values += [
        {
            "name": n,
            "shape": list(t.shape),
            "dtype": t.dtype,
            "role": "input" if n in run.given["shapes"] else "parameter",
        }
        for n, t in types.items()
        if n not in written
    ]
    document = {"format": "remat/1", "values": values, "nodes": nodes, "outputs": sorted(written - read)}
    return with_seeds(load(msgspec.json.encode(document)))


@AREA.sentence(r"value of (?P<value>\w+) equals value of (?P<copy>[\w.]+) exactly")
def the_copy_has_the_same_value(run: Recomputed, words: re.Match[str]) -> None:
    training, _ = training_step(executable(run), loss=run.loss)
    found = recompute_pass(training, run.loss, run.checkpoints)
    ran = execute(found.graph, seed=2, keep=[words["value"], words["copy"]])
    np.testing.assert_array_equal(ran.values[words["value"]], ran.values[words["copy"]])
    assert len(np.unique(ran.values[words["value"]] == 0)) == 2  # something was dropped, something kept
    assert difference(training, found.graph, repeats=True) is None
    plain = execute(training, seed=2).outputs
    for name, array in ran.outputs.items():
        np.testing.assert_array_equal(array, plain[name])


@AREA.sentence(
    r"among the outputs of all (?P<op>\w+) ops of the final program at least one name contains '(?P<part>\w+)'"
)
def some_copy_is_named(run: Recomputed, words: re.Match[str]) -> None:
    for optimiser in run.given["optimisers"]:
        graph = _optimised(run, optimiser).final
        names = [
            graph.values[v].name for node in graph.nodes if kind_of(graph, node) == words["op"] for v in node.writes
        ]
        assert any(words["part"] in name for name in names)


@AREA.sentence(r"the chosen optimiser op type is present")
def the_optimiser_is_there(run: Recomputed, words: re.Match[str]) -> None:
    for optimiser in run.given["optimisers"]:
        kinds = _optimised(run, optimiser).kinds(_optimised(run, optimiser).final)
        assert kinds.count(optimiser) == len(PARAMETERS)


PARAMETERS = ["w1", "b1", "w2", "b2"]


def _optimised(run: Recomputed, optimiser: str) -> Recomputed:
    case = {
        **run.case,
        "wanted_gradients": {"targets": {"cost": None}},
        "given": {"optimizer": optimiser, "parameters": PARAMETERS, "checkpoints": ["fc1_t", "fc2_t"]},
    }
    return Recomputed(case)


@AREA.sentence(r"a checkpoint unknown to the program is dropped with a note")
def unknown_checkpoints_are_noted(run: Recomputed, words: re.Match[str]) -> None:
    known = {value.name for value in run.training.values}
    unknown = [(names, [n for n in names if n not in known]) for names in run.given["variants"]]
    assert any(missing for _, missing in unknown)
    for names, missing in unknown:
        notes = Recomputed(run.case, names).segments("pass").notes
        assert [name for name in missing if any(name in note for note in notes)] == missing
        assert len([note for note in notes if "ignored" in note]) == len(missing)


@AREA.sentence(r"checkpoints are sorted by their last producing op, graph inputs first")
def checkpoints_are_sorted(run: Recomputed, words: re.Match[str]) -> None:
    made = {name: i for i, op in enumerate(run.ops) for name in op["outputs"]}
    for names in run.given["variants"]:
        checkpoints = Recomputed(run.case, names).segments("pass").checkpoints
        found = [run.training.values[v].name for v in checkpoints]
        assert found == sorted(found, key=lambda name: made.get(name, -1))
        assert set(found) == {name for name in names if name in made or name in given_names(run.ops)}


def given_names(ops: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for op in ops for name in op["inputs"]}


@AREA.sentence(r"a service may drop re-run ops whose result no gradient reads")
def copies_nobody_reads_may_go(run: Recomputed, words: re.Match[str]) -> None:
    everything = run.result
    needed = recompute_pass(run.training, run.loss, run.checkpoints, rule=run.rule, needed_only=True)
    assert set(needed.copied) <= set(everything.copied)
    read = {v for node in needed.graph.nodes for v in node.reads}
    for node in needed.graph.nodes:
        if node.annotations.get("recomputed"):
            assert read.intersection(node.writes)
    assert difference(run.training, needed.graph, repeats=True) is None


@AREA.sentence(
    r"The two upstream implementations differ: the pass always makes a segment from the start to the first produced "
    r"checkpoint; append_backward makes one only for a single checkpoint not produced by op (\d+), or prepends "
    r"\[(\d+), start of first segment\]\."
)
def the_two_rules_differ_at_the_start(run: Recomputed, words: re.Match[str]) -> None:
    made = {name: i for i, op in enumerate(run.ops) for name in op["outputs"]}
    known = {*made, *given_names(run.ops)}
    alike = []
    for names in run.given["variants"]:
        variant = Recomputed(run.case, names)
        ranges, others = (list(map(list, variant.segments(rule).ranges)) for rule in ("pass", "append_backward"))
        produced = sorted(made[name] for name in names if name in made)
        assert ranges[0] == [0, produced[0] + 1]
        if len(known.intersection(names)) == 1:
            assert others == ([] if produced[0] == int(words[1]) else [[0, produced[0] + 1]])
        else:
            assert not others or others[0][0] == int(words[2])
        alike.append(ranges == others)
    assert set(alike) == {True, False}


@AREA.sentence(
    r"upstream walks from the end and inserts before (?P<late>\w+), so (?P<early>\w+) reads a value not yet computed"
)
def copies_come_before_their_first_reader(run: Recomputed, words: re.Match[str]) -> None:
    graph = run.final
    order = run.kinds(graph)
    copies = {v for node in graph.nodes if node.annotations.get("recomputed") for v in node.writes}
    for kind in (words["early"], words["late"]):
        assert copies.intersection(graph.nodes[order.index(kind)].reads)
    assert order.index(words["early"]) < order.index(words["late"])
    written = {v for v, value in enumerate(graph.values) if value.role is not Role.ACTIVATION}
    for node in graph.nodes:
        assert written.issuperset(node.reads)
        written.update(node.writes)
