"""How XLA treats each op of StableHLO, its floating-point operations, and the work of bodies."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from graph.formats.stablehlo.fusion import Fusion, Kind
from graph.formats.stablehlo.records import Body, Op, Value

_NAMES: tuple[tuple[Kind, str], ...] = (
    ("view", "reshape transpose"),
    (
        "cheap",
        "abs add and bitcast_convert broadcast_in_dim ceil clamp compare complex constant convert count_leading_zeros "
        "floor imag iota is_finite maximum minimum multiply negate not or pad popcnt real reduce_precision reverse "
        "round_nearest_afz round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign slice "
        "subtract xor",
    ),
    (
        "expensive",
        "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power remainder rsqrt "
        "sine sqrt tan tanh chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.cosh chlo.digamma "
        "chlo.erf chlo.erf_inv chlo.erfc chlo.lgamma chlo.next_after chlo.polygamma chlo.sinh chlo.square chlo.tan",
    ),
    ("reduction", "reduce"),
)
KINDS: dict[str, Kind] = {name: kind for kind, names in _NAMES for name in names.split()}
BROADCASTS = frozenset({"broadcast_in_dim", "iota", "constant"})
#: Ops whose result XLA puts into the bytes of their first operand.
IN_PLACE = frozenset({"scatter", "dynamic_update_slice"})
#: Ops whose bodies run as often as the program says, and are no comparators or sums of two elements.
CONTROL_FLOW = frozenset({"while", "case", "if", "sdy.manual_computation"})
_CONTRACTED = re.compile(r"contracting_dims = \[([\d, ]*)\]|lhs_contracting_dimensions = \[([\d, ]*)\]")
_KERNEL = re.compile(r"\]\s*x\s*\[([^\]]*)\]\s*->")


class Work(NamedTuple):
    """Operations, bytes moved and bytes needed beside operands and results, of one run."""

    flops: int
    traffic_bytes: int
    workspace_bytes: int


@dataclass(eq=False, slots=True)
class Task:
    """Ops that one kernel computes, `root` last."""

    root: Op
    ops: list[Op]

    @property
    def reads(self) -> list[Value]:
        """Values that the task takes from memory, each once."""
        inside = {value for op in self.ops for value in op.outputs}
        read = (value for op in self.ops for value in op.reads)
        return [value for value in dict.fromkeys(read) if value not in inside]


def tasks_of(body: Body) -> list[Task]:
    """The tasks of a body, in an order that can run."""
    initial = _initial_values(body.ops)
    fusion = Fusion(
        body.ops,
        body.results,
        kind_of=lambda op: "view" if op in initial else KINDS.get(op.kind, "other"),
        elements_of=lambda value: math.prod(value.type.shape) if value.type else 0,
        is_broadcast=lambda op: op.kind in BROADCASTS,
    )
    return [Task(root, members) for root, members in fusion.members().items()]


def _initial_values(ops: Sequence[Op]) -> set[Op]:
    """Filled arrays that only loops read, or ops that write over them: XLA has no other copy than these change."""
    constants = {value for op in ops if op.kind in BROADCASTS and not op.operands for value in op.outputs}
    readers: dict[Value, list[Op]] = {}
    for op in ops:
        for value in op.reads:
            readers.setdefault(value, []).append(op)
    found: set[Op] = set()
    for op in reversed(ops):
        if op.kind in BROADCASTS and constants.issuperset(op.operands):
            read_by = readers.get(op.outputs[0], [])
            if read_by and all(reader in found or _overwrites(reader, op.outputs[0]) for reader in read_by):
                found.add(op)
    return found


def _overwrites(op: Op, value: Value) -> bool:
    """Whether the result of an op lies in the bytes of a value that it reads."""
    return op.kind == "while" or (op.kind in IN_PLACE and op.operands[0] is value and value not in op.operands[1:])


def bytes_of(value: Value) -> int:
    """Bytes of a value; a token has none."""
    return 0 if value.type is None else value.type.nbytes


def work_of(task: Task) -> Work:
    """Work of a task: that of its ops, and the bytes that it reads and writes."""
    traffic = sum(map(bytes_of, (*task.reads, *task.root.outputs)))
    workspace = 0
    for op in task.ops:
        trips = _iterations(op)
        for body in op.bodies if op.kind in CONTROL_FLOW else ():
            inner = _work_of_body(body)
            traffic += trips * inner.traffic_bytes
            workspace = max(workspace, inner.workspace_bytes)
    return Work(sum(map(flops_of, task.ops)), traffic, workspace)


def _work_of_body(body: Body) -> Work:
    """Work of one run of a body; its workspace is the most that its own values take at once."""
    tasks = tasks_of(body)
    works = [work_of(task) for task in tasks]
    last = {value: t for t, task in enumerate(tasks) for value in task.reads}
    last |= dict.fromkeys(body.results, len(tasks) - 1)
    change = [0] * (len(tasks) + 1)  # of the bytes in use, at the begin of each task
    for t, task in enumerate(tasks):
        for value in task.root.outputs:
            change[t] += bytes_of(value)
            change[last.get(value, t) + 1] -= bytes_of(value)
    peak = max((live + work.workspace_bytes for live, work in zip(accumulate(change), works, strict=False)), default=0)
    return Work(sum(work.flops for work in works), sum(work.traffic_bytes for work in works), peak)


def flops_of(op: Op) -> int:
    """Floating-point operations of an op with those in its bodies; of a loop with unknown trips those of one."""
    out = sum(math.prod(value.type.shape) for value in op.outputs if value.type is not None)
    if op.kind == "dot_general":
        return 2 * out * _contracted(op)
    if op.kind == "convolution":
        return 2 * out * _reads_per_result(op)
    if op.kind == "case" or op.kind == "if":
        return max((_flops_of_body(body) for body in op.bodies), default=0)
    if op.kind in CONTROL_FLOW:
        return _iterations(op) * sum(map(_flops_of_body, op.bodies))
    if op.kind in ("reduce", "reduce_window", "select_and_scatter", "sort"):
        return sum(math.prod(value.type.shape) for value in op.operands if value.type is not None)
    return out


def _flops_of_body(body: Body) -> int:
    return sum(map(flops_of, body.ops))


def _contracted(op: Op) -> int:
    """Products that are summed for one element of a matrix product."""
    match, left = _CONTRACTED.search(op.text), op.operands[0].type
    axes = map(int, re.findall(r"\b\d{1,4}\b", match[1] or match[2] or "")) if match else ()
    return math.prod(left.shape[axis] for axis in axes if axis < len(left.shape)) if left else 1


def _reads_per_result(op: Op) -> int:
    """Products that are summed for one element of a convolution: the kernel without its axis of output channels."""
    match, kernel = _KERNEL.search(op.text), op.operands[1].type
    if kernel is None or match is None:
        return 1
    axes = [axis.strip() for axis in match[1].split(",")]
    return math.prod(n for axis, n in zip(axes, kernel.shape, strict=False) if axis != "o")


def _iterations(op: Op) -> int:
    """Runs of the bodies of an op: 1 where they are unknown."""
    known = trips_of(op)
    return 1 if known is None else known


def trips_of(op: Op) -> int | None:
    """Iterations of a loop that counts from a constant up to one, as JAX writes `scan` and `fori_loop`; else None."""
    if op.kind != "while" or len(op.bodies) != 2:
        return None
    condition = op.bodies[0]
    test = next((inner for inner in condition.ops if inner.outputs == condition.results), None)
    if test is None or test.kind != "compare" or " LT," not in test.text or len(test.operands) != 2:
        return None
    counter, end = (
        op.operands[condition.inputs.index(value)] if value in condition.inputs else value for value in test.operands
    )
    return None if counter.constant is None or end.constant is None else max(0, end.constant - counter.constant)
