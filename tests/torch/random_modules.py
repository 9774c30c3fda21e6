"""Random small modules, and random legal orders of their steps."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import torch
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module
from torch.nn import functional as F

from remat.torch.step.aot import eager_backend, run_as_it_is
from remat.torch.step.arena import addresses_of
from remat.torch.step.document import STATE, TANGENTS, document
from remat.torch.step.joint import BATCH_NORM, Joint, is_random
from remat.torch.step.split import split
from tests.torch.steps import equal, results

WIDTH, ROWS = 8, 6


class RandomModule(nn.Module):
    """A random program over tensors of `ROWS` x `WIDTH`."""

    def __init__(self, seed: int):
        super().__init__()
        rng = random.Random(seed)
        count = rng.randint(3, 8)
        #: (what to do, on which of the tensors so far, with which other one, a number)
        self.program = [
            (rng.randrange(12), rng.randrange(i + 2), rng.randrange(i + 2), rng.randrange(6)) for i in range(count)
        ]
        self.shown = rng.randrange(count + 2) if rng.random() < 0.5 else None
        self.linears = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])  # used several times: tied weights
        self.norms = nn.ModuleList([nn.BatchNorm1d(WIDTH), nn.LayerNorm(WIDTH)])
        self.register_buffer("total", torch.zeros(WIDTH))
        self.total: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = [x, self.linears[0](x)]
        for kind, first, second, number in self.program:
            held.append(self.step(kind, held[first], held[second], number))
        loss = torch.cat(held[1:]).square().mean()
        return (loss,) if self.shown is None else (loss, held[self.shown][1:])

    def step(self, kind: int, x: torch.Tensor, other: torch.Tensor, number: int) -> torch.Tensor:
        if kind == 0:
            return F.relu(self.linears[number % 3](x), inplace=True)
        if kind == 1:
            return F.dropout(x, 0.3, self.training)
        if kind == 2:
            normed: torch.Tensor = self.norms[number % 2](x)
            return normed
        if kind == 3:
            left, right = x.chunk(2, 1)
            return torch.cat([right.sigmoid(), left * right], 1)
        if kind == 4:
            return (x.view(ROWS, 4, 2) @ other.reshape(ROWS, 2, 4)[:, :, :2]).reshape(ROWS, WIDTH)
        if kind == 5:
            y = x.clone()
            y[:, number] = other.mean()
            return y.mul_(1.5)
        if kind == 6:
            self.total.add_(x.detach().sum(0))
            return x + self.total.tanh()
        if kind == 7:
            return x * other.detach().softmax(1)
        if kind == 8:
            return x.expand(2, ROWS, WIDTH).transpose(1, 2)[0].t() + other
        if kind == 9:
            values, places = x.topk(3, 1)
            return other.scatter(1, places, values.tanh())
        if kind == 10:
            return x + torch.rand_like(x) * F.embedding(torch.arange(ROWS) % 3, self.linears[0].weight)
        return torch.stack(list(x.split(2)), 0).cumsum(0).view(ROWS, WIDTH) - other.sin()


def random_order(joint: Joint, seed: int) -> list[tuple[str, int]]:
    """A legal order: the step's own, with forward values dropped here and there and computed again when read."""
    rng = random.Random(seed)
    forward = [task for task in joint.tasks if not joint.is_backward(task)]
    rest = [task for task in joint.tasks if joint.is_backward(task)]
    fixed = {
        task
        for task in forward
        if task.target is not BATCH_NORM and any(read.node in joint.mutated for read in joint.reads(task))
    }
    share = rng.random()
    dropped = {task for task in forward if task not in fixed and rng.random() < share}
    order: list[tuple[str, int]] = []
    runs: dict[str, int] = {}

    def run(name: str) -> None:
        order.append((name, runs.get(name, 0)))
        runs[name] = runs.get(name, 0) + 1

    def compute(task: fx.Node) -> None:
        """Run a task after the dropped ones that it reads."""
        dropped.discard(task)
        for read in joint.reads(task):
            if read.node in dropped:
                compute(read.node)
        run(task.name)

    for task in forward:
        if is_random(task):
            run(f"{task.name}{STATE}")
        run(task.name)
    run(TANGENTS)
    for task in rest:
        compute(task)
        dropped |= {other for other in forward if other not in fixed and rng.random() < share / 8}
    for output in joint.outputs[joint.forward_outputs :]:
        if output is not None and joint.result(output).node in dropped:
            compute(joint.result(output).node)
    return order


