"""Sentences among the expected properties of mirroring cases, each with the check it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np

from bench.generators import resnet
from graph.cost import device_named
from graph.execute import execute
from graph.importers import load
from graph.training import training_step
from planner.algorithms.mirror import plan
from planner.lower import lower
from planner.monitor import Monitor
from planner.plan import Goal
from planner.problem import RESIDENT
from planner.question import judged
from planner.runtime import runtime_named
from tests.seeds.mirrored import Mirrored

Check = Callable[[Mirrored, "re.Match[str]"], None]
CHECKS: list[tuple[str, Check]] = []


def sentence(pattern: str) -> Callable[[Check], Check]:
    """The decorated check stands for every sentence that matches `pattern` as a whole."""

    def register(check: Check) -> Check:
        CHECKS.append((pattern, check))
        return check

    return register


def check_property(text: str, run: Mirrored) -> None:
    """Run the check `text` stands for. A sentence nobody knows fails."""
    for pattern, check in CHECKS:
        match = re.fullmatch(pattern, text)
        if match is not None:
            check(run, match)
            return
    raise AssertionError(f"no check stands for the sentence {text!r}")


@sentence(r"planned memory with mirroring / without < (?P<ratio>[\d.]+)")
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
    without = judged(lowered, goal, np.arange(problem.tasks), "as_given")
    order = plan(problem, goal, Monitor(lambda order: without.score))
    mirrored = judged(lowered, goal, order, "mirror")
    assert (mirrored.score.peak_bytes - resident) / (without.score.peak_bytes - resident) < float(words["ratio"])


@sentence(
    r"ops marked 1 whose mirrored copy no gradient reads \((?P<ops>.*)\) do not appear a second time in the final graph"
)
def unread_copies_do_not_run(run: Mirrored, words: re.Match[str]) -> None:
    for op in words["ops"].split(", "):
        assert run.stage(op) == 1
        assert not run.decisions.materialised[run.task(op)]
        name = run.source.nodes[run.lowered.task_node[run.task(op)]].name
        assert [node.annotations["origin"] for node in run.rewritten.nodes].count([name, 0]) == 1
        assert [name, 1] not in [node.annotations["origin"] for node in run.rewritten.nodes]


@sentence(r"(?P<op>\w+)'s own output is not counted as allocated: no gradient and no other op reads it")
def an_unread_output_is_not_allocated(run: Mirrored, words: re.Match[str]) -> None:
    (group,) = [group for group in run.decisions.groups if run.task(words["op"]) in group.tasks]
    buffer = run.buffer(words["op"])
    assert buffer not in group.allocated
    assert buffer not in run.lowered.problem.reads.index


@sentence(r"must not fail; (?P<op>\w+) is simply not needed by the backward pass")
def a_target_no_gradient_reads_is_decided_and_not_run_again(run: Mirrored, words: re.Match[str]) -> None:
    assert run.buffer(words["op"]) not in run.lowered.problem.reads.index
    assert run.plan.order.tolist().count(run.task(words["op"])) == 1


@sentence(r"grad:(?P<wanted>\w+) equals (?P<head>\w+) with mirroring off and on")
def the_gradient_equals_its_head(run: Mirrored, words: re.Match[str]) -> None:
    head = run.source.values[run.source.value_named(words["head"])]
    assert head.type is not None
    given = np.random.default_rng(5).standard_normal(head.type.shape).astype(head.type.dtype)
    for graph in (run.source, run.rewritten):
        gradient = graph.values[dict(graph.gradients)[graph.value_named(words["wanted"])]].name
        outputs = execute(graph, {head.name: given}).outputs
        np.testing.assert_array_equal(outputs[gradient], given)


@sentence(r"every read of (?P<values>[\w ]+) in gradient ops of (?P<op>\w+) is redirected to the re-run copies")
def gradients_read_the_copies(run: Mirrored, words: re.Match[str]) -> None:
    values = set(words["values"].split(" and "))
    ops = [op["outputs"][0] for op in run.case["ops"] if op["type"] == words["op"]]
    reads = [run.run_of(v) for op in ops for node in run.gradient_nodes(run.rewritten, op) for v in node.reads]
    found = [(name, copy) for name, copy in reads if name in values]
    assert {name for name, _ in found} == values
    assert all(copy == 1 for _, copy in found)
    steps = len(run.gradient_nodes(run.rewritten, ops[0]))
    assert len(found) == steps * len(ops), "each step of the rule reads its copy"
