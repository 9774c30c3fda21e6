"""Training steps in ONNX Runtime: options, in-place updates, gradients, and refusals of what does not run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import remat
import remat.ort
from graph.builder.builder import Builder
from graph.execution.interpreter import execute
from graph.formats.onnx.writer import dump
from graph.ir import Graph, Role, TensorType
from graph.training.step import training_step
from planner.formulation.training_graph import training_graph
from planner.request.plan_request import parse_request
from tests.graph.formats.onnx.onnx_runs import read
from tests.graph.formats.onnx.test_writer_training import with_repeats

MODELS = Path(__file__).parents[2] / "models"
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "train-in-onnxruntime.md"
DECODER = MODELS / "decoder.onnx"
TOKENS = np.random.default_rng(0).integers(0, 32, (4, 9))
DATA = {"ids": TOKENS[:, :-1], "labels": TOKENS[:, 1:]}
SGD = {"optimizer": "sgd", "learning_rate": 0.1}
ADAM = {"optimizer": "adam", "learning_rate": 0.01}


def planned(recipe: dict[str, Any] | None = None, every: int = 2) -> Graph:
    """A training step in which forward nodes are recomputed before every k-th node of the backward pass."""
    forward = read(DECODER.read_bytes(), dims={"batch": 4, "sequence": 8})
    return with_repeats(training_step(forward, "loss", recipe)[0], every)


def losses(session: remat.ort.Session, steps: int = 4) -> list[float]:
    return [float(session.run(DATA)["loss"]) for _ in range(steps)]


def test_an_update_in_the_step_trains_as_gradients_and_the_same_update_outside() -> None:
    inside = remat.ort.session(planned(SGD), DECODER)
    outside = remat.ort.session(planned(), DECODER)
    found = []
    for _ in range(4):
        results = outside.run(DATA)
        found.append(float(results["loss"]))
        for parameter, gradient in outside.gradients.items():
            outside.contents[parameter] -= np.float32(0.1) * results[gradient]
    assert found[-1] < 0.8 * found[0]
    np.testing.assert_allclose(losses(inside), found, rtol=1e-6)
    for name in inside.updates:
        np.testing.assert_allclose(inside.contents[name], outside.contents[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("recipe", [SGD, ADAM, {**SGD, "momentum": 0.9}], ids=["sgd", "adam", "momentum"])
def test_planned_and_unplanned_steps_update_alike_bit_for_bit(recipe: dict[str, Any]) -> None:
    sessions = [remat.ort.session(planned(recipe, every), DECODER) for every in (10**6, 2)]
    first, second = (losses(session) for session in sessions)
    assert first == second and first[-1] < first[0]
    for name, array in sessions[0].contents.items():
        np.testing.assert_array_equal(array, sessions[1].contents[name], err_msg=name)


def test_contents_that_are_assigned_are_those_of_the_next_run() -> None:
    trained, other = remat.ort.session(planned(SGD), DECODER), remat.ort.session(planned(SGD), DECODER)
    losses(trained)
    other.contents.update(trained.contents)
    assert losses(trained) == losses(other)
    with pytest.raises(KeyError, match="unknown"):
        other.contents["unknown"] = np.zeros(1)


def test_updates_are_written_over_parameters_and_states() -> None:
    session = remat.ort.session(planned(ADAM), DECODER)
    before = {name: (array, array.copy()) for name, array in session.contents.items()}
    session.run(DATA)
    assert {name for name, (array, copy) in before.items() if not np.array_equal(array, copy)} <= set(session.updates)
    assert all(session.contents[name] is array for name, (array, _) in before.items())
    assert float(session.contents["step"]) == 1


def test_options_that_undo_the_plan_are_named_and_the_numbers_stay_right() -> None:
    step = planned(ADAM)
    with pytest.warns(remat.ort.PlanNotKept) as caught:
        default = remat.ort.session(step, DECODER, options=onnxruntime.SessionOptions())
    text = str(caught[0].message)
    assert "graph_optimization_level=ORT_ENABLE_ALL" in text and "execution_order=DEFAULT" in text
    assert "execution_mode" not in text
    np.testing.assert_allclose(losses(default), losses(remat.ort.session(step, DECODER)), rtol=1e-4)
    mine = remat.ort.session_options()
    mine.intra_op_num_threads = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remat.ort.session(step, DECODER, options=mine)


def test_a_file_written_for_later_holds_the_names_of_updates_and_gradients(tmp_path: Path) -> None:
    step = planned(ADAM)
    (tmp_path / "step.onnx").write_bytes(dump(step))
    session = remat.ort.session(tmp_path / "step.onnx", DECODER)
    assert losses(session) == losses(remat.ort.session(step, DECODER))
    (tmp_path / "drawn.onnx").write_bytes(dump(step, weights="random"))
    assert len(set(losses(remat.ort.session(tmp_path / "drawn.onnx")))) == 4


def test_inputs_that_do_not_fit_are_refused_by_name() -> None:
    session = remat.ort.session(planned(), DECODER)
    with pytest.raises(ValueError, match="missing: labels; unknown: label"):
        session.run({"ids": DATA["ids"], "label": DATA["labels"]})
    with pytest.raises(ValueError, match=r"ids has shape \[2, 8\], the plan is for \[4, 8\]"):
        session.run({**DATA, "ids": DATA["ids"][:2]})


def test_files_and_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(remat.ort.NotTrainable, match="not written by remat"):
        remat.ort.session(DECODER)
    with pytest.raises(remat.ort.NotTrainable, match="not an ONNX file"):
        remat.ort.session(b"no model")
    step = planned()
    with pytest.raises(remat.ort.NotTrainable, match=r"content of \d+ parameters and constants is not known"):
        remat.ort.session(step)
    held = remat.ort.session(step, DECODER).contents
    with pytest.raises(remat.ort.NotTrainable, match=r"words.weight has shape \[3\]"):
        remat.ort.session(step, {**held, "words.weight": np.zeros(3)})


def step_of(op: str, dtype: str) -> bytes:
    builder = Builder("step")
    x = builder.value("x", TensorType(dtype, (4,)), Role.INPUT)
    outputs = builder.node(op, [x], name="node", outputs=["y"], types=[TensorType(dtype, (4,))])
    return dump(builder.build(outputs))


NARROW = """
<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
step (float[4] x, bool c) => (float[4] y) {
    NODES
}
"""
BODY = "n = Cast <to = 16> (x) r = Relu (n) y = Cast <to = 1> (r)"
OTHER = "other () => (float[4] o) { o = Identity (x) }"
IN_BRANCH = f"y = If (c) <then_branch = b () => (float[4] z) {{{BODY.replace(' y =', ' z =')}}}, else_branch = {OTHER}>"
IN_SCAN = f"""one = Unsqueeze (x, axis)
    s = Scan <num_scan_inputs = 1, body = b (float[4] e) => (float[4] z) {{{
    BODY.replace("(x)", "(e)").replace(" y =", " z =")
}}}> (one)
    y = Squeeze (s, axis)"""


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (BODY, r"node '\S+': ONNX Runtime \S+ has no Relu of bfloat16 on CPU.*, but of .*float.*; export the model in"),
        (IN_BRANCH, r"node '\S+' in then_branch of If '\S+': .* has no Relu of bfloat16 on CPU"),
        (IN_SCAN, r"node '\S+' in body of Scan '\S+': .* has no Relu of bfloat16 on CPU"),
        ("n = Cast <to = 22> (x) i = Identity (n) y = Cast <to = 1> (i)", "has no Identity of int4 on CPU.*; export"),
    ],
    ids=["graph", "branch", "scan", "int4"],
)
def test_an_op_that_this_build_lacks_for_a_type_is_named_with_its_place(nodes: str, message: str) -> None:
    text = NARROW.replace("NODES", nodes)
    if "axis" in nodes:
        text = text.replace("(float[4] y) {", "(float[4] y) <int64[1] axis = {0}> {")
    data = dump(read(onnx.parser.parse_model(text).SerializeToString()))
    with pytest.raises(remat.ort.NotRunnable, match=message):
        remat.ort.session(data, {"axis": np.zeros(1, np.int64)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8e4m3fn", "int4"])
def test_inputs_that_numpy_and_onnxruntime_do_not_exchange_are_named(dtype: str) -> None:
    with pytest.raises(remat.ort.NotRunnable, match=f"input 'x' is {dtype}, which ONNX Runtime does not exchange"):
        remat.ort.session(step_of("Identity", dtype))


def test_an_op_or_an_opset_that_this_build_lacks_is_named() -> None:
    with pytest.raises(remat.ort.NotRunnable, match=r"node 'node': .* has no my::Strange on CPU.*register_custom_ops"):
        remat.ort.session(step_of("my::Strange", "float32"))
    newer = onnx.load_from_string(step_of("Relu", "float32"))
    newer.opset_import[0].version = 99
    with pytest.raises(remat.ort.NotRunnable, match=r"opset 99, which ONNX Runtime .* does not know; export"):
        remat.ort.session(newer.SerializeToString())


def test_the_code_of_the_guide_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decoder.onnx").write_bytes(DECODER.read_bytes())
    ran: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        exec(code, ran)
        assert float(ran["results"]["loss"]) < 4.2  # 4.7 at first
    assert np.load(tmp_path / "trained.npz")["words.weight"].shape == ran["session"].contents["words.weight"].shape


def test_every_output_has_its_name_in_the_metadata() -> None:
    proto = onnx.load_from_string(dump(planned(ADAM)))
    session = remat.ort.session(proto.SerializeToString(), DECODER)
    outputs = {item.name for item in proto.graph.output}
    assert outputs == {*session.outputs, *session.updates.values(), *session.gradients.values()}


def test_a_step_of_a_recurrent_net_planned_for_onnxruntime_runs_there() -> None:
    builder = Builder("net")
    x = builder.value("x", TensorType("float32", (6, 2, 3)), Role.INPUT)
    shapes = {"w": (1, 16, 3), "r": (1, 16, 4)}
    weights = [builder.value(name, TensorType("float32", shape), Role.PARAMETER) for name, shape in shapes.items()]
    y, *_ = builder.node("LSTM", [x, *weights], name="net", outputs=["y", None, None], attributes={"hidden_size": 4})
    (loss,) = builder.node("ReduceMean", [y], name="mean", outputs=["loss"], attributes={"keepdims": 0})
    graph = builder.build([loss])
    step = training_graph(graph, graph, parse_request({"loss": "loss", "recipe": SGD, "runtime": "ort"}))[0]
    assert "remat::LSTMGrad" not in {node.op for node in step.nodes}
    generator = np.random.default_rng(0)
    session = remat.ort.session(step, {name: generator.standard_normal(shape) for name, shape in shapes.items()})
    data = {"x": generator.standard_normal((6, 2, 3))}
    found = [float(session.run(data)["loss"]) for _ in range(3)]
    assert found[0] > found[1] > found[2]


def test_plans_for_onnxruntime_order_the_nodes_of_the_file() -> None:
    report = remat.plan(DECODER, "60%", dims={"batch": 4, "sequence": 8}, runtime="ort", planner="greedy", execute="no")
    assert not [node.op for node in report.graph.nodes if "::" in node.op]
    written = onnx.load_from_string(dump(report.graph)).graph.node
    assert {node.name for node in report.graph.nodes} <= {
        inner.name.removesuffix("/again")
        for node in written
        for inner in (node, *(each for attribute in node.attribute for each in attribute.g.node))
    }


def test_a_step_in_float16_has_the_gradients_of_our_execution() -> None:
    builder = Builder("half")
    x = builder.value("x", TensorType("float16", (4, 8)), Role.INPUT)
    w = builder.value("w", TensorType("float16", (8, 5)), Role.PARAMETER)
    labels = builder.value("labels", TensorType("int64", (4,)), Role.INPUT)
    (h,) = builder.node("MatMul", [x, w], outputs=["h"])
    (h,) = builder.node("Gelu", [h], outputs=["gelu"])
    (loss,) = builder.node("SoftmaxCrossEntropyLoss", [h, labels], outputs=["loss"])
    step, _ = training_step(builder.build([loss]), "loss")
    generator = np.random.default_rng(0)
    weights = {"w": generator.standard_normal((8, 5)).astype(np.float16)}
    data = {"x": generator.standard_normal((4, 8)).astype(np.float16), "labels": generator.integers(0, 5, 4)}
    expected = execute(step, weights | data).outputs
    found = remat.ort.session(step, weights).run(data)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.dtype == np.float16
        np.testing.assert_allclose(array, expected[name], rtol=5e-3, atol=1e-3, err_msg=name)