def first_fit(joint: Joint, order: list[tuple[str, int]]) -> dict[str, Any]:
    """Section `layout` of a report: each value of an order at the lowest address that is free while it is live."""
    step_document = document(joint)
    root = {name: source for node in step_document["nodes"] for name, source in node.get("alias_of", {}).items()}
    nodes = {node["name"]: node for node in step_document["nodes"] if "alias_of" not in node}

    def storage(name: str) -> str:
        return storage(root[name]) if name in root else name

    size = {value["name"]: _bytes(value) for value in step_document["values"]}
    live: dict[tuple[str, int], list[int]] = {}  # (value, run) -> first and last step
    latest: dict[str, int] = {}
    kept = [*step_document["outputs"], *step_document["gradients"].values()]
    for step, (name, _) in enumerate(order):
        for value in map(storage, nodes[name]["inputs"]):
            if value in latest:
                live[value, latest[value]][1] = step
        for value in nodes[name]["outputs"]:
            if value:
                latest[value] = latest.get(value, -1) + 1
                live[value, latest[value]] = [step, step]
    for value in map(storage, kept):
        if value in latest:
            live[value, latest[value]][1] = len(order)
    placed: dict[tuple[str, int], int] = {}
    for key, (first, last) in live.items():
        others = [other for other in placed if live[other][0] <= last and live[other][1] >= first]
        taken = sorted((placed[other], placed[other] + size[other[0]]) for other in others)
        offset = 0
        for begin, end in taken:
            if begin < offset + size[key[0]]:
                offset = max(offset, -(-end // 64) * 64)
        placed[key] = offset
    return {
        "value": [value for value, _ in placed],
        "run": [run for _, run in placed],
        "offset": list(placed.values()),
        "bytes": [size[value] for value, _ in placed],
        "workspace": {"bytes": []},
    }


def _bytes(value: dict[str, Any]) -> int:
    dtype = getattr(torch, value["dtype"])
    return int(value.get("bytes", math.prod(value["shape"]) * dtype.itemsize))


def is_equal_under_an_order(seed: int, in_arena: bool = False, through_dynamo: bool = True) -> bool:
    """Whether a random module computes under a random order, bit for bit, what it computes without one.

    In an arena, each value of the order lies at the lowest address that is free. Without Dynamo, the joint graph is
    recorded of the module itself, in two thirds of the time.
    """
    torch.manual_seed(seed)
    module = RandomModule(seed)
    args = (torch.randn(ROWS, WIDTH),)
    divided = []

    def partition(joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Any:
        step = Joint(joint, num_fwd_outputs)
        divided.append(step)
        order = random_order(step, seed)
        return split(step, order, addresses_of(step, first_fit(step, order)) if in_arena else None)

    planned: nn.Module = copy.deepcopy(module)
    if through_dynamo:
        backend = eager_backend(partition)
        planned = torch.compile(planned, backend=backend, fullgraph=True, dynamic=False, isolate_recompiles=True)
    else:
        planned = aot_module(planned, fw_compiler=run_as_it_is, bw_compiler=run_as_it_is, partition_fn=partition)
    same = equal(results(module, args, loss), results(planned, args, loss))
    assert len(divided) == 1
    torch._dynamo.reset()  # else guards of all modules so far are tried
    return same


def loss(outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum((output.square().sum() for output in outputs[1:]), outputs[0])
