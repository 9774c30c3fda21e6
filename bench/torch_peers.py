"""Ways of PyTorch to save memory beside plans, on the same graphs and by the same evaluator.

    python bench/torch_peers.py                                # networks of PEERS at full size, without memory
    python bench/torch_peers.py --only gpt2_small --seconds 20
    python bench/torch_peers.py --small                        # small instances, the gradients of every peer tried
    python bench/torch_peers.py --shown                        # nothing is planned: table and picture of the last run

A step is recorded once, with fake tensors. Peers divide its joint graph into a forward and a backward graph: PyTorch's
default, its min-cut partitioner at several memory budgets and by two of its solvers (the third needs SciPy),
`torch.utils.checkpoint` around every block. Peak and time of the two are those of our evaluator, with costs of the
device named; then plans are searched within those very peaks. Columns: peak in MiB, extra time of the peer and of the
plan, and the proven minimum; seconds of the processor in which the peer and the plan were found; whether the peer has
right gradients (with `--small`: of a step that ran, bit for bit as without).

At full size writes bench/results/torch_peers.json, where networks that were not asked for keep their rows, and
docs/pictures/torch-peers.svg. Exits 1 if a plan takes longer than a peer without wrong gradients, by more than 0.005%
of the step. Needs the extra `torch`.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import fx, nn
from torch._functorch import config, partitioners
from torch.utils.checkpoint import checkpoint

import remat
from app.render.svg import curves
from bench.run import add_only, machine
from bench.torch_instances import fake_instance, instance
from graph.formats.readers import load
from planner.formulation.formulate import formulate
from planner.formulation.formulation import Formulation
from planner.problem.plan import Candidate
from planner.request.plan_request import parse_request
from remat.torch.step.aot import BackendCompilerFailed, eager_backend
from remat.torch.step.document import STATE, TANGENTS
from remat.torch.step.joint import BATCH_NORM, Joint, is_random
from remat.torch.step.recording import Step, roles_of

PEERS = ("resnet50", "unet", "convnext_tiny", "vit_base", "gpt2_small", "gpt2_small_dropout", "decoder_32")
BUDGETS, GREEDY_BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.1), (0.5,)
TOLERANCE = 5e-5  # of the time of a step
MIB = 2**20
RESULTS = Path(__file__).parent / "results" / "torch_peers.json"
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "torch-peers.svg"
TITLE = "overhead over peak, a share of the peak without recomputation; crosses: PyTorch; shaded: proven impossible"
Divided = tuple[fx.GraphModule, fx.GraphModule]


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to divide a joint graph: a partitioner of PyTorch under a memory budget."""

    name: str
    budget: float | None = None  # None: the default partitioner, which recomputes nothing
    solver: str = "dp"
    by_blocks: bool = False  # recompute what is inside the checkpoints of the module

    def divide(self, joint: fx.GraphModule, given: Any, forward_outputs: int, **others: Any) -> Divided:
        """The forward and the backward graph; `joint` stays as it is."""
        joint = copied(joint, with_marks=self.by_blocks)
        if self.budget is None:
            return partitioners.default_partition(joint, given, num_fwd_outputs=forward_outputs, **others)
        # Without merging equal ops all peers run the tasks of one document.
        with config.patch(activation_memory_budget=self.budget, activation_memory_budget_solver=self.solver, cse=False):
            return partitioners.min_cut_rematerialization_partition(
                joint, given, num_fwd_outputs=forward_outputs, **others
            )


def peers() -> Iterator[Peer]:
    """PyTorch's default, its budgets and solvers, and a checkpoint around every block."""
    yield Peer("default")
    yield Peer("checkpoint per block", 1.0, by_blocks=True)
    for budget in BUDGETS:
        yield Peer(f"min-cut, budget {budget:g}", budget)
    for budget in GREEDY_BUDGETS:
        yield Peer(f"min-cut, budget {budget:g}, greedy", budget, "greedy")


def copied(joint: fx.GraphModule, with_marks: bool) -> fx.GraphModule:
    """A joint graph to divide, with or without the marks of checkpoints."""
    graph, values = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in joint.graph.nodes:
        made = values[node] = graph.node_copy(node, values.__getitem__)
        if not with_marks:
            made.meta.pop("recompute", None)
            made.meta.pop("ac_graph_id", None)
    return fx.GraphModule(joint, graph)


