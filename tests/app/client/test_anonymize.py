"""Weights stay home, names where they should, and what comes back is a plan for the caller's own model."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import helper, numpy_helper, parser
from starlette.testclient import TestClient

from app.client.anonymize import HASHED_NAME
from app.client.blocking import Client, PreparedModel, ServiceProblem
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.execution.interpreter import execute
from graph.formats.native.writer import canonical, document
from graph.formats.readers import load
from graph.ir import ABSENT, Graph, Role, TensorType
from planner.formulation.training_graph import load_model, training_graph
from planner.pipeline.solve import solve
from planner.request.plan_request import parse_request
from tests.app.clients import Recording
from tests.documents import documents, executable_graphs
from tests.graph.ops.control_flow.building import COUNT, FLAG, ROW, ROWS, bodies, body_of, loss_of

KEY = b"only the caller has it"
QUICK: dict[str, Any] = {"planner": "greedy", "iterations": 5}
chance = np.random.default_rng(0)
WEIGHTS = {
    "encoder.weight": chance.standard_normal((16, 32)).astype(np.float32),
    "encoder.table": chance.standard_normal((8, 32)).astype(np.float32),
    "decoder.weight": chance.standard_normal((32, 4)).astype(np.float32),
}
LEARNED_MASK = np.where(chance.random((8, 32)) < 0.5, -np.inf, 0).astype(np.float32)  # a constant for the reader


def model() -> bytes:
    """An ONNX file: weights, a constant of many numbers, a shape, and a dimension that is open."""
    nodes = [
        helper.make_node("MatMul", ["tokens", "encoder.weight"], ["encoded"], name="encode"),
        helper.make_node("Add", ["encoded", "encoder.table"], ["placed"], name="place"),
        helper.make_node("Add", ["placed", "encoder.mask"], ["masked"], name="masking"),
        helper.make_node("Softmax", ["masked"], ["attention"], name="attend", axis=-1),
        helper.make_node("MatMul", ["attention", "decoder.weight"], ["logits"], name="decode"),
        helper.make_node("Reshape", ["logits", "flat.shape"], ["flat"], name="flatten"),
        helper.make_node("ReduceMean", ["flat"], ["training_loss"], name="averaging", keepdims=0),
    ]
    initializers = {**WEIGHTS, "encoder.mask": LEARNED_MASK, "flat.shape": np.array([-1])}
    graph = helper.make_graph(
        nodes,
        "our_secret_network",
        [helper.make_tensor_value_info("tokens", onnx.TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("training_loss", onnx.TensorProto.FLOAT, [])],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return made


def words_of(data: Any) -> Iterator[str]:
    """Every string in plain data, keys too."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, inner in data.items():
            yield from words_of(key)
            yield from words_of(inner)
    elif isinstance(data, list):
        for inner in data:
            yield from words_of(inner)


def assert_none_of(content: np.ndarray, sent: bytes) -> None:
    """No eight bytes of the content, as they are or as base64 in any of its three places."""
    raw = content.tobytes()
    pieces = {raw[i : i + 8] for i in range(0, len(raw) - 8, 4)} - {bytes(8)}
    decoded = [base64.b64decode(text) for text in re.findall(rb'"data":"([A-Za-z0-9+/=]+)"', sent)]
    assert not [piece for piece in pieces for data in (sent, *decoded) if piece in data]


