"""`remat.jax.optimize`: the numbers of the function, the peak predicted, and clear refusals."""

from __future__ import annotations

import json
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat.jax
from planner.pipeline import solve_stages
from tests.jax.models import MODELS, NO_REWRITES, decoder, decoder_arguments, perceptron, perceptron_arguments

QUICK = {"iterations": 30, "measure": False}


@pytest.fixture(autouse=True)
def quick_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_stages, "with_multi_step_bound", lambda formulation, plan=None: formulation)
    monkeypatch.setattr(solve_stages, "is_bounded_beside", lambda formulation: False)


def equal(left: Any, right: Any) -> bool:
    """Whether two pytrees are equal bit for bit."""
    pairs = list(zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True))
    assert jax.tree.structure(left) == jax.tree.structure(right)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def compiled(function: Any, args: Any, options: dict[str, Any]) -> Any:
    return jax.jit(function).lower(*args).compile(compiler_options=options)(*args)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_changes_no_bit(name: str) -> None:
    function, args = MODELS[name]
    planned = remat.jax.optimize(function, *args, budget=0, over_budget="train", **QUICK)
    unplanned = remat.jax.optimize(function, *args, budget="100%", **QUICK)
    assert unplanned.report is not None and not unplanned.report.recomputed
    assert planned.report is not None and (planned.report.recomputed or name in ("recurrent", "custom"))
    assert equal(planned(*args), unplanned(*args))
    assert equal(compiled(planned, args, NO_REWRITES), compiled(jax.value_and_grad(function), args, NO_REWRITES))


def test_numbers_are_close_to_those_of_xla_with_all_its_rewrites() -> None:
    function, args = MODELS["decoder"]
    planned = remat.jax.optimize(function, *args, budget="80%", **QUICK)
    pairs = zip(
        jax.tree.leaves(planned(*args)), jax.tree.leaves(jax.jit(jax.value_and_grad(function))(*args)), strict=True
    )
    for got, wanted in pairs:
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-6)


def test_memory_falls_as_predicted() -> None:
    args = perceptron_arguments(layers=8, rows=1024)
    planned = remat.jax.optimize(perceptron, *args, budget="50%", **QUICK)
    assert planned.report is not None

    def bytes_of(function: Any) -> int:
        options = remat.jax.compiler_options()
        found = jax.jit(function).lower(*args).compile(compiler_options=options).memory_analysis()
        return int(found.temp_size_in_bytes + found.output_size_in_bytes + found.argument_size_in_bytes)

    assert bytes_of(planned) == pytest.approx(planned.report.peak_bytes, rel=0.05)
    assert bytes_of(planned) < 0.6 * bytes_of(jax.value_and_grad(perceptron))


def test_a_planned_function_works_under_jit_and_scan() -> None:
    params, tokens, key = decoder_arguments()
    planned = remat.jax.optimize(decoder, params, tokens, key, budget="80%", **QUICK)
    unplanned = remat.jax.optimize(decoder, params, tokens, key, budget="100%", **QUICK)

    def trained(value_and_grad: Any) -> Any:
        def step(params: Any, key: Any) -> Any:
            loss, gradients = value_and_grad(params, tokens, key)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss

        options = remat.jax.compiler_options()
        return jax.jit(lambda p, keys: jax.lax.scan(step, p, keys), compiler_options=options)(
            params, jax.random.split(key, 5)
        )

    (_, losses), (_, plain) = trained(planned), trained(jax.value_and_grad(decoder))
    assert losses[-1] < losses[0]
    assert equal(trained(planned), trained(unplanned))
    np.testing.assert_allclose(losses, plain, rtol=1e-5)