def with_checkpoints(module: nn.Module) -> nn.Module:
    """The module with a checkpoint around each block: each of two or more modules of one class in a sequence."""
    for name, part in module.named_children():
        if not isinstance(part, (nn.Sequential, nn.ModuleList)):
            setattr(module, name, with_checkpoints(part))
            continue
        classes = [type(block) for block in part]
        for number, block in enumerate(part):
            is_block = classes.count(type(block)) > 1 and any(True for _ in block.children())
            part[number] = Checkpointed(block) if is_block else with_checkpoints(block)
    return module


class Checkpointed(nn.Module):
    """A block whose forward pass runs again in the backward pass."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *args: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False)


@dataclass(frozen=True, slots=True)
class Found:
    """What a peer makes of a step: the order in which ops run, whether gradients are right, seconds to find it."""

    peer: Peer
    order: list[str]
    gradients: str
    seconds: float


class _Recorded(Exception):
    """Ends a compilation once all peers have divided the step."""


def found_by_peers(name: str, small: bool) -> tuple[dict[str, Any], list[Found]]:
    """The document of a step, and what each peer makes of it."""
    module, inputs = instance(name, full=False) if small else fake_instance(name)
    recorded: dict[str, Any] = {}
    found: list[Found] = []

    def backend(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        roles = roles_of(graph, examples)

        def partition(joint: fx.GraphModule, given: Any, *, num_fwd_outputs: int, **others: Any) -> Divided:
            step = Step.of(joint, num_fwd_outputs, roles, name)
            recorded.update(step.document)
            for peer in peers():
                began = time.process_time()
                forward, backward = peer.divide(joint, given, num_fwd_outputs, **others)
                seconds = time.process_time() - began
                order = order_of(step.joint, forward, backward)
                found.append(Found(peer, order, foreseen(step.joint, peer, order), round(seconds, 2)))
            raise _Recorded

        return eager_backend(partition)(graph, examples)

    try:
        torch.compile(with_checkpoints(module), backend=backend, fullgraph=True, dynamic=False)(**inputs)
    except BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, _Recorded):
            raise
    torch._dynamo.reset()
    if small:
        found = [replace(each, gradients=tried(name, each.peer)) for each in found]
    return recorded, found


def order_of(joint: Joint, forward: fx.GraphModule, backward: fx.GraphModule) -> list[str]:
    """Names of the document's nodes in the order of two graphs.

    PyTorch replaces ops that it takes for random, and repeats, by others; those carry the number of their state.
    """
    tasks = {task.name: task for task in joint.tasks}
    order: list[str] = []
    kept: list[str] = []  # ops that save the state of the generator
    waiting = [task for task in joint.tasks if torch.Tag.nondeterministic_seeded in getattr(task.target, "tags", ())]
    for graph in (forward.graph, backward.graph):
        for node in graph.nodes:
            name = node.name
            if "run_and_save_rng_state" in str(node.target):
                task = next(task for task in waiting if task.target is node.args[0] and task.name not in order)
                kept.append(task.name)
                name = task.name
            elif "run_with_rng_state" in str(node.target):
                name = kept[int(node.args[0].name.rpartition("_")[2])]
            if name in tasks and node.op == "call_function":
                if is_random(tasks[name]) and name not in order:
                    order.append(f"{name}{STATE}")
                order.append(name)
        order += [TANGENTS] if graph is forward.graph else []
    if missing := tasks.keys() - set(order):
        raise ValueError(f"a peer leaves out {sorted(missing)[:3]}")
    return order


def foreseen(joint: Joint, peer: Peer, order: Sequence[str]) -> str:
    """Whether a peer's gradients are right: what `--small` finds of PyTorch 2.13.

    Recomputed random ops draw other numbers, but for those in checkpoints. A recomputed batch norm reads running
    statistics that the forward pass has updated, and autograd refuses that, unless decompositions take it apart.
    """
    repeated = {name for name in order if order.count(name) > 1}
    tasks = [task for task in joint.tasks if task.name in repeated]
    if any(is_random(task) for task in tasks) and not peer.by_blocks:
        return "wrong"
    if any(task.target is BATCH_NORM for task in tasks):
        return "fails"
    return "right"


def tried(name: str, peer: Peer) -> str:
    """Whether the gradients of a step that ran under a peer are right bit for bit; "fails" if it did not run."""

    def gradients(run: Callable[..., torch.Tensor], module: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        run(**inputs).backward()
        return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]

    def partition(joint: fx.GraphModule, given: Any, *, num_fwd_outputs: int, **others: Any) -> Divided:
        return peer.divide(joint, given, num_fwd_outputs, **others)

    module, inputs = instance(name, full=False)
    trained = with_checkpoints(copy.deepcopy(module))
    expected = gradients(module, module)
    run = torch.compile(trained, backend=eager_backend(partition), fullgraph=True, dynamic=False)
    try:
        same = zip(expected, gradients(run, trained), strict=True)
    except RuntimeError:
        return "fails"
    finally:
        torch._dynamo.reset()
    return "right" if all(torch.equal(a, b) for a, b in same) else "wrong"


def compared(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of a network: peers beside plans within their peaks."""
    document, found = found_by_peers(name, given.small)
    data = json.dumps(document).encode()
    fields = {"runtime": "torch-eager-cpu", "device": given.device, "execute": "no", "layout": "none"}
    formulation = formulate(load(data), parse_request({**fields, "budget": "100%"}))
    measured = [evaluated(formulation, each) for each in found]
    base = measured[0][0]
    budgets = sorted({peak for peak, _ in measured})
    began = time.process_time()
    curve = remat.curve(data, budgets, search_seconds=given.seconds * len(budgets), **fields)
    seconds = (time.process_time() - began) / len(budgets)
    points = {point["budget_bytes"]: point for point in curve["points"]}
    return [
        {
            "network": name,
            "peer": each.peer.name,
            "gradients": each.gradients,
            "seconds": each.seconds,
            "peak_bytes": peak,
            "share": peak / base,
            "extra": extra,
            "plan_extra": points[peak]["overhead"],
            "plan_status": points[peak]["status"],
            "plan_seconds": round(seconds, 1),
            "bound": points[peak]["bound_overhead"],
        }
        for each, (peak, extra) in zip(found, measured, strict=True)
    ]