def test_neither_weights_nor_names_leave_and_the_answer_speaks_of_the_callers_model(client: TestClient) -> None:
    wire = Recording(client)
    names = [*WEIGHTS, "tokens", "encode", "place", "masking", "attend", "decode", "flatten", "averaging", "secret"]
    names += ["encoded", "placed", "attention", "logits", "training_loss", "encoder.mask"]
    report = Client("http://service", transport=wire).plan(
        model(),
        batch=8,
        budget="90%",
        loss="training_loss",
        keep=["attention"],
        recompute=["placed"],
        hide_names=True,
        execute="yes",
        **QUICK,
        **{"return": ["plan", "source", "graph", "layout", "explain"]},
    )
    assert wire.asked
    for request, body in wire.asked:
        everything = body + str(request.url).encode() + repr(request.headers.raw).encode()
        assert not [name for name in names if name.encode() in everything]
        for content in (*WEIGHTS.values(), LEARNED_MASK):
            assert_none_of(content, body)
    assert report["executed"]["status"] == "equal"
    assert {"encode", "attend", "grad/decode"} <= {name for name, _ in report["plan"]["order"]}
    assert report["model"]["name"] == "our_secret_network"
    assert report["request"]["keep"] == ["attention"]
    assert not [word for word in words_of(report) if HASHED_NAME.search(word)]
    assert_runs_as_the_original(report, model(), {"batch": 8, "loss": "training_loss", "recompute": ["placed"]})


def assert_runs_as_the_original(report: dict[str, Any], original: bytes, fields: dict[str, Any]) -> None:
    """The rewritten graph, with the caller's own weights, gives what the caller's own training step gives."""
    request = parse_request(fields)
    step, _ = training_graph(original, load_model(original, request), request)
    rewritten = load(msgspec.json.encode(report["graph"]))
    mine = {value.name for value in step.values if value.role is Role.PARAMETER}
    weights = {name: array for name, array in WEIGHTS.items() if name in mine}
    weights |= {"tokens": np.ones((8, 16), np.float32)}
    expected, found = execute(step, weights).outputs, execute(rewritten, weights).outputs
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name], equal_nan=True) for name in expected)


def test_plans_are_the_same_under_any_name(client: TestClient) -> None:
    asking = Client("http://service", transport=Recording(client))
    plain, hidden = (
        asking.plan(model(), batch=8, budget="85%", hide_names=hide, **QUICK)["plan"] for hide in (False, True)
    )
    assert plain == hidden


