"""Exported models in ONNX Runtime under plans: three steps beside PyTorch, and resident memory beside the prediction.

    python -m bench.ort_training                              # the models of bench/exported_models.py
    python -m bench.ort_training --only decoder,lstm --mebibytes 200

Each model is exported with its loss by the legacy exporter, for a batch that takes about --mebibytes, and planned at
half of its peak. A child process for each row trains three steps of SGD: unplanned and planned, with the options of
`remat.ort.session`, with the default options of ONNX Runtime, and with these but without their arena.

Columns: share of the peak that the plan saves; growth of resident memory in the first step in MiB: the least that any
plan has, by the proven lower bound, with the op that alone holds it if one does; predicted; measured, and how far it is
off; with default options; and with these but without the arena, whose free pieces a file cannot change. Whether loss
and gradients of planned steps are bit for bit the unplanned ones; error of the loss of the third step and of the
gradients of the first, relative to PyTorch in float64, with the noise of float32, of 64 rows: sums over many rows are
noise.
Exits 1 for numbers that differ, for a growth off by more than 10%, and for a planned growth with default options that
is not below the unplanned one, or above it where the plan saves less than 10%; `(arena)` where it is below without the
arena.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnxruntime

import remat
import remat.ort
from bench.run import add_only
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role
from remat.ort.options import return_freed_memory

MIB = 2**20
RATE, STEPS = 0.05, 3
NOISES = 10  # errors up to so many times the noise of float32 are rounding
OFF = 0.10  # of the growth predicted
OPTIONS = ("ours", "default", "no arena")
HEADS = (
    *("model", "batch", "saved", "least", "predicted", "ours", "off", "default", "no arena"),
    *("equal", "loss", "gradient", "noise", "fault"),
)


@dataclass(frozen=True)
class Trained:
    """What a child process measured: losses, growth of resident memory in bytes, gradients of the first step."""

    losses: list[float]
    growth: int
    gradients: dict[str, np.ndarray]

    def equals(self, other: Trained) -> bool:
        return self.losses == other.losses and all(
            np.array_equal(array, other.gradients[name]) for name, array in self.gradients.items()
        )

    def is_close(self, other: Trained) -> bool:
        """Equal but for rounding, which other fusions change."""
        return np.allclose(self.losses, other.losses, rtol=1e-3) and all(
            np.linalg.norm(array - other.gradients[name]) <= 1e-3 * max(1e-3, np.linalg.norm(array))
            for name, array in self.gradients.items()
        )


def train(graph: Graph, weights: Path, data: Path, options: str = "ours") -> Trained:
    """Train in a child process, with one of `OPTIONS`."""
    with tempfile.TemporaryDirectory() as folder:
        step, out = Path(folder, "step.onnx"), Path(folder, "out.npz")
        step.write_bytes(dump(graph))
        command = [sys.executable, __file__, "--child", *map(str, (step, weights, data, out)), options]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        found = json.loads(done.stdout)
        with np.load(out) as arrays:
            return Trained(found["losses"], found["growth"], dict(arrays))


def child(step: str, weights: str, data: str, out: str, kind: str) -> None:
    """Train three steps and print losses and growth."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if kind == "no arena":
        options.enable_cpu_mem_arena = False
        return_freed_memory()
    session = remat.ort.session(step, weights, options=None if kind == "ours" else options)
    fed = dict(np.load(data))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before, losses, first = _status("VmRSS"), [], {}
    for _ in range(STEPS):
        results = session.run(fed)
        losses.append(float(results[session.outputs[0]]))
        for parameter, gradient in session.gradients.items():
            session.contents[parameter] -= np.float32(RATE) * results[gradient]
        if not first:
            growth = _status("VmHWM") - before
            first = {name: results[gradient].copy() for name, gradient in session.gradients.items()}
        results = {}
    np.savez(out, **first)
    print(json.dumps({"losses": losses, "growth": growth}))


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def row(name: str, mebibytes: int, seconds: float) -> dict[str, str]:
    """The row of one model."""
    from bench import ort_exports  # imports torch, which the child does not need

    with tempfile.TemporaryDirectory() as folder:
        batch = ort_exports.batch_for(name, mebibytes * MIB, Path(folder))
        made = ort_exports.exported_model(name, batch, Path(folder))
        small = ort_exports.exported_model(name, ort_exports.FIRST_BATCH, Path(folder))
        request: dict[str, Any] = {"loss": "loss", "runtime": "ort", "execute": "no", "layout": "none"}
        base = remat.plan(made.model, "100%", iterations=1, **request)
        report = remat.plan(made.model, "50%", search_seconds=seconds, **request)
        unplanned, unplanned_default, unplanned_live = (
            train(base.graph, made.model, made.data, each) for each in OPTIONS
        )
        planned, planned_default, planned_live = (train(report.graph, made.model, made.data, each) for each in OPTIONS)
        few = train(remat.plan(small.model, "50%", planner="greedy", **request).graph, small.model, small.data)
        loss_error, error, noise = small.errors(few.losses, few.gradients)
    predicted = [_growth(each) for each in (base, report)]
    measured = [unplanned.growth, planned.growth]
    off = [got / wanted - 1 for got, wanted in zip(measured, predicted, strict=True)]
    saved = 1 - report.peak_bytes / base.peak_bytes
    equal = planned.equals(unplanned)
    faults = [
        "planned and unplanned differ" * (not equal),
        "default options differ" * (not all(each.is_close(planned) for each in (planned_default, unplanned_default))),
        "other numbers than PyTorch" * (error > NOISES * noise),
        "growth" * any(abs(each) > OFF for each in off),
        f"no growth saved by default{' (arena)' * (planned_live.growth < unplanned_live.growth)}"
        * (planned_default.growth >= unplanned_default.growth + (saved <= OFF)),
    ]
    pair = lambda first, second: f"{first / MIB:.1f} {second / MIB:.1f}"  # noqa: E731
    cells = (
        name,
        str(batch),
        f"{saved:.0%}",
        _least(report),
        pair(*predicted),
        pair(*measured),
        " ".join(f"{each:+.1%}" for each in off),
        pair(unplanned_default.growth, planned_default.growth),
        pair(unplanned_live.growth, planned_live.growth),
        "yes" if equal else "NO",
        f"{loss_error:.0e}",
        f"{error:.0e}",
        f"{noise:.0e}",
        ", ".join(filter(None, faults)),
    )
    return dict(zip(HEADS, cells, strict=True))