def evaluated(formulation: Formulation, found: Found) -> tuple[int, float]:
    """(peak in bytes, extra time) of what a peer makes of a step."""
    number = {formulation.lowered.name_of_task(task): task for task in range(formulation.lowered.problem.tasks)}
    plan = formulation.plan_of(Candidate(np.array([number[name] for name in found.order], np.int32), found.peer.name))
    return formulation.counted_peak(plan), formulation.overhead(plan.score.cost)


def is_slower(row: dict[str, Any]) -> bool:
    """Whether a plan takes longer than a peer without wrong gradients, or needs more memory."""
    slower = row["plan_extra"] > row["extra"] + TOLERANCE or row["plan_status"] == "over_budget"
    return bool(slower and row["gradients"] != "wrong")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = [
        "| network | peer | peak MiB | its extra time | plan | proven minimum | seconds: peer, plan | gradients |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        plan = f"**{row['plan_extra']:.2%}**" if not is_slower(row) else f"{row['plan_extra']:.2%}"
        lines.append(
            f"| {row['network']} | {row['peer']} | {row['peak_bytes'] / MIB:,.0f} | {row['extra']:.2%} | {plan} | "
            f"{row['bound']:.2%} | {row['seconds']:.1f}, {row['plan_seconds']:.1f} | {row['gradients']} |"
        )
    return "\n".join(lines)


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """Plans as curves, a panel for each network, peers without wrong gradients as crosses."""
    panels = {
        name: [row for row in rows if row["network"] == name] for name in dict.fromkeys(r["network"] for r in rows)
    }
    plans = {
        name: [
            {
                "budget": f"{100 * row['share']:.3f}%",
                "budget_bytes": row["peak_bytes"],
                "peak_bytes": row["peak_bytes"],
                "status": row["plan_status"],
                "overhead": row["plan_extra"],
                "bound_overhead": row["bound"],
            }
            for row in {row["peak_bytes"]: row for row in of_network}.values()
        ]
        for name, of_network in panels.items()
    }
    marks = {
        name: [(row["share"], row["extra"], row["peer"]) for row in of_network if row["gradients"] != "wrong"]
        for name, of_network in panels.items()
    }
    return curves(plans, TITLE, marks)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_only(parser, PEERS)
    parser.add_argument("--seconds", type=float, default=10.0, help="search time for each peak")
    parser.add_argument("--device", default="cpu-reference", help="profile whose rates turn flops and bytes into time")
    parser.add_argument("--small", action="store_true", help="small instances; run every peer")
    parser.add_argument("--shown", action="store_true", help="table and picture of the last run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() and not given.small else []
    for name in [] if given.shown else given.only:
        found = compared(name, given)
        print(table(found), flush=True)
        rows = [row for row in rows if row["network"] != name] + found
        if not given.small:
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
            PICTURE.write_text(picture(rows))
    if given.shown:
        PICTURE.write_text(picture(rows))
        print(table(rows))
    return int(any(is_slower(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
