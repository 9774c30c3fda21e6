"""Running graphs: what they compute, what they hold, and what an arena refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.analysis.aliasing import inplace_candidates, storage_roots, views_of
from graph.analysis.cost import workspace_of
from graph.builder.builder import Builder
from graph.errors import ArenaFault, CannotExecute
from graph.execution.interpreter import Arena, Execution, execute
from graph.execution.sample_inputs import sample_arrays
from graph.ir import ABSENT, Body, Cost, Graph, Role, TensorType
from graph.ops.registry import find_op
from tests.graph.evaluate import evaluate
from tests.strategies import random_graph

F32 = TensorType("float32", (3, 4))
seeds = st.integers(0, 10**6)


class Slow:
    """Live storages of every step by definition: made before, and used now or later."""

    def __init__(self, graph: Graph, takes_over: bool):
        self.graph, self.takes_over = graph, takes_over
        roots = storage_roots(graph)
        for node in graph.nodes:  # in place on a state: the same storage
            for output, source in node.in_place:
                old = roots[node.inputs[source]]
                roots = [old if root == node.outputs[output] else root for root in roots]
        self.root = roots
        self.made = {roots[v]: n for n, node in reversed(list(enumerate(graph.nodes))) for v in node.writes}
        self.resident = {v for v, value in enumerate(graph.values) if value.role is not Role.ACTIVATION}
        self.made.update(dict.fromkeys(self.resident, -1))
        self.held = self.resident | {roots[v] for v in graph.outputs}

    def uses(self, n: int) -> set[int]:
        node = self.graph.nodes[n]
        record = find_op(node.op)
        skipped = record.shape_only if record is not None else ()
        shown = {i for _, i in views_of(self.graph, node)}
        read = [v for i, v in enumerate(node.inputs) if v != ABSENT and i not in skipped and (not shown or i in shown)]
        return {self.root[v] for v in (*read, *node.writes)}

    def ends(self, storage: int, n: int) -> bool:
        return storage not in self.held and not any(
            storage in self.uses(m) for m in range(n + 1, len(self.graph.nodes))
        )

    def live(self, n: int) -> set[int]:
        return {s for s, born in self.made.items() if born <= n and (s in self.uses(n) or not self.ends(s, n))}

    def taken(self, n: int) -> dict[int, int]:
        """Output -> the input whose storage it takes."""
        node, found = self.graph.nodes[n], {}
        if self.takes_over:
            for output, source in inplace_candidates(self.graph, node):
                v, old = node.outputs[output], self.root[node.inputs[source]]
                if v not in found and old not in found.values() and old in self.uses(n) and self.ends(old, n):
                    found[v] = old
        return found

    def step_bytes(self, n: int) -> int:
        size = self.graph.values
        total = sum(size[s].nbytes for s in self.live(n)) + workspace_of(self.graph, self.graph.nodes[n])
        return total - sum(size[v].nbytes for v in self.taken(n))


def packed_tightly(graph: Graph, takes_over: bool) -> Arena:
    """An arena whose storages lie at the first free place, or over what they take."""
    slow, at = Slow(graph, takes_over), {}

    def place(storage: int, size: int, beside: set[int], n: int) -> int:
        begin = 0
        blocks = sorted((at[s], at[s] + graph.values[s].nbytes) for s in beside if s in at)
        for low, high in blocks:
            if begin + size <= low:
                break
            begin = max(begin, high)
        return begin

    workspaces = {}
    for v in sorted(slow.resident):
        at[v] = place(v, graph.values[v].nbytes, slow.resident, -1)
    for n, node in enumerate(graph.nodes):
        live, taken = slow.live(n), slow.taken(n)
        for v in node.writes:
            if slow.root[v] == v:
                at[v] = at[taken[v]] if v in taken else place(v, graph.values[v].nbytes, live - {v}, n)
        size = workspace_of(graph, node)
        if size:
            workspaces[n] = place(-1, size, live, n)
    top = sum(value.nbytes for value in graph.values) + 10_000
    return Arena(top, [at.get(slow.root[v], -1) for v in range(len(graph.values))], workspaces)


@given(seeds)
def test_a_run_computes_what_plain_evaluation_does(seed: int):
    graph = random_graph(random.Random(seed))
    fed = {graph.values[v].name: array for v, array in sample_arrays(graph, 0).items()}
    ran = execute(graph, fed, keep=[value.name for value in graph.values])
    streams = {node.name for node in graph.nodes if node.op == "Dropout"}
    if not streams:  # plain evaluation draws without a name
        for name, array in evaluate(graph, fed).items():
            assert array.tobytes() == ran.values[name].tobytes()


@given(seeds, st.booleans())
def test_a_run_counts_the_bytes_that_are_live_by_definition(seed: int, takes_over: bool):
    graph = random_graph(random.Random(seed))
    slow = Slow(graph, takes_over)
    ran = execute(graph, takes_over=takes_over)
    assert ran.step_bytes.tolist() == [slow.step_bytes(n) for n in range(len(graph.nodes))]
    assert ran.peak_bytes == max(ran.step_bytes.tolist())


@given(seeds, st.booleans())
def test_a_run_inside_an_arena_computes_and_counts_the_same(seed: int, takes_over: bool):
    graph = random_graph(random.Random(seed))
    seen: dict[tuple[int, int], bytes] = {}
    plain = execute(graph, takes_over=takes_over, watch=lambda n, i, array: seen.__setitem__((n, i), array.tobytes()))
    again: dict[tuple[int, int], bytes] = {}
    arena = packed_tightly(graph, takes_over)
    inside = execute(graph, arena=arena, watch=lambda n, i, array: again.__setitem__((n, i), array.tobytes()))
    assert seen == again
    assert inside.step_bytes.tolist() == plain.step_bytes.tolist()
    assert {k: v.tobytes() for k, v in inside.outputs.items()} == {k: v.tobytes() for k, v in plain.outputs.items()}


@given(seeds, st.randoms(use_true_random=False))
def test_one_address_moved_is_refused_or_changes_nothing(seed: int, rng: random.Random):
    graph = random_graph(random.Random(seed))
    arena = packed_tightly(graph, True)
    roots = Slow(graph, True).root
    moved = rng.choice([root for root in set(roots) if graph.values[root].nbytes])
    to = rng.randrange(0, sum(value.nbytes for value in graph.values), 4)
    offsets = [to if roots[v] == moved else offset for v, offset in enumerate(arena.value_offsets)]
    expected = execute(graph).outputs
    try:
        found = execute(graph, arena=Arena(arena.size_bytes, offsets, arena.workspace_offsets)).outputs
    except ArenaFault:
        return
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in expected.items()}


def _only(ran: Execution) -> np.ndarray:
    (array,) = ran.outputs.values()
    return array


def relu_chain(length: int) -> Graph:
    builder = Builder("chain")
    ids = [builder.value("x", F32, Role.INPUT)]
    for i in range(length):
        ids += builder.node("Relu", [ids[-1]], name=f"n{i}")
    return builder.build([ids[-1]])


def test_an_output_over_a_live_input_is_refused_with_both_names():
    #   x ── n0 ── n1 ── n2        n1 is written over x, which stays
    graph = relu_chain(3)
    with pytest.raises(ArenaFault, match=r"n1 .* live bytes of x"):
        execute(graph, arena=Arena(1000, [0, 48, 0, 96]))


def test_a_takeover_lies_exactly_over_its_input():
    graph = relu_chain(3)
    assert execute(graph, arena=Arena(1000, [0, 48, 48, 48])).step_bytes.tolist() == [96, 96, 96]
    with pytest.raises(ArenaFault, match="n1"):
        execute(graph, arena=Arena(1000, [0, 48, 52, 100]))


def test_an_address_outside_the_arena_is_refused():
    graph = relu_chain(1)
    with pytest.raises(ArenaFault, match="outside an arena of 95 bytes"):
        execute(graph, arena=Arena(95, [0, 48]))


def test_a_workspace_lies_apart_from_inputs_and_outputs():
    builder = Builder("workspace")
    x = builder.value("x", F32, Role.INPUT)
    (y,) = builder.node("Relu", [x], name="y", cost=Cost(workspace_bytes=10))
    graph = builder.build([y])
    assert execute(graph).step_bytes.tolist() == [106]
    assert execute(graph, arena=Arena(200, [0, 48], {0: 96})).step_bytes.tolist() == [106]
    for at in (40, 90, -1):
        with pytest.raises(ArenaFault, match="workspace of node y"):
            execute(graph, arena=Arena(200, [0, 48], {0: at}))


def test_a_view_in_another_element_order_is_read_through_its_storage():
    #   x ── transpose (declared a view) ── relu
    builder = Builder("strided")
    x = builder.value("x", F32, Role.INPUT)
    (t,) = builder.node("Transpose", [x], name="t", views=((0, 0),))
    (y,) = builder.node("Relu", [t], name="y")
    graph = builder.build([y])
    plain, inside = execute(graph), execute(graph, arena=Arena(96, [0, 0, 48]))
    assert plain.step_bytes.tolist() == inside.step_bytes.tolist() == [48, 96]
    np.testing.assert_array_equal(plain.outputs["y"], inside.outputs["y"])


def test_an_output_in_place_replaces_the_content_of_a_resident_storage():
    builder = Builder("update")
    w, g = builder.value("w", F32, Role.PARAMETER), builder.value("g", F32, Role.INPUT)
    (new,) = builder.node("remat::SGD", [w, g], name="new", attributes={"lr": 0.5}, in_place=((0, 0),))
    graph = builder.build([new])
    fed = {"w": np.ones(F32.shape, np.float32), "g": np.ones(F32.shape, np.float32)}
    for arena in (None, Arena(96, [0, 48, 0])):
        ran = execute(graph, fed, arena=arena)
        assert ran.step_bytes.tolist() == [96]
        np.testing.assert_array_equal(ran.outputs["new"], np.full(F32.shape, 0.5, np.float32))


@pytest.mark.parametrize(
    "dtype", ["int4", "uint4", "int2", "uint2", "float4e2m1", "bfloat16", "float8e5m2", "bool", "float8e8m0"]
)
def test_every_dtype_survives_an_arena(dtype: str):
    builder = Builder("narrow", {"": 26})
    type = TensorType(dtype, (3, 5))
    x = builder.value("x", type, Role.INPUT)
    (y,) = builder.node("Transpose", [x], name="y")
    graph = builder.build([y])
    size = type.nbytes
    plain, inside = execute(graph), execute(graph, arena=Arena(2 * size + 3, [3, 3 + size]))
    assert plain.outputs["y"].tobytes() == inside.outputs["y"].tobytes()
    assert len(set(plain.outputs["y"].reshape(-1).tolist())) > 1, "one number everywhere proves nothing"


def test_a_draw_follows_the_stream_not_the_run():
    builder = Builder("draws")
    x, ratio, on = (
        builder.value("x", F32, Role.INPUT),
        builder.constant(np.float32(0.5)),
        builder.constant(np.array(True)),
    )
    masks = [
        builder.node("Dropout", [x, ratio, on], name=name, outputs=2, stream=stream)[1]
        for name, stream in (("a", "same"), ("b", "same"), ("c", "other"), ("d", None))
    ]
    found = execute(builder.build(masks), seed=3).outputs
    a, b, c, d = (found[f"{name}:1"] for name in "abcd")
    assert (a == b).all() and (a != c).any() and (a != d).any()
    assert (execute(builder.build(masks), seed=4).outputs["a:1"] != a).any()


def test_drawn_numbers_stay_where_their_readers_want_them():
    builder = Builder("fed")
    rows, labels = (
        builder.value("rows", TensorType("int64", (40,)), Role.INPUT),
        builder.value("labels", TensorType("int32", (40,)), Role.INPUT),
    )
    table, scale = (
        builder.value("table", TensorType("float32", (3, 7)), Role.PARAMETER),
        builder.value("s", TensorType("float32", (7,)), Role.PARAMETER),
    )
    (wide,) = builder.node("Cast", [rows], attributes={"to": 7})
    (found,) = builder.node("Gather", [table, wide])
    (scores,) = builder.node("Mul", [found, scale])
    (loss,) = builder.node("SoftmaxCrossEntropyLoss", [scores, labels])
    graph = builder.build([loss])
    arrays = {graph.values[v].name: a for v, a in sample_arrays(graph, 1).items()}
    assert set(arrays["rows"].tolist()) == {0, 1, 2} and set(arrays["labels"].tolist()) == set(range(7))
    assert np.isfinite(execute(graph, seed=1).outputs[graph.values[loss].name])
    other = {graph.values[v].name: a for v, a in sample_arrays(graph, 2).items()}
    assert (other["table"] != arrays["table"]).all()


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_a_loop_runs_its_body_once_a_trip(trips: int):
    scalar, boolean = TensorType("int64", ()), TensorType("bool", ())
    inner = Builder("body")
    i, going = inner.value("i", scalar, Role.INPUT), inner.value("going", boolean, Role.INPUT)
    state, w = inner.value("state", F32, Role.INPUT), inner.value("w", F32, Role.PARAMETER)
    (again,) = inner.node("Identity", [going])
    (sum_,) = inner.node("Add", [state, w])
    body = Body(inner.build([again, sum_, sum_]), ((w, 1),))
    assert body.graph.inputs == (i, going, state)
    outer = Builder("loop")
    x, w_outer = outer.value("x", F32, Role.INPUT), outer.value("w", F32, Role.PARAMETER)
    assert w_outer == 1
    types = [F32, TensorType("float32", (trips, 3, 4))]
    final, history = outer.node(
        "Loop", [outer.constant(np.int64(trips)), ABSENT, x], outputs=2, types=types, bodies={"body": body}
    )
    graph = outer.build([final, history])
    ones = {"x": np.zeros(F32.shape, np.float32), "w": np.ones(F32.shape, np.float32)}
    ran = list(execute(graph, ones).outputs.values())
    assert (ran[0] == trips).all() and ran[1].shape == (trips, 3, 4)
    assert [int(row.max()) for row in ran[1]] == list(range(1, trips + 1))


def test_an_if_runs_the_branch_its_condition_names():
    def branch(op: str) -> Body:
        inner = Builder(op)
        x = inner.value("x", F32, Role.PARAMETER)
        return Body(inner.build(inner.node(op, [x])), ((x, 0),))

    outer = Builder("if")
    x, condition = outer.value("x", F32, Role.INPUT), outer.value("condition", TensorType("bool", ()), Role.INPUT)
    (y,) = outer.node(
        "If", [condition], types=[F32], bodies={"then_branch": branch("Neg"), "else_branch": branch("Abs")}
    )
    graph = outer.build([y])
    fed = {"x": np.full(F32.shape, -2, np.float32)}
    for flag, expected in ((True, 2), (False, 2)):
        assert (_only(execute(graph, {**fed, "condition": np.array(flag)})) == expected).all()
    assert (_only(execute(graph, {"x": -fed["x"], "condition": np.array(True)})) == -2).all()
    assert x == 0


def test_a_scan_carries_its_state_backwards_on_request():
    row = TensorType("float32", (4,))
    inner = Builder("body")
    state, element = inner.value("state", row, Role.INPUT), inner.value("element", row, Role.INPUT)
    (sum_,) = inner.node("Add", [state, element])
    body = Body(inner.build([sum_, sum_]))
    outer = Builder("scan")
    start, xs = outer.value("start", row, Role.INPUT), outer.value("xs", F32, Role.INPUT)
    final, sums = outer.node(
        "Scan",
        [start, xs],
        outputs=2,
        types=[row, F32],
        bodies={"body": body},
        attributes={"num_scan_inputs": 1, "scan_input_directions": [1]},
    )
    given_ = {"start": np.zeros(4, np.float32), "xs": np.arange(12, dtype=np.float32).reshape(3, 4)}
    ran = execute(outer.build([final, sums]), given_).outputs.values()
    last, history = ran
    np.testing.assert_array_equal(history, np.cumsum(given_["xs"][::-1], axis=0))
    np.testing.assert_array_equal(last, given_["xs"].sum(axis=0))


def test_what_cannot_run_says_which_node_and_why():
    def one(op: str, type: TensorType | None, **rest: object) -> Graph:
        builder = Builder("bad")
        x = builder.value("x", F32, Role.INPUT)
        return builder.build(builder.node(op, [x], name="n", types=[type], **rest))  # type: ignore[arg-type]

    with pytest.raises(CannotExecute, match=r"node n: op acme::Fold has no kernel"):
        execute(one("acme::Fold", F32))
    with pytest.raises(CannotExecute, match="unknown name 'y'"):
        execute(one("Relu", F32), {"y": np.zeros(3)})
    with pytest.raises(CannotExecute, match=r"x is given as float64\[3\]; the graph declares float32\[3,4\]"):
        execute(one("Relu", F32), {"x": np.zeros(3)})
    with pytest.raises(CannotExecute, match="'z' is to be kept"):
        execute(one("Relu", F32), keep=["z"])
    builder = Builder("index")
    x, at = builder.value("x", F32, Role.INPUT), builder.value("at", TensorType("int64", (1,)), Role.INPUT)
    graph = builder.build(builder.node("Gather", [x, at], name="row"))
    with pytest.raises(
        CannotExecute, match=r"node row \(Gather\): IndexError: index 3 is out of range for a length of 3"
    ):
        execute(graph, {"at": np.array([3])})


def test_an_empty_graph_holds_nothing():
    ran = execute(Builder("empty").build())
    assert ran.step_bytes.tolist() == [] and ran.outputs == {} and ran.peak_bytes == 0