def _growth(report: remat.Report) -> int:
    """Bytes that a run takes beside inputs, parameters and constants, which the session holds before."""
    return report.peak_bytes - sum(v.nbytes for v in report.graph.values if v.role is not Role.ACTIVATION)


def _least(report: remat.Report) -> str:
    """Growth in MiB that is proven to be the least, and the op that alone holds it."""
    least = _growth(report) - report.peak_bytes + report.bound["peak_bytes"]
    op = report["plan"]["binding_node"] if report.bound["kind"] == "largest-task" else None
    return f"{least / MIB:.1f}" + f" ({op})" * bool(op)


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return 0
    from bench.ort_exports import MODELS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_only(parser, MODELS)
    parser.add_argument("--mebibytes", type=int, default=128, help="peak of a step without a plan")
    parser.add_argument("--seconds", type=float, default=5.0, help="search time of each plan")
    given = parser.parse_args()
    failed = False
    print(" | ".join(HEADS))
    for name in given.only:
        try:
            found = row(name, given.mebibytes, given.seconds)
        except (ValueError, RuntimeError) as error:
            print(f"{name}: refused: {str(error).splitlines()[0][:200]}", flush=True)
            continue
        failed |= bool(found["fault"])
        print(" | ".join(found[head] for head in HEADS), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
