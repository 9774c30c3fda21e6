"""What the check says of graphs made by hand, beyond what documents can be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from graph.errors import BadGraph, Finding
from graph.ir import Body, Cost, Graph, Node, Role, TensorType, Value
from graph.transforms.replay import replay
from graph.validate.check import check
from tests.documents import executable_graphs

T = TensorType("float32", (2, 3))


def graph(nodes: Sequence[Node], values: str, outputs: tuple[int, ...] = ()) -> Graph:
    """A graph of float32[2,3]; a value in upper case is an input."""
    made = tuple(Value(name, T, Role.INPUT if name.isupper() else Role.ACTIVATION) for name in values)
    inputs = tuple(v for v, value in enumerate(made) if value.role is Role.INPUT)
    return Graph("drawn", made, tuple(nodes), outputs, inputs)


def node(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **rest: object) -> Node:
    return Node(name, "my::Op", inputs, outputs, **rest)  # type: ignore[arg-type]


def findings(broken: Graph) -> tuple[Finding, ...]:
    with pytest.raises(BadGraph) as caught:
        check(broken)
    return caught.value.findings


@settings(max_examples=40)
@given(executable_graphs(), st.randoms(use_true_random=False))
def test_whatever_the_builder_makes_and_replay_repeats_is_legal(built: Graph, rng: object) -> None:
    check(built)
    overwrites = {n for n, each in enumerate(built.nodes) if each.in_place}
    order = [n for n in range(len(built.nodes)) for _ in range(1 if overwrites else 2)]
    check(replay(built, order))


def test_a_cycle_is_reported_with_its_nodes_in_execution_order() -> None:
    #   a ─▶ b ─▶ c ─▶ a
    broken = graph([node("a", (3,), (1,)), node("b", (1,), (2,)), node("c", (2,), (3,))], "Xabc")
    (found,) = findings(broken)
    assert found.code == "cycle" and "'a' -> 'b' -> 'c' -> 'a'" in found.found


def test_a_cycle_and_a_misplaced_node_are_distinguished() -> None:
    circle = [node("a", (2,), (1,)), node("b", (1,), (2,))]
    broken = graph([*circle, node("late", (4,), (3,)), node("d", (0,), (4,))], "Xabcd")
    assert [found.code for found in findings(broken)] == ["cycle", "use_before_definition"]


def test_an_error_quotes_the_lines_around_its_node() -> None:
    nodes = [node("first", (0,), (1,)), node("second", (1, 1), (1,)), node("third", (1,), (2,))]
    with pytest.raises(BadGraph) as caught:
        check(graph(nodes, "Xab"))
    assert "--> 1  second: " in str(caught.value) and "    0  first: " in str(caught.value)


def test_a_view_of_overwritten_bytes_may_not_be_read() -> None:
    #   X ─▶ view ─▶ late        X is overwritten in between, so the view shows other bytes
    view, over = node("view", (0,), (1,), views=((0, 0),)), node("over", (0,), (2,), in_place=((0, 0),))
    late = node("late", (1,), (3,))
    assert findings(graph([view, over, late], "Xabc"))[0].code == "read_after_overwrite"
    check(graph([view, late, replace(over, outputs=(2,))], "Xabc"))


def test_a_reshape_is_a_view_without_being_declared() -> None:
    shape = Value("shape", TensorType("int64", (2,)), Role.CONSTANT)
    reshape = Node("reshape", "Reshape", (0, 4), (1,))
    over, late = node("over", (0,), (2,), in_place=((0, 0),)), node("late", (1,), (3,))
    drawn = graph([reshape, over, late], "Xabc")
    assert findings(replace(drawn, values=(*drawn.values, shape)))[0].code == "read_after_overwrite"


def test_the_new_content_may_be_read_and_overwritten() -> None:
    first, second = (node(n, (i,), (i + 1,), in_place=((0, 0),)) for n, i in (("one", 0), ("two", 1)))
    check(graph([first, second], "Xab", (2,)))


def test_captures_are_reads_and_must_come_later_than_what_they_capture() -> None:
    inside = Graph("body", (Value("in", T, Role.INPUT),), ())
    holder = node("holder", (), (), bodies={"body": Body(inside, ((0, 1),))})
    writer = node("writer", (0,), (1,))
    check(graph([writer, holder], "Xa"))
    assert findings(graph([holder, writer], "Xa"))[0].code == "use_before_definition"


def test_a_fault_in_a_body_is_reported_with_its_path() -> None:
    inside = graph([node("n", (1,), (2,))], "Xab")
    broken = graph([node("holder", (), (), bodies={"then_branch": Body(inside)})], "X")
    assert findings(broken)[0].path == "nodes[0].bodies.then_branch.nodes[0].inputs[0]"


def test_captures_agree_in_type() -> None:
    inside = Graph("body", (Value("in", TensorType("int8", (1,)), Role.INPUT),), ())
    broken = graph([node("holder", (), (), bodies={"body": Body(inside, ((0, 0),))})], "X")
    assert findings(broken)[0].code == "type_conflict"


@pytest.mark.parametrize("field", ["inputs", "outputs", "after", "gradient"])
def test_unassigned_ids_are_refused_before_other_rules(field: str) -> None:
    good = node("a", (0,), (1,))
    broken = {
        "inputs": graph([replace(good, inputs=(7,))], "Xa"),
        "outputs": graph([good], "Xa", (7,)),
        "after": graph([replace(good, after=(7,))], "Xa"),
        "gradient": replace(graph([good], "Xa"), gradients=((0, -3),)),
    }[field]
    assert {found.code for found in findings(broken)} == {"unknown_id"}


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_costs_are_finite_and_not_negative(seconds: float) -> None:
    broken = graph([node("a", (0,), (1,), cost=Cost(seconds=seconds))], "Xa")
    assert findings(broken)[0].code == "bad_cost"


def test_a_workspace_and_all_values_are_countable_together() -> None:
    def working(workspace: int) -> Graph:
        return graph([node("a", (0,), (1,), cost=Cost(workspace_bytes=workspace))], "Xa")

    most = 2**63 - 1 - 2 * T.nbytes
    check(working(most))
    assert [found.path for found in findings(working(most + 1))] == ["nodes[0].cost.workspace_bytes"]


def test_the_largest_size_is_legal_and_one_byte_more_is_not() -> None:
    largest, one_more = Value("x", None, Role.INPUT, 2**63 - 1), Value("y", None, Role.INPUT, 1)
    check(Graph("large", (largest,), (), (), (0,)))
    assert findings(Graph("large", (largest, one_more), (), (), (0, 1)))[0].code == "size_too_large"


def test_positions_and_ids_out_of_range_are_reported() -> None:
    good = node("a", (0,), (1,))
    for broken, code in (
        (replace(good, views=((5, 0),)), "bad_alias"),
        (replace(good, in_place=((0, -1),)), "bad_alias"),
        (replace(good, gradient_reads=(9,)), "unknown_id"),
        (replace(good, gradient_reads=(2,)), "foreign_gradient_read"),
    ):
        assert findings(graph([broken], "XaY"))[0].code == code


def test_quick_records_are_made_as_dataclasses_make_them() -> None:
    plain = Node("n", "Op", (1,), (2,))
    assert plain == Node(outputs=(2,), inputs=(1,), op="Op", name="n") and plain.effect is None
    assert replace(plain, name="m").name == "m" and hash(Value("v").type) == hash(None)
    with pytest.raises(TypeError):
        Node("n")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        plain.name = "m"  # type: ignore[misc]
