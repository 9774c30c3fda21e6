"""Segment recomputation: equal results from saved values, with copies directly before their readers."""

import random

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.ir import Body, Effect, Phase, Role, TensorType
from graph.training.random_seeds import with_seeds
from graph.training.recompute_segments import with_recomputation
from graph.training.segments import ForwardPath, segments_between
from graph.training.step import training_step
from graph.training.train_mode import in_training_mode
from graph.transforms.structural_equality import difference

F = TensorType("float32", (6, 8))


def perceptron(layers=6, dropout=False, rows=6):
    """x ── MatMul ── Tanh ── [Dropout] ── MatMul ... ── loss."""
    b = Builder("perceptron")
    v = b.value("x", TensorType("float32", (rows, 8)), Role.INPUT)
    for i in range(layers):
        w = b.value(f"w{i}", TensorType("float32", (8, 8)), Role.PARAMETER)
        (v,) = b.node("MatMul", [v, w], outputs=[f"m{i}"])
        (v,) = b.node("Tanh", [v], outputs=[f"h{i}"])
        if dropout:
            ratio, on = b.constant(np.float32(0.4), f"ratio{i}"), b.constant(np.array(True), f"on{i}")
            v, _ = b.node("Dropout", [v, ratio, on], name=f"drop{i}", outputs=[f"d{i}", f"mask{i}"])
    (loss,) = b.node("ReduceMean", [v], outputs=["loss"], attributes={"keepdims": 0})
    return b.build([loss])


def recomputed(graph, checkpoints, loss="loss", **options):
    statistics = ForwardPath.of(graph, [graph.value_named(loss)])
    return with_recomputation(graph, statistics, segments_between(statistics, checkpoints), **options)


def same_results(before, after):
    assert difference(before, after, repeats=True) is None
    one, other = execute(before, seed=4), execute(after, seed=4)
    assert one.outputs.keys() == other.outputs.keys()
    for name, array in one.outputs.items():
        np.testing.assert_array_equal(array, other.outputs[name])
    return one, other


@pytest.mark.parametrize("checkpoints", [["h2"], ["h1", "h3"], ["m0", "h5"], ["x", "h4"]])
@pytest.mark.parametrize("dropout", [False, True])
def test_results_are_equal_and_fewer_values_are_saved(checkpoints, dropout):
    forward = perceptron(dropout=dropout)
    seeded = with_seeds(forward)
    training = training_step(seeded, loss="loss")[0]
    found = recomputed(training, checkpoints)
    assert found.copied
    before, after = same_results(training, found.graph)
    if not dropout:
        assert after.peak_bytes <= before.peak_bytes
    assert not set(found.renamed) & set(found.saved)


def test_a_deep_net_with_checkpoints_peaks_lower():
    training = training_step(perceptron(16, rows=200), loss="loss")[0]
    found = recomputed(training, ["h3", "h7", "h11"])
    before, after = same_results(training, found.graph)
    resident = sum(value.nbytes for value in training.values if value.role is not Role.ACTIVATION)
    assert after.peak_bytes - resident < 0.7 * (before.peak_bytes - resident)


def test_copies_directly_precede_their_first_reader_and_run_after_the_node_in_front():
    found = recomputed(training_step(perceptron(3), loss="loss")[0], ["h1"])
    graph = found.graph
    copies = [n for n, node in enumerate(graph.nodes) if node.annotations.get("recomputed")]
    assert copies == list(range(copies[0], copies[-1] + 1))
    made = {v for n in copies for v in graph.nodes[n].writes}
    assert made.intersection(graph.nodes[copies[-1] + 1].reads)
    assert graph.nodes[copies[0]].after == (copies[0] - 1,)
    assert all(graph.nodes[n].phase is Phase.BACKWARD for n in copies)
    assert graph.nodes[copies[0]].annotations["origin"][1] == 1
    value = graph.values[graph.nodes[copies[0]].writes[0]]
    assert value.annotations["copy_of"] == ["m0", 0]
    assert value.name == found.renamed["m0"] == "m0/0"


def test_without_a_segment_nothing_changes_and_the_reason_is_noted():
    training = training_step(perceptron(3), loss="loss")[0]
    found = recomputed(training, ["nobody"])
    assert found.graph.nodes == training.nodes and found.copied == ()
    assert "nothing is recomputed" in found.notes[-1]


def test_crossing_values_that_are_no_checkpoints_are_reported():
    b = Builder("skip")
    v = first = b.value("x", F, Role.INPUT)
    for i in range(4):
        (v,) = b.node("Tanh", [v], outputs=[f"h{i}"])
        first = v if i == 0 else first
    (v,) = b.node("Add", [v, first], outputs=["sum"])
    (loss,) = b.node("ReduceMean", [v], outputs=["loss"], attributes={"keepdims": 0})
    training = differentiate(b.build([loss]), ["loss"], ["x"])
    found = recomputed(training, ["h2"])
    assert found.crossing == ("h0",)
    same_results(training, found.graph)