@pytest.mark.parametrize("hide", [False, True])
def test_data_dependent_lengths_are_bound_before_a_model_is_sent(client: TestClient, hide: bool) -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[5] x) => (float loss) <float[1, 5] w = {1.0, 2.0, 3.0, 4.0, 5.0}> {
        places = NonZero (x)
        real = Cast <to = 1> (places)
        products = MatMul (w, x)
        all = Mul (real, products)
        loss = ReduceSum <keepdims = 0> (all)
    }
    """
    asking = Client("http://service", transport=Recording(client))
    data = parser.parse_model(text).SerializeToString()
    report = asking.plan(data, max={"places": 3}, budget="100%", hide_names=hide, **QUICK)
    assert any("'places' of NonZero is planned with a length of 3" in warning for warning in report["warnings"])


def test_a_problem_speaks_of_the_callers_names(client: TestClient) -> None:
    asking = Client("http://service", transport=Recording(client))
    with pytest.raises(ServiceProblem, match="no_such_value"):
        asking.plan(model(), batch=8, loss="no_such_value", hide_names=True)


def sent_and_back(graph: Graph, **fields: Any) -> tuple[Any, Any]:
    """What a service reads of a graph under hidden names, and its report as the caller sees it."""
    home = PreparedModel(graph, KEY)
    request = parse_request({**home.fields(fields), "return": ["plan", "graph", "source"]})
    report = solve(home.document, request).report
    return msgspec.json.decode(home.document), home.restore(json.loads(json.dumps(report)))


@settings(max_examples=40)
@given(documents())
def test_whatever_is_hidden_comes_back_as_it_was(made: dict[str, Any]) -> None:
    graph = load(msgspec.json.encode(made))
    home = PreparedModel(graph, KEY)
    sent = msgspec.json.decode(home.document)
    names = {item["name"] for item in (*made["values"], *made["nodes"])} | {"déjà", "my::Op", "Strange"}
    assert not names & set(words_of(sent))
    assert load(home.document)  # a legal document
    back = load(msgspec.json.encode(home.restore(sent)))
    assert canonical(back) == canonical(graph)


@settings(max_examples=20)
@given(executable_graphs())
def test_a_rewritten_graph_comes_back_as_the_same_computation(graph: Graph) -> None:
    _, report = sent_and_back(graph, budget=0, **QUICK)
    rewritten = load(msgspec.json.encode(report["graph"]))
    assert {value.name for value in graph.values if value.role is Role.PARAMETER} <= {v.name for v in rewritten.values}
    expected, found = execute(graph).outputs, execute(rewritten).outputs
    assert all(np.array_equal(expected[name], found[name], equal_nan=True) for name in expected)


def looped(weights: np.ndarray) -> Graph:
    """h = tanh(h + x + weights) for every row x; the weights are a constant of the body, and one outside."""
    b = Builder("loop")
    h0, xs = b.value("h0", ROW, Role.PARAMETER), b.value("xs", ROWS, Role.PARAMETER)
    outside = b.constant(2 * weights, "weights")

    def make(inner: Builder, v: Any) -> list[int]:
        (x,) = inner.node("Gather", [v["xs"], v["trip"]])
        (sum_,) = inner.node("Add", [v["h"], x])
        (more,) = inner.node("Add", [sum_, inner.constant(weights, "weights")])
        (h,) = inner.node("Tanh", [more])
        return [v["going"], h]

    body = body_of(b, {"trip": COUNT, "going": FLAG, "h": ROW}, [xs], make)
    count = b.constant(np.array(4), "count")
    (last,) = b.node("Loop", [count, ABSENT, h0], outputs=["last"], bodies=bodies(body=body))
    (scaled,) = b.node("Mul", [last, outside])
    return loss_of(b, scaled)


def test_scores_of_a_requested_cross_entropy_are_hidden() -> None:
    builder = Builder("dense")
    x = builder.value("x", TensorType("float32", (2, 3, 4, 4)), Role.INPUT)
    w = builder.value("w", TensorType("float32", (4,)), Role.PARAMETER)
    graph = builder.build(builder.node("Mul", [x, w], name="scale", outputs=["secret"]))
    sent = PreparedModel(graph, KEY).fields({"loss": "cross_entropy:secret:1"})["loss"]
    assert sent.startswith("cross_entropy:")
    assert sent.endswith(":1")
    assert "secret" not in sent
    _, report = sent_and_back(graph, loss="cross_entropy:secret:1", **QUICK)
    assert any("'secret'" in warning for warning in report["warnings"])


def test_constants_of_bodies_stay_and_come_back_each_to_its_place() -> None:
    weights = np.array([0.25, -0.5, 0.125])
    graph = looped(weights)
    sent, report = sent_and_back(graph, loss="loss", **QUICK)
    for content in (weights, 2 * weights):
        assert_none_of(content, msgspec.json.encode(sent))
    step, _ = training_graph(canonical(graph), graph, parse_request({"loss": "loss"}))
    rewritten = load(msgspec.json.encode(report["graph"]))
    expected, found = execute(step).outputs, execute(rewritten).outputs
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_contents_stay_under_plain_names_too() -> None:
    graph = looped(np.array([0.25, -0.5, 0.125]))
    home = PreparedModel(graph)
    assert_none_of(np.array([0.25, -0.5, 0.125]), home.document)
    back = home.restore(msgspec.json.decode(home.document))
    assert execute(load(msgspec.json.encode(back))).outputs["loss"] == execute(graph).outputs["loss"]
    assert {value["name"] for value in back["values"]} == {value.name for value in graph.values}


def test_shapes_axes_and_single_numbers_go_along() -> None:
    b = Builder("arguments")
    x = b.value("x", TensorType("float32", (2, 3)), Role.INPUT)
    (flat,) = b.node("Reshape", [x, b.constant(np.array([3, 2]), "shape")])
    (power,) = b.node("Pow", [flat, b.constant(np.float32(2), "two")])
    graph = b.build([power])
    assert home_data(PreparedModel(graph)) == home_data_of(graph)


def home_data(home: PreparedModel) -> list[Any]:
    return [value.get("data") for value in msgspec.json.decode(home.document)["values"]]


def home_data_of(graph: Graph) -> list[Any]:
    return [value.get("data") for value in document(graph)["values"]]


def test_numbers_in_an_attribute_are_refused_with_a_remedy() -> None:
    b = Builder("attributes")
    x = b.value("x", TensorType("float32", (2, 3)), Role.INPUT)
    type = TensorType("float32", (2, 3))
    b.node("own::Linear", [x], name="linear", attributes={"weights": np.ones((2, 3), np.float32)}, types=[type])
    with pytest.raises(BadGraph, match=r"nodes.linear.attributes.weights.*make them a constant"):
        PreparedModel(b.build([]))


def test_names_made_of_hashes_never_meet_a_name_of_the_caller() -> None:
    #   the service calls the gradient node of `fc` grad/fc, which is taken here by a node of the caller's own
    b = Builder("meeting")
    x = b.value("x", TensorType("float32", (2, 3)), Role.PARAMETER)
    (h,) = b.node("Tanh", [x], name="fc", outputs=["h"])
    (g,) = b.node("Neg", [h], name="grad/fc", outputs=["grad/h"])
    (loss,) = b.node("ReduceSum", [g], name="sum", outputs=["loss"], attributes={"keepdims": 0})
    _, report = sent_and_back(b.build([loss]), loss="loss", **QUICK)
    graph = load(msgspec.json.encode(report["graph"]))
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    assert {"fc", "grad/fc", "grad/fc/1", "grad/grad/fc"} <= {node.name for node in graph.nodes}
    assert sorted(name for name, _ in report["plan"]["order"]) == sorted(node.name for node in graph.nodes)


def test_versions_of_a_name_are_found_at_home() -> None:
    made = {
        "format": "remat/1",
        "naming": "mutable",
        "outputs": ["y"],
        "values": [{"name": "x", "shape": [4], "dtype": "float32", "role": "input"}],
        "nodes": [
            {"name": "a", "op": "Relu", "inputs": ["x"], "outputs": ["y"]},
            {"name": "b", "op": "Neg", "inputs": ["y"], "outputs": ["y"]},
        ],
    }
    graph = load(msgspec.json.encode(made))
    home = PreparedModel(graph, KEY)
    by_version, by_name = (home.fields({"keep": [name]})["keep"] for name in ("y@1", graph.values[1].name))
    assert by_version == by_name
    assert by_version[0] in home.document.decode()


def test_every_field_that_holds_names_is_hidden() -> None:
    b = Builder("fields")
    x = b.value("width", TensorType("float32", (2, 3)), Role.PARAMETER)
    b.node("own::Op", [x], name="height", outputs=["depth"], types=[TensorType("float32", (2, 3))])
    home = PreparedModel(b.build([1]), KEY)
    rule = {"op": "own::OpGrad", "reads": ["inputs[0]", "incoming"]}
    asked = {
        "loss": "depth",
        "keep": ["depth"],
        "recompute": ["depth"],
        "checkpoints": ["depth"],
        "differentiate": {
            "of": {"depth": "width"},
            "with_respect_to": ["width"],
            "head_gradients": {"depth": {"value": 1}},
            "no_gradient": ["depth"],
            "skip": ["height"],
            "row_sparse": ["width"],
            "gradient_rules": {"own::Op": rule},
            "unreachable": "zeros",
        },
    }
    sent = home.fields(asked)
    assert not {"width", "height", "depth", "own::Op", "own::OpGrad"} & set(words_of(sent))
    assert {"inputs[0]", "incoming", "value", "zeros"} <= set(words_of(sent))
    assert home.restore(sent) == asked
    assert home.fields({"differentiate": {"row_sparse": "all", "skip": {"first": 2}}})["differentiate"] == {
        "row_sparse": "all",
        "skip": {"first": 2},
    }


def test_another_key_gives_other_hashes_and_the_same_the_same() -> None:
    graph = load(
        msgspec.json.encode(
            {"format": "remat/1", "values": [{"name": "x", "bytes": 4, "role": "input"}], "nodes": [], "outputs": []}
        )
    )
    first, again, other = (PreparedModel(graph, key).document for key in (KEY, KEY, b"another"))
    assert first == again != other
