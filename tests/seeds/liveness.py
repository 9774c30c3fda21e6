"""Liveness and buffer sharing: orders, free points, equality up to names, shared names.

A case is read twice: with opaque ops where structure is what counts, and in ops of ours where it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from graph.analysis.aliasing import storage_roots
from graph.analysis.cost import device_named
from graph.autodiff.differentiate import differentiate
from graph.buffer_sharing.assign import assign_buffers
from graph.buffer_sharing.live_ranges import free_points
from graph.buffer_sharing.shared_program import shared_document
from graph.buffer_sharing.sharing import BufferSharing, share_buffers, value_devices
from graph.execution.interpreter import execute
from graph.formats.caffe2.ops import CAFFE2
from graph.formats.readers import load
from graph.formats.shared.op_table import Translation
from graph.formats.shared.rows import translation_rows
from graph.ir import Graph, TensorType
from graph.transforms.structural_equality import difference, equal_up_to_renaming
from planner.lowering.lower import lower
from planner.problem.topological import depth_first, edges, longest_path_first
from planner.request.target_runtime import runtime_named
from tests.seeds.harness import Area, Case

BATCH, WIDTH = 4, 5
COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}


class Liveness:
    """One case; what is asked of it is worked out when it is looked at."""

    def __init__(self, case: Case):
        self.case = case
        self.given: Mapping[str, Any] = case["given"]

    @cached_property
    def ops(self) -> list[dict[str, Any]]:
        return self.case["ops"] or modelled(self.given["model"])

    @cached_property
    def structure(self) -> Graph:
        return opaque_program(self.ops)

    @cached_property
    def before(self) -> Graph:
        """The program in ops of ours, with its gradients where they are asked for."""
        forward = program(self.ops)
        wanted = self.case["wanted_gradients"]
        if not wanted:
            return forward
        return differentiate(forward, list(wanted["targets"]), wanted.get("wrt"))

    @cached_property
    def kept(self) -> set[str]:
        """Names of `must_stay`: values, and gradients of values; residents keep theirs anyway."""
        graph, stays = self.before, self.given.get("must_stay", [])
        names = {graph.values[p].name: graph.values[g].name for p, g in graph.gradients}
        found = {names[match[1]] if (match := re.fullmatch(r"gradient of (\w+)", name)) else name for name in stays}
        return found & {value.name for value in graph.values}

    @cached_property
    def sharing(self) -> BufferSharing:
        return share_buffers(self.before, self.kept)

    @cached_property
    def after(self) -> Graph:
        """The same program read back from its document under shared names."""
        return load(msgspec.json.encode(shared_document(self.before, self.sharing.names)))

    @cached_property
    def outputs(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What is handed out before and after sharing, by the names before."""
        ran = [execute(graph, seed=3).outputs for graph in (self.before, self.after)]
        new = [ran[1][self.after.values[v].name] for v in self.after.outputs]
        names = [self.before.values[v].name for v in self.before.outputs]
        return dict(ran[0]), dict(zip(names, new, strict=True))


def modelled(words: str) -> list[dict[str, Any]]:
    """Ops of "four dense layers on gpu, copy to cpu, three dense layers on cpu, loss"."""
    ops: list[dict[str, Any]] = []
    last, layers = "data", 0
    for part in words.split(", "):
        dense = re.fullmatch(r"(\w+) dense layers on (\w+)", part)
        copy = re.fullmatch(r"copy to (\w+)", part)
        if dense is not None:
            for _ in range(COUNTS[dense[1]]):
                layers += 1
                name, device = f"fc{layers}", dense[2]
                ops.append(_op("FC", [last, f"{name}_w", f"{name}_b"], [name], device))
                last = name
        elif copy is not None:
            ops.append(
                _op("CopyGPUToCPU" if copy[1] == "cpu" else "CopyCPUToGPU", [last], [f"{last}_{copy[1]}"], copy[1])
            )
            last = f"{last}_{copy[1]}"
        else:
            assert part == "loss", part
            ops += [
                _op("Softmax", [last], ["pred"], device),
                _op("LabelCrossEntropy", ["pred", "label"], ["xent"], device),
                _op("AveragedLoss", ["xent"], ["loss"], device),
            ]
    return ops