def test_an_op_with_one_saved_output_is_recomputed_without_it():
    b = Builder("split")
    x = b.value("x", F, Role.INPUT)
    left, right = b.node("Split", [x], outputs=["left", "right"], attributes={"num_outputs": 2, "axis": 1})
    (l2,) = b.node("Tanh", [left], outputs=["l2"])
    (r2,) = b.node("Mul", [right, right], outputs=["r2"])
    (s,) = b.node("Add", [l2, r2], outputs=["s"])
    (t,) = b.node("Mul", [s, left], outputs=["t"])
    (loss,) = b.node("ReduceMean", [t], outputs=["loss"], attributes={"keepdims": 0})
    training = differentiate(b.build([loss]), ["loss"], ["x"])
    found = recomputed(training, ["s"])
    assert "left" in found.saved and "right" in found.renamed
    (copy,) = [node for node in found.graph.nodes if node.annotations.get("recomputed") and len(node.outputs) == 2]
    assert copy.outputs[0] == -1
    same_results(training, found.graph)


def test_outputs_of_ops_that_cannot_be_recomputed_are_saved():
    b = Builder("draw")
    x = b.value("x", F, Role.INPUT)
    (noise,) = b.node("RandomNormalLike", [x], outputs=["noise"])
    (y,) = b.node("Mul", [x, noise], outputs=["y"])
    (z,) = b.node("Tanh", [y], outputs=["z"])
    (loss,) = b.node("ReduceMean", [z], outputs=["loss"], attributes={"keepdims": 0})
    plain = b.build([loss])
    found = recomputed(differentiate(plain, ["loss"], ["x"]), ["z"])
    assert "noise" in found.saved
    # Under a stream the draw is repeated instead.
    training = differentiate(with_seeds(plain), ["loss"], ["x"])
    found = recomputed(training, ["z"])
    assert "noise" in found.renamed
    same_results(training, found.graph)


def test_outputs_of_a_nested_graph_are_saved_or_refused():
    inner = Builder("inner")
    i = inner.value("i", F, Role.INPUT)
    body = Body(inner.build(inner.node("Tanh", [i])))
    b = Builder("nested")
    x = b.value("x", F, Role.INPUT)
    (y,) = b.node("my::Repeat", [x], name="loop", outputs=["y"], types=[F], bodies={"body": body}, gradient_reads=(0,))
    (z,) = b.node("Tanh", [y], outputs=["z"])
    (w,) = b.node("Mul", [z, z], outputs=["w"])
    (loss,) = b.node("ReduceMean", [w], outputs=["loss"], attributes={"keepdims": 0})
    training = differentiate(b.build([loss]), ["loss"], ["y"])
    assert "y" in recomputed(training, ["w"]).saved
    with pytest.raises(BadGraph) as refusal:
        recomputed(training, ["w"], nested="error")
    assert [finding.code for finding in refusal.value.findings] == ["nested_in_segment"]
    assert "'loop'" in str(refusal.value)


def test_seeds_are_drawn_once_and_saved():
    forward, _ = in_training_mode(perceptron(2, dropout=True))
    under_streams = with_seeds(forward)
    assert [node.stream for node in under_streams.nodes if node.op == "remat::Seed"] == ["drop0", "drop1"]
    assert with_seeds(under_streams) == under_streams
    seeded = with_seeds(perceptron(2, dropout=True))
    kinds = [node.op for node in seeded.nodes]
    assert kinds.count("remat::Seed") == kinds.count("remat::SeededDropout") == 2 and "Dropout" not in kinds
    assert kinds.index("remat::Seed") + 1 == kinds.index("remat::SeededDropout")
    training = differentiate(seeded, ["loss"])
    found = recomputed(training, ["h1"])
    assert {"seed/drop0"} <= set(found.saved) and "mask0" in found.renamed
    same_results(training, found.graph)


def test_an_unknown_random_op_takes_its_seed_as_an_input():
    b = Builder("opaque")
    x = b.value("x", F, Role.INPUT)
    b.node(
        "acme::Noise",
        [x],
        name="noise",
        outputs=["y"],
        types=[F],
        effect=Effect.RANDOM,
        attributes={"fix_seed": True, "seed": 9, "scale": 2.0},
    )
    graph = with_seeds(b.build([1]))
    seed, noise = graph.nodes
    assert (seed.op, seed.attributes["seed"]) == ("remat::Seed", 9)
    assert noise.inputs == (0, seed.outputs[0]) and noise.effect is Effect.PURE
    assert noise.attributes == {"scale": 2.0}


@pytest.mark.parametrize("seed", range(20))
def test_any_checkpoints_of_any_net_give_equal_results(seed):
    rng = random.Random(seed)
    b = Builder("random")
    values = [b.value("x", F, Role.INPUT)]
    for i in range(rng.randint(3, 10)):
        op = rng.choice(["Tanh", "Sigmoid", "Mul", "Add", "Exp"])
        inputs = [rng.choice(values[-3:]) for _ in range(2 if op in ("Mul", "Add") else 1)]
        (v,) = b.node(op, inputs, outputs=[f"v{i}"])
        if op in ("Mul", "Add", "Exp"):
            (v,) = b.node("Tanh", [v], outputs=[f"t{i}"])
        values.append(v)
    (loss,) = b.node("ReduceMean", [values[-1]], outputs=["loss"], attributes={"keepdims": 0})
    forward = b.build([loss])
    training = differentiate(forward, ["loss"], ["x"])
    names = [value.name for value in forward.values]
    checkpoints = rng.sample(names, rng.randint(1, min(4, len(names))))
    for needed_only in (True, False):
        same_results(training, recomputed(training, checkpoints, needed_only=needed_only).graph)
