"""Mirroring: what is marked to run again, group by group, and what the rewritten graph then reads."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from bench.generators import resnet
from graph.analysis.cost import device_named
from graph.execution.interpreter import execute
from graph.formats.readers import load
from graph.ir import Phase
from graph.training.step import training_step
from planner.algorithms.heuristics.mirror import plan
from planner.lowering.lower import lower
from planner.problem import RESIDENT
from planner.problem.evaluate import evaluate
from planner.problem.monitor import Monitor
from planner.problem.plan import Goal
from planner.request.target_runtime import runtime_named
from tests.seeds.documents import PLANNING_ATTRIBUTES, first_target_only
from tests.seeds.harness import Area
from tests.seeds.mirrored import Mirrored


def check_stages(run: Mirrored, stages: dict[str, int]) -> None:
    assert {op: run.stage(op) for op in stages} == stages


def check_decisions(run: Mirrored, decisions: list[dict[str, Any]]) -> None:
    """The groups judged are exactly the listed ones, with their prices in elements."""
    groups = {group.tasks: group for group in run.decisions.groups}
    listed = {tuple(sorted(run.task(op) for op in decision["group"])): decision for decision in decisions}
    assert groups.keys() == listed.keys()
    for tasks, decision in listed.items():
        group = groups[tasks]
        assert (group.allocated_bytes, group.released_bytes) == (
            4 * decision["allocated_elements"],
            4 * decision["released_elements"],
        )
        assert group.mirrored == decision.get("mirrored", group.mirrored)


def check_copies(run: Mirrored, copies: list[dict[str, Any]]) -> None:
    """The rewritten graph re-runs exactly the listed ops, with inputs and waiting redirected as listed."""
    graph = run.rewritten
    found = [node for node in graph.nodes if node.annotations["origin"][1]]
    assert [run.mirror_names(node.writes) for node in found] == [copy["outputs"] for copy in copies]
    for node, copy in zip(found, copies, strict=True):
        assert run.mirror_names(node.inputs) == copy["inputs"]
        assert node.op == f"mxnet::{copy['type']}"
        wanted = {k: v for k, v in copy["attrs"].items() if k not in PLANNING_ATTRIBUTES}
        assert dict(node.attributes) == wanted
        for waited in copy["attrs"].get("control_deps", []):
            before = found[: found.index(node)]
            assert waited in [name for earlier in before for name in run.mirror_names(earlier.writes)]


def check_backward_input(run: Mirrored, expected: dict[str, Any]) -> None:
    """Argument of an op's gradient, as in `{"op": "gradient of fc", "argument": 1, "is": "z_mirror output 0"}`."""
    (node,) = run.gradient_nodes(run.rewritten, expected["op"].removeprefix("gradient of "))
    copy, _, output = expected["is"].partition(" output ")
    assert output == "0"
    assert run.mirror_names([node.inputs[expected["argument"]]]) == [copy]


def check_single_step_variant(run: Mirrored, expected: dict[str, Any]) -> None:
    AREA.check(first_target_only(run.case), expected)


AREA = Area(
    Mirrored,
    {
        "mirror_stage": check_stages,
        "decisions": check_decisions,
        "mirror_ops": check_copies,
        "backward_input": check_backward_input,
        "single_step_variant": check_single_step_variant,
    },
)


@AREA.sentence(r"planned memory with mirroring / without < (?P<ratio>[\d.]+)")
def mirroring_saves_that_share(run: Mirrored, words: re.Match[str]) -> None:
    model = re.fullmatch(
        r"ResNet-(\d+), (\d+) classes, image (\d+)x(\d+)x(\d+), batch (\d+), float32", run.case["given"]["model"]
    )
    assert model is not None, "a model our generator can build"
    depth, classes, *image, batch = map(int, model.groups())
    forward = load(json.dumps(resnet(depth, batch, classes, tuple(image))).encode())
    lowered = lower(training_step(forward, loss="loss")[0], device_named("a100-80gb"), runtime_named("arena"))
    problem, goal = lowered.problem, Goal()
    resident = int(problem.size[problem.hold == RESIDENT].sum())
    without = evaluate(lowered.problem, goal, np.arange(problem.tasks), "as_given")
    order = plan(problem, goal, Monitor(lambda order: without.score))
    mirrored = evaluate(lowered.problem, goal, order, "mirror")
    assert (mirrored.score.peak_bytes - resident) / (without.score.peak_bytes - resident) < float(words["ratio"])


@AREA.sentence(
    r"ops marked 1 whose mirrored copy no gradient reads \((?P<ops>.*)\) do not appear a second time in the final graph"
)
def unread_copies_do_not_run(run: Mirrored, words: re.Match[str]) -> None:
    for op in words["ops"].split(", "):
        assert run.stage(op) == 1
        assert not run.decisions.materialised[run.task(op)]
        name = run.source.nodes[run.lowered.task_node[run.task(op)]].name
        assert [node.annotations["origin"] for node in run.rewritten.nodes].count([name, 0]) == 1
        assert [name, 1] not in [node.annotations["origin"] for node in run.rewritten.nodes]


@AREA.sentence(r"(?P<op>\w+)'s own output is not counted as allocated: no gradient and no other op reads it")
def an_unread_output_is_not_allocated(run: Mirrored, words: re.Match[str]) -> None:
    (group,) = [group for group in run.decisions.groups if run.task(words["op"]) in group.tasks]
    buffer = run.buffer(words["op"])
    assert buffer not in group.allocated
    assert buffer not in run.lowered.problem.reads.index


