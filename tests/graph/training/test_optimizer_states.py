"""Optimizer states in 8 bits, and states sharded over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import remat
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.formats.writers import dump
from graph.ir import Effect, Graph, Node, Role, TensorType
from graph.ops.registry import run
from graph.ops.registry.registry import make_call
from graph.ops.training.blockwise_optimizer import code_values, dequantized, quantized
from graph.training.step import training_step
from tests.graph.training.test_step import after, regression, states

CHANCE = np.random.default_rng(5)
WIDE = (96, 70)  # 6720 elements: 26 blocks of 256 and one of 64


def model(dtype: str = "float32", rows: int = 4) -> Graph:
    """loss = mean((x w + b)²) with a large and a small parameter."""
    builder = Builder("layer")
    x = builder.value("x", TensorType(dtype, (rows, WIDE[0])), Role.INPUT)
    w = builder.value("w", TensorType(dtype, WIDE), Role.PARAMETER)
    b = builder.value("b", TensorType(dtype, WIDE[1:]), Role.PARAMETER)
    (h,) = builder.node("MatMul", [x, w], name="fc")
    (y,) = builder.node("Add", [h, b], name="bias")
    (square,) = builder.node("Mul", [y, y], name="square")
    (loss,) = builder.node("ReduceMean", [square], name="loss", outputs=["loss"], attributes={"keepdims": 0})
    return builder.build([loss])


def at(rank: int = 0, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Inputs of a rank, and the parameters that all ranks have."""
    chance = np.random.default_rng(7)
    parameters = {"w": chance.normal(size=WIDE), "b": chance.normal(size=WIDE[1:])}
    x = np.random.default_rng(rank).normal(size=(4, WIDE[0]))
    return {name: array.astype(dtype) for name, array in {**parameters, "x": x}.items()}


def state_types(recipe: dict[str, Any], dtype: str = "float32") -> dict[str, str]:
    step, _ = training_step(model(dtype), "loss", recipe)
    return {v.name: str(v.type) for v in step.values if v.role is Role.STATE and v.name != "step"}


def run_steps(recipe: dict[str, Any], steps: int) -> dict[str, np.ndarray]:
    step, _ = training_step(model(), "loss", recipe)
    held = {**states(step), **at(), "step": np.int64(0)}
    for _ in range(steps):
        held |= after(step, held)
    return held


# 8 bits


