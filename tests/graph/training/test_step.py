"""From a forward graph to a training step."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import ABSENT, Graph, Phase, Role, TensorType
from graph.training.optimizer_recipe import Recipe
from graph.training.step import training_step
from tests.graph.evaluate import evaluate


def classifier(*tail: tuple[str, dict[str, Any]], shape: tuple[int, ...] = (4, 3), dtype: str = "float64") -> Graph:
    """x ── Mul by w ── scores ── the ops of the tail; the last value is the only output."""
    builder = Builder("classifier")
    x = builder.value("x", TensorType(dtype, shape), Role.INPUT)
    w = builder.value("w", TensorType(dtype, shape[-1:]), Role.PARAMETER)
    (v,) = builder.node("Mul", [x, w], name="scale", outputs=["scores"])
    for i, (op, attributes) in enumerate(tail):
        shaped = op in ("Reshape", "Squeeze")
        rest = [builder.constant(np.array(attributes["to"], np.int64))] if shaped else []
        (v,) = builder.node(op, [v, *rest], name=f"{op}{i}", attributes={} if shaped else attributes)
    return builder.build([v])


def regression(dtype: str = "float64") -> Graph:
    """loss = mean((x w + b)^2)."""
    builder = Builder("regression")
    x = builder.value("x", TensorType(dtype, (5, 3)), Role.INPUT)
    w, b = (builder.value(n, TensorType(dtype, s), Role.PARAMETER) for n, s in (("w", (3, 2)), ("b", (2,))))
    (h,) = builder.node("MatMul", [x, w], name="fc")
    (y,) = builder.node("Add", [h, b], name="bias", outputs=["y"])
    (square,) = builder.node("Mul", [y, y], name="square")
    (loss,) = builder.node("ReduceMean", [square], name="mean", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


CHANCE = np.random.default_rng(3)
AT = {"x": CHANCE.normal(size=(5, 3)), "w": CHANCE.normal(size=(3, 2)), "b": CHANCE.normal(size=2)}


def slopes(at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    y = at["x"] @ at["w"] + at["b"]
    dy = 2 * y / y.size
    return {"w": at["x"].T @ dy, "b": dy.sum(0)}


def states(graph: Graph) -> dict[str, np.ndarray]:
    """Initial content of every state: its data, else zeros."""
    return {
        v.name: np.zeros(v.type.shape, v.type.dtype if v.type.dtype != "bfloat16" else None)
        for v in graph.values
        if v.role is Role.STATE and v.type is not None and v.data is None
    }


def after(graph: Graph, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Content of parameters and states after the step: the last version of each."""
    found = evaluate(graph, given)
    newest: dict[int, int] = {}
    origin: dict[int, int] = {}
    for node in graph.nodes:
        for output, source in node.in_place:
            new, old = node.outputs[output], node.inputs[source]
            origin[new] = origin.get(old, old)
            newest[origin[new]] = new
    return {graph.values[old].name: found[graph.values[new].name] for old, new in newest.items()}


