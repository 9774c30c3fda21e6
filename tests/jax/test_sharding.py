"""A planned step on two devices with a sharded batch, in its own process: JAX counts devices at its start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np, remat.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.jax.models import perceptron, perceptron_arguments

params, batch = perceptron_arguments()
planned = remat.jax.optimize(perceptron, params, batch, budget="80%", iterations=30)
assert planned.report.recomputed
mesh = Mesh(np.array(jax.devices()), ("data",))
params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
found = jax.jit(planned, compiler_options=remat.jax.compiler_options())(params, batch)
expected = jax.jit(jax.value_and_grad(perceptron))(params, batch)
for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert len(one.sharding.device_set) == 2
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
"""


SCAN = """
import jax, jax.numpy as jnp, numpy as np, remat.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.jax.models import perceptron_arguments

def layers(params, x):
    x, _ = jax.lax.scan(lambda x, w: (x + jax.nn.gelu(x @ w[0]) @ w[1], None), x, params)
    return jnp.mean(x * x)

params, batch = perceptron_arguments(layers=6, rows=256)
params = jax.tree.map(lambda *rows: jnp.stack(rows), *params)
planned = remat.jax.optimize(layers, params, batch, budget=0, over_budget="train", iterations=30, measure=False)
(chosen,) = planned.report["plan"]["choices"]
assert chosen["of"] > 1 and planned.report.overhead > 0

@jax.custom_vjp
def loss(params, batch):
    return layers(params, batch)

loss.defvjp(planned, lambda gradients, d: (jax.tree.map(lambda g: d * g, gradients), None))
mesh = Mesh(np.array(jax.devices()), ("data",))
params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
options = remat.jax.compiler_options()

def squares(value_and_grad):
    return lambda params: sum(jnp.sum(g * g) for g in jax.tree.leaves(value_and_grad(params, batch)[1]))

for one, other in (
    (jax.jit(planned, compiler_options=options)(params, batch), jax.jit(jax.value_and_grad(layers))(params, batch)),
    (jax.jit(jax.grad(loss), compiler_options=options)(params, batch), jax.jit(jax.grad(layers))(params, batch)),
    (jax.jit(jax.grad(squares(planned)))(params), jax.jit(jax.grad(squares(jax.value_and_grad(layers))))(params)),
):
    for found, expected in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert len(found.sharding.device_set) == 2
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6 * np.abs(expected).max())
"""

REFUSED = r"""
import jax, pytest, remat.jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tests.jax.models import perceptron, perceptron_arguments

params, batch = perceptron_arguments(layers=1)
planned = remat.jax.optimize(perceptron, params, batch, budget="100%", iterations=30, measure=False)
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
with pytest.raises(remat.jax.OtherStep, match=r"this is float32\[64@data,32\]; call optimize for these"):
    planned(params, batch)
with jax.set_mesh(mesh):
    remat.jax.optimize(perceptron, params, batch, budget="100%", iterations=30, measure=False)(params, batch)
specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec(), "mesh": mesh}
with pytest.raises(remat.jax.OtherStep, match="put the shard_map into the function"):
    jax.shard_map(planned, **specs)(params, batch)
"""


@pytest.mark.parametrize("script", [SCRIPT, SCAN], ids=["layers", "scan"])
def test_a_planned_step_on_two_devices_has_the_gradients_of_the_unplanned(script: str) -> None:
    run_on_two_devices(script)


def test_other_shardings_and_values_that_vary_over_devices_are_refused() -> None:
    run_on_two_devices(REFUSED)


def run_on_two_devices(script: str) -> None:
    two = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", script], env=two, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
