"""A plan as two graphs: the forward pass and the backward pass, each in the order of the plan, repeats included.

    plan       conv bn relu tangents conv bn relu_grad ...
               └── forward ─┘        └── backward: `conv` and `bn` are recomputed

What the backward pass reads of the forward pass crosses as saved tensors. A view never crosses: its storage does, and
the view is taken again. Graphs of PyTorch drop each tensor after its last reader, so the order of the graph is the
order of memory. A sum of gradients is written over an operand that it is the last reader of (`Joint.overwritable`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from remat.torch.copies.engines import engine_for
from remat.torch.copies.waits import FETCH, OFFLOAD, Waits
from remat.torch.step.aot import (
    fake_on_host,
    fake_random_state,
    graph_module,
    run_and_save_rng_state,
    run_with_rng_state,
    saved_description,
)
from remat.torch.step.arena import Addresses, Placer
from remat.torch.step.document import STATE, TANGENTS, element_name
from remat.torch.step.errors import OtherStep
from remat.torch.step.joint import (
    BATCH_NORM,
    BATCH_NORM_GRADIENT,
    Joint,
    Result,
    is_mutation,
    is_random,
    is_wait,
    tensors_of,
)

NO_COPIES = (
    'only compiler="eager" with memory="allocator" runs copies to host memory; choose these, or plan without offload'
)
BATCH_NORM_ALONE = torch.ops.aten._native_batch_norm_legit.no_stats
DROPOUT_GRADIENT = torch.ops.aten.native_dropout_backward.default

Order = Sequence[tuple[str, int]]


def split(
    joint: Joint,
    order: Order,
    addresses: Addresses | None = None,
    before_each: Callable[[str], None] | None = None,
    waits: Waits = (),
    functional: bool = False,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward module of a plan.

    Parameters:
        joint: The step that was planned.
        order: The plan: (name of a node, how often it ran before).
        addresses: Where the results of the order lie in one block; without it, each has memory of its own.
        before_each: Called with the name of a task before each of its runs.
        waits: For each entry of the order, the copies to the host and back to wait for before it, by their places in
            the order. The forward pass ends once all its copies have.
        functional: No op writes to its operands, for a compiler that decides that by itself.

    Returns:
        Modules in the form that a partitioner of ahead-of-time autograd returns.

    Raises:
        OtherStep: The order or the addresses do not belong to this step.
    """
    return _Split(joint, order, waits).modules(addresses, before_each, functional)


def order_as_recorded(joint: Joint) -> list[tuple[str, int]]:
    """The order of a step without a plan."""
    forward: list[tuple[str, int]] = []
    backward: list[tuple[str, int]] = []
    for task in joint.tasks:
        (backward if joint.is_backward(task) else forward).append((task.name, 0))
    return [*forward, (TANGENTS, 0), *backward]


def crossing(joint: Joint, order: Order) -> list[Result]:
    """What the backward pass of a plan reads of before it. Raises OtherStep."""
    return _Split(joint, order).crossing


class CopyStep(NamedTuple):
    """A copy of a result that begins, or is waited for."""

    result: Result
    is_out: bool  # to the host, else from it
    is_wait: bool
    place: int  # of the copy in the order


@dataclass(slots=True, eq=False)
class _Run:
    """One run of a task."""

    task: fx.Node
    is_backward: bool
    number: int  # of earlier runs of the task
    needed: set[int | None] = field(default_factory=set)  # elements that are read before the next run of the task
    before: list[CopyStep] = field(default_factory=list)  # copies that begin, or are waited for, right before it
    waits: list[fx.Node] = field(default_factory=list)  # for collectives, right after it
    last_reads: dict[int | None, _Run | None] = field(default_factory=dict)  # element -> its last reader; None: kept
    overwritten: int | None = None  # position of the operand that the result is written over

    @property
    def is_repeat(self) -> bool:
        return self.number > 0


