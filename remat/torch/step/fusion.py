"""Steps as Inductor runs them: ops that it computes inside the kernel of their only reader become part of that reader.

    joint graph   mm ──▶ mul ──▶ erf ──▶ add ──▶ mul ──▶ mm          document   mm ──▶ mul ──▶ mm
                    ╰───────────────────────────╯                                     (four ops)

What lies inside takes no memory, and a plan neither keeps nor drops it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from remat.torch.step.joint import Joint, is_random

Kinds = Callable[[fx.Node], bool]


class Fusion:
    """For each op of a step the op whose kernel computes it.

    Parameters:
        joint: The step.
        is_inlined: Whether an op can be computed in the kernels that read it.
        is_generated: Whether the kernel of an op can compute ops before it.
    """

    def __init__(self, joint: Joint, is_inlined: Kinds, is_generated: Kinds):
        self.joint = joint
        self._home: dict[fx.Node, fx.Node | None] = {}
        tasks = set(joint.tasks)
        for node in reversed(joint.nodes):
            if joint.is_view(node) or (node in tasks and is_inlined(node) and not is_random(node)):
                homes = {self._home.get(reader) for reader in node.users}
                home = homes.pop() if len(homes) == 1 else None
                if home is not None and is_generated(home) and joint.is_backward(home) == joint.is_backward(node):
                    self._home[node] = home
                    continue
            self._home[node] = node if node in tasks else None
        self.parts: dict[str, list[fx.Node]] = {}  # op -> tasks that its kernel computes, itself last
        for task in joint.tasks:
            home = self._home[task]
            assert home is not None
            self.parts.setdefault(home.name, []).append(task)

    def inside(self, node: fx.Node) -> str | None:
        """Name of the op in whose kernel a node disappears; None if it stays."""
        home = self._home.get(node)
        return None if home is None or home is node else home.name

    def document(self, written: dict[str, Any]) -> dict[str, Any]:
        """The document of the step with every op as part of its kernel."""
        gone = {node.name: inside for node in self.joint.nodes if (inside := self.inside(node)) is not None}
        rows = {record["name"]: record for record in written["nodes"]}
        members: dict[str, list[dict[str, Any]]] = {}
        for record in written["nodes"]:
            if record["name"] in gone:
                members.setdefault(gone[record["name"]], []).append(record)
        hidden = {output for records in members.values() for record in records for output in record["outputs"]}
        nodes = []
        for name, record in rows.items():
            if name in gone:
                continue
            record.pop("takeover", None)  # Inductor reuses buffers by rules of its own
            whole = [*members.get(name, []), record]
            if len(whole) > 1:
                inputs = (value for part in whole for value in part["inputs"] if value not in hidden)
                record["inputs"] = list(dict.fromkeys(inputs))
                record["attributes"]["parts"] = [f"{part['op']}{part['attributes']['arguments']}" for part in whole]
                if any(part.get("recompute") == "never" for part in whole):
                    record["recompute"] = "never"
            if "after" in record:
                record["after"] = list(dict.fromkeys(gone.get(before, before) for before in record["after"]))
            nodes.append(record)
        values = [value for value in written["values"] if value["name"] not in hidden]
        return {**written, "values": values, "nodes": nodes}

    def order(self, planned: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        """An order of the document as one of all ops of the step."""
        return [
            (part, run)
            for name, run in planned
            for part in ([task.name for task in self.parts[name]] if name in self.parts else [name])
        ]
