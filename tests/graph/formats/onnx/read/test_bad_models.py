"""Bad ONNX files: always a BadGraph that names the thing, the place and the remedy, never another error."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from graph.errors import BadGraph
from graph.formats.onnx.read import load, sniff
from graph.formats.onnx.writer import dump
from graph.limits import Limits, ShapeOverrides
from tests.graph.formats.damaged import damaged
from tests.graph.formats.onnx.onnx_runs import read
from tests.graph.formats.onnx.read.test_reader import light, model, ours

SMALL = model(
    [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
    {"x": [2, 3]},
    ["y"],
    {"w": np.ones((3, 3), np.float32)},
)


def code_of(data: bytes, limits: Limits | None = None, **shapes: object) -> str:
    """Code of the first finding; its texts are filled in."""
    with pytest.raises(BadGraph) as caught:
        load(data, limits or Limits(), ShapeOverrides(**shapes))  # type: ignore[arg-type]
    for finding in caught.value.findings:
        assert all((finding.code, finding.path, finding.found, finding.expected, finding.remedy))
        assert len(str(finding)) < 3000
    return caught.value.findings[0].code


def edited(data: bytes = SMALL) -> onnx.ModelProto:
    return onnx.load_from_string(data)


def test_onnx_is_told_by_its_first_fields() -> None:
    assert sniff(SMALL) and sniff(light("squeezenet")) and sniff(ours("gpt"))
    assert sniff(ours("gpt")[:5000]), "a file cut short is still an ONNX file, and is told to be cut short"
    for other in (b"", b"{}", b'{"format": "remat/1"}', b"PK\x03\x04zip", b"\x80\x02pickle", bytes(64), b"\xff" * 64):
        assert not sniff(other)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_a_file_cut_short_says_so(share: float) -> None:
    data = ours("decoder")
    assert code_of(data[: int(len(data) * share)], batch=1, dims={"sequence": 4}) == "truncated"


def test_bytes_that_are_no_model_say_so() -> None:
    assert code_of(b"\x08\x0a\x3a\x03abc") == "not_a_model"
    assert code_of(b"\x08\x0a\x42\x04\x0a\x00\x10\x15") == "not_a_model"


def test_a_cycle_is_told_by_its_nodes() -> None:
    proto = edited()
    proto.graph.node[0].input[0] = "y"
    assert code_of(proto.SerializeToString()) == "cycle"


def test_an_undefined_name_is_told_with_its_reader() -> None:
    proto = edited()
    proto.graph.node[1].input[0] = "nothing"
    assert code_of(proto.SerializeToString()) == "undefined_value"
    proto = edited()
    proto.graph.output[0].name = "nothing"
    assert code_of(proto.SerializeToString()) == "undefined_value"


@pytest.mark.parametrize("second", ["x", "w", "h"])
def test_a_name_defined_twice_is_told(second: str) -> None:
    proto = edited()
    proto.graph.node[1].output[0] = second
    proto.graph.output[0].name = second
    assert code_of(proto.SerializeToString()) == "duplicate_name"


def test_ten_faults_are_told_at_once_and_the_rest_counted() -> None:
    proto = edited()
    for i in range(30):
        proto.graph.node.append(helper.make_node("Relu", [f"nothing{i}"], [f"z{i}"]))
    with pytest.raises(BadGraph) as caught:
        read(proto.SerializeToString())
    assert len(caught.value.findings) == 10
    assert caught.value.left_out == 20


def test_negative_and_gigantic_dimensions_are_told() -> None:
    proto = edited()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert code_of(proto.SerializeToString()) == "negative_size"
    for lengths in ((2**62, 3), (2**40, 2**40)):
        for dim, length in zip(proto.graph.input[0].type.tensor_type.shape.dim, lengths, strict=True):
            dim.dim_value = length
        assert code_of(proto.SerializeToString()) == "size_too_large"
    proto = edited()
    del proto.graph.initializer[0].dims[:]
    proto.graph.initializer[0].dims.extend([-3, -3])
    assert code_of(proto.SerializeToString()) == "negative_size"


def test_a_shape_computed_inside_past_2_to_63_is_told_where_it_is_made() -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"], name="wide")]
    data = model(nodes, {"x": [1, 1]}, ["y"], {"shape": np.array([2**40, 2**40])})
    assert code_of(data) == "size_too_large"


def test_a_tensor_with_too_few_bytes_is_told() -> None:
    proto = edited()
    proto.graph.initializer[0].raw_data = b"abc"
    assert code_of(proto.SerializeToString()) == "bad_tensor"


def test_types_that_do_not_fit_are_told_with_the_inputs() -> None:
    proto = edited()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    assert code_of(proto.SerializeToString()) == "type_conflict"
    proto = edited()
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 7
    assert code_of(proto.SerializeToString()) == "type_conflict"


def test_a_declared_type_that_the_op_does_not_make_is_told() -> None:
    proto = edited()
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 5]))
    assert code_of(proto.SerializeToString()) == "type_conflict"


def test_attributes_nobody_knows_or_of_the_wrong_kind_are_told() -> None:
    for attribute in (helper.make_attribute("nonsense", 1), helper.make_attribute("axis", "text")):
        nodes = [helper.make_node("Softmax", ["x"], ["y"])]
        nodes[0].attribute.append(attribute)
        assert code_of(model(nodes, {"x": [2, 3]}, ["y"])) == "type_conflict"
    node = helper.make_node("Softmax", ["x"], ["y"])
    node.attribute.append(AttributeProto(name="axis", type=AttributeProto.STRING, s=b"\xff\xfe"))
    assert code_of(model([node], {"x": [2, 3]}, ["y"])) == "bad_attribute"
    node = helper.make_node("Constant", [], ["y"])
    assert code_of(model([node], {"x": [2, 3]}, ["y"])) == "bad_attribute"


def test_too_few_inputs_are_told() -> None:
    assert code_of(model([helper.make_node("MatMul", ["x"], ["y"])], {"x": [2, 3]}, ["y"])) == "type_conflict"


def test_limits_are_told_with_what_was_sent() -> None:
    assert code_of(SMALL, Limits(nodes=1)) == "too_many_nodes"
    assert code_of(SMALL, Limits(name_length=0)) == "name_too_long"
    long = edited()
    long.graph.node[0].name = "n" * 5000
    assert code_of(long.SerializeToString()) == "name_too_long"
    big = helper.make_node("Relu", ["x"], ["y"])
    big.attribute.append(helper.make_attribute("t", numpy_helper.from_array(np.zeros(1 << 15))))
    assert code_of(model([big], {"x": [2]}, ["y"]), Limits(attribute_bytes=1 << 16)) == "too_large"


def nested(depth: int) -> bytes:
    """Branches inside branches."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], [f"o{depth}"])], "leaf", [], [onnx.ValueInfoProto(name=f"o{depth}")]
    )
    for level in range(depth - 1, 0, -1):
        node = helper.make_node("If", ["c"], [f"o{level}"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], f"g{level}", [], [onnx.ValueInfoProto(name=f"o{level}")])
    proto = edited(
        model([helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=graph)], {"x": [2]}, ["y"])
    )
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    data: bytes = proto.SerializeToString()
    return data


