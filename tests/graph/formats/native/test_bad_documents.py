"""Whatever is sent, the answer is a legal graph or a clean error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.errors import MAX_FINDINGS, BadGraph
from graph.formats.native import reader
from graph.formats.native.writer import document as document_of
from graph.limits import Limits, ShapeOverrides
from graph.validate.check import check
from tests.documents import documents, executable_graphs, mutated

SETTINGS = settings(max_examples=150)


def answers_cleanly(data: bytes, shapes: ShapeOverrides | None = None) -> None:
    """Fails when reading ends in anything but a legal graph or an error that says what, where and what to do."""
    try:
        graph = reader.load(data, Limits(), shapes or ShapeOverrides())
    except BadGraph as error:
        assert 0 < len(error.findings) <= MAX_FINDINGS
        for finding in error.findings:
            assert all((finding.code, finding.path, finding.found, finding.expected, finding.remedy)), finding
        assert len(str(error)) < 30_000
    else:
        check(graph)


@SETTINGS
@given(st.data())
def test_mutated_rows_give_an_error_or_a_legal_graph(data: st.DataObject) -> None:
    answers_cleanly(json.dumps(data.draw(mutated(data.draw(documents())))).encode())


@SETTINGS
@given(st.data())
def test_mutated_columns_give_an_error_or_a_legal_graph(data: st.DataObject) -> None:
    legal = reader.load(json.dumps(data.draw(documents(4))).encode(), Limits(), ShapeOverrides())
    answers_cleanly(json.dumps(data.draw(mutated(document_of(legal, "columns")))).encode())


@SETTINGS
@given(st.data())
def test_mutated_graphs_of_standard_ops_give_an_error_or_a_legal_graph(data: st.DataObject) -> None:
    broken = data.draw(mutated(document_of(data.draw(executable_graphs(5)))))
    shapes = ShapeOverrides(batch=data.draw(st.sampled_from([None, 3, 6, 0])))
    answers_cleanly(json.dumps(broken).encode(), shapes)


@SETTINGS
@given(st.data())
def test_cut_or_scribbled_bytes_give_an_error_or_a_legal_graph(data: st.DataObject) -> None:
    document = data.draw(documents(3))
    encode = data.draw(st.sampled_from([msgspec.json.encode, msgspec.msgpack.encode]))
    sent = bytearray(encode(document))
    for _ in range(data.draw(st.integers(0, 2))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    answers_cleanly(bytes(sent[: data.draw(st.integers(0, len(sent)))]))


def sent(**fields: Any) -> bytes:
    return json.dumps({"format": "remat/1", "values": [], "nodes": [], "outputs": []} | fields).encode()


def codes_of(data: bytes, limits: Limits | None = None) -> list[str]:
    with pytest.raises(BadGraph) as caught:
        reader.load(data, limits or Limits(), ShapeOverrides())
    return [finding.code for finding in caught.value.findings]


X = {"name": "x", "bytes": 8, "role": "input"}


def node(name: str, inputs: list[str], outputs: list[str], **fields: Any) -> dict[str, Any]:
    return {"name": name, "op": "my::Op", "inputs": inputs, "outputs": outputs} | fields


def value(name: str, size: int = 8) -> dict[str, Any]:
    return {"name": name, "bytes": size}


INT8 = {"name": "x", "dtype": "int8", "shape": [2], "role": "input"}
FLOAT = {"name": "y", "dtype": "float16", "shape": [1], "role": "activation"}
CONTENT = {"name": "x", "dtype": "int8", "shape": [2], "role": "constant"}
XY, YZ, XYZ = [X, value("y")], [value("y"), value("z")], [X, value("y"), value("z")]
OVER = node("a", ["x"], ["y"], in_place={"y": "x"})
VIEW = node("a", ["x"], ["y"], alias_of={"y": "x"})
DEEP = b": " + b"[" * 5000 + b"]" * 5000
DEEPER_THAN_ALLOWED = b": " + b"[" * 100 + b"]" * 100

FAULTS: list[tuple[str, bytes]] = [
    ("not_parseable", b'{"format": "remat/1", "values": ['),
    ("not_parseable", b'{"format": "remat/1", "values": [{"name": "x", "bytes": NaN}]}'),
    ("not_parseable", b'{"format": "remat/1", "values": [{"name": "\xff"}]}'),
    ("unknown_format", b'{"format": "remat/7", "values": [], "nodes": []}'),
    ("too_deep", sent(annotations={"a": 1}).replace(b": 1", DEEP)),
    ("too_deep", sent(annotations={"a": 1}).replace(b": 1", DEEPER_THAN_ALLOWED)),
    ("missing_field", b'{"format": "remat/1", "values": []}'),
    ("unknown_field", sent(colour=1)),
    ("unknown_word", sent(order="givn")),
    ("unknown_word", sent(values=[X | {"role": "weight"}])),
    ("unknown_word", sent(nodes=[node("a", [], [], phase="sideways")])),
    ("unknown_word", sent(nodes=[node("a", [], [], effect="loud")])),
    ("unknown_dtype", sent(values=[INT8 | {"dtype": "float"}])),
    ("wrong_type", sent(values=[INT8 | {"shape": [1.0]}])),
    ("wrong_type", sent(values=[X | {"bytes": "8"}])),
    ("negative_number", sent(values=[X | {"bytes": -8}])),
    ("negative_number", sent(nodes=[node("a", [], [], cost={"seconds": -1})])),
    ("number_too_large", sent(values=[X | {"bytes": 2**63}])),
    ("number_too_large", sent(values=[X | {"bytes": 10**400}])),
    ("number_too_large", sent(nodes=[node("a", [], [], attributes={"k": 2**64})])),
    ("size_too_large", sent(values=[INT8 | {"shape": [2**40, 2**40]}])),
    ("size_too_large", sent(values=[X | {"bytes": 2**62}, X | {"name": "y", "bytes": 2**62}])),
    ("empty_name", sent(values=[X | {"name": ""}])),
    ("duplicate_name", sent(values=[X, X])),
    ("duplicate_name", sent(nodes=[node("a", [], []), node("a", [], [])])),
    ("undefined_value", sent(nodes=[node("a", ["x"], [])])),
    ("undefined_value", sent(values=[X], outputs=["y"])),
    ("undefined_value", sent(values=[value("y")], nodes=[node("a", ["y"], [])])),
    ("unwritten_value", sent(values=[value("y")])),
    ("use_before_definition", sent(values=[value("y")], nodes=[node("a", ["y"], []), node("b", [], ["y"])])),
    ("cycle", sent(values=YZ, nodes=[node("a", ["z"], ["y"]), node("b", ["y"], ["z"])])),
    ("cycle", sent(values=[value("y")], nodes=[node("a", ["y"], ["y"])])),
    ("cycle", sent(nodes=[node("a", [], [], after=["b"]), node("b", [], [], after=["a"])])),
    ("two_writers", sent(values=[value("y")], nodes=[node("a", [], ["y"]), node("b", [], ["y"])])),
    ("two_writers", sent(values=[value("y")], nodes=[node("a", [], ["y", "y"])])),
    ("written_input", sent(values=[X], nodes=[node("a", [], ["x"])])),
    ("unknown_size", sent(nodes=[node("a", [], ["y"])])),
    ("unknown_size", sent(values=[INT8 | {"fixed_bytes": True}])),
    ("unknown_node", sent(nodes=[node("a", [], [], after=["b"])])),
    ("bad_alias", sent(values=XY, nodes=[node("a", ["x"], ["y"], alias_of={"x": "y"})])),
    ("bad_alias", sent(values=XY, nodes=[OVER | {"alias_of": {"y": "x"}}])),
    ("bad_alias", sent(values=XYZ, nodes=[OVER | {"outputs": ["y", "z"], "alias_of": {"z": "x"}}])),
    ("bad_alias", sent(values=XYZ, nodes=[OVER | {"outputs": ["y", "z"], "in_place": {"y": "x", "z": "x"}}])),
    ("alias_size", sent(values=[X, value("y", 4)], nodes=[VIEW])),
    ("alias_size", sent(values=[X, value("y", 9)], nodes=[OVER])),
    ("bad_alias", sent(values=XY, nodes=[node("a", ["x"], ["y"], takeover={"y": ["z"]})])),
    ("bad_alias", sent(values=XY, nodes=[OVER | {"takeover": {"y": ["x"]}}])),
    ("alias_size", sent(values=[X, value("y", 9)], nodes=[node("a", ["x"], ["y"], takeover={"y": ["x"]})])),
    ("alias_size", sent(values=[INT8, INT8 | FLOAT], nodes=[node("a", ["x"], ["y"], takeover={"y": ["x"]})])),
    ("read_after_overwrite", sent(values=XY, nodes=[OVER, node("b", ["x"], [])])),
    ("read_after_overwrite", sent(values=XY, nodes=[OVER], outputs=["x"])),
    ("overwritten_constant", sent(values=[X | {"role": "constant"}, value("y")], nodes=[OVER])),
    ("foreign_gradient_read", sent(values=[X], nodes=[node("a", [], [], gradient_reads=["x"])])),
    ("unbound_dimension", sent(values=[INT8 | {"shape": ["N"]}])),
    ("bad_content", sent(values=[CONTENT | {"data": "AA=="}])),
    ("bad_content", sent(values=[CONTENT | {"data": "?"}])),
    ("type_conflict", sent(values=[INT8, INT8 | {"name": "y"}], nodes=[node("a", ["x"], ["z"], op="Add")])),
    ("type_conflict", sent(values=[INT8 | {"dtype": "bool"}], nodes=[node("a", ["x"], ["y"], op="Relu")])),
    ("type_conflict", sent(values=[INT8], nodes=[node("a", ["x"], ["y"], op="Transpose", attributes={"perm": "x"})])),
    ("ambiguous_name", sent(values=[X], nodes=[node("a", ["x"], ["x"], gradient_reads=["x"])], naming="mutable")),
]


@pytest.mark.parametrize(("code", "document"), FAULTS, ids=[f"{i}-{code}" for i, (code, _) in enumerate(FAULTS)])
def test_each_fault_has_its_code(code: str, document: bytes) -> None:
    assert code in codes_of(document)


@pytest.mark.parametrize(
    ("code", "limits", "document"),
    [
        ("too_large", Limits(document_bytes=10), sent()),
        ("too_many_nodes", Limits(nodes=1), sent(nodes=[node("a", [], []), node("b", [], [])])),
        ("too_many_values", Limits(values=1), sent(values=[X], nodes=[node("a", [], ["y"])])),
        ("name_too_long", Limits(name_length=9), sent(values=[X | {"name": "x" * 10}])),
        ("too_deep", Limits(depth=2), sent(nodes=[node("a", [], [], attributes={"k": [[[1]]]})])),
        ("too_large", Limits(attribute_bytes=50), sent(annotations={"k": "x" * 60})),
        ("too_large", Limits(attribute_bytes=50), sent(nodes=[node("a", [], [], attributes={"k": [1] * 60})])),
        (
            "too_large",
            Limits(constant_bytes=3),
            sent(values=[{"name": "x", "dtype": "int8", "shape": [4], "role": "constant", "data": "AAAAAA=="}]),
        ),
    ],
)
def test_each_limit_is_held(code: str, limits: Limits, document: bytes) -> None:
    assert code in codes_of(document, limits)


def test_ten_faults_are_told_at_once_and_the_rest_counted() -> None:
    nodes = [node(f"n{i}", [f"missing{i}"], []) for i in range(25)]
    with pytest.raises(BadGraph) as caught:
        reader.load(sent(nodes=nodes), Limits(), ShapeOverrides())
    assert [finding.path for finding in caught.value.findings] == [f"nodes[{i}].inputs[0]" for i in range(10)]
    assert caught.value.left_out == 15


def test_a_word_nearly_right_is_proposed() -> None:
    with pytest.raises(BadGraph) as caught:
        reader.load(sent(nodes=[node("a", [], [], atributes={})]), Limits(), ShapeOverrides())
    assert caught.value.findings[0].remedy == "did you mean 'attributes'?"


def test_broken_text_is_quoted_with_its_line() -> None:
    with pytest.raises(BadGraph) as caught:
        reader.load(b'{"format": "remat/1",\n "values": [\n  NaN]}', Limits(), ShapeOverrides())
    assert "line 3, column 3" in caught.value.findings[0].path
    assert "3 |   NaN]}\n     |   ^" in str(caught.value)


def test_a_gigantic_name_is_cut_in_the_message() -> None:
    with pytest.raises(BadGraph) as caught:
        reader.load(sent(values=[X | {"name": "x" * 3_000_000}]), Limits(), ShapeOverrides())
    assert len(str(caught.value)) < 500


def test_bodies_nested_deeper_than_allowed_are_refused() -> None:
    inner: dict[str, Any] = node("a", [], [])
    for _ in range(5):
        inner = node("a", [], [], bodies={"body": {"inputs": [], "nodes": [inner], "outputs": []}})
    assert "too_deep" in codes_of(sent(nodes=[inner]), Limits(depth=3))
    reader.load(sent(nodes=[inner]), Limits(), ShapeOverrides())


def test_an_op_without_a_name_is_told_in_columns_as_in_rows() -> None:
    columns = {
        "format": "remat/1-columns",
        "strings": ["n", ""],
        "value_name": [],
        "node_name": [0],
        "node_op": [1],
        "input_pointer": [0, 0],
        "input_index": [],
        "output_pointer": [0, 0],
        "output_index": [],
        "output_values": [],
    }
    rows = {
        "format": "remat/1",
        "values": [],
        "outputs": [],
        "nodes": [{"name": "n", "op": "", "inputs": [], "outputs": []}],
    }
    for document, path in ((columns, "node_op[0]"), (rows, "nodes[0].op")):
        with pytest.raises(BadGraph) as caught:
            reader.load(json.dumps(document).encode(), Limits(), ShapeOverrides())
        (finding,) = caught.value.findings
        assert (finding.code, finding.path) == ("empty_name", path)