@AREA.sentence(r"must not fail; (?P<op>\w+) is simply not needed by the backward pass")
def a_target_no_gradient_reads_is_decided_and_not_run_again(run: Mirrored, words: re.Match[str]) -> None:
    assert run.buffer(words["op"]) not in run.lowered.problem.reads.index
    assert run.plan.order.tolist().count(run.task(words["op"])) == 1


@AREA.sentence(r"grad:(?P<wanted>\w+) equals (?P<head>\w+) with mirroring off and on")
def the_gradient_equals_its_head(run: Mirrored, words: re.Match[str]) -> None:
    head = run.source.values[run.source.value_named(words["head"])]
    assert head.type is not None
    given = np.random.default_rng(5).standard_normal(head.type.shape).astype(head.type.dtype)
    for graph in (run.source, run.rewritten):
        gradient = graph.values[dict(graph.gradients)[graph.value_named(words["wanted"])]].name
        outputs = execute(graph, {head.name: given}).outputs
        np.testing.assert_array_equal(outputs[gradient], given)


@AREA.sentence(r"every read of (?P<values>[\w ]+) in gradient ops of (?P<op>\w+) is redirected to the re-run copies")
def gradients_read_the_copies(run: Mirrored, words: re.Match[str]) -> None:
    values = set(words["values"].split(" and "))
    ops = [op["outputs"][0] for op in run.case["ops"] if op["type"] == words["op"]]
    reads = [run.run_of(v) for op in ops for node in run.gradient_nodes(run.rewritten, op) for v in node.reads]
    found = [(name, copy) for name, copy in reads if name in values]
    assert {name for name, _ in found} == values
    assert all(copy == 1 for _, copy in found)
    steps = len(run.gradient_nodes(run.rewritten, ops[0]))
    assert len(found) == steps * len(ops), "each step of the rule reads its copy"


@AREA.sentence(
    r"the seed looks the node up in the gradient graph and aborts unless every target is reachable from some gradient"
)
def targets_need_not_be_read_by_gradients(run: Mirrored, words: re.Match[str]) -> None:
    targets = list(run.case["wanted_gradients"]["targets"])
    assert any(run.buffer(name) not in run.lowered.problem.reads.index for name in targets)
    assert {run.mirror_names([v])[0] for v in run.rewritten.outputs} >= set(targets)


@AREA.sentence(
    r"only the ops returned directly are redirected; g(?P<step>\d) keeps reading the original, so nothing is released"
)
def every_step_reads_the_copies(run: Mirrored, words: re.Match[str]) -> None:
    """That step of the rule reads copies, and no op of the backward pass reads an original that has one."""
    graph = run.rewritten
    steps = [node for node in graph.nodes if node.name.endswith(f"/step{words['step']}")]
    assert len(steps) == len(run.case["wanted_gradients"]["targets"])
    copied = {run.run_of(v)[0] for node in graph.nodes for v in node.writes if run.run_of(v)[1]}
    for node in steps:
        assert any(run.run_of(v)[1] for v in node.reads)
    for node in graph.nodes:
        if node.phase is Phase.BACKWARD and not node.annotations["origin"][1]:
            assert not copied & {name for name, again in map(run.run_of, node.reads) if not again}


@AREA.sentence(
    r"Upstream asserts stage (?P<stage>\d) for the (?P<one>\w+) and the (?P<other>\w+)\. The decision numbers come "
    r"from replaying the seed algorithm\."
)
def both_are_of_that_stage(run: Mirrored, words: re.Match[str]) -> None:
    check_stages(run, dict.fromkeys((words["one"], words["other"]), int(words["stage"])))
    check_decisions(run, run.case["expected"]["decisions"])


@AREA.sentence(
    r"The (?P<count>five) adds are judged as one group because they share (?P<shared>\w+)\. The (?P<after>\w+) ops are "
    r"never judged on their own: everything downstream of a mirrored group inside the region follows\."
)
def ops_that_share_an_input_are_one_group(run: Mirrored, words: re.Match[str]) -> None:
    ops = run.case["ops"]
    sharers = [op["outputs"][0] for op in ops if words["shared"] in op["inputs"]]
    followers = [op["outputs"][0] for op in ops if op["attrs"].get("act_type") == words["after"]]
    assert (len(sharers), len(followers)) == (5, 5)
    (group,) = run.decisions.groups
    assert group.mirrored and set(group.tasks) == {run.task(name) for name in sharers}
    assert {run.stage(name) for name in followers} == {1}


@AREA.sentence(
    r"(?P<kept>\w+) is kept because its only saving would be the graph input (?P<given>\w+), which counts as "
    r"releasable and ties; (?P<other>\w+) cannot release (?P<stays>\w+) because (\w+)'s own gradient reads (\w+)\."
)
def a_tie_keeps_and_a_reader_holds(run: Mirrored, words: re.Match[str]) -> None:
    assert words["kept"] == words["stays"] == words[5] == words[6]
    group_of = {task: group for group in run.decisions.groups for task in group.tasks}
    kept, other = (group_of[run.task(words[name])] for name in ("kept", "other"))
    assert kept.released == (run.buffer(words["given"]),)
    assert kept.released_bytes == kept.allocated_bytes and not kept.mirrored
    assert other.released == () and run.buffer(words["kept"]) in other.allocated
    own = run.gradient_nodes(run.source, words["kept"])
    assert any(run.source.value_named(words["kept"]) in node.reads for node in own)
