"""`remat.jax.policy`: names and checkpoints of JAX alone, with the gradients of the function, within the budget."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import remat.jax
from planner.pipeline import solve_stages
from tests.jax.models import MODELS, NO_REWRITES, perceptron, perceptron_arguments

QUICK = {"iterations": 30, "measure": False}


@pytest.fixture(autouse=True)
def quick_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)


def bits(function: Any, args: Any) -> list[bytes]:
    compiled = jax.jit(function).lower(*args).compile(compiler_options=NO_REWRITES)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(compiled(*args))]


def bytes_of(function: Any, args: Any) -> int:
    compiled = jax.jit(function).lower(*args).compile(compiler_options=remat.jax.compiler_options())
    found = compiled.memory_analysis()
    return int(found.temp_size_in_bytes + found.output_size_in_bytes + found.argument_size_in_bytes)


def layers(params: Any, batch: jax.Array) -> jax.Array:
    """Equal layers in a `lax.scan`, with names of the user."""

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        up, down = weights
        inner = checkpoint_name(x @ up, "inner")
        return x + checkpoint_name(jax.nn.gelu(inner) @ down, "out"), None

    return jnp.mean(jax.lax.scan(layer, batch, params)[0] ** 2)


def layers_arguments() -> tuple[Any, ...]:
    params, batch = perceptron_arguments(layers=6, rows=256)
    return tuple(jnp.stack(part) for part in zip(*params, strict=True)), batch


def test_memory_falls_as_predicted_and_no_bit_changes() -> None:
    args = perceptron_arguments(layers=8, rows=1024)
    chosen = remat.jax.policy(perceptron, *args, budget="50%", **QUICK)
    assert chosen.names and chosen.peak_bytes <= 0.5 * chosen.baseline_peak_bytes
    assert chosen.extra_overhead == chosen.overhead - chosen.report.overhead >= -1e-9
    assert bytes_of(jax.value_and_grad(chosen), args) == pytest.approx(chosen.peak_bytes, rel=0.1)
    assert bits(jax.value_and_grad(chosen), args) == bits(jax.value_and_grad(perceptron), args)


@pytest.mark.parametrize("name", MODELS)
def test_a_policy_changes_no_bit(name: str) -> None:
    function, args = MODELS[name]
    chosen = remat.jax.policy(function, *args, budget=0, over_budget="train", **QUICK)
    assert bits(jax.value_and_grad(chosen), args) == bits(jax.value_and_grad(function), args)


def test_layers_of_a_scan_save_names_of_their_own() -> None:
    args = layers_arguments()
    chosen = remat.jax.policy(layers, *args, budget="70%", over_budget="train", **QUICK)
    assert any(name.startswith("scan.") for name in chosen.names)
    assert chosen.peak_bytes < 0.8 * chosen.baseline_peak_bytes
    gradients = jax.value_and_grad(chosen)
    assert bytes_of(gradients, args) < 0.85 * bytes_of(jax.value_and_grad(layers), args)
    assert bits(gradients, args) == bits(jax.value_and_grad(layers), args)


def test_own_names_in_a_scan_need_the_checkpoint_around_its_body() -> None:
    args = layers_arguments()
    chosen = remat.jax.policy(layers, *args, budget=0, names="own", over_budget="train", iterations=30)
    assert chosen.names == chosen.names_in_scans == {"out"}
    assert "around the body" in repr(chosen)

    def by_hand(params: Any, batch: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
            inner = checkpoint_name(x @ weights[0], "inner")
            return x + checkpoint_name(jax.nn.gelu(inner) @ weights[1], "out"), None

        body = jax.checkpoint(layer, policy=chosen.policy, prevent_cse=False)
        return jnp.mean(jax.lax.scan(body, batch, params)[0] ** 2)

    for function in (chosen, by_hand):
        assert bytes_of(jax.value_and_grad(function), args) == pytest.approx(chosen.peak_bytes, rel=0.05)
        assert bits(jax.value_and_grad(function), args) == bits(jax.value_and_grad(layers), args)
    around_all = jax.checkpoint(layers, policy=chosen.policy)
    assert bytes_of(jax.value_and_grad(around_all), args) > 2 * chosen.peak_bytes


def test_names_of_the_user_are_chosen_from() -> None:
    def named(params: Any, batch: jax.Array) -> jax.Array:
        for up, down in params:
            inner = jax.nn.gelu(checkpoint_name(batch @ up, "inner"))
            batch = batch + checkpoint_name(inner @ down, "out")
        return jnp.mean(batch**2)

    args = perceptron_arguments(layers=8, rows=1024)
    chosen = remat.jax.policy(named, *args, budget="50%", names="own", **QUICK)
    assert chosen.names == {"out"}
    plain = jax.checkpoint(named, policy=chosen.policy)
    assert bits(jax.value_and_grad(plain), args) == bits(jax.value_and_grad(named), args)
    wide = remat.jax.policy(layers, *layers_arguments(), budget="95%", names="own", over_budget="train", **QUICK)
    assert wide.names <= {"inner", "out"}


def test_a_name_that_saves_nothing_is_refused_with_the_remedy() -> None:
    def behind(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(checkpoint_name(jnp.tanh(x @ weight), "hidden")))

    args = (jax.ShapeDtypeStruct((8, 8), "float32"), jax.ShapeDtypeStruct((4, 8), "float32"))
    with pytest.raises(ValueError, match=r"hidden save no recomputation.*name its operand"):
        remat.jax.policy(behind, *args, budget=0, names="own", **QUICK)
    with pytest.raises(ValueError, match=r"no jax\.ad_checkpoint\.checkpoint_name"):
        remat.jax.policy(perceptron, *perceptron_arguments(), budget=0, names="own", **QUICK)
    with pytest.raises(ValueError, match="names='mine'"):
        remat.jax.policy(perceptron, *perceptron_arguments(), names="mine")  # type: ignore[arg-type]


def test_a_policy_offloads_where_the_device_has_a_host_bandwidth() -> None:
    args = perceptron_arguments(layers=8, rows=1024)
    device = {"like": "cpu-reference", "host_bandwidth": 10**12}
    chosen = remat.jax.policy(perceptron, *args, budget=0, offload=True, device=device, over_budget="train", **QUICK)
    plain = remat.jax.policy(perceptron, *args, budget=0, over_budget="train", **QUICK)
    assert chosen.offloaded and chosen.peak_bytes < plain.peak_bytes
    assert "Host" in str(jax.make_jaxpr(jax.value_and_grad(chosen))(*args))
    with pytest.raises(ValueError, match="no host bandwidth"):
        remat.jax.policy(perceptron, *args, budget=0, offload=True, **QUICK)


def test_a_budget_below_every_policy_is_an_error_with_the_lowest_peak() -> None:
    with pytest.raises(remat.jax.BudgetNotMet, match=r"no policy within .* the lowest peak found"):
        remat.jax.policy(perceptron, *perceptron_arguments(), budget=1000, **QUICK)


def test_a_call_with_other_shapes_is_refused() -> None:
    params, batch = perceptron_arguments()
    chosen = remat.jax.policy(perceptron, params, batch, budget="90%", over_budget="train", **QUICK)
    with pytest.raises(remat.jax.OtherStep, match=r"float32\[64,32\], this is float32\[32,32\]"):
        chosen(params, batch[:32])