def test_a_jit_without_the_options_of_a_plan_is_warned_of() -> None:
    args = perceptron_arguments(layers=2)
    planned = remat.jax.optimize(perceptron, *args, budget="100%", **QUICK)
    with pytest.warns(remat.jax.PlanNotKept, match="lacks xla_cpu_scheduler_type=.*, xla_disable_hlo_passes=cse_barr"):
        jax.jit(lambda *args: planned(*args))(*args)
    with pytest.warns(remat.jax.PlanNotKept, match="lacks xla_disable_hlo_passes=.*saves no memory; use jax.jit"):
        options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
        jax.jit(lambda *args: jax.jit(planned)(*args), compiler_options=options)(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned(*args)
        planned.lower(*args).compile(remat.jax.compiler_options())
        jax.jit(lambda *args: jax.jit(planned)(*args), compiler_options=remat.jax.compiler_options())(*args)


def test_a_second_derivative_of_a_planned_function_is_that_of_the_function() -> None:
    params, batch = perceptron_arguments(layers=2)
    planned = remat.jax.optimize(perceptron, params, batch, budget=0, over_budget="train", **QUICK)

    def curvature(value_and_grad: Any) -> Any:
        return jax.grad(lambda p: sum(jnp.sum(g**2) for g in jax.tree.leaves(value_and_grad(p, batch)[1])))(params)

    for got, wanted in zip(
        jax.tree.leaves(curvature(planned)), jax.tree.leaves(curvature(jax.value_and_grad(perceptron))), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-6)


def test_auxiliary_results_and_several_arguments() -> None:
    def loss(a: Any, b: Any, unused: Any) -> Any:
        y = jnp.tanh(a["w"] @ b)
        return jnp.mean(y**2), {"y": y, "two": 2.0, "given": unused}

    args = ({"w": jnp.ones((8, 8)) * 0.1}, jnp.ones((8, 4)), jnp.arange(3))
    given = {"argnums": (1, 0), "has_aux": True}
    planned = remat.jax.optimize(loss, *args, budget="100%", **given, **QUICK)  # type: ignore[arg-type]
    plain = jax.value_and_grad(loss, **given)  # type: ignore[arg-type]
    assert equal(compiled(planned, args, NO_REWRITES), compiled(plain, args, NO_REWRITES))


def test_a_plan_of_a_file_trains_and_one_of_another_step_is_refused(tmp_path: Path) -> None:
    args = perceptron_arguments()
    remat.jax.capture(perceptron, *args).plan("70%", iterations=30).save(tmp_path / "plan.json")
    planned = remat.jax.optimize(perceptron, *args, plan=tmp_path / "plan.json")
    assert planned.report is None
    assert equal(planned(*args), remat.jax.optimize(perceptron, *args, budget="100%", **QUICK)(*args))
    with pytest.raises(remat.jax.OtherStep, match="shape of"):
        remat.jax.optimize(perceptron, *perceptron_arguments(rows=32), plan=tmp_path / "plan.json")
    with pytest.raises(remat.jax.OtherStep, match="only in the"):
        remat.jax.optimize(partial(decoder), *decoder_arguments(), plan=tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    for versions in ("jax 0.4.1, jaxlib 0.4.1", f"jax {jax.__version__}, jaxlib 0.4.1"):
        saved["source"]["annotations"]["framework"] = versions
        with pytest.raises(remat.jax.OtherStep, match=f"made with {re.escape(versions)}, this is .*install those"):
            remat.jax.optimize(perceptron, *args, plan=saved)


def test_a_call_with_other_arguments_is_refused() -> None:
    params, batch = perceptron_arguments()
    planned = remat.jax.optimize(perceptron, params, batch, budget="100%", **QUICK)
    with pytest.raises(remat.jax.OtherStep, match=r"batch of float32\[64,32\], this is float32\[32,32\]"):
        planned(params, batch[:32])
    with pytest.raises(remat.jax.OtherStep, match="this is bfloat16"):
        planned(params, batch.astype("bfloat16"))
    with pytest.raises(remat.jax.OtherStep, match="the plan is for arguments"):
        planned(params[:2], batch)


def scaled(params: Any, scale: Any) -> Any:
    hidden = jnp.tanh(params * scale)
    return jnp.mean(hidden.astype(jnp.float32)), hidden


def types(found: Any) -> list[Any]:
    return [(leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(found)]


@pytest.mark.parametrize("planned_for, called_with", [(2.0, jnp.float32(2)), (jnp.float32(2), 2.0)])
def test_a_call_whose_weak_types_change_dtypes_is_refused(planned_for: Any, called_with: Any) -> None:
    params = jnp.full(64, 0.3, jnp.bfloat16)
    planned = remat.jax.optimize(scaled, params, planned_for, budget="100%", has_aux=True, **QUICK)
    expected = jax.value_and_grad(scaled, has_aux=True)
    assert types(planned(params, planned_for)) == types(expected(params, planned_for))
    for function in (planned, jax.jit(planned, compiler_options=remat.jax.compiler_options())):
        with pytest.raises(remat.jax.OtherStep, match=r"for scale as .*other dtypes.* or call optimize with"):
            function(params, called_with)


def test_results_have_the_weak_types_of_the_call_if_dtypes_are_those_planned() -> None:
    def loss(rate: Any, values: Any) -> Any:
        def step(state: Any, value: Any) -> Any:
            return jnp.tanh(state * rate + value), state * rate

        state, states = jax.lax.scan(step, jnp.zeros(4), values)
        return jnp.sum(state) + jnp.sum(states) * rate

    values = jnp.ones((5, 4))
    for example in (2.0, jnp.float32(2)):
        planned = remat.jax.optimize(loss, example, values, budget="100%", **QUICK)
        for rate in (2.0, jnp.float32(2)):
            assert types(planned(rate, values)) == types(jax.value_and_grad(loss)(rate, values))

    def descend(gradient: Any) -> Any:  # the first rate is weak, the others are not
        return jax.lax.scan(lambda rate, _: (rate - jnp.float32(0.01) * gradient(rate, values)[1], None), 2.0, length=3)

    np.testing.assert_allclose(descend(planned)[0], descend(jax.value_and_grad(loss))[0], rtol=1e-6)


def test_a_call_in_another_mode_of_x64_is_refused_if_it_changes_dtypes() -> None:
    def ramped(params: Any) -> Any:
        return jnp.sum(jnp.tanh(params) * jnp.linspace(0.0, 1.0, 8))

    params = jnp.ones(8, jnp.float32)
    planned = remat.jax.optimize(ramped, params, budget="100%", **QUICK)
    plain = remat.jax.optimize(lambda params: jnp.sum(jnp.tanh(params)), params, budget="100%", **QUICK)
    with jax.enable_x64(True):
        with pytest.raises(remat.jax.OtherStep, match="made with jax_enable_x64=False"):
            planned(params)
        assert types(plain(params)) == types(jax.value_and_grad(lambda params: jnp.sum(jnp.tanh(params)))(params))


def test_a_budget_that_no_plan_meets_is_an_error_with_the_lowest_peak() -> None:
    args = perceptron_arguments()
    with pytest.raises(remat.jax.BudgetNotMet, match="the lowest peak") as refused:
        remat.jax.optimize(perceptron, *args, budget=1000, **QUICK)
    assert refused.value.report is not None
    with pytest.raises(TypeError, match="not both"):
        remat.jax.optimize(perceptron, *args, budget="50%", plan="plan.json")
    with pytest.raises(ValueError, match="copy nothing to the host"):
        remat.jax.optimize(perceptron, *args, budget="50%", offload=True, **QUICK)
    with pytest.raises(ValueError, match="over_budget='ignore'"):
        remat.jax.optimize(perceptron, *args, budget="50%", over_budget="ignore")  # type: ignore[arg-type]
