"""`remat.jax.capture`: graph documents of training steps, and refusals with the line of the function."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import remat
import remat.jax
from tests.jax.models import MODELS, perceptron, perceptron_arguments, recurrent, recurrent_arguments

ROW = jax.ShapeDtypeStruct((8,), "float32")


def shapes(args: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), args)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_document_is_a_legal_graph_whose_gradients_are_those_of_the_parameters(name: str, fused: bool) -> None:
    function, args = MODELS[name]
    document = remat.jax.capture(function, *shapes(args), fused=fused).document
    report = remat.plan(json.dumps(document).encode(), "100%", execute="no", layout="none", planner="greedy")
    assert report.baseline_peak_bytes > 0
    parameters = {value["name"] for value in document["values"] if value.get("role") == "parameter"}
    assert len(parameters) == len(jax.tree.leaves(args[0])) and set(document["gradients"]) == parameters
    assert {node["phase"] for node in document["nodes"]} == {"forward", "backward"}


def test_a_document_without_fusion_has_a_node_for_each_equation_of_the_jaxpr() -> None:
    args = shapes(perceptron_arguments())
    jaxpr = jax.make_jaxpr(jax.value_and_grad(perceptron))(*args)
    document = remat.jax.capture(perceptron, *args, fused=False).document
    assert sorted(node["op"] for node in document["nodes"]) == sorted(f"jax::{e.primitive.name}" for e in jaxpr.eqns)
    flops = sum(node["cost"]["flops"] for node in document["nodes"] if node["op"] == "jax::dot_general")
    rows, width = args[1].shape
    assert flops == (6 * 4 - 1) * 2 * rows * width * 4 * width  # the gradient of the batch is not asked for


def test_a_large_model_is_traced_without_memory() -> None:
    weight = jax.ShapeDtypeStruct((1 << 20, 1 << 20), "bfloat16")
    document = remat.jax.capture(lambda w, x: jnp.sum(x @ w), weight, jax.ShapeDtypeStruct((2, 1 << 20), "bfloat16"))
    assert any(value["shape"] == [1 << 20, 1 << 20] for value in document.document["values"])


def test_a_scan_has_a_node_for_each_task_of_its_body() -> None:
    document = remat.jax.capture(recurrent, *shapes(recurrent_arguments())).document
    scans = [node for node in document["nodes"] if node["op"] == "Scan"]
    assert [node["phase"] for node in scans] == ["forward", "backward"]
    assert scans[1]["annotations"]["gradient_of"] == scans[0]["name"]
    inside = scans[0]["bodies"]["body"]["nodes"]
    assert sum(node["cost"]["flops"] for node in inside) >= 2 * (2 * 4 * 32 * 32)


def test_nodes_name_the_line_of_the_function() -> None:
    document = remat.jax.capture(perceptron, *shapes(perceptron_arguments())).document
    lines = {node["annotations"]["line"] for node in document["nodes"] if node["op"] == "jax::dot_general"}
    assert lines and all("models.py:" in line for line in lines)


def test_two_traces_give_one_document() -> None:
    for name, (function, args) in MODELS.items():
        first, second = (remat.jax.capture(function, *args).to_json() for _ in range(2))
        assert first == second, name


def branches(x: jax.Array) -> jax.Array:
    return jnp.sum(x) if x[0] > 0 else jnp.sum(-x)


def selects(x: jax.Array) -> jax.Array:
    return jnp.sum(x[x > 0])


def finds(x: jax.Array) -> jax.Array:
    return jnp.sum(x[jnp.nonzero(x)[0]])


def prints(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x)
    return jnp.sum(x * x)


def prints_in_a_loop(x: jax.Array) -> jax.Array:
    return jnp.sum(jax.lax.fori_loop(0, 3, lambda i, y: (jax.debug.print("{}", i), jnp.sin(y))[1], x))


def prints_in_a_branch(x: jax.Array) -> jax.Array:
    return jnp.sum(jax.lax.cond(x[0] > 0, lambda y: (jax.debug.print("{}", y), y)[1], jnp.sin, x))


def calls_back(x: jax.Array) -> jax.Array:
    io_callback(print, None, jnp.arange(3))
    return jnp.sum(x * x)


def no_scalar(x: jax.Array) -> jax.Array:
    return x * x


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (branches, "boolean conversion"),
        (selects, "mask with jnp.where"),
        (finds, "mask with jnp.where"),
        (prints, "side effect"),
        (prints_in_a_loop, "side effect"),
        (prints_in_a_branch, "side effect"),
        (calls_back, "side effect"),
        (no_scalar, "scalar"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_its_line(function: Any, reason: str) -> None:
    with pytest.raises(remat.jax.NotCaptured, match=reason) as refused:
        remat.jax.capture(function, ROW)
    if function is not no_scalar:
        line = function.__code__.co_firstlineno + 1
        assert f"test_capture.py:{line}: " in str(refused.value)


def test_integers_have_no_gradient() -> None:
    with pytest.raises(remat.jax.NotCaptured, match="int32"):
        remat.jax.capture(jnp.sum, jax.ShapeDtypeStruct((8,), "int32"))


def test_an_error_of_the_function_itself_stays_as_it_is() -> None:
    def fails(x: jax.Array) -> jax.Array:
        raise ValueError("not today")

    with pytest.raises(ValueError, match=r"^not today") as raised:
        remat.jax.capture(fails, ROW)
    assert not isinstance(raised.value, remat.jax.NotCaptured)


def test_workspaces_of_tasks_are_those_of_the_compiler() -> None:
    def sampled(x: jax.Array, key: Any) -> jax.Array:
        return jnp.sum(jnp.sort(x) * jax.random.uniform(key, x.shape))

    args = (jax.ShapeDtypeStruct((4096,), "float32"), jax.eval_shape(jax.random.key, 0))
    nodes = remat.jax.capture(sampled, *args, measure=True).document["nodes"]
    taken = {node["op"]: node["cost"].get("workspace_bytes", 0) for node in nodes}
    assert taken["jax::random_bits"] >= 4 * 4096 and taken["jax::sort"] == 0
    assert not any("workspace_bytes" in node["cost"] for node in remat.jax.capture(sampled, *args).document["nodes"])