class _Split:
    """The runs of a plan, and what crosses between the passes."""

    def __init__(self, joint: Joint, order: Order, waits: Waits = ()):
        self.joint = joint
        self.copies = _copied_results(joint, [name for name, _ in order])
        if self.copies and not waits:
            raise OtherStep(f"the plan copies values to the host, {next(iter(self.copies))} among them: {NO_COPIES}")
        self.between: list[CopyStep] = []  # copies that begin, or are waited for, at the end of the forward pass
        self.crossing_hosts: list[Result] = []  # in host memory between the passes
        self.runs = self._runs(order, waits)
        replays = [run for run in self.runs if run.is_repeat and is_random(run.task)]
        self.replayed = {run.task for run in replays}
        self.crossing = self._bind()
        crossing = (run.task for run in replays if run.is_backward and not joint.is_backward(run.task))
        self.crossing_states = list(dict.fromkeys(crossing))

    def _runs(self, order: Order, waits: Waits) -> list[_Run]:
        tasks = {task.name: task for task in self.joint.tasks}
        names = [name for name, _ in order]
        views = {node.name: node for node in self.joint.nodes if self.joint.is_view(node)}
        states = {f"{task.name}{STATE}" for task in self.joint.tasks if is_random(task)}
        known, planned = tasks.keys() | views.keys() | states | self.copies.keys() | {TANGENTS}, set(names)
        if odd := sorted((planned - known) | (tasks.keys() | {TANGENTS}) - planned):
            raise OtherStep(f"the plan belongs to another step: {len(odd)} ops differ, such as {odd[0]}; plan again")
        runs: list[_Run] = []
        seen: Counter[str] = Counter()
        before, running = list[CopyStep](), dict[int, CopyStep]()
        for place, name in enumerate(names):
            ended = (waits[place] if waits else ()) if name != TANGENTS else list(running)
            before += [running.pop(copy)._replace(is_wait=True) for copy in ended if copy in running]
            if name in self.copies:
                running[place] = CopyStep(*self.copies[name], False, place)
                before.append(running[place])
            elif name == TANGENTS:
                self.between, before = before, []
            elif name in tasks:
                runs.append(_Run(tasks[name], TANGENTS in seen, seen[name], before=before))
                before = []
            elif name in views and is_wait(views[name]) and runs:
                runs[-1].waits.append(views[name])
            seen[name] += 1
        if early := [run.task.name for run in runs if not run.is_backward and self.joint.is_backward(run.task)]:
            raise OtherStep(f"the plan runs {early[0]} of the backward pass before the forward pass has ended")
        returned = {result.node for result in self.joint.returned}
        if late := [run.task.name for run in runs if run.is_backward and not run.number and run.task in returned]:
            raise OtherStep(f"the plan computes {late[0]}, which the forward pass returns, after it; plan again")
        return runs

    def _bind(self) -> list[Result]:
        """Bind each read to the latest run before it; returns what the backward pass reads of before it."""
        joint = self.joint
        latest: dict[fx.Node, _Run] = {}
        crossing: dict[Result, None] = {}
        sums: list[tuple[_Run, int, _Run, int | None]] = []  # (run, position of an operand, its writer, element)
        copied = {result for result, *_ in self.copies.values()}  # a running copy may still read them
        fetched: dict[Result, bool] = {}  # results last written by a fetch -> whether that is in the backward pass
        hosts: dict[Result, bool] = {}  # the same of results in host memory

        def copy(steps: Sequence[CopyStep], in_backward: bool) -> None:
            for step in steps:
                if step.is_wait:
                    continue
                if step.is_out:
                    read(step.result, in_backward)
                    hosts[step.result] = in_backward
                    continue
                if in_backward and not hosts[step.result] and step.result not in self.crossing_hosts:
                    self.crossing_hosts.append(step.result)
                fetched[step.result] = in_backward

        def read(result: Result, in_backward: bool, reader: _Run | None = None) -> None:
            if result in fetched:
                if in_backward and not fetched[result]:
                    crossing[result] = None
                return
            run = latest.get(result.node)
            if run is not None:
                run.needed.add(result.element)
                run.last_reads[result.element] = reader
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
                copy(self.between, False)
                read_outputs(joint.outputs[: joint.forward_outputs], False)
            copy(run.before, run.is_backward)
            for result in results_read(joint, run):
                read(result, run.is_backward, run)
            for position in joint.overwritable(run.task):
                result = joint.result(run.task.args[position])
                if result not in copied:
                    sums.append((run, position, latest[result.node], result.element))
            latest[run.task] = run
            for result in [result for result in fetched if result.node is run.task]:
                del fetched[result]
        read_outputs(joint.outputs[: 0 if ended else joint.forward_outputs], False)
        read_outputs(joint.outputs[joint.forward_outputs :], True)
        for run, position, writer, element in sums:
            if run.overwritten is None and writer.last_reads[element] is run:
                run.overwritten = position
        return list(crossing)

    def modules(
        self, addresses: Addresses | None, before_each: Callable[[str], None] | None, functional: bool
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint, limit = self.joint, self.joint.forward_outputs
        if functional or addresses is not None:  # in a block, a sum is written at its address
            for run in self.runs:
                run.overwritten = None
        forward, backward = _Pass(self, addresses, before_each), _Pass(self, addresses, before_each)
        for node in joint.inputs:
            forward.add_input(Result(node), node.name)
        block = [] if forward.placer is None else list(forward.placer.add_block())
        for run in self.runs:
            if not run.is_backward:
                forward.add_run(run)
        forward.add_copies(self.between)
        saved = [forward.value(result) for result in self.crossing] + [forward.states[t] for t in self.crossing_states]
        saved += [forward.hosts[result] for result in self.crossing_hosts] + block
        descriptions = [saved_description(number) for number in range(len(saved))]
        forward.finish(joint.outputs[:limit], saved, joint.output_descriptions[:limit] + descriptions)

        for result in self.crossing:
            backward.add_input(result, tensor_node(joint, result).name)
        for task in self.crossing_states:
            backward.add_state(task)
        for result in self.crossing_hosts:
            backward.add_host(result)
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
        self.hosts: dict[Result, fx.Node] = {}  # in host memory
        self._waits = {self.joint.result(node): node for node in self.joint.nodes if is_wait(node)}
        self._copies: dict[int, fx.Node] = {}  # copies that run, by their places in the order
        self._views: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}  # view -> (what it was taken of, view in this graph)

    def add_input(self, result: Result, name: str) -> None:
        self.values[result] = self.placeholder(name, tensor_node(self.joint, result).meta)

    def add_state(self, task: fx.Node) -> None:
        self.states[task] = self.placeholder(f"{task.name}_state", {"val": fake_random_state(tensors_of(task)[0])})

    def add_host(self, result: Result) -> None:
        node = tensor_node(self.joint, result)
        self.hosts[result] = self.placeholder(f"{node.name}_host", {"val": fake_on_host(node.meta["val"])})

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
        """A node's value in this graph; views are taken where they are read, and again if their storage is new.

        Waits for collectives are views. Those that the plan places are taken there (`add_run`).
        """
        joint = self.joint
        if not joint.is_view(node):
            return self.value(joint.result(node)) if tensors_of(node) else self.graph.node_copy(node)
        shown = self.argument(joint.shown(node))
        if node not in self._views or self._views[node][0] is not shown:
            self._views[node] = shown, self.graph.node_copy(node, self.argument)
        return self._views[node][1]

    def add_copies(self, steps: Sequence[CopyStep]) -> None:
        engine = engine_for(self.joint.device) if steps else None
        for step in steps:
            assert engine is not None
            node = tensor_node(self.joint, step.result)
            if not step.is_wait:
                begin = engine.begin_out if step.is_out else engine.begin_in
                source = self._written(step.result) if step.is_out else self.hosts[step.result]
                self._copies[step.place] = self._create(begin, (source,), {}, {})
                continue
            meta = {"val": fake_on_host(node.meta["val"])} if step.is_out else node.meta
            copied = self._create(engine.wait, (self._copies.pop(step.place),), {}, meta)
            (self.hosts if step.is_out else self.values)[step.result] = copied

    def _written(self, result: Result) -> fx.Node:
        """The latest value of a result, once the collective that writes it has ended."""
        return self.argument(self._waits[result]) if result in self._waits else self.value(result)

    def add_run(self, run: _Run) -> None:
        self.add_copies(run.before)
        if self.before_each is not None:
            self.graph.call_function(self.before_each, (run.task.name,))
        call = self._call(run)
        if self.placer is not None:
            call = self.placer.placed(call, run.task, run.number)
        for element in sorted(run.needed, key=str):
            self.values[Result(run.task, element)] = call if element is None else self._element(run.task, call, element)
        for node in run.waits:
            if self.joint.result(node) in self.values:
                self.argument(node)

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
        call = self.graph.node_copy(task, self.argument)
        if run.overwritten == 0:
            call.target = torch.ops.aten.add_.Tensor
        elif run.overwritten == 1:
            call.target, call.kwargs = torch.ops.aten.add.out, {**call.kwargs, "out": call.args[1]}
        return call

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


def _copied_results(joint: Joint, names: Sequence[str]) -> dict[str, tuple[Result, bool]]:
    """Names of copies in an order -> (the result that is copied, whether to the host). Raises OtherStep."""
    ways = ((OFFLOAD, True), (FETCH, False))
    copies = {name: (name.removeprefix(word), out) for name in names for word, out in ways if name.startswith(word)}
    if not copies:
        return {}
    results = {
        task.name if element is None else element_name(joint, task, element): Result(task, element)
        for task in joint.tasks
        if not is_mutation(task)
        for element in ([None] if isinstance(task.meta.get("val"), torch.Tensor) else joint.elements.get(task, {}))
    }
    if odd := next((value for value, _ in copies.values() if value not in results), None):
        raise OtherStep(f"the plan copies {odd!r} to the host, which no op of this step computes; plan again")
    return {name: (results[value], is_out) for name, (value, is_out) in copies.items()}


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
