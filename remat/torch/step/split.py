"""A plan as two graphs: the forward pass and the backward pass, each in the order of the plan, repeats included.

    plan       conv bn relu tangents conv bn relu_grad ...
               └── forward ─┘        └── backward: `conv` and `bn` are recomputed

What the backward pass reads of the forward pass crosses as saved tensors. A view never crosses: its storage does, and
the view is taken again. Graphs of PyTorch drop each tensor after its last reader, so the order of the graph is the
order of memory.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from remat.torch.step.aot import (
    fake_random_state,
    graph_module,
    run_and_save_rng_state,
    run_with_rng_state,
    saved_description,
)
from remat.torch.step.arena import Addresses, Placer
from remat.torch.step.document import STATE, TANGENTS
from remat.torch.step.errors import OtherStep
from remat.torch.step.joint import BATCH_NORM, BATCH_NORM_GRADIENT, Joint, Result, is_random, tensors_of

BATCH_NORM_ALONE = torch.ops.aten._native_batch_norm_legit.no_stats
DROPOUT_GRADIENT = torch.ops.aten.native_dropout_backward.default

Order = Sequence[tuple[str, int]]


def split(
    joint: Joint, order: Order, addresses: Addresses | None = None, before_each: Callable[[str], None] | None = None
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward module of a plan.

    Parameters:
        joint: The step that was planned.
        order: The plan: (name of a node, how often it ran before).
        addresses: Where the results of the order lie in one block; without it, each has memory of its own.
        before_each: Called with the name of a task before each of its runs.

    Returns:
        Modules in the form that a partitioner of ahead-of-time autograd returns.

    Raises:
        OtherStep: The order or the addresses do not belong to this step.
    """
    return _Split(joint, order).modules(addresses, before_each)


def crossing(joint: Joint, order: Order) -> list[Result]:
    """What the backward pass of a plan reads of before it. Raises OtherStep."""
    return _Split(joint, order).crossing


@dataclass(slots=True)
class _Run:
    """One run of a task."""

    task: fx.Node
    is_backward: bool
    number: int  # of earlier runs of the task
    needed: set[int | None] = field(default_factory=set)  # elements that are read before the next run of the task

    @property
    def is_repeat(self) -> bool:
        return self.number > 0


