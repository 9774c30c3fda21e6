"""A transformer as a Paddle program with four checkpoints on a mesh of two by two: from file to recomputation."""

from __future__ import annotations

import numpy as np
import pytest

from bench.paddle_program import MESHES, transformer
from graph.execution.interpreter import execute
from graph.formats.paddle.recompute import SEGMENT_BUILDERS, recompute_pass
from graph.formats.readers import load
from graph.ir import Graph, Phase
from graph.training.device_mesh import check_mesh
from graph.training.random_seeds import with_seeds
from graph.training.recompute_segments import RecomputedGraph, recompute_segments
from graph.training.segments import ForwardPath
from graph.training.step import training_step
from graph.transforms.structural_equality import difference
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request

SMALL = {"blocks": 4, "batch": 2, "tokens": 8, "width": 8, "heads": 2, "words": 16}
CHECKPOINTS = [f"block{k}.out" for k in range(4)]


@pytest.fixture(scope="module")
def training() -> Graph:
    return with_seeds(training_step(load(transformer(**SMALL)), "loss")[0])


@pytest.fixture(scope="module")
def found(training: Graph) -> RecomputedGraph:
    return recompute_pass(training, "loss", list(training.annotations["checkpoints"]))


def test_each_checkpoint_ends_a_segment(training: Graph) -> None:
    statistics = ForwardPath.of(training, [training.value_named("loss")])
    for build in SEGMENT_BUILDERS.values():
        segments = build(statistics, CHECKPOINTS, "error")
        assert len(segments.ranges) == 4
        ends = [training.values[v].name for _, end in segments.ranges for v in statistics.node(end - 1).writes]
        assert set(CHECKPOINTS) <= set(ends)


def test_copies_have_the_names_and_annotations_of_their_segments(training: Graph, found: RecomputedGraph) -> None:
    check_mesh(found.graph)
    values = {value.name: value for value in found.graph.values}
    statistics = ForwardPath.of(training, [training.value_named("loss")])
    names = {
        training.values[v].name: 3 - k
        for k, segment in enumerate(SEGMENT_BUILDERS["pass"](statistics, CHECKPOINTS, "error").ranges)
        for position in range(*segment)
        for v in statistics.node(position).writes
    }
    assert len(found.renamed) > 80
    for name, copy in found.renamed.items():
        assert copy == f"{name}.subprog_{names[name]}"
        for said in ("process_mesh", "dims_mapping"):
            assert values[copy].annotations.get(said) == values[name].annotations.get(said)
    copies = [node for node in found.graph.nodes if node.annotations.get("recomputed")]
    assert copies and all(node.annotations["process_mesh"] == MESHES for node in copies)
    assert all(node.phase is Phase.BACKWARD for node in copies)
    assert not set(found.renamed) & set(found.saved) and set(CHECKPOINTS) <= set(found.saved)


def test_seeds_are_held_and_masks_drawn_again(training: Graph, found: RecomputedGraph) -> None:
    seeds = [training.values[v].name for node in training.nodes if node.op == "remat::Seed" for v in node.writes]
    assert len(seeds) >= 4 and set(seeds) <= set(found.saved)
    masks = {training.values[node.outputs[1]].name for node in training.nodes if node.op == "remat::SeededDropout"}
    assert masks & found.renamed.keys()


def test_losses_with_without_and_partly_with_recomputation_are_equal(training: Graph, found: RecomputedGraph) -> None:
    plain = execute(training, seed=1)
    partly = recompute_pass(training, "loss", CHECKPOINTS[1::2])
    ours = recompute_segments(training, "loss", CHECKPOINTS)
    for graph in (found.graph, partly.graph, ours.graph):
        assert difference(training, graph, repeats=True) is None
        ran = execute(graph, seed=1)
        for name, array in plain.outputs.items():
            np.testing.assert_array_equal(array, ran.outputs[name])
        assert ran.peak_bytes < plain.peak_bytes


def test_the_checkpoints_of_the_program_are_those_of_the_plan() -> None:
    asked = {
        "loss": "loss",
        "planner": "segments",
        "budget": 0,
        "iterations": 50,
        "execute": "yes",
        "advise_checkpoints": True,
    }
    report = solve(transformer(**SMALL), parse_request(asked)).report
    assert report["checkpoint_advice"]["given"]["checkpoints"] == CHECKPOINTS
    assert set(CHECKPOINTS) <= set(report["plan"]["kept"])
    assert report["plan"]["peak_bytes"] < report["baseline"]["peak_bytes"]
    assert report["executed"]["status"] == "equal"
    named = solve(transformer(**SMALL), parse_request({**asked, "checkpoints": CHECKPOINTS})).report
    assert named["plan"]["order"] == report["plan"]["order"]