def _op(type: str, inputs: list[str], outputs: list[str], device: str) -> dict[str, Any]:
    return {"type": type, "inputs": inputs, "outputs": outputs, "attrs": {}, "device": device}


def results_of(ops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose last write nobody reads."""
    unread: dict[str, None] = {}
    for op in ops:
        for name in op["inputs"]:
            unread.pop(name, None)
        unread.update(dict.fromkeys(op["outputs"]))
    return list(unread)


def given_of(ops: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names read before they are written."""
    given: dict[str, None] = {}
    written: set[str] = set()
    for op in ops:
        given.update(dict.fromkeys(name for name in op["inputs"] if name not in written))
        written.update(op["outputs"])
    return list(given)


def opaque_program(ops: Sequence[Mapping[str, Any]]) -> Graph:
    """The ops under a mutable naming, each as one opaque node; an alias is a view."""
    names = list(dict.fromkeys(name for op in ops for name in (*op["inputs"], *op["outputs"])))
    given = set(given_of(ops))
    document = {
        "format": "remat/1",
        "naming": "mutable",
        "values": [
            {"name": name, "shape": [8], "dtype": "float32", "role": "input" if name in given else "activation"}
            for name in names
        ],
        "nodes": [
            {
                "name": f"op{i}",
                "op": "Identity" if op["type"] == "Alias" else f"caffe2::{op['type']}",
                "inputs": op["inputs"],
                "outputs": op["outputs"],
                "attributes": op["attrs"],
            }
            for i, op in enumerate(ops)
        ],
        "outputs": results_of(ops),
    }
    return load(msgspec.json.encode(document))


def program(ops: Sequence[Mapping[str, Any]]) -> Graph:
    """The ops in ops of ours; shapes are a batch of four rows, and five columns in every layer."""
    types: dict[str, TensorType] = {name: _type_of(name, ops) for name in given_of(ops)}
    values = [{"name": n, "shape": list(t.shape), "dtype": t.dtype, "role": _role(n)} for n, t in types.items()]
    nodes: list[dict[str, Any]] = []
    for i, op in enumerate(ops):
        name = f"op{i}"
        made = CAFFE2.translate(
            op["type"], op["attrs"], [types[x] for x in op["inputs"]], name=name, outputs=len(op["outputs"])
        )
        assert isinstance(made, Translation), op["type"]
        more, rows = translation_rows(made, name, op["inputs"], op["outputs"])
        values += msgspec.to_builtins(more)
        for row in rows:
            row.annotations = {"device": op["device"]} if "device" in op else None
        nodes += msgspec.to_builtins(rows)
        for v, output in zip(made.outputs, op["outputs"], strict=True):
            if v is not None:
                types[output] = made.graph.values[v].type  # type: ignore[assignment]
    document = {"format": "remat/1", "naming": "mutable", "values": values, "nodes": nodes, "outputs": results_of(ops)}
    return load(msgspec.json.encode(document))


def _role(name: str) -> str:
    return "parameter" if name.endswith(("_w", "_b")) else "input"


def _type_of(name: str, ops: Sequence[Mapping[str, Any]]) -> TensorType:
    """Type of what is there from the start, by what reads it first."""
    first = next(op for op in ops if name in op["inputs"])
    if first["type"] == "FC" and name != first["inputs"][0]:
        return TensorType("float32", (WIDTH, WIDTH) if name == first["inputs"][1] else (WIDTH,))
    if first["type"] == "LabelCrossEntropy" and name == first["inputs"][1]:
        return TensorType("int32", (BATCH,))
    return TensorType("float32", (BATCH, WIDTH))


def _order(run: Liveness, rank: Callable[[Any], np.ndarray]) -> list[int]:
    lowered = lower(run.structure, device_named("a100-80gb"), runtime_named("arena"))
    return [lowered.task_node[task] for task in rank(edges(lowered.problem)).tolist()]


def check_plain_order(run: Liveness, order: list[int]) -> None:
    assert _order(run, depth_first) == order


def check_longest_path_first(run: Liveness, order: list[int]) -> None:
    assert _order(run, longest_path_first) == order


def check_constraints(run: Liveness, pairs: list[list[int]]) -> None:
    """Of all pairs of ops that must keep their order, those of which the second reads a name the first writes."""
    lowered = lower(run.structure, device_named("a100-80gb"), runtime_named("arena"))
    later: list[set[int]] = [set(row) for row in edges(lowered.problem).lists()]
    for task in reversed(range(len(later))):
        later[task].update(*(later[b] for b in later[task]))
    ordered = {(lowered.task_node[a], lowered.task_node[b]) for a, row in enumerate(later) for b in row}
    reads = [set(op["inputs"]) for op in run.ops]
    expected = {(a, b) for a, b in ordered if reads[b].intersection(run.ops[a]["outputs"])}
    assert sorted(map(tuple, pairs)) == sorted(expected)


def _freed(run: Liveness) -> list[str]:
    graph = run.structure
    return [graph.values[v].name for v, _ in free_points(graph)]


def check_freed(run: Liveness, names: list[str]) -> None:
    assert sorted(_freed(run)) == sorted(names)


def check_not_freed(run: Liveness, names: list[str]) -> None:
    """Names with the reason in parentheses."""
    graph, freed = run.structure, _freed(run)
    roots = storage_roots(graph)
    for text in names:
        match = re.fullmatch(r"(\w+)(?: \((aliased|result)\))?", text)
        assert match is not None, text
        v = graph.value_named(match[1])
        assert match[1] not in freed
        if match[2] == "aliased":
            assert roots.count(roots[v]) > 1
        if match[2] == "result":
            assert v in graph.outputs


def check_equal(run: Liveness, equal: bool) -> None:
    """Inputs are known by name where both graphs have the same ones, else by where they are used."""
    other = opaque_program(run.given["second_graph"])
    same_names = set(given_of(run.ops)) == set(given_of(run.given["second_graph"]))
    assert equal_up_to_renaming(run.structure, other, inputs_by_name=same_names) == equal


def intervals_of(run: Liveness) -> dict[str, tuple[int, int, int]]:
    """Name -> (first step, last step, bytes), as the case gives them: objects or triples, by name or listed."""
    for given in run.given.values():
        rows = given.items() if isinstance(given, Mapping) else [(_name(row), row) for row in given]
        found = {name: _triple(row) for name, row in rows}
        if found and all(found.values()):
            return {name: triple for name, triple in found.items() if triple is not None}
    raise AssertionError("the case gives no intervals")


def _name(row: Any) -> str:
    return str(next(iter(row.values())) if isinstance(row, Mapping) else row[0])


def _triple(row: Any) -> tuple[int, int, int] | None:
    numbers = [x for x in (row.values() if isinstance(row, Mapping) else row) if isinstance(x, int)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def check_groups(run: Liveness, groups: list[list[str]]) -> None:
    """Which values share a buffer, in any order."""
    lives = intervals_of(run)
    columns = np.array(list(lives.values()), np.int64)
    found = assign_buffers(columns[:, 0], columns[:, 1] + 1, columns[:, 2])
    members: dict[int, set[str]] = {}
    for name, b in zip(lives, found.buffer.tolist(), strict=True):
        members.setdefault(b, set()).add(name)
    assert sorted(map(sorted, members.values())) == sorted(map(sorted, groups))


def check_shared_bytes(run: Liveness, size: int) -> None:
    columns = np.array(list(intervals_of(run).values()), np.int64)
    assert assign_buffers(columns[:, 0], columns[:, 1] + 1, columns[:, 2]).bytes == size


def _named(*names: str, by: Callable[[Liveness, Any], None]) -> dict[str, Callable[[Liveness, Any], None]]:
    return dict.fromkeys(names, by)


AREA = Area(
    Liveness,
    {
        "plain_order": check_plain_order,
        "longest_path_first_order": check_longest_path_first,
        "freed": check_freed,
        "not_freed": check_not_freed,
        "equal": check_equal,
        **_named("order_constraints", "constraints", "edges", "dependencies", by=check_constraints),
        **_named("assignment", "assignments", "groups", "shared", "buffers", "sharing", by=check_groups),
        **_named(
            "memory",
            "memory_usage",
            "bytes",
            "planned_bytes",
            "total",
            "total_size",
            "total_bytes",
            by=check_shared_bytes,
        ),
    },
)


@AREA.sentence(r"each freed once")
def each_is_freed_once(run: Liveness, words: re.Match[str]) -> None:
    points = free_points(run.structure)
    assert points
    assert len({v for v, _ in points}) == len(points)


@AREA.sentence(r"never read or written after being freed")
def nothing_is_used_after_it_is_freed(run: Liveness, words: re.Match[str]) -> None:
    graph = run.structure
    for v, n in free_points(graph):
        assert v in graph.nodes[n].reads
        assert not any(v in (*node.reads, *node.writes) for node in graph.nodes[n + 1 :])


@AREA.sentence(r"(?P<results>[\w, ]+?)( are| is)? (unchanged|equal|the same)( with and without( sharing)?)?")
def results_are_unchanged(run: Liveness, words: re.Match[str]) -> None:
    before, after = run.outputs
    assert difference(run.before, run.after) is None
    for text in re.split(r" and |, ", words["results"]):
        gradient = re.fullmatch(r"gradient of (\w+)", text)
        name = text
        if gradient is not None:
            pairs = {run.before.values[p].name: run.before.values[g].name for p, g in run.before.gradients}
            name = pairs[gradient[1]]
        np.testing.assert_array_equal(before[name], after[name])


@AREA.sentence(r"planned bytes (strictly )?(below|less than) the sum of all blobs")
def planned_bytes_are_below_the_sum(run: Liveness, words: re.Match[str]) -> None:
    assert run.sharing.bound_bytes <= run.sharing.bytes < run.sharing.separate_bytes
    assert run.after is not None


@AREA.sentence(r"fewer (distinct )?blob names( than before)?")
def there_are_fewer_names(run: Liveness, words: re.Match[str]) -> None:
    assert len(set(run.sharing.names)) < len({value.name for value in run.before.values})
    assert difference(run.before, run.after) is None


@AREA.sentence(r"after sharing every op still has distinct outputs")
def every_op_has_distinct_outputs(run: Liveness, words: re.Match[str]) -> None:
    graph = run.structure
    sharing = share_buffers(graph, set(run.given.get("must_stay", [])))
    written = [[sharing.names[v] for v in node.writes] for node in graph.nodes]
    assert any(len(row) > 1 for row in written)
    assert all(len(row) == len(set(row)) for row in written)
    assert difference(graph, load(msgspec.json.encode(shared_document(graph, sharing.names)))) is None
    assert difference(run.before, run.after) is None


@AREA.sentence(r"no name is used on both devices except by copy ops")
def names_stay_on_their_device(run: Liveness, words: re.Match[str]) -> None:
    """An op uses what it reads and writes on its own device; a copy reads on the device it copies from."""
    names = run.sharing.names
    used: dict[str, set[Any]] = {}
    copies = 0
    for node in run.before.nodes:
        device = node.annotations["device"]
        is_copy = any(value_devices(run.before)[v] not in (None, device) for v in node.reads)
        copies += is_copy
        for v in node.writes if is_copy else (*node.reads, *node.writes):
            used.setdefault(names[v], set()).add(device)
    assert copies and len(set.union(*used.values())) == 2
    assert all(len(found) == 1 for found in used.values())