class _Split:
    """The runs of a plan, and what crosses between the passes."""

    def __init__(self, joint: Joint, order: Order):
        self.joint = joint
        self.runs = self._runs(order)
        replays = [run for run in self.runs if run.is_repeat and is_random(run.task)]
        self.replayed = {run.task for run in replays}
        self.crossing = self._bind()
        crossing = (run.task for run in replays if run.is_backward and not joint.is_backward(run.task))
        self.crossing_states = list(dict.fromkeys(crossing))

    def _runs(self, order: Order) -> list[_Run]:
        tasks = {task.name: task for task in self.joint.tasks}
        names = [name for name, _ in order]
        views = {node.name for node in self.joint.nodes if self.joint.is_view(node)}
        states = {f"{task.name}{STATE}" for task in self.joint.tasks if is_random(task)}
        known, planned = tasks.keys() | views | states | {TANGENTS}, set(names)
        if odd := sorted((planned - known) | (tasks.keys() | {TANGENTS}) - planned):
            raise OtherStep(f"the plan belongs to another step: {len(odd)} ops differ, such as {odd[0]}; plan again")
        runs: list[_Run] = []
        seen: Counter[str] = Counter()
        for name in names:
            if name in tasks:
                runs.append(_Run(tasks[name], TANGENTS in seen, seen[name]))
            seen[name] += 1
        if early := [run.task.name for run in runs if not run.is_backward and self.joint.is_backward(run.task)]:
            raise OtherStep(f"the plan runs {early[0]} of the backward pass before the forward pass has ended")
        return runs

    def _bind(self) -> list[Result]:
        """Bind each read to the latest run before it; returns what the backward pass reads of before it."""
        joint = self.joint
        latest: dict[fx.Node, _Run] = {}
        crossing: dict[Result, None] = {}

        def read(result: Result, in_backward: bool) -> None:
            run = latest.get(result.node)
            if run is not None:
                run.needed.add(result.element)
            before = result.node not in joint.tangents if run is None else not run.is_backward
            if in_backward and before and result.node.op != "get_attr":
                crossing[result] = None

        def read_outputs(outputs: Sequence[fx.Node | None], in_backward: bool) -> None:
            for output in outputs:
                if output is not None:
                    read(joint.result(output), in_backward)

        ended = False
        for run in self.runs:
            if run.is_backward and not ended:
                ended = True
                read_outputs(joint.outputs[: joint.forward_outputs], False)
            for result in results_read(joint, run):
                read(result, run.is_backward)
            latest[run.task] = run
        read_outputs(joint.outputs[: 0 if ended else joint.forward_outputs], False)
        read_outputs(joint.outputs[joint.forward_outputs :], True)
        return list(crossing)

    def modules(
        self, addresses: Addresses | None, before_each: Callable[[str], None] | None
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint, limit = self.joint, self.joint.forward_outputs
        forward, backward = _Pass(self, addresses, before_each), _Pass(self, addresses, before_each)
        for node in joint.inputs:
            forward.add_input(Result(node), node.name)
        block = [] if forward.placer is None else list(forward.placer.add_block())
        for run in self.runs:
            if not run.is_backward:
                forward.add_run(run)
        saved = [forward.value(result) for result in self.crossing] + [forward.states[t] for t in self.crossing_states]
        saved += block
        descriptions = [saved_description(number) for number in range(len(saved))]
        forward.finish(joint.outputs[:limit], saved, joint.output_descriptions[:limit] + descriptions)

        for result in self.crossing:
            backward.add_input(result, tensor_node(joint, result).name)
        for task in self.crossing_states:
            backward.add_state(task)
        taken = [backward.placeholder(node.name, node.meta) for node in block]
        for node in joint.tangents:
            backward.add_input(Result(node), node.name)
        if backward.placer is not None:
            backward.placer.take_block(*taken)
        for run in self.runs:
            if run.is_backward:
                backward.add_run(run)
        backward.finish(joint.outputs[limit:], [], joint.output_descriptions[limit:])
        return graph_module(joint.module, forward.graph), graph_module(joint.module, backward.graph)


class _Pass:
    """One of the two graphs while it is written."""

    def __init__(self, plan: _Split, addresses: Addresses | None, before_each: Callable[[str], None] | None):
        self.joint, self.replayed, self.before_each = plan.joint, plan.replayed, before_each
        self.graph = fx.Graph()
        self.placer = None if addresses is None else Placer(plan.joint, addresses, self.graph)
        self.values: dict[Result, fx.Node] = {}  # the latest run's results
        self.states: dict[fx.Node, fx.Node] = {}  # random task -> state of the generator before its first run
        self._views: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}  # view -> (what it was taken of, view in this graph)

    def add_input(self, result: Result, name: str) -> None:
        self.values[result] = self.placeholder(name, tensor_node(self.joint, result).meta)

    def add_state(self, task: fx.Node) -> None:
        self.states[task] = self.placeholder(f"{task.name}_state", {"val": fake_random_state(tensors_of(task)[0])})

    def placeholder(self, name: str, meta: dict[str, Any]) -> fx.Node:
        node = self.graph.placeholder(name)
        node.meta = dict(meta)
        return node

    def value(self, result: Result) -> fx.Node:
        """The latest value of a result in this graph."""
        if result not in self.values:  # a constant: an attribute of the module
            self.values[result] = self.graph.node_copy(result.node)
        return self.values[result]

    def argument(self, node: fx.Node) -> fx.Node:
        """A node's value in this graph; views are taken where they are read, and again if their storage is new."""
        joint = self.joint
        if not joint.is_view(node):
            return self.value(joint.result(node)) if tensors_of(node) else self.graph.node_copy(node)
        shown = self.argument(joint.shown(node))
        if node not in self._views or self._views[node][0] is not shown:
            self._views[node] = shown, self.graph.node_copy(node, self.argument)
        return self._views[node][1]

    def add_run(self, run: _Run) -> None:
        if self.before_each is not None:
            self.graph.call_function(self.before_each, (run.task.name,))
        call = self._call(run)
        if self.placer is not None:
            call = self.placer.placed(call, run.task, run.number)
        for element in sorted(run.needed, key=str):
            self.values[Result(run.task, element)] = call if element is None else self._element(run.task, call, element)

    def _call(self, run: _Run) -> fx.Node:
        task = run.task
        if task in self.replayed:
            return self._random_call(run)
        if task.target is BATCH_NORM and run.is_backward:  # the running statistics have been written since
            data, weight, bias, _, _, training, momentum, epsilon = task.args
            if training:
                args = fx.map_arg((data, weight, bias, training, momentum, epsilon), self.argument)
                return self._create(BATCH_NORM_ALONE, args, {}, task.meta)
        if task.target is BATCH_NORM_GRADIENT and task.args[7]:  # in training it reads no running statistics
            args = tuple(None if i in (3, 4) else fx.map_arg(given, self.argument) for i, given in enumerate(task.args))
            return self._create(task.target, args, {}, task.meta)
        if task.target is DROPOUT_GRADIENT and _rounds_its_scale(task):
            return self._create(dropout_gradient, fx.map_arg(task.args, self.argument), {}, task.meta)
        return self.graph.node_copy(task, self.argument)

    def _random_call(self, run: _Run) -> fx.Node:
        """A random op, with the state of the generator saved at its first run and restored for the others."""
        task = run.task
        args, kwargs = fx.map_arg(task.args, self.argument), fx.map_arg(task.kwargs, self.argument)
        if run.is_repeat:
            return self._create(run_with_rng_state, (self.states[task], task.target, *args), kwargs, task.meta)
        both = self._create(run_and_save_rng_state, (task.target, *args), kwargs, {})
        state = {"val": fake_random_state(tensors_of(task)[0])}
        self.states[task] = self._create(operator.getitem, (both, 0), {}, state)
        return self._create(operator.getitem, (both, 1), {}, task.meta)

    def _element(self, task: fx.Node, call: fx.Node, element: int) -> fx.Node:
        meta = self.joint.elements[task][element].meta
        return self._create(operator.getitem, (call, element), {}, meta)

    def _create(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: dict[str, Any]) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta = dict(meta)
        return node

    def finish(self, outputs: Sequence[fx.Node | None], saved: Sequence[fx.Node], descriptions: list[Any]) -> None:
        values = [None if output is None else self.argument(output) for output in outputs]
        self.graph.output((*values, *saved)).meta["desc"] = descriptions


