"""A planned step on two devices with a sharded batch, in its own process: JAX counts devices at its start."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_a_planned_step_on_two_devices_has_the_gradients_of_the_unplanned() -> None:
    two = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=two, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
