"""Training documents from forward parts: every op says which values its gradient reads.

tape = Tape("two layers")
h = tape.matmul(tape.input("x", 400), 200, seconds=2e-6)
document = tape.training(tape.op("Relu", [h], 200, 1e-6, saves="output"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Document = dict[str, Any]


class Tape:
    """Writes a forward part of opaque nodes; `training` appends one gradient node per input and weight."""

    def __init__(self, name: str):
        self.name = name
        self.values: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.bytes: dict[str, int] = {}
        self.runs: list[dict[str, Any]] = []  # forward ops with what their gradients need

    def input(self, name: str, size: int) -> str:
        """A value that is there from the start."""
        return self._value(name, size, role="input")

    def op(
        self,
        op: str,
        inputs: Sequence[str],
        size: int,
        seconds: float,
        saves: str = "",
        weight_bytes: int = 0,
        heavy: bool = False,
    ) -> str:
        """Output of a new forward node.

        Its gradients read what `saves` lists: "input", "output", "others" (the inputs but the one
        differentiated); `weight_bytes` adds a weight gradient that reads the input.
        """
        out = self._node(op, inputs, size, seconds, "forward", heavy)
        self.runs.append(
            {
                "op": op,
                "inputs": list(inputs),
                "output": out,
                "seconds": seconds,
                "saves": saves.split(),
                "weight": weight_bytes,
                "heavy": heavy,
            }
        )
        return out

    def matmul(self, x: str, size: int, seconds: float, weight_bytes: int) -> str:
        """A product with a weight: heavy, its weight gradient reads the input."""
        return self.op("MatMul", [x], size, seconds, weight_bytes=weight_bytes, heavy=True)

    def training(self, loss: str) -> Document:
        """The document of the forward part followed by the gradients of `loss`; nothing is an output of it."""
        parts: dict[str, list[str]] = {loss: [self._node("Seed", [loss], self.bytes[loss], 0.0, "backward")]}
        for run in reversed(self.runs):
            incoming = self._sum(parts.pop(run["output"], []))
            if incoming is None:
                continue
            if run["weight"]:
                reads = [incoming, run["inputs"][0]]
                self._node(f"{run['op']}GradWeight", reads, run["weight"], run["seconds"], "backward", run["heavy"])
            for x in dict.fromkeys(run["inputs"]):
                if self.produced(x):
                    saved = self._saved(run, x)
                    dx = self._node(
                        f"{run['op']}Grad", [incoming, *saved], self.bytes[x], run["seconds"], "backward", run["heavy"]
                    )
                    parts.setdefault(x, []).append(dx)
        return self.document()

    def document(self, outputs: Sequence[str] = ()) -> Document:
        """What was written so far as a `remat/1` document."""
        return {
            "format": "remat/1",
            "name": self.name,
            "values": self.values,
            "nodes": self.nodes,
            "outputs": list(outputs),
        }

    def produced(self, value: str) -> bool:
        return value.startswith("v")

    def _saved(self, run: dict[str, Any], x: str) -> list[str]:
        saved = []
        for what in run["saves"]:
            saved += {
                "input": [x],
                "output": [run["output"]],
                "others": [other for other in run["inputs"] if other != x],
            }[what]
        return list(dict.fromkeys(saved))

    def _sum(self, parts: list[str]) -> str | None:
        """The gradient of a value from its contributions, one addition each beyond the first."""
        total = parts[0] if parts else None
        for part in parts[1:]:
            assert total is not None
            size = self.bytes[part]
            total = self._node("Add", [total, part], size, elementwise_seconds(3 * size), "backward")
        return total

    def _node(self, op: str, inputs: Sequence[str], size: int, seconds: float, phase: str, heavy: bool = False) -> str:
        out = self._value(f"v{len(self.nodes)}", size)
        node: dict[str, Any] = {
            "name": f"n{len(self.nodes)}",
            "op": f"bench::{op}",
            "inputs": list(inputs),
            "outputs": [out],
            "phase": phase,
            "cost": {"seconds": seconds},
        }
        if heavy:
            node["heavy"] = True
        self.nodes.append(node)
        return out

    def _value(self, name: str, size: int, **rest: Any) -> str:
        self.values.append({"name": name, "bytes": size, **rest})
        self.bytes[name] = size
        return name


def elementwise_seconds(traffic_bytes: int) -> float:
    """Seconds of a kernel that only moves bytes, at 1.5 TB/s."""
    return traffic_bytes / 1.5e12


def matmul_seconds(flops: float) -> float:
    """Seconds of a large matrix product, at 150 Tflop/s."""
    return flops / 150e12
