"""Request field `max`: largest lengths of data-dependent dimensions, and largest trip counts of loops."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import remat
from graph.autodiff.differentiate import differentiate
from graph.errors import BadGraph, CannotExecute
from graph.execution.interpreter import execute
from graph.formats.onnx.read import load as read_onnx
from graph.formats.onnx.writer import dump
from graph.formats.readers import import_warnings, load
from graph.ir import Graph, TensorType
from graph.limits import Limits, ShapeOverrides
from tests.graph.formats.onnx.onnx_runs import held, read, run

WHILE = """
<ir_version: 10, opset_import: ["": 21]>
g (float[2, 3] x, int64 n) => (float[2, 3] y, float[rows, 2, 3] all) <float[3] w = {0.5, 1.0, 2.0}> {
    yes = Constant <value = bool {1}> ()
    [steps] y, all = Loop (n, yes, x) <
        body = b (int64 i, bool go, float[2, 3] state) => (bool on, float[2, 3] next, float[2, 3] out) {
            on = Identity (go)
            m = Mul (state, w)
            next = Tanh (m)
            out = Neg (next)
        }
    >
}
"""

SELECT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[5] x) => (float loss, float[picked] some, int64[1] count) <float[5] w = {1.0, 2.0, 3.0, 4.0, 5.0}> {
    zero = Constant <value = float {0.0}> ()
    mask = Greater (x, zero)
    places = NonZero (mask)
    rows = Transpose <perm = [1, 0]> (places)
    scaled = Mul (x, w)
    some = GatherND (scaled, rows)
    loss = ReduceSum <keepdims = 0> (some)
    shape = Shape (places)
    one = Constant <value = int64[1] {1}> ()
    count = Gather (shape, one)
}
"""

BOXES = """
<ir_version: 10, opset_import: ["": 21]>
g (float[1, 4, 4] boxes, float[1, 1, 4] scores) => (int64[kept, 3] places) {
    most = Constant <value = int64 {3}> ()
    overlap = Constant <value = float {0.5}> ()
    places = NonMaxSuppression (boxes, scores, most, overlap)
}
"""


def written(text: str) -> bytes:
    data: bytes = parser.parse_model(text).SerializeToString()
    return data


def type_of(graph: Graph, name: str) -> TensorType | None:
    return next(value.type for value in graph.values if value.name == name)


def refusal(text: str, **given: int) -> str:
    with pytest.raises(BadGraph) as refused:
        read(written(text), max=given)
    return str(refused.value)


