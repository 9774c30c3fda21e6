"""Echo's own cases as MXNet symbols: mirroring as it was published, and what `auto` reaches in the same time.

.venv/bin/python -m bench.echo [SECONDS] > bench/results/echo.json

Zheng, Vijaykumar, Pekhimenko, "Echo: Compiler-based GPU Memory Footprint Reduction for LSTM RNN Training", ISCA 2020.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import remat
from bench.mxnet_symbols import decoder, resnet

CASES = {
    "attention decoder, 80 steps": lambda: decoder(),
    "ResNet-152": lambda: resnet(),
    "ResNet-152, activated sums": lambda: resnet(preactivated=False),
}


def row(report: dict[str, Any]) -> dict[str, Any]:
    """What counts of a report: activations at the peak over those of the baseline, and the price."""
    before, after = report["baseline"], report["plan"]
    return {
        "planner": after["planner"],
        "peak_bytes": after["peak_bytes"],
        "activations": round(after["peak_by"]["activations"] / before["peak_by"]["activations"], 4),
        "peak": round(after["peak_bytes"] / before["peak_bytes"], 4),
        "overhead": round(after["overhead"], 4),
    }


def compare(model: bytes, seconds: float, iterations: int | None = None) -> dict[str, Any]:
    """Mirroring as published, and the lowest peak `auto` finds for no more time. `iterations` make it reproducible."""
    asked: dict[str, Any] = {
        "loss": "softmax_loss",
        "counts": "activations",
        "execute": "no",
        "search_seconds": seconds,
    }
    if iterations is not None:
        asked["iterations"] = iterations
    mirror = remat.plan(model, planner="mirror", budget="0", **asked)
    auto = remat.plan(model, planner="auto", max_overhead=mirror["plan"]["overhead"], **asked)
    before = {"nodes": mirror["model"]["nodes"], "peak_bytes": mirror["baseline"]["peak_bytes"]}
    return {"before": before, "mirror": row(mirror), "auto": row(auto)}


def main(seconds: float) -> None:
    print(json.dumps({name: compare(make(), seconds) for name, make in CASES.items()}, indent=1))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
