"""Ways of JAX and of ONNX Runtime to save memory beside plans, by the figures of XLA and of Linux.

    python -m bench.runtime_peers                                            # JAX
    python -m bench.runtime_peers --training-python VENV/bin/python          # and ONNX Runtime

JAX: `jax.checkpoint` around each block, alone and saving matrix products, under XLA's default options and with its
concurrency-optimised scheduler off; XLA's limit of memory, which is for GPUs; and plans at the lowest peak of these.
Peak: `memory_analysis` in MiB with arguments and results; extra flops: `cost_analysis`, beside XLA's default.

ONNX Runtime: its memory optimizer, of the training build only, recomputes Gelus between forward and backward pass; it
needs an op of ORTModule between them (`YieldOp`), which is put there, and replaced by its value in the optimized file.
The optimized file runs in the order of the session, and `in order`: gradients of weights first, recomputed nodes late.
The network is a chain of products and Gelus. Peak: growth of resident memory in MiB over the first step. A training
build needs an environment of its own: `pip install onnxruntime-training-cpu==1.19.2 onnx "numpy<2"`, Python 3.11.

Gradients: `equal` bit for bit to the first row of their table, `close` (rounding), or `WRONG`, which exits 1. Needs the
extras `jax` and `ort`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
import onnx
from onnx import helper

import remat
import remat.jax
import remat.ort
from bench.jax_networks import NETWORKS, plain
from bench.jax_training import Compiled
from bench.ort_training import train
from bench.run import add_only

MIB = 2**20
LAYERS, WIDTH, ROWS = 8, 256, 16 * 1024
HEADS = ("network", "way", "peak", "extra flops", "gradients")
SAVING_PRODUCTS = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
NO_SCHEDULER = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
LIMITED = {"xla_gpu_memory_limit_slop_factor": 50}
JAX_WAYS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("XLA", plain, {}),
    ("XLA, scheduler off", plain, NO_SCHEDULER),
    ("XLA, half of the memory (an option for GPUs)", plain, LIMITED),
    ("checkpoint", jax.checkpoint, {}),
    ("checkpoint, scheduler off", jax.checkpoint, NO_SCHEDULER),
    ("checkpoint, options of remat.jax", jax.checkpoint, remat.jax.compiler_options()),
    ("checkpoint saving products, options of remat.jax", SAVING_PRODUCTS, remat.jax.compiler_options()),
)
ORT_WAYS = ("none", "Gelu", "none, in order", "Gelu, in order")
Row = tuple[str, ...]


def jax_rows(name: str, seconds: float) -> list[Row]:
    """Ways of JAX for a network, and a plan at their lowest peak."""
    made = []
    for way, wrap, options in JAX_WAYS:
        network = NETWORKS[name](wrap, False)
        made.append((way, Compiled(jax.value_and_grad(network.loss), network.arguments, options)))
    network = NETWORKS[name](plain, False)
    lowest = min(each.bytes for _, each in made)
    report = remat.jax.capture(network.loss, *network.arguments).plan(str(lowest), search_seconds=seconds)
    planned = remat.jax.optimize(network.loss, *network.arguments, plan=report)
    way = f"plan at the lowest peak ({report.status})"
    made.append((way, Compiled(planned, network.arguments, remat.jax.compiler_options())))
    base = made[0][1]
    expected = arrays(base)
    return [
        (name, way, f"{each.bytes / MIB:.2f}", f"{each.flops / base.flops - 1:+.1%}", compared(arrays(each), expected))
        for way, each in made
    ]


def arrays(compiled: Compiled) -> list[np.ndarray]:
    """Loss and gradients."""
    return [np.frombuffer(each, np.float32) for each in compiled.results()]


def compared(found: list[np.ndarray], expected: list[np.ndarray]) -> str:
    pairs = list(zip(found, expected, strict=True))
    if all(np.array_equal(a, b) for a, b in pairs):
        return "equal"
    close = all(np.linalg.norm(a - b) <= 1e-3 * max(1e-6, float(np.linalg.norm(b))) for a, b in pairs)
    return "close" if close else "WRONG"


def chain() -> onnx.ModelProto:
    """A loss over layers of a product and a Gelu, with standard ops."""
    draw = np.random.default_rng(0)
    graph = onnx.GraphProto(name="chain")
    value = "x"
    for layer in range(LAYERS):
        weight = (draw.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(weight, f"w{layer}"))
        graph.node.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"], f"product{layer}"))
        graph.node.append(helper.make_node("Gelu", [f"m{layer}"], [f"g{layer}"], f"gelu{layer}"))
        value = f"g{layer}"
    graph.node.append(helper.make_node("ReduceMean", [value], ["loss"], "mean", keepdims=0))
    graph.input.append(helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [ROWS, WIDTH]))
    graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def ort_rows(training_python: str, seconds: float) -> list[Row]:
    """The memory optimizer of ONNX Runtime, and plans in `remat.ort`, at half of the memory and at its peak."""
    with tempfile.TemporaryDirectory() as folder:
        model, data = Path(folder, "chain.onnx"), Path(folder, "data.npz")
        model.write_bytes(chain().SerializeToString())
        np.savez(data, x=np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32))
        child = Path(__file__).with_name("ort_memory_optimizer.py")
        found: list[dict[str, Any]] = []
        for way in ORT_WAYS:
            out = Path(folder, "out.npz")
            command = [training_python, str(child), str(model), str(data), str(out), way]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{training_python}: {done.stderr.strip().splitlines()[-1]}")
            with np.load(out) as gradients:
                found.append({**json.loads(done.stdout.splitlines()[-1]), "gradients": dict(gradients)})
        expected = found[0]["gradients"]
        names = sorted(expected)
        rows: list[Row] = [
            (
                "chain",
                f"ONNX Runtime {each['version']}, memory optimizer: {way}",
                f"{each['growth'] / MIB:.1f}",
                f"{each['recomputed']} Gelus of {LAYERS} recomputed",
                compared([each["gradients"][name] for name in names], [expected[name] for name in names]),
            )
            for way, each in zip(ORT_WAYS, found, strict=True)
        ]
        request: dict[str, Any] = {"loss": "loss", "runtime": "ort", "execute": "no", "layout": "none"}
        base = remat.plan(model, "100%", iterations=1, **request)
        for budget in ("100%", "50%"):
            report = remat.plan(model, budget, search_seconds=seconds, **request)
            trained = train(report.graph, model, data)
            more = 1 + report["plan"]["overhead"] if budget != "100%" else 1.0
            rows.append(
                (
                    "chain",
                    f"remat.ort, {budget} of the peak ({report.status})",
                    f"{trained.growth / MIB:.1f}",
                    f"{len(report.graph.nodes) - len(base.graph.nodes)} nodes recomputed, {more - 1:+.1%} time",
                    compared([trained.gradients[name] for name in names], [expected[name] for name in names]),
                )
            )
        return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_only(parser, [name for name in NETWORKS if name != "flax_mixer"])
    parser.add_argument("--seconds", type=float, default=5.0, help="search time of each plan")
    parser.add_argument("--training-python", help="Python of an environment with a training build of ONNX Runtime")
    given = parser.parse_args()
    print("| " + " | ".join(HEADS) + " |\n|" + " --- |" * len(HEADS))
    wrong = False
    for rows in (
        *(partial(jax_rows, name, given.seconds) for name in given.only),
        *([partial(ort_rows, given.training_python, given.seconds)] if given.training_python else []),
    ):
        for row in rows():
            print("| " + " | ".join(row) + " |", flush=True)
            wrong |= row[-1] == "WRONG"
    if not given.training_python:
        print(
            "ONNX Runtime's memory optimizer: not measured, --training-python names no training build", file=sys.stderr
        )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
