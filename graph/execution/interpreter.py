"""Reference interpreter: runs numpy kernels in node order, frees values after their last use, counts live bytes.

    plain      arrays by value; bytes are added up by storage
    in arena   every value lies at its planned address in one byte array; bytes are addresses in use

Independent of the planner. A view runs no kernel, unless its element order differs from its storage's;
an output in place keeps its input's storage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graph.analysis.aliasing import views_of
from graph.analysis.cost import external_storages, workspace_of
from graph.cancellation import cancellable
from graph.errors import ArenaFault, CannotExecute, GraphError
from graph.execution import node_count
from graph.execution.arena import Arena
from graph.execution.node_count import NodeCount
from graph.execution.run_memory import ArenaMemory, PlainMemory, RunMemory, StorageLifetimes
from graph.execution.sample_inputs import is_part, sample_arrays
from graph.execution.scheduled_memory import ScheduledArena, ScheduledMemory
from graph.ir import ABSENT, Body, Graph, Node, TensorType, producers
from graph.ops import control_flow
from graph.ops.control_flow import OPS_WITH_BODIES
from graph.ops.control_flow.interface import MAX_LENGTH, may_be_shorter
from graph.ops.registry.dispatch import run
from graph.ops.registry.onnx_fallback import numpy_dtype, type_of_array
from graph.ops.registry.registry import find_op, make_call

__all__ = ["Arena", "Execution", "execute"]

#: watch(node, position of the output, array)
OnWrite = Callable[[int, int, np.ndarray], None]


@dataclass(frozen=True, eq=False, slots=True)
class Execution:
    """Results and memory use of a run."""

    outputs: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]  # those named in `keep`
    step_bytes: np.ndarray  # int64[nodes]: bytes live during each node, views included
    seconds: float  # inside kernels

    @property
    def peak_bytes(self) -> int:
        return int(self.step_bytes.max(initial=0))


def execute(
    graph: Graph,
    feeds: Mapping[str, np.ndarray] | None = None,
    *,
    seed: int = 0,
    arena: Arena | ScheduledArena | None = None,
    takes_over: bool = True,
    keep: Collection[str] = (),
    watch: OnWrite | None = None,
    bounded: Collection[str] = (),
) -> Execution:
    """Run the graph in node order. Inputs, parameters and states missing from `feeds` are sampled by `seed`.

    `takes_over` counts an output written over an input at its last use once; in an arena, addresses decide.
    `keep` names values to return, `watch` is called for every output. Feeds named in `bounded` may have fewer rows than
    declared. Raises CannotExecute naming the node, ArenaFault if an address overlaps live bytes.
    """
    memory: RunMemory
    if arena is None:
        memory = PlainMemory(graph, takes_over)
    else:
        memory = ArenaMemory(graph, arena) if isinstance(arena, Arena) else ScheduledMemory(graph, arena)
    run = _Run(graph, memory, seed, "", watch)
    run.count = node_count.current()
    fed = sample_arrays(graph, seed, feeds, bounded=bounded)
    for v, array in fed.items() if bounded else ():
        run.accept(v, array)
    return run.execute(fed, keep)


class _Nested:
    """A nested graph that runs once an iteration; lifetimes and constants are computed once.

    `workspace` is the workspace counted for the enclosing node in bytes; a run that holds more raises ArenaFault.
    None: unchecked.
    """

    def __init__(self, node: Node, body: Body, seed: int, workspace: int | None):
        self.graph, self.seed, self.workspace, self.name = body.graph, seed, workspace, node.name
        self.lifetimes = StorageLifetimes(self.graph, external_storages(node, body))
        self.own = sample_arrays(self.graph, seed, without={*self.graph.inputs, *(inner for inner, _ in body.captures)})
        self.nested: dict[int, _Nested] = {}

    def run(self, given: Mapping[int, np.ndarray], scope: str) -> list[np.ndarray]:
        """Outputs of the graph for `given` inputs and captures by value id."""
        nested = _Run(self.graph, PlainMemory(self.graph, False, self.lifetimes), self.seed, scope, None, self.nested)
        nested.is_checked = self.workspace is not None
        for v, array in given.items():
            nested.accept(v, array)
        held = nested.execute({**self.own, **given}, ()).peak_bytes
        if self.workspace is not None and held > self.workspace:
            raise ArenaFault(
                f"a body of {self.name} holds {held:,} bytes in addition to its inputs and outputs; "
                f"the workspace of the node is {self.workspace}; replan, or set `workspace_bytes` on the node"
            )
        return [nested.read(v) for v in self.graph.outputs]


class _Run:
    """State of one run of a graph."""

    def __init__(
        self,
        graph: Graph,
        memory: RunMemory,
        seed: int,
        scope: str,
        watch: OnWrite | None,
        nested: dict[int, _Nested] | None = None,
    ):
        self.graph, self.memory, self.seed, self.scope, self.watch = graph, memory, seed, scope, watch
        self.nested = {} if nested is None else nested  # by identity of the nested graph
        self.is_checked = not isinstance(memory, PlainMemory)  # bodies may not exceed their node's workspace
        self.producer = producers(graph)
        self.count: NodeCount | None = None
        self.seconds = 0.0

    def accept(self, v: int, array: np.ndarray) -> None:
        """Check the type of an input; fewer rows than declared are legal after a loop that stopped early."""
        value, type = self.graph.values[v], type_of_array(array)
        if value.type is not None and type != value.type:
            if not is_part(type, value.type):
                raise CannotExecute(f"{value.name} is passed as {type}; the graph declares {value.type}")
            self.memory.actual[v] = type

    def execute(self, fed: Mapping[int, np.ndarray], keep: Collection[str]) -> Execution:
        graph, memory = self.graph, self.memory
        names = set(keep)
        kept = {graph.values[v].name: array for v, array in fed.items() if graph.values[v].name in names}
        memory.start(fed)
        step_bytes = np.zeros(len(graph.nodes), np.int64)
        for n, node in enumerate(cancellable(graph.nodes)):
            memory.begin(n)
            results = self.results(node)
            for i, (v, array) in enumerate(zip(node.outputs, results, strict=True)):
                if v == ABSENT or array is None:
                    continue
                if self.watch is not None:
                    self.watch(n, i, array)
                if graph.values[v].name in names:
                    kept[graph.values[v].name] = array
            step_bytes[n] = memory.write(n, results)
            if self.count is not None:
                self.count.add()
        missing = names - set(kept)
        if missing:
            raise CannotExecute(f"value {min(missing)!r} is to be kept, but the graph has no value of that name")
        outputs = {graph.values[v].name: self.read(v) for v in graph.outputs}
        return Execution(outputs, kept, step_bytes, self.seconds)

    def read(self, v: int) -> np.ndarray:
        """The array of a value. A view in another element order is recomputed from its storage."""
        if self.memory.has_array(v):
            return self.memory.read(v)
        node = self.graph.nodes[self.producer[v]]
        array = self.results(node)[node.outputs.index(v)]
        assert array is not None
        return array

    def results(self, node: Node) -> list[np.ndarray | None]:
        """Arrays of the node's outputs, contiguous and of the declared types; None for absent ones."""
        views = dict(views_of(self.graph, node))
        record = find_op(node.op)
        by_shape = set(record.views) if record is not None else set()
        has_all_rows = not self.memory.actual or not any(v in self.memory.actual for v in node.inputs)
        if (
            views
            and has_all_rows
            and all((i, views.get(i)) in by_shape for i, v in enumerate(node.outputs) if v != ABSENT)
        ):
            return [
                None if v == ABSENT else self._reshaped(node.inputs[views[i]], v) for i, v in enumerate(node.outputs)
            ]
        started = time.perf_counter()
        try:
            outputs = self._kernel(node)
        except ArenaFault:
            raise
        except GraphError as error:
            raise CannotExecute(f"node {node.name}: {error}") from None
        except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise CannotExecute(f"node {node.name} ({node.op}): {type(error).__name__}: {error}") from error
        self.seconds += time.perf_counter() - started
        return self._checked(node, outputs)

    def _kernel(self, node: Node) -> Sequence[np.ndarray | None]:
        if node.bodies:
            inputs = [None if v == ABSENT else self.read(v) for v in node.inputs]
            return control_flow.run(node, inputs, self.read, self._body(node))
        record = find_op(node.op)
        shape_only = record.shape_only if record is not None else ()
        inputs = [
            None if v == ABSENT else self._shape_of(v) if i in shape_only else self.read(v)
            for i, v in enumerate(node.inputs)
        ]
        call = make_call(self.graph, node, self.seed)
        return run(replace(call, stream=self.scope + (node.stream or node.name)), *inputs)

    def _body(self, node: Node) -> control_flow.RunBody:
        def run_one(graph: Graph, given: Mapping[int, np.ndarray], trip: int) -> list[np.ndarray]:
            if id(graph) not in self.nested:
                body = next(body for body in node.bodies.values() if body.graph is graph)
                charged = self.is_checked and node.op in OPS_WITH_BODIES and node.cost.workspace_bytes is None
                workspace = workspace_of(self.graph, node) if charged else None
                self.nested[id(graph)] = _Nested(node, body, self.seed, workspace)
            return self.nested[id(graph)].run(given, f"{self.scope}{node.stream or node.name}#{trip}/")

        return run_one

    def _shape_of(self, v: int) -> np.ndarray:
        """An array of the value's shape and dtype with zero content: its bytes may be freed."""
        type = self.memory.actual.get(v) or self._type(v)
        return np.broadcast_to(np.zeros((), numpy_dtype(type.dtype)), type.shape)

    def _reshaped(self, source: int, v: int) -> np.ndarray:
        array = self.read(source)
        return array.view(numpy_dtype(self._type(v).dtype)).reshape(self._type(v).shape)

    def _type(self, v: int) -> TensorType:
        type = self.graph.values[v].type
        if type is None:
            raise CannotExecute(f"value {self.graph.values[v].name} has only a size; declare its dtype and shape")
        return type

    def _checked(self, node: Node, outputs: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
        results: list[np.ndarray | None] = []
        for i, v in enumerate(node.outputs):
            array = outputs[i] if i < len(outputs) else None
            if v == ABSENT:
                results.append(None)
                continue
            name, type = self.graph.values[v].name, self.graph.values[v].type
            if array is None:
                raise CannotExecute(f"node {node.name} ({node.op}) returns no output {i} ({name})")
            array = np.asarray(array, order="C")
            actual = type_of_array(array)
            if type is None or actual != type:
                if type is None or not (self._may_be_short(node) and is_part(actual, type)):
                    declared = type or "a size"
                    remedy = f"; raise --max {name}=N" if MAX_LENGTH in node.annotations else ""
                    raise CannotExecute(
                        f"node {node.name} ({node.op}) returns {actual}; {name} is declared as {declared}{remedy}"
                    )
                self.memory.actual[v] = actual
            elif actual.dtype == "int64" and self._may_be_short(node):
                self.memory.actual[v] = actual  # lengths may have been computed from a short value
            array = array.view()
            array.flags.writeable = False
            results.append(array)
        return results

    def _may_be_short(self, node: Node) -> bool:
        """True for a node with bodies, whose loops may stop early, for data-dependent lengths, and for readers."""
        actual = self.memory.actual
        return bool(node.bodies) or may_be_shorter(node) or (bool(actual) and any(v in actual for v in node.inputs))