def nearest(numbers: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of the nearest code value, by comparison with all of them."""
    return np.abs(numbers[:, None].astype(np.float64) - values.astype(np.float64)).argmin(axis=1)


def test_the_code_has_seven_decades_with_twice_as_many_values_in_each():
    for signed, factor in ((True, 1), (False, 2)):
        values = code_values(signed)
        assert values.size == 256 and (np.diff(values) > 0).all() and values[-1] == 1 and 0 in values
        positive = values[(values > 0) & (values < 1)]
        counts = np.bincount(np.floor(np.log10(positive)).astype(int) + 7, minlength=7)
        assert counts.tolist() == [factor * 2**decade for decade in range(7)]
    assert (code_values(True)[:127] == -code_values(True)[128:-1][::-1]).all()


@pytest.mark.parametrize("signed", [True, False])
def test_a_block_is_the_nearest_code_times_its_largest_element(signed):
    state = CHANCE.normal(size=(7, 100)).astype(np.float32) ** (3 if signed else 2)
    state[2:5] = 0  # a whole block of zeros
    codes, scale = quantized(state, signed)
    for block in range(3):
        part = state.reshape(-1)[256 * block : 256 * (block + 1)]
        assert scale[block] == np.abs(part).max()
        if scale[block]:
            expected = nearest(part / scale[block], code_values(signed))
            assert (codes.reshape(-1)[256 * block : 256 * (block + 1)] == expected).all()
    found = dequantized(codes, scale, signed)
    assert found.shape == state.shape and (found[state == 0] == 0).all()
    assert np.abs(found - state).max() <= 0.9 / 128 * np.abs(state).max() * (1 + 1e-4)  # half of the widest step


def reference(steps: int) -> dict[str, np.ndarray]:
    """The parameters after steps of Adam whose moments of `w` are kept as 8-bit codes, written out in numpy."""
    held = {name: array.astype(np.float64) for name, array in at().items()}
    moments = {name: [np.zeros(held[name].shape), np.zeros(held[name].shape)] for name in ("w", "b")}
    for count in range(1, steps + 1):
        y = held["x"] @ held["w"] + held["b"]
        slopes = {"w": held["x"].T @ (2 * y / y.size), "b": (2 * y / y.size).sum(0)}
        for name, g in slopes.items():
            m = 0.9 * moments[name][0] + 0.1 * g
            v = 0.999 * moments[name][1] + 0.001 * g * g
            held[name] = held[name] - 0.01 * m / (1 - 0.9**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)
            moments[name] = [m, v] if name == "b" else [rounded(m, True), rounded(v, False)]
    return held


def rounded(moment: np.ndarray, signed: bool) -> np.ndarray:
    """The moment after quantization, block by block."""
    parts = []
    for start in range(0, moment.size, 256):
        part = moment.reshape(-1)[start : start + 256]
        largest = np.abs(part).max()
        parts.append(code_values(signed)[nearest(part / largest, code_values(signed))] * largest)
    return np.concatenate(parts).reshape(moment.shape)


def test_adam_in_8_bits_is_adam_with_quantized_moments():
    recipe = {"optimizer": "adam", "learning_rate": 0.01, "state_dtype": "8bit"}
    found, expected = run_steps(recipe, 3), reference(3)
    assert found["w/first_moment"].dtype == np.uint8
    moved = np.abs(expected["w"] - at()["w"])
    assert np.abs(found["b"] - expected["b"]).max() < 1e-6
    error = np.abs(found["w"] - expected["w"]) / moved.max()
    # float32 beside float64: few moments round to the neighboring code
    assert np.quantile(error, 0.99) < 1e-4 and error.max() < 0.05


@pytest.mark.parametrize(
    "optimizer", [{"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}], ids=["adam", "sgd"]
)
def test_8_bits_move_weights_as_float32_does_up_to_quantization(optimizer):
    recipe = {**optimizer, "learning_rate": 0.01}
    exact, found = run_steps(recipe, 5), run_steps({**recipe, "state_dtype": "8bit"}, 5)
    distance = np.linalg.norm(found["w"] - exact["w"]) / np.linalg.norm(exact["w"] - at()["w"])
    assert 0 < distance < 0.1  # a second moment far below its block's largest has few codes


def test_8_bit_states_take_a_byte_an_element_and_four_a_block():
    found = state_types({"optimizer": "adam", "state_dtype": "8bit"})
    assert found == {
        "w/first_moment": "uint8[96,70]",
        "w/first_moment_scale": "float32[27]",
        "w/second_moment": "uint8[96,70]",
        "w/second_moment_scale": "float32[27]",
        "b/first_moment": "float32[70]",
        "b/second_moment": "float32[70]",
    }


def test_states_of_float64_parameters_are_not_quantized():
    assert state_types({"optimizer": "adam", "state_dtype": "8bit"}, "float64")["w/first_moment"] == "float64[96,70]"


# Shards


def run_ranks(step: Graph, given: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Every value of the step on each rank, node after node on all ranks, collectives by numpy."""
    held = [
        {
            v: one.get(value.name, value.data)
            for v, value in enumerate(step.values)
            if value.name in one or value.data is not None
        }
        for one in given
    ]
    for node in step.nodes:
        inputs = [[one[v] for v in node.inputs] for one in held]
        for one, made in zip(held, exchanged(step, node, inputs), strict=True):
            one.update(zip(node.outputs, made, strict=True))
    return [{step.values[v].name: array for v, array in one.items()} for one in held]


def exchanged(step: Graph, node: Node, inputs: list[list[np.ndarray]]) -> list[Any]:
    """Outputs of a node on each rank."""
    ranks, what = len(inputs), node.op.removeprefix("collective::")
    if what == node.op:
        return [run(make_call(step, node), *arrays) for arrays in inputs]
    assert node.attributes["ranks"] == ranks
    if what == "AllGather":
        old = inputs[0][0]
        whole = np.concatenate([part for _, part in inputs])[: old.size].reshape(old.shape)
        return [(whole,)] * ranks
    (first,) = inputs[0]
    if what == "AllReduce":
        return [(sum(x for (x,) in inputs),)] * ranks
    length = -(-first.size // ranks)
    wholes = [sum(x for (x,) in inputs)] * ranks if what == "ReduceScatter" else [x for (x,) in inputs]
    padded = [np.concatenate([x.reshape(-1), np.zeros(length * ranks - x.size, x.dtype)]) for x in wholes]
    return [(x[length * rank : length * (rank + 1)],) for rank, x in enumerate(padded)]


def new_names(step: Graph) -> dict[str, str]:
    """Parameter or state -> its last version."""
    newest: dict[str, str] = {}
    origin: dict[str, str] = {}
    for node in step.nodes:
        for output, source in node.in_place:
            new, old = step.values[node.outputs[output]].name, step.values[node.inputs[source]].name
            origin[new] = origin.get(old, old)
            newest[origin[new]] = new
    return newest


RECIPES: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "sgd", "momentum": 0.9, "clip": 0.01, "weight_decay": 0.1},
    {"optimizer": "adam", "update": "as_ready", "accumulate": 2, "loss_scale": 64, "ema": 0.9},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=["adam", "clipped", "accumulated"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_together_take_the_step_of_one_process_on_all_of_the_batch(recipe, ranks):
    feeds = [at(rank, "float64") for rank in range(ranks)]
    together = {**feeds[0], "x": np.concatenate([each["x"] for each in feeds])}
    whole, _ = training_step(model("float64", 4 * ranks), "loss", recipe)
    expected = after(whole, {**states(whole), **together})
    step, _ = training_step(model("float64"), "loss", {**recipe, "shards": ranks})
    found = run_ranks(step, [{**states(step), **each} for each in feeds])
    newest = new_names(step)
    for rank in range(ranks):
        for name in ("w", "b"):
            np.testing.assert_allclose(found[rank][newest[name]], expected[name], rtol=1e-9, atol=1e-12)
    for state in (name for name in expected if "/" in name and "sum" not in name):
        parts = np.concatenate([one[newest[state]] for one in found])[: expected[state].size]
        np.testing.assert_allclose(parts, expected[state].reshape(-1), rtol=1e-9, atol=1e-12)


def test_one_shard_is_the_step_without_shards():
    plain, _ = training_step(model(), "loss", {"optimizer": "adam"})
    single, _ = training_step(model(), "loss", {"optimizer": "adam", "shards": 1})
    assert [node.op for node in plain.nodes] == [node.op for node in single.nodes]


def test_a_rank_holds_its_part_of_every_state():
    found = state_types({"optimizer": "adam", "shards": 4, "master_weights": True, "ema": True}, "bfloat16")
    for name, elements in (("w", 1680), ("b", 18)):  # of 6720 and of 70 with 2 of padding
        for state in ("first_moment", "second_moment", "master", "average"):
            assert found[f"{name}/{state}"] == f"float32[{elements}]"
    small = state_types({"optimizer": "adam", "shards": 2, "state_dtype": "8bit"})
    assert small["w/first_moment"] == "float32[3360]"  # a part below 4096 elements stays in float32


def test_a_gradient_is_reduced_as_soon_as_it_is_complete():
    step, _ = training_step(model(), "loss", {"optimizer": "adam", "shards": 2})
    reduced = {n.inputs[0] for n in step.nodes if n.op == "collective::ReduceScatter"}
    assert reduced == {gradient for _, gradient in step.gradients}
    readers = [n.op for n in step.nodes if set(n.inputs) & reduced]
    assert readers == ["collective::ReduceScatter"] * 2


def test_collectives_communicate_and_are_never_recomputed():
    step, _ = training_step(model(), "loss", {"optimizer": "adam", "shards": 2, "clip": 1})
    found = [
        n for n in step.nodes if n.op in ("collective::ReduceScatter", "collective::AllReduce", "collective::AllGather")
    ]
    assert len(found) == 5
    assert all(n.effect is Effect.COLLECTIVE and n.recompute == "never" for n in found)


@pytest.mark.parametrize(
    ("recipe", "path"),
    [
        ({"optimizer": "adafactor", "shards": 2}, "recipe.shards"),
        ({"shards": 2}, "recipe.shards"),
        ({"optimizer": "adam", "shards": 0}, "recipe.shards"),
        ({"optimizer": "adam", "shards": 1.5}, "recipe.shards"),
        ({"optimizer": "sgd", "state_dtype": "8bit"}, "recipe.state_dtype"),
        ({"optimizer": "adafactor", "state_dtype": "8bit"}, "recipe.state_dtype"),
    ],
)
def test_an_impossible_combination_is_refused_with_its_field(recipe, path):
    with pytest.raises(BadGraph) as raised:
        training_step(regression(), "loss", recipe)
    assert [finding.path for finding in raised.value.findings] == [path]


def test_shards_of_a_graph_with_a_process_mesh_are_refused():
    graph = model()
    nodes = [replace(node, annotations={"process_mesh": [0, 1]}) for node in graph.nodes]
    with pytest.raises(BadGraph, match="mesh") as raised:
        training_step(replace(graph, nodes=tuple(nodes)), "loss", {"optimizer": "adam", "shards": 2})
    assert raised.value.findings[0].path == "recipe.shards"


def test_a_state_of_another_shape_than_its_sharded_parameter_is_replicated():
    graph = model()
    sharded = {"process_mesh": [0, 1], "dims_mapping": [0, -1]}
    values = [replace(v, annotations=sharded) if v.name == "w" else v for v in graph.values]
    step, _ = training_step(replace(graph, values=tuple(values)), "loss", {"optimizer": "adam", "state_dtype": "8bit"})
    mappings = {
        v.name: v.annotations["dims_mapping"] for v in step.values if "state_of" in v.annotations and v.name[0] == "w"
    }
    assert mappings["w/first_moment"] == [0, -1] and mappings["w/first_moment_scale"] == [-1]


# Plans


def planned(recipe: dict[str, Any], **fields: Any) -> Any:
    return remat.plan(dump(model(), "native"), loss="loss", recipe=recipe, iterations=5, **{"budget": "90%", **fields})


@pytest.mark.parametrize(
    ("fields", "state_bytes"),
    [({}, 8 * (6720 + 70)), ({"state_dtype": "8bit"}, 2 * (6720 + 4 * 27) + 8 * 70), ({"shards": 4}, 8 * (1680 + 18))],
    ids=["float32", "8bit", "shards"],
)
def test_a_plan_counts_the_bytes_of_the_optimizer_state(fields, state_bytes):
    report = planned({"optimizer": "adam", **fields}, execute="no", planner="as_given")
    assert report["plan"]["peak_by"]["optimizer"] == state_bytes + 8  # and the step counter


def test_a_plan_with_8_bit_states_is_executed_and_one_with_shards_says_why_it_is_not():
    assert (
        planned({"optimizer": "adam", "state_dtype": "8bit"}, execute="yes", planner="as_given")["executed"]["status"]
        == "equal"
    )
    executed = planned({"optimizer": "adam", "shards": 4}, execute="yes", planner="as_given")["executed"]
    assert executed["status"] == "not executed"
    assert executed["why"] == (
        "node update/b: op collective::ReduceScatter exchanges data between 4 processes; one process executes here"
    )


def test_a_plan_with_recomputation_runs_every_collective_once():
    report = planned({"optimizer": "adam", "shards": 2, "clip": 1}, planner="mirror", execute="no")
    step, _ = training_step(model(), "loss", {"optimizer": "adam", "shards": 2, "clip": 1})
    collectives = {node.name for node in step.nodes if node.effect is Effect.COLLECTIVE}
    assert report.recomputed
    assert sorted(name for name, _ in report.order if name in collectives) == sorted(collectives)