def stepped(recipe: dict[str, Any], given: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    graph, _ = training_step(regression(), "loss", recipe)
    return after(graph, {**states(graph), **AT, **(given or {})})


# The loss


def test_a_named_loss_becomes_an_output():
    graph = classifier(("ReduceMean", {"keepdims": 0}), ("Neg", {}))
    name = graph.values[graph.nodes[1].outputs[0]].name
    step, notes = training_step(graph, name)
    assert step.values[step.outputs[1]].name == name and notes == []


@pytest.mark.parametrize(("loss", "message"), [("nothing", "'nothing'"), ("scores", "float64\\[4,3\\]")])
def test_a_loss_that_is_missing_or_not_scalar_is_refused(loss, message):
    with pytest.raises(BadGraph, match=message):
        training_step(classifier(), loss)


@pytest.mark.parametrize(
    ("tail", "shape", "labels"),
    [
        ([("Softmax", {})], (4, 3), (4,)),
        ([("LogSoftmax", {"axis": 1})], (4, 3), (4,)),
        ([], (4, 3), (4,)),
        ([("Softmax", {"axis": 1})], (4, 3, 1, 1), (4,)),
        ([("Softmax", {"axis": 1}), ("Flatten", {})], (4, 3, 1, 1), (4,)),
        ([], (4, 3, 1, 1), (4,)),
        ([], (2, 5, 3), (2, 5)),
        ([("Softmax", {"axis": 1})], (2, 3, 5), (2, 5)),
        ([("Softmax", {"axis": -1})], (2, 2, 5, 3), (2, 2, 5)),
    ],
)
def test_a_classifier_gets_a_cross_entropy_with_labels(tail, shape, labels):
    step, notes = training_step(classifier(*tail, shape=shape))
    assert not any(node.op in ("Softmax", "LogSoftmax") for node in step.nodes)
    assert step.values[step.value_named("labels")].type == TensorType("int64", labels)
    assert step.values[step.outputs[0]].name == "loss"
    assert ("removed" in notes[0]) == bool(tail) and "labels" in notes[-1]


def test_the_cross_entropy_is_the_mean_over_the_labels():
    step, _ = training_step(classifier(("Softmax", {}), shape=(2, 5, 3)))
    x, labels = CHANCE.normal(size=(2, 5, 3)), CHANCE.integers(0, 3, (2, 5))
    loss = evaluate(step, {"x": x, "w": np.ones(3), "labels": labels})["loss"]
    probability = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    assert loss == pytest.approx(-np.log(np.take_along_axis(probability, labels[..., None], -1)).mean())


def test_a_requested_cross_entropy_takes_dense_scores_among_several_outputs():
    """(N, C, H, W) as of a segmentation; the axis of classes is 1 unless it is given."""
    forward = classifier(shape=(2, 3, 4, 5))
    builder = Builder.from_graph(forward)
    graph = builder.build([*forward.outputs, *builder.node("Relu", forward.outputs, name="other")])
    with pytest.raises(BadGraph, match="cross_entropy:OUTPUT"):
        training_step(graph)
    step, notes = training_step(graph, "cross_entropy:scores")
    assert "labels" in notes[-1]
    x, labels, w = CHANCE.normal(size=(2, 3, 4, 5)), CHANCE.integers(0, 3, (2, 4, 5)), np.ones(5)
    probability = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    expected = -np.log(np.take_along_axis(probability, labels[:, None], 1)).mean()
    assert evaluate(step, {"x": x, "w": w, "labels": labels})["loss"] == pytest.approx(expected)
    for axis, shape in ((1, (2, 4, 5)), (-1, (2, 3, 4)), (3, (2, 3, 4))):
        step, _ = training_step(graph, f"cross_entropy:scores:{axis}")
        assert step.values[step.value_named("labels")].type == TensorType("int64", shape)
    with pytest.raises(BadGraph, match="axis 2 of a tensor of rank 4"):
        training_step(graph, "cross_entropy:scores:2")
    with pytest.raises(BadGraph, match="'nothing'"):
        training_step(graph, "cross_entropy:nothing:1")


def test_a_softmax_with_another_reader_is_kept():
    builder = Builder.from_graph(classifier(("Softmax", {})))
    probability = builder.nodes[-1].outputs[0]
    builder.node("Log", [probability], name="log")
    step, notes = training_step(builder.build([probability]))
    assert any(node.op == "Softmax" for node in step.nodes) and "bypassed" in notes[0]


def test_a_scalar_output_is_the_loss_itself():
    step, notes = training_step(regression())
    assert "the only scalar" in notes[0] and not any("labels" in v.name for v in step.values)


@pytest.mark.parametrize("forward", [regression, classifier])
def test_an_output_that_is_listed_twice_is_one(forward):
    graph = forward()
    step, _ = training_step(structs.replace(graph, outputs=(*graph.outputs, *graph.outputs)))
    assert step.nodes == training_step(graph)[0].nodes


@pytest.mark.parametrize(
    ("tail", "shape"), [([], (4, 1)), ([], (7,)), ([], (2, 3, 4, 5)), ([("Softmax", {"axis": 0})], (4, 3))]
)
def test_an_output_that_cannot_be_class_scores_needs_a_named_loss(tail, shape):
    with pytest.raises(BadGraph, match="--loss"):
        training_step(classifier(*tail, shape=shape))


def test_several_outputs_need_a_named_loss():
    builder = Builder.from_graph(classifier(("Neg", {})))
    with pytest.raises(BadGraph, match=r"2 outputs .*'scores'.*--loss"):
        training_step(builder.build([builder.nodes[0].outputs[0], builder.nodes[1].outputs[0]]))


def test_a_loss_that_depends_on_no_parameter_is_refused():
    builder = Builder("constant loss")
    x = builder.value("x", TensorType("float32", (3,)), Role.INPUT)
    builder.value("w", TensorType("float32", (3,)), Role.PARAMETER)
    (loss,) = builder.node("ReduceSum", [x], outputs=["loss"], attributes={"keepdims": 0})
    with pytest.raises(BadGraph, match="no path from 'w'"):
        training_step(builder.build([loss]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_models_are_trained(dtype):
    step, _ = training_step(classifier(("Softmax", {}), dtype=dtype))
    assert {step.values[dv].type.dtype for _, dv in step.gradients} == {dtype}


# Training mode


def normalised(twice: bool = False, **attributes: Any) -> Graph:
    builder = Builder("normalised")
    x = builder.value("x", TensorType("float64", (6, 3, 2)), Role.INPUT)
    vectors = [builder.value(n, TensorType("float64", (3,)), Role.PARAMETER) for n in ("scale", "bias", "mean", "var")]
    outputs = 3 if attributes.get("training_mode") else 1
    y = builder.node("BatchNormalization", [x, *vectors], name="bn", outputs=outputs, attributes=attributes)[0]
    if twice:
        (y,) = builder.node("BatchNormalization", [y, *vectors], name="again", attributes=attributes)
    (loss,) = builder.node("ReduceSumSquare", [y], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


NORMALISED = {
    "x": CHANCE.normal(1, 2, (6, 3, 2)),
    "scale": np.array([1.0, 2, 3]),
    "bias": np.zeros(3),
    "mean": np.array([0.5, 0, 1]),
    "var": np.array([1.0, 2, 3]),
}


@pytest.mark.parametrize("attributes", [{}, {"training_mode": 1}])
def test_running_statistics_are_updated_in_place_once(attributes):
    step, notes = training_step(normalised(momentum=0.8, **attributes))
    held = after(step, NORMALISED)
    x = NORMALISED["x"]
    assert held["mean"] == pytest.approx(0.8 * NORMALISED["mean"] + 0.2 * x.mean((0, 2)))
    assert held["var"] == pytest.approx(0.8 * NORMALISED["var"] + 0.2 * x.var((0, 2)))
    assert sum(node.op == "remat::RunningStatistics" for node in step.nodes) == 1
    assert step.values[step.value_named("mean")].role is Role.STATE
    assert any("1 BatchNorm layer runs in training mode" in note for note in notes)


def test_a_normalisation_used_twice_updates_its_statistics_twice_in_order():
    step, _ = training_step(normalised(twice=True))
    updates = [node for node in step.nodes if node.op == "remat::RunningStatistics"]
    assert updates[1].inputs[:2] == updates[0].outputs


def test_shared_running_statistics_are_not_updated():
    builder = Builder.from_graph(normalised())
    builder.node("Neg", [builder.nodes[0].inputs[3]], name="other")
    step, notes = training_step(builder.build([builder.nodes[1].outputs[0]]), "loss")
    assert not any(node.op == "remat::RunningStatistics" for node in step.nodes)
    assert any("'bn' are not updated" in note for note in notes)


def test_training_mode_uses_batch_statistics():
    step, _ = training_step(normalised())
    found = evaluate(step, NORMALISED)
    y = found[step.values[step.nodes[0].outputs[0]].name]
    assert y.mean((0, 2)) == pytest.approx(0, abs=1e-12)


def dropped(*rest: np.ndarray | None) -> Graph:
    builder = Builder("dropped")
    w = builder.value("w", TensorType("float64", (50, 20)), Role.PARAMETER)
    inputs = [w, *(ABSENT if array is None else builder.constant(array) for array in rest)]
    (y,) = builder.node("Dropout", inputs, name="drop", outputs=["y"])
    (loss,) = builder.node("ReduceSum", [y], outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


@pytest.mark.parametrize("rest", [(), (np.array(0.25),), (np.array(0.25), np.array(False)), (None, np.array(True))])
def test_dropout_in_training_mode_has_its_own_stream(rest):
    step, notes = training_step(dropped(*rest))
    node = next(node for node in step.nodes if node.op == "Dropout")
    assert node.stream == "drop" and "1 Dropout layer draws random masks; recomputation replays them" in notes
    found = evaluate(step, {"w": np.ones((50, 20))})
    ratio = 0.25 if rest and rest[0] is not None else 0.5
    assert (found["y"] == 0).mean() == pytest.approx(ratio, abs=0.05)
    gradient = found[step.values[step.gradients[0][1]].name]
    assert (gradient == found["y"]).all()  # y = w times what is kept, with w of ones


# The update


def test_without_a_recipe_gradients_are_outputs():
    step, _ = training_step(regression(), "loss")
    found = evaluate(step, AT)
    given = {step.values[v].name: found[step.values[dv].name] for v, dv in step.gradients}
    for name, expected in slopes(AT).items():
        assert given[name] == pytest.approx(expected)
    assert {dv for _, dv in step.gradients} < set(step.outputs)


def test_sgd_takes_a_step_against_the_gradient():
    held = stepped({"optimizer": "sgd", "learning_rate": 0.1})
    assert held["w"] == pytest.approx(AT["w"] - 0.1 * slopes(AT)["w"])


def test_sgd_with_momentum_keeps_a_velocity():
    velocity = np.full((3, 2), 0.7)
    held = stepped({"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9}, {"w/momentum": velocity})
    moved = 0.9 * velocity + slopes(AT)["w"]
    assert held["w/momentum"] == pytest.approx(moved)
    assert held["w"] == pytest.approx(AT["w"] - 0.1 * moved)


def test_adam_keeps_two_moments_and_counts_the_step():
    held = stepped({"optimizer": "adam", "learning_rate": 0.1})
    g = slopes(AT)["w"]
    assert held["w/first_moment"] == pytest.approx(0.1 * g)
    assert held["w/second_moment"] == pytest.approx(0.001 * g * g)
    assert held["w"] == pytest.approx(AT["w"] - 0.1 * np.sign(g), abs=1e-5)
    assert held["step"] == 1


def test_adafactor_keeps_a_vector_for_rows_and_one_for_columns():
    held = stepped({"optimizer": "adafactor", "learning_rate": 0.1})
    square = slopes(AT)["w"] ** 2
    assert held["w/row_moment"] == pytest.approx(square.mean(-1, keepdims=True))
    assert held["w/column_moment"] == pytest.approx(square.mean(-2, keepdims=True))
    assert held["b/second_moment"] == pytest.approx(slopes(AT)["b"] ** 2)
    assert held["step"] == 1


def test_loss_scale_cancels_in_the_update_and_in_the_clipped_norm():
    for extra in ({}, {"clip": 0.01}, {"accumulate": 4}, {"accumulate": 4, "clip": 0.01}):
        plain, scaled = (stepped({"optimizer": "sgd", **extra, **more}) for more in ({}, {"loss_scale": 1024}))
        assert scaled["w"] == pytest.approx(plain["w"], rel=1e-12), extra


def test_loss_scale_keeps_half_precision_gradients_from_underflow():
    builder = Builder("tiny gradient")
    w = builder.value("w", TensorType("float16", (2,)), Role.PARAMETER)
    (small,) = builder.node("Mul", [w, builder.constant(np.float16(1e-4))], name="small")
    (wide,) = builder.node("Cast", [small], name="wide", attributes={"to": 1})
    (tiny,) = builder.node("Mul", [wide, builder.constant(np.float32(1e-4))], name="tiny")
    (loss,) = builder.node("ReduceSum", [tiny], outputs=["loss"], attributes={"keepdims": 0})
    recipe = {"optimizer": "sgd", "learning_rate": 1e4, "master_weights": True}
    moved = []
    for scale in (1, 4096):
        graph, _ = training_step(builder.build([loss]), "loss", {**recipe, "loss_scale": scale})
        held = after(graph, {**states(graph), "w": np.ones(2, np.float16), "w/master": np.ones(2, np.float32)})
        moved.append(1 - held["w/master"][0])
    assert moved[0] == 0
    assert moved[1] == pytest.approx(1e-4, rel=1e-2)


def test_scaled_head_that_is_not_finite_in_the_dtype_of_the_loss_is_refused():
    with pytest.raises(BadGraph, match="finite in float16"):
        training_step(regression("float16"), "loss", {"optimizer": "sgd", "loss_scale": 1e6})


def test_weight_decay_betas_and_epsilon_are_those_of_the_recipe():
    options = {"betas": [0.5, 0.75], "epsilon": 0.1, "weight_decay": 0.2}
    held = stepped({"optimizer": "adam", "learning_rate": 0.1, **options})
    g = slopes(AT)["w"]
    assert held["w/first_moment"] == pytest.approx(0.5 * g)
    assert held["w/second_moment"] == pytest.approx(0.25 * g * g)
    assert held["w"] == pytest.approx(AT["w"] * (1 - 0.02) - 0.1 * g / (np.abs(g) + 0.1))


def test_moments_have_the_dtype_of_the_recipe():
    graph, _ = training_step(regression("float32"), "loss", {"optimizer": "adam", "state_dtype": "bfloat16"})
    dtypes = {value.name: value.type.dtype for value in graph.values if value.type and value.role is Role.STATE}
    assert dtypes["w/first_moment"] == dtypes["b/second_moment"] == "bfloat16"


def test_clipping_scales_all_gradients_by_their_common_norm():
    held = stepped({"optimizer": "sgd", "learning_rate": 1.0, "clip": 0.01})
    moved = {name: AT[name] - held[name] for name in ("w", "b")}
    norm = np.sqrt(sum((m * m).sum() for m in moved.values()))
    assert norm == pytest.approx(0.01)
    assert moved["w"] / norm == pytest.approx(
        slopes(AT)["w"] / np.sqrt(sum((g * g).sum() for g in slopes(AT).values()))
    )


def test_clipping_does_not_change_small_gradients():
    loose, free = (stepped({"optimizer": "sgd", **extra}) for extra in ({"clip": 1e6}, {}))
    assert loose["w"] == pytest.approx(free["w"])


@pytest.mark.parametrize("clip", [None, 0.01, 1e6])
def test_accumulation_updates_by_the_mean_and_clears_the_sum(clip):
    earlier = {"w/gradient_sum": np.full((3, 2), 0.4), "b/gradient_sum": np.zeros(2)}
    held = stepped({"optimizer": "sgd", "learning_rate": 1.0, "accumulate": 4, "clip": clip}, earlier)
    mean = {name: (slopes(AT)[name] + earlier[f"{name}/gradient_sum"]) / 4 for name in ("w", "b")}
    norm = np.sqrt(sum((g * g).sum() for g in mean.values()))
    factor = 1 if clip is None else min(1, clip / norm)
    assert held["w"] == pytest.approx(AT["w"] - factor * mean["w"])
    assert (held["w/gradient_sum"] == 0).all()


def test_accumulation_without_an_optimizer_outputs_the_sums():
    graph, _ = training_step(regression(), "loss", {"accumulate": 2})
    held = after(graph, {**states(graph), **AT})
    assert held["w/gradient_sum"] == pytest.approx(slopes(AT)["w"])


def test_an_average_of_the_weights_follows_the_update():
    held = stepped({"optimizer": "sgd", "ema": 0.9}, {"w/average": np.ones((3, 2))})
    assert held["w/average"] == pytest.approx(0.9 + 0.1 * held["w"])


def test_half_precision_weights_are_updated_through_master_weights():
    graph, _ = training_step(
        regression("float16"), "loss", {"optimizer": "sgd", "master_weights": True, "learning_rate": 1e-4}
    )
    at = {name: array.astype(np.float16) for name, array in AT.items()}
    masters = {f"{name}/master": at[name].astype(np.float32) for name in ("w", "b")}
    held = after(graph, {**at, **masters})
    assert held["w/master"].dtype == np.float32 and held["w"].dtype == np.float16
    assert not (held["w/master"] == masters["w/master"]).all()
    assert (held["w"] == held["w/master"].astype(np.float16)).all()


def test_full_precision_weights_have_no_master_weights():
    graph, _ = training_step(regression("float32"), "loss", {"optimizer": "sgd", "master_weights": True})
    assert not any("master" in value.name for value in graph.values)


def test_gradients_are_cast_as_soon_as_they_are_complete():
    graph, _ = training_step(regression("float16"), "loss", {"optimizer": "sgd", "gradient_dtype": "float32"})
    assert {graph.values[dv].type.dtype for _, dv in graph.gradients} == {"float32"}
    casts = [node for node in graph.nodes if node.op == "Cast"]
    assert casts and all(node.phase is Phase.BACKWARD for node in casts)


def test_updates_follow_after_all_gradients():
    graph, _ = training_step(regression(), "loss", {"optimizer": "sgd"})
    phases = [node.phase for node in graph.nodes]
    assert phases == sorted(phases) and phases.count(Phase.UPDATE) == 2


def shared() -> Graph:
    #   w is read by fc1 and fc2, the last weight of the chain v by fc3 alone
    builder = Builder("shared")
    type = TensorType("float64", (3, 3))
    h = builder.value("x", type, Role.INPUT)
    w, v = (builder.value(n, type, Role.PARAMETER) for n in "wv")
    for name, weight in (("fc1", w), ("fc2", w), ("fc3", v)):
        (h,) = builder.node("MatMul", [h, weight], name=name)
        (h,) = builder.node("Tanh", [h], name=f"{name}:tanh")
    (loss,) = builder.node("ReduceSum", [h], outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_updates_as_ready_follow_the_last_reader_of_each_weight(optimizer):
    graph, _ = training_step(shared(), "loss", {"optimizer": optimizer, "update": "as_ready"})
    op = {"sgd": "remat::SGD", "adam": "remat::Adam"}[optimizer]
    updates = {graph.values[node.inputs[0]].name: n for n, node in enumerate(graph.nodes) if node.op == op}
    readers = {
        name: max(
            n for n, node in enumerate(graph.nodes) if graph.value_named(name) in node.reads and n != updates[name]
        )
        for name in "wv"
    }
    assert updates["v"] < readers["w"] < updates["w"]
    assert readers["v"] < updates["v"]


def test_updates_as_ready_compute_what_updates_after_all_do():
    at = {name: CHANCE.normal(size=(3, 3)) for name in "xwv"}
    held = []
    for update in ("after_all", "as_ready"):
        graph, _ = training_step(shared(), "loss", {"optimizer": "adam", "update": update})
        held.append(after(graph, {**states(graph), **at}))
    assert held[0].keys() == held[1].keys()
    assert all((held[0][name] == held[1][name]).all() for name in held[0])


def test_gradients_of_other_wanted_values_are_outputs_with_an_optimizer():
    graph, _ = training_step(regression(), "loss", {"optimizer": "sgd"}, with_respect_to=["w", "x"])
    handed = {graph.values[v].name for v, dv in graph.gradients if dv in graph.outputs}
    assert handed == {"x"}


def test_update_is_a_shorthand_for_the_optimizer():
    graph, _ = training_step(regression(), "loss", update="adam")
    assert any(node.op == "remat::Adam" for node in graph.nodes)


@pytest.mark.parametrize(
    ("recipe", "path"),
    [
        ({"optimiser": "sgd"}, "recipe.optimiser"),
        ({"optimizer": "lion"}, "recipe.optimizer"),
        ({"optimizer": "sgd", "momentum": 1.5}, "recipe.momentum"),
        ({"optimizer": "adam", "momentum": 0.5}, "recipe.momentum"),
        ({"optimizer": "sgd", "accumulate": 0}, "recipe.accumulate"),
        ({"optimizer": "sgd", "accumulate": True}, "recipe.accumulate"),
        ({"optimizer": "sgd", "clip": float("nan")}, "recipe.clip"),
        ({"optimizer": "sgd", "clip": 1, "update": "as_ready"}, "recipe.update"),
        ({"optimizer": "sgd", "update": "sometimes"}, "recipe.update"),
        ({"optimizer": "sgd", "gradient_dtype": "int8"}, "recipe.gradient_dtype"),
        ({"optimizer": "sgd", "ema": 2}, "recipe.ema"),
        ({"optimizer": "sgd", "master_weights": "yes"}, "recipe.master_weights"),
        ({"clip": 1.0}, "recipe.clip"),
    ],
)
def test_an_invalid_recipe_is_refused_with_its_field(recipe, path):
    with pytest.raises(BadGraph) as raised:
        training_step(regression(), "loss", recipe)
    assert [finding.path for finding in raised.value.findings] == [path]


def test_all_invalid_fields_are_reported_together():
    with pytest.raises(BadGraph) as raised:
        training_step(regression(), "loss", {"a": 1, "optimizer": 2, "ema": "x"})
    assert len(raised.value.findings) == 3


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"off": ["loss"]}, "differentiate.off"),
        ({"of": "loss"}, "differentiate.of"),
        ({"with_respect_to": [1]}, "differentiate.with_respect_to[0]"),
        ({"with_respect_to": "w"}, "differentiate.with_respect_to"),
        ({"head_gradients": "loss"}, "differentiate.head_gradients"),
        ({"callbacks": print}, "callbacks"),
    ],
)
def test_an_invalid_option_is_refused_with_its_field(options, path):
    with pytest.raises(BadGraph) as raised:
        training_step(regression(), **options)
    assert [finding.path for finding in raised.value.findings] == [path]


def test_every_field_of_a_recipe_is_described():
    text = (Path(__file__).parents[3] / "docs" / "concepts" / "training-step.md").read_text()
    assert not [field.name for field in fields(Recipe) if f"`{field.name}`" not in text]


def test_a_recipe_refuses_parameters_of_which_only_a_size_is_known():
    builder = Builder("sizes")
    w, h = builder.value("w", bytes=64, role=Role.PARAMETER), builder.value("h", bytes=64)
    builder.node("acme::F", [w], name="f", outputs=[h], gradient_reads=())
    (loss,) = builder.node("acme::Loss", [h], types=[TensorType("float32", ())], gradient_reads=(h,), outputs=["loss"])
    graph = builder.build([loss])
    assert len(training_step(graph, "loss")[0].gradients) == 1
    with pytest.raises(BadGraph, match="'w' without a type"):
        training_step(graph, "loss", {"optimizer": "sgd"})