def test_deep_nests_are_told() -> None:
    assert code_of(nested(6), Limits(depth=4)) == "too_deep"
    assert read(nested(4)).nodes


def test_strings_and_sequences_are_told_to_be_unsupported() -> None:
    proto = edited()
    proto.graph.input.append(helper.make_tensor_value_info("s", TensorProto.STRING, [2]))
    assert code_of(proto.SerializeToString()) == "unknown_dtype"
    nodes = [helper.make_node("SequenceConstruct", ["x"], ["y"])]
    assert code_of(model(nodes, {"x": [2]}, ["y"])) == "unsupported_op"


def test_a_shape_that_follows_from_data_is_told() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)]
    assert code_of(model(nodes, {"x": [2, 3]}, ["y"])) == "unknown_size"


def test_an_unknown_op_needs_a_declared_type_that_follows_the_batch() -> None:
    node = helper.make_node("Mystery", ["x"], ["y"], domain="nobody")
    proto = edited(model([node], {"x": ["N", 3]}, ["y"]))
    proto.opset_import.append(helper.make_opsetid("nobody", 1))
    assert code_of(proto.SerializeToString(), batch=4) == "unknown_size"
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 7]))
    graph = read(proto.SerializeToString(), batch=4)
    assert graph.nodes[0].op == "nobody::Mystery"
    assert str(graph.values[graph.outputs[0]].type) == "float32[4,7]"
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    assert code_of(proto.SerializeToString(), batch=4) == "unknown_size"


def test_a_note_of_ours_that_cannot_be_read_is_told() -> None:
    for text in ("{", '{"phase": 3}', '{"nonsense": 1}', "[" * 5000, '{"phase": "sideways"}', '{"after": ["nobody"]}'):
        proto = edited()
        entry = proto.graph.node[1].metadata_props.add()
        entry.key, entry.value = "remat", text
        assert code_of(proto.SerializeToString()) == "bad_note", text


def test_a_name_that_is_no_text_is_told() -> None:
    assert code_of(SMALL.replace(b"MatMul", b"Mat\xff\xfel")) == "not_text"


NOTED = dump(read(light("zfnet512")))


@settings(max_examples=100)
@given(st.data())
def test_mutated_files_are_graphs_or_clean_errors(data: st.DataObject) -> None:
    mutated = damaged(data, data.draw(st.sampled_from([SMALL, nested(2), NOTED])), longest=8)
    limits = Limits(constant_bytes=1 << 20)
    try:
        load(mutated, limits, ShapeOverrides())
    except BadGraph as error:
        assert error.findings