def dropout_gradient(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """The gradient of dropout as autograd computes it on a CPU: the mask is scaled in the type of the gradient.

    PyTorch's own op multiplies by the unrounded scale, so gradients in bfloat16 and float16 differ from eager ones.
    """
    return gradient * mask.to(gradient.dtype).div_(1 / scale)


def _rounds_its_scale(task: fx.Node) -> bool:
    (gradient,) = tensors_of(task)
    return gradient.device.type == "cpu" and gradient.dtype in (torch.bfloat16, torch.float16)


def results_read(joint: Joint, run: _Run) -> list[Result]:
    """What a run reads: of batch norm in training, neither its gradient nor a repeat reads the running statistics."""
    task, args = run.task, run.task.args
    gradient = task.target is BATCH_NORM_GRADIENT and args[7]
    repeat = task.target is BATCH_NORM and args[5] and run.is_backward
    unread = {args[3], args[4]} if gradient or repeat else set()
    sources = (node for node in task.all_input_nodes if tensors_of(node) and node not in unread)
    return list(dict.fromkeys(joint.result(node) for node in sources))


def tensor_node(joint: Joint, result: Result) -> fx.Node:
    """A node of the joint graph whose value is a result."""
    return result.node if result.element is None else joint.elements[result.node][result.element]