def gradient_of_w(step: Graph, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Gradient of the sum of the outputs that were differentiated."""
    ((_, dw),) = step.gradients
    name = step.values[dw].name
    return execute(step, feeds, keep=[name]).values[name]


def selected(x: list[float], most: int) -> tuple[dict[str, np.ndarray], Graph]:
    graph = read(written(SELECT), max={"places": most})
    feeds = {"x": np.float32(x), "w": np.float32([1, 2, 3, 4, 5])}
    return dict(execute(graph, feeds).outputs), graph


@pytest.mark.parametrize("name", ["steps", "y", "all"])
def test_a_loop_without_a_constant_trip_count_is_planned_for_the_largest(name: str) -> None:
    graph = read(written(WHILE), max={name: 4})
    (loop,) = (node for node in graph.nodes if node.op == "Loop")
    assert loop.annotations["max_trips"] == 4
    assert type_of(graph, "all") == TensorType("float32", (4, 2, 3))
    assert "at most 4 iterations" in import_warnings(graph)[0]


@pytest.mark.parametrize("trips", [0, 2, 4])
def test_a_bounded_loop_stacks_the_iterations_that_it_runs(trips: int) -> None:
    data = written(WHILE)
    graph = read(data, max={"steps": 4})
    feeds = {"x": np.float32([[1, 2, 3]] * 2), **held(data), "n": np.array(trips)}
    expected = run(data, feeds)
    for found in (execute(graph, feeds).outputs, run(dump(graph), feeds)):
        assert found["all"].shape == (trips, 2, 3)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_more_iterations_than_the_largest_are_refused_at_run_time() -> None:
    graph = read(written(WHILE), max={"steps": 4})
    with pytest.raises(CannotExecute, match="more than its `max_trips` of 4"):
        execute(graph, {"n": np.array(5)})


def test_a_loop_of_unknown_length_names_the_flag_that_bounds_it() -> None:
    assert "pass --max y=N" in refusal(WHILE)


@pytest.mark.parametrize("trips", [1, 3])
def test_a_bounded_loop_has_the_gradient_of_the_iterations_that_it_runs(trips: int) -> None:
    graph = read(written(WHILE), max={"steps": 4})
    step = differentiate(graph, ["y"])
    x, w, small = np.array([[1, 2, 3], [-1, 0.5, 1]]), np.array([0.5, 1, 2]), 1e-3

    def y(w: np.ndarray) -> float:
        state = x
        for _ in range(trips):
            state = np.tanh(state * w)
        return float(state.sum())

    found = gradient_of_w(step, {"x": np.float32(x), "w": np.float32(w), "n": np.array(trips)})
    differences = [(y(w + small * axis) - y(w - small * axis)) / (2 * small) for axis in np.eye(3)]
    np.testing.assert_allclose(found, differences, rtol=1e-3, atol=1e-4)


def test_positions_of_nonzero_are_planned_for_the_largest_number() -> None:
    graph = read(written(SELECT), max={"places": 4})
    assert type_of(graph, "places") == TensorType("int64", (1, 4))
    assert type_of(graph, "some") == TensorType("float32", (4,))
    assert import_warnings(graph) == [
        "'places' of NonZero is planned with a length of 4, as requested (max); a run that needs more fails"
    ]


def test_fewer_positions_than_the_largest_number_give_the_model_s_result() -> None:
    found, graph = selected([1, -1, 2, -2, -3], 4)
    np.testing.assert_array_equal(found["some"], [1, 6])
    assert found["loss"] == 7
    np.testing.assert_array_equal(found["count"], [2])
    feeds = {"x": np.float32([1, -1, 2, -2, -3]), "w": np.float32([1, 2, 3, 4, 5])}
    for name, array in run(dump(graph), feeds).items():
        np.testing.assert_array_equal(array, found[name])


def test_more_positions_than_the_largest_number_name_the_flag() -> None:
    with pytest.raises(CannotExecute, match="raise --max places=N"):
        selected([1, 1, 1, 1, 1], 4)


def test_values_picked_by_nonzero_have_a_gradient() -> None:
    graph = read(written(SELECT), max={"places": 4})
    feeds = {"x": np.float32([1, -1, 2, -2, -3]), "w": np.float32([1, 2, 3, 4, 5])}
    np.testing.assert_array_equal(gradient_of_w(differentiate(graph, ["loss"]), feeds), [1, 0, 2, 0, 0])


def test_the_mean_of_values_picked_by_nonzero_divides_by_their_number() -> None:
    graph = read(written(SELECT.replace("loss = ReduceSum", "loss = ReduceMean")), max={"places": 4})
    feeds = {"x": np.float32([1, -1, 2, -2, -3]), "w": np.float32([1, 2, 3, 4, 5])}
    np.testing.assert_array_equal(gradient_of_w(differentiate(graph, ["loss"]), feeds), [0.5, 0, 1, 0, 0])


def test_the_shape_of_a_loop_s_rows_is_that_of_the_run() -> None:
    text = WHILE.replace("float[rows, 2, 3] all)", "int64[3] lengths)")
    data = written(text[: text.rindex("}")] + "    lengths = Shape (all)\n}\n")
    feeds = {"x": np.zeros((2, 3), np.float32), "n": np.array(3)}
    graph = read(data, max={"steps": 4})
    np.testing.assert_array_equal(execute(graph, feeds).outputs["lengths"], [3, 2, 3])


IN_BODIES = """
<ir_version: 10, opset_import: ["": 21]>
g (float[5] x, int64[1, 5] first, bool flag) => (int64[2] chosen, int64[2] carried) {
    places = NonZero (x)
    either = If (flag) <
        then_branch = t () => (int64[1, 5] a) { a = Identity (places) },
        else_branch = e () => (int64[1, 5] b) { b = Identity (first) }
    >
    chosen = Shape (either)
    two = Constant <value = int64 {2}> ()
    yes = Constant <value = bool {1}> ()
    seen = Constant <value = int64[2] {0, 0}> ()
    last, carried = Loop (two, yes, places, seen) <
        body = l (int64 i, bool go, int64[1, 5] state, int64[2] before) =>
            (bool on, int64[1, 5] next, int64[2] shape) {
            on = Identity (go)
            next = Identity (state)
            shape = Shape (state)
        }
    >
}
"""


def test_shapes_inside_and_behind_bodies_are_those_of_the_run() -> None:
    graph = read(written(IN_BODIES), max={"places": 5})
    feeds = {"x": np.float32([1, 0, 2, 0, 0]), "first": np.zeros((1, 5), np.int64), "flag": np.array(True)}
    found = execute(graph, feeds).outputs
    np.testing.assert_array_equal(found["chosen"], [1, 2])
    np.testing.assert_array_equal(found["carried"], [1, 2])


STOPS_EARLY = """
<ir_version: 10, opset_import: ["": 21]>
g (float[3] x, float high) => (int64[2] lengths) {
    most = Constant <value = int64 {6}> ()
    yes = Constant <value = bool {1}> ()
    y, all = Loop (most, yes, x) <
        body = b (int64 i, bool go, float[3] state) => (bool on, float[3] next, float[3] out) {
            next = Add (state, state)
            total = ReduceSum <keepdims = 0> (next)
            on = Less (total, high)
            out = Identity (next)
        }
    >
    lengths = Shape (all)
}
"""


def test_the_shape_of_the_rows_of_a_loop_that_stops_early_is_no_constant() -> None:
    data, feeds = written(STOPS_EARLY), {"x": np.ones(3, np.float32), "high": np.array(20, np.float32)}
    np.testing.assert_array_equal(execute(read(data), feeds).outputs["lengths"], run(data, feeds)["lengths"])


def test_kept_boxes_are_planned_for_the_largest_number() -> None:
    graph = read(written(BOXES), max={"places": 3})
    assert type_of(graph, "places") == TensorType("int64", (3, 3))
    assert "pass --max places=N" in refusal(BOXES)


def test_an_entry_that_applies_to_nothing_is_refused() -> None:
    assert "max.nope: found 'nope', which is no output" in refusal(SELECT, places=4, nope=3)
    document = b'{"format": "remat/1", "name": "g", "values": {"x": {"shape": [2], "dtype": "float32"}}, "nodes": []}'
    with pytest.raises(BadGraph, match="max_trips"):
        load(document, Limits(), ShapeOverrides(max={"x": 2}))


def test_a_plan_states_the_lengths_that_it_assumes_and_runs_with_fewer() -> None:
    report = remat.plan(written(SELECT), max={"places": 5}, loss="loss", budget="100%", iterations=1, execute="yes")
    assert any("'places' of NonZero is planned with a length of 5" in text for text in report.warnings)
    assert report.executed_equal


def test_a_read_of_the_written_graph_keeps_the_lengths() -> None:
    graph = read(written(SELECT), max={"places": 4})
    again = read_onnx(dump(graph), Limits(), ShapeOverrides())
    assert type_of(again, "places") == TensorType("int64", (1, 4))
    assert import_warnings(again) == import_warnings(graph)
