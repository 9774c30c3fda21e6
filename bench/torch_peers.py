"""Ways of PyTorch to save memory beside plans, on the same graphs and by the same evaluator.

    python bench/torch_peers.py                        # small instances of the zoo's networks
    python bench/torch_peers.py --only gpt2_small --seconds 20

For each network: the step without recomputation, PyTorch's min-cut partitioner at several memory budgets, and
`torch.utils.checkpoint` around every block. Each gives a forward and a backward graph; peak and time of the two are
those of our evaluator, with measured seconds of every op, and a plan is searched within that very peak. Columns: peak
in MiB, extra time of the peer, extra time of the plan, its bound. Exits 1 if a plan takes longer than a peer by more
than 0.05% of the step. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import fx, nn
from torch._functorch import config, partitioners
from torch.utils.checkpoint import checkpoint

from bench.torch_instances import SMALL, instance
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.problem.plan import Candidate
from planner.request.plan_request import parse_request
from remat.torch.aot import BackendCompilerFailed, eager_backend
from remat.torch.document import STATE, TANGENTS
from remat.torch.joint import is_random
from remat.torch.recording import Capture, Step

BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.1)
TOLERANCE = 5e-4  # of the time of a step
MIB = 2**20
Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to train: the module that it trains, and the partitioner that divides its step."""

    name: str
    module: nn.Module
    partition: Partition
    budget: float = 1.0


class _Divided(Exception):
    """Ends a compilation once both graphs are known."""


def peers(module: nn.Module) -> Iterator[Peer]:
    """PyTorch's default, its budgets, and a checkpoint around every block."""
    yield Peer("without recomputation", module, partitioners.default_partition)
    for budget in BUDGETS:
        yield Peer(f"min-cut, budget {budget:g}", module, partitioners.min_cut_rematerialization_partition, budget)
    blocks = with_checkpoints(copy.deepcopy(module))
    if blocks is not None:
        yield Peer("checkpoint per block", blocks, partitioners.min_cut_rematerialization_partition)


def with_checkpoints(module: nn.Module) -> nn.Module | None:
    """The module with a checkpoint around each block: each of two or more modules of one class in a sequence."""
    found = False
    for sequence in [part for part in module.modules() if isinstance(part, (nn.Sequential, nn.ModuleList))]:
        classes = [type(block) for block in sequence]
        for number, block in enumerate(sequence):
            if classes.count(type(block)) > 1 and any(True for _ in block.children()):
                sequence[number], found = Checkpointed(block), True
    return module if found else None


class Checkpointed(nn.Module):
    """A block whose forward pass runs again in the backward pass."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *args: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False)


def divided(peer: Peer, inputs: dict[str, torch.Tensor]) -> tuple[Step, list[str]]:
    """The step of a peer with measured costs, and the names of its ops in the order in which they run."""
    found: list[tuple[Step, list[str]]] = []

    def partition(joint: fx.GraphModule, given: Any, *, num_fwd_outputs: int, **others: Any) -> Any:
        step = Step.of(joint, num_fwd_outputs, {}, measure=True)
        with config.patch(activation_memory_budget=peer.budget):
            forward, backward = peer.partition(joint, given, num_fwd_outputs=num_fwd_outputs, **others)
        tasks = {task.name: task for task in step.joint.tasks}
        order: list[str] = []
        for graph in (forward.graph, backward.graph):
            for node in graph.nodes:
                if node.op == "call_function" and node.name in tasks:
                    if is_random(tasks[node.name]) and f"{node.name}{STATE}" not in order:
                        order.append(f"{node.name}{STATE}")
                    order.append(node.name)
            order += [TANGENTS] if graph is forward.graph else []
        missing = tasks.keys() - set(order)
        if missing:
            raise ValueError(f"{peer.name} leaves out {sorted(missing)[:3]}")
        found.append((step, order))
        raise _Divided

    try:
        torch.compile(peer.module, backend=eager_backend(partition), fullgraph=True, dynamic=False)(**inputs)
    except BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, _Divided):
            raise
    torch._dynamo.reset()
    return found[0]


def compared(peer: Peer, inputs: dict[str, torch.Tensor], seconds: float) -> tuple[int, float, float, float]:
    """(peak of the peer in bytes, its extra time, the extra time of a plan within that peak, its lower bound)."""
    step, order = divided(peer, inputs)
    captured = Capture(step.document, step.device)
    request = {"runtime": "torch-eager-cpu", "device": "cpu-reference", "execute": "no", "budget": "100%"}
    formulation = formulate(load(captured.to_json().encode()), parse_request(request))
    number = {formulation.lowered.name_of_task(task): task for task in range(formulation.lowered.problem.tasks)}
    plan = formulation.plan_of(Candidate(np.array([number[name] for name in order], np.int32), peer.name))
    peak = formulation.counted_peak(plan)
    report = captured.plan(int(peak), search_seconds=seconds)
    return peak, formulation.overhead(plan.score.cost), report.overhead, float(report.bound["overhead"] or 0.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(SMALL), help="networks of the zoo, separated by commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="search time of each plan")
    given = parser.parse_args()
    torch.set_num_threads(1)
    slower = 0
    for name in given.only.split(","):
        module, inputs = instance(name, full=False)
        for peer in peers(module):
            try:
                peak, theirs, ours, bound = compared(peer, inputs, given.seconds)
            except ValueError as error:
                print(f"{name:14}  {peer.name:22}  not compared: {error}", flush=True)
                continue
            slower += ours > theirs + TOLERANCE
            print(
                f"{name:14}  {peer.name:22}  {peak / MIB:8.1f} MiB  {theirs:7.2%}  "
                f"plan {ours:7.2%}  bound {bound:7.2%}",
                flush=True,
            )
    return int(slower > 0)


if __name__ == "__main__":
    sys.exit(main())
