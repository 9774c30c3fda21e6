"""A captured training step as PyTorch runs it in eager mode: tasks with their modules, and bytes that eager mode takes.

Captured graphs have one op where eager mode on a CPU runs several: `native_dropout` keeps a mask of one byte an
element, dropout on a CPU keeps the mask as scaled numbers of the type of its input, and needs no workspace. The state
of the generator, which a plan saves for repeats of one op, is saved by a checkpoint for the whole module instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graph.ir import ABSENT, Graph, Node
from planner.errors import BadRequest
from planner.lowering.lowered_graph import LoweredGraph
from planner.problem import FORWARD, NEVER, RESIDENT, Problem
from planner.problem.columns import frozen

CPU_STATE_BYTES = 5056  # of PyTorch's generator on a CPU, which each checkpoint saves
DROPOUT = "aten::native_dropout.default"
DROPOUT_GRADIENT = "aten::native_dropout_backward.default"
BATCH_NORM = "aten::_native_batch_norm_legit_functional.default"
STATE = "generator::State"
TANGENTS = "autograd::Tangents"


def modules_of(graph: Graph) -> tuple[str, ...]:
    """Paths of the modules of a captured document. Raises BadRequest for a document without them."""
    named = graph.annotations.get("modules")
    if not isinstance(named, list | tuple):
        raise BadRequest.one(
            "no_modules",
            "as",
            "a document that does not name the modules of its nodes",
            "a step that remat.torch.capture recorded",
            "capture the model again, and plan that document",
        )
    return tuple(str(path) for path in named)


@dataclass(frozen=True, eq=False, slots=True)
class EagerStep:
    """One training step in eager mode.

    Tasks are numbered in the order in which they run. A task belongs to a module by the path of the module whose
    forward pass has the op, or has the op that a backward task is the gradient of.
    """

    problem: Problem
    module: tuple[str, ...]  # task -> path of its module; "": the model itself
    op: tuple[str, ...]  # task -> op
    is_forward: tuple[bool, ...]
    reads: list[list[int]]  # task -> buffers
    writes: list[list[int]]
    producer: list[int]  # buffer -> task; -1: exists from the start
    modules: tuple[str, ...]  # modules that run once in a step, and all that runs below them
    on_cpu: bool

    @classmethod
    def of(cls, lowered: LoweredGraph) -> EagerStep:
        """The step of a captured document. Raises BadRequest for a document without modules."""
        graph, problem = lowered.graph, lowered.problem
        named = modules_of(graph)
        nodes = [graph.nodes[n] for n in lowered.task_node]
        on_cpu = graph.annotations.get("device") == "cpu"
        return cls(
            replace(problem, size=_sizes(lowered, on_cpu), workspace=_workspaces(problem, nodes, on_cpu)),
            tuple(str(node.annotations.get("module", "")) for node in nodes),
            tuple(node.op for node in nodes),
            tuple(
                bool(phase == FORWARD) and node.op != TANGENTS for phase, node in zip(problem.phase, nodes, strict=True)
            ),
            problem.reads.lists(),
            problem.writes.lists(),
            problem.producer().tolist(),
            named,
            on_cpu,
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of the random generator that each checkpoint saves in the memory of the step."""
        return CPU_STATE_BYTES if self.on_cpu else 0

    def below(self, path: str) -> list[int]:
        """Tasks of a module, with those of the modules in it."""
        return [task for task, module in enumerate(self.module) if is_below(module, path)]

    def reads_of_checkpoint(self, task: int) -> bool:
        """Whether a backward task reads what the forward pass saved for it."""
        return any(self.producer[b] < 0 or self.is_forward[self.producer[b]] for b in self.reads[task])

    def is_resident(self, buffer: int) -> bool:
        return bool(self.problem.hold[buffer] == RESIDENT)

    def random_ops(self, tasks: Iterable[int]) -> set[str]:
        """Ops among the tasks that draw random numbers."""
        return {
            self.op[task]
            for task in tasks
            if any(self.producer[b] >= 0 and self.op[self.producer[b]] == STATE for b in self.reads[task])
        }

    def why_not(self, path: str) -> str:
        """Why a module cannot run again in a backward pass; "" if it can."""
        tasks = [task for task in self.below(path) if self.is_forward[task] and self.op[task] != STATE]
        counters = {self.module[task] for task in tasks if self.op[task] == BATCH_NORM}
        for task in tasks:
            is_statistic = self.op[task] == BATCH_NORM or self.module[task] in counters
            bound = self.problem.repeat[task] == NEVER or self.problem.recompute[task]
            if bound and not is_statistic:
                return f"{self.op[task]} must run once"
        return ""

    def has_statistics(self, path: str) -> bool:
        """Whether a module has batch norm in training mode, which updates running statistics."""
        return any(self.is_forward[task] and self.op[task] == BATCH_NORM for task in self.below(path))


def is_below(module: str, path: str) -> bool:
    """Whether a module is the one at `path` or lies in it."""
    return module == path or module.startswith(f"{path}.")


def enclosing(module: str, paths: Collection[str]) -> str:
    """The path among `paths` that a module is or lies in; "" for none."""
    while module:
        if module in paths:
            return module
        module = module.rpartition(".")[0]
    return ""


def _sizes(lowered: LoweredGraph, on_cpu: bool) -> np.ndarray:
    """int64[m]: bytes of each buffer in eager mode."""
    graph, size = lowered.graph, lowered.problem.size.copy()
    for node in graph.nodes:
        if node.op == STATE:
            size[lowered.value_buffer[node.outputs[0]]] = 0
        elif node.op == DROPOUT and on_cpu:
            masks = [lowered.value_buffer[v] for v in node.outputs[1:] if v != ABSENT]
            size[masks] = size[lowered.value_buffer[node.outputs[0]]]
    return frozen(size)


def _workspaces(problem: Problem, nodes: Sequence[Node], on_cpu: bool) -> np.ndarray:
    """int64[n]: workspace of each task in eager mode."""
    free = np.array([on_cpu and node.op in (DROPOUT, DROPOUT_GRADIENT) for node in nodes], bool)
    return frozen(np.where(free, 0, problem.workspace))
