"""Documents and graphs: rows, columns, JSON and msgpack say the same; shapes are bound; hashes tell graphs apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graph.formats.document.schema
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.formats.document.schema import json_schemas
from graph.formats.document.tensor_content import decode_array, encode_array
from graph.formats.native.write import rows_of
from graph.formats.native.writer import FORMS, canonical, content_hash, document, dump, shape_hash
from graph.formats.readers import load
from graph.ir import DTYPE_BITS, Cost, Effect, Graph, Node, Phase, Role, TensorType, Value
from graph.limits import Limits, ShapeOverrides
from graph.ops.registry.onnx_fallback import numpy_dtype
from tests.documents import documents, executable_graphs

SCHEMAS = Path(graph.formats.document.schema.__file__).parent / "schemas"
LAYER: dict[str, Any] = {
    "format": "remat/1",
    "name": "one layer",
    "opset": {"": 21},
    "values": [
        {"name": "x", "shape": [64, 784], "dtype": "float32", "role": "input"},
        {"name": "w1", "shape": [784, 512], "dtype": "float32", "role": "parameter"},
        {"name": "h", "shape": [64, 512], "dtype": "float32"},
    ],
    "nodes": [{"name": "fc1", "op": "MatMul", "inputs": ["x", "w1"], "outputs": ["h"], "attributes": {}}],
    "outputs": ["h"],
}


def read(given: dict[str, Any], shapes: ShapeOverrides | None = None) -> Graph:
    return load(json.dumps(given).encode(), None, shapes)


def same(a: Graph, b: Graph) -> bool:
    """Equal but for arrays, which are compared by content."""
    return canonical(a) == canonical(b) and a.inputs == b.inputs and a.nodes == b.nodes


@settings(max_examples=80)
@given(documents(), st.sampled_from(FORMS), st.sampled_from(["json", "msgpack"]))
def test_a_document_survives_every_form_and_packing(given: dict[str, Any], form: str, packing: str) -> None:
    graph = read(given)
    assert same(load(dump(graph, form, packing)), graph)


@settings(max_examples=60)
@given(executable_graphs(), st.sampled_from(FORMS))
def test_a_built_graph_survives_every_form(graph: Graph, form: str) -> None:
    back = load(dump(graph, form))
    assert same(back, graph)
    for a, b in zip(graph.values, back.values, strict=True):
        assert a.type == b.type and (a.data is None) == (b.data is None)
        assert a.data is None or b.data is None or np.array_equal(a.data, b.data)


@settings(max_examples=60)
@given(documents())
def test_the_graph_says_what_the_document_says(given: dict[str, Any]) -> None:
    graph = read(given)
    values = {value.name: value for value in graph.values}
    assert [node.name for node in graph.nodes] == [row["name"] for row in given["nodes"]]
    assert [graph.values[v].name for v in graph.outputs] == given["outputs"]
    for row in given["values"]:
        value = values[row["name"]]
        assert value.role == row.get("role", "activation")
        assert value.bytes == row.get("bytes") and dict(value.annotations) == row.get("annotations", {})
        assert value.type == (TensorType(row["dtype"], tuple(row["shape"])) if "shape" in row else None)
    for n, row in enumerate(given["nodes"]):
        node = graph.nodes[n]
        name = ["" if v < 0 else graph.values[v].name for v in range(len(graph.values))] + [""]
        assert [name[v] for v in node.inputs] == row["inputs"] and [name[v] for v in node.outputs] == row["outputs"]
        assert node.phase == Phase[row.get("phase", "forward").upper()]
        assert {name[node.outputs[o]]: name[node.inputs[i]] for o, i in node.views} == row.get("alias_of", {})
        assert {name[node.outputs[o]]: name[node.inputs[i]] for o, i in node.in_place} == row.get("in_place", {})
        taken = [(name[node.outputs[o]], name[node.inputs[i]]) for o, i in node.takeover]
        assert taken == [(o, i) for o, sources in row.get("takeover", {}).items() for i in sources]
        assert node.cost == Cost(**row.get("cost", {}))
        assert node.effect == (Effect(row["effect"]) if "effect" in row else None)
        assert (node.stream, node.recompute, node.heavy) == tuple(map(row.get, ("stream", "recompute", "heavy")))
        assert [graph.nodes[m].name for m in node.after] == row.get("after", [])
        reads = None if node.gradient_reads is None else [name[v] for v in node.gradient_reads]
        assert reads == row.get("gradient_reads")


def test_the_contracts_example_is_read_and_missing_shapes_are_inferred() -> None:
    bare = json.loads(json.dumps(LAYER))
    del bare["values"][2]
    assert content_hash(read(bare)) == content_hash(read(LAYER))


def test_an_empty_graph_and_a_single_task_are_legal() -> None:
    assert read({"format": "remat/1", "values": [], "nodes": [], "outputs": []}).nodes == ()
    alone = {"name": "a", "op": "my::Op", "inputs": [], "outputs": []}
    assert len(read({"format": "remat/1", "values": [], "nodes": [alone], "outputs": []}).nodes) == 1


def test_hashes_know_names_or_leave_them_out() -> None:
    renamed = json.loads(json.dumps(LAYER).replace("fc1", "dense").replace('"h"', '"hidden"'))
    wider = json.loads(json.dumps(LAYER).replace("512", "513"))
    a, b, c = read(LAYER), read(renamed), read(wider)
    assert content_hash(a) != content_hash(b) and shape_hash(a) == shape_hash(b)
    assert shape_hash(a) != shape_hash(c)


def test_canonical_bytes_do_not_depend_on_the_order_of_fields() -> None:
    turned = {key: LAYER[key] for key in reversed(LAYER)}
    turned["values"] = [{key: row[key] for key in reversed(row)} for row in LAYER["values"]]
    assert canonical(read(turned)) == canonical(read(LAYER))


def test_canonical_bytes_are_those_of_the_records_of_all_rows() -> None:
    odd = {"name": 'a"\n\u00e9\u2028', "op": 'my::"Op"', "inputs": ["x", ""], "outputs": ["y"], "phase": "update"}
    plain = {"name": "b", "op": "my::Op", "inputs": ["y"], "outputs": ["z", "\\"], "heavy": False}
    rows = [odd | {"cost": {"seconds": 1e-7, "flops": 3}}, plain | {"cost": {"seconds": 1e-7, "flops": 3}}]
    rows.append({"name": "c", "op": "my::Op", "inputs": ["z"], "outputs": ["w"], "heavy": True, "recompute": "never"})
    values = [
        {"name": "x", "role": "input", "bytes": 0},
        {"name": "y", "bytes": 2**40, "fixed_bytes": True},
        {"name": "z", "bytes": 1, "annotations": {"b": 1, "a": [2]}},
        *({"name": name, "bytes": 7} for name in ("\\", "w")),
    ]
    own = {"format": "remat/1", "values": values, "nodes": rows, "outputs": ["w"], "annotations": {"z": 1, "a": 2}}
    # `canonical` writes rows without the other fields by itself: a new field belongs in `is_plain`, or in `_values`.
    plain_fields = {"name", "op", "inputs", "outputs", "phase", "cost", "heavy"}
    tested = {"attributes", "after", "views", "in_place", "bodies", "annotations", "takeover"}
    tested |= {"effect", "stream", "recompute", "gradient_reads"}
    assert set(Node.__struct_fields__) == plain_fields | tested
    assert set(Value.__struct_fields__) == {
        *("name", "bytes", "type", "role", "data", "annotations", "fixed_bytes", "stop_gradient")
    }
    for each in (read(own), read(LAYER), read({"format": "remat/1", "values": [], "nodes": [], "outputs": []})):
        assert canonical(each) == msgspec.json.encode(rows_of(each), order="deterministic")


def test_contents_of_every_dtype_survive() -> None:
    rng = np.random.default_rng(0)
    for name, bits in DTYPE_BITS.items():
        type = TensorType(name, (3, 5))
        if bits < 8 and name.startswith(("int", "uint")):
            low = -(1 << (bits - 1)) if name.startswith("int") else 0
            array = rng.integers(low, low + (1 << bits), type.shape).astype(numpy_dtype(name))
        elif name == "bool":
            array = rng.integers(0, 2, type.shape).astype(bool)
        else:
            array = rng.integers(0, 5, type.shape).astype(numpy_dtype(name))
        back = decode_array(encode_array(array), type)
        assert back.dtype == array.dtype and back.tobytes() == array.tobytes(), name


def test_attributes_json_cannot_write_survive() -> None:
    b = Builder()
    given = {
        "value": np.array([[1, 2]], np.int64),
        "low": float("-inf"),
        "raw": b"\x00\xff",
        "many": (1, 2),
        "scale": np.float32(0.5),
        "flag": True,
        "deep": {"k": [1.5, None]},
    }
    b.node("my::Op", [], outputs=0, attributes=given, name="n")
    back = load(dump(b.build(), "columns", "msgpack")).nodes[0].attributes
    assert np.array_equal(back["value"], given["value"]) and back["value"].dtype == np.int64
    assert (back["low"], back["raw"], back["many"], back["scale"]) == (float("-inf"), b"\x00\xff", [1, 2], 0.5)
    assert back["flag"] is True and back["deep"] == {"k": [1.5, None]}


def test_bodies_with_captures_survive_and_take_types_from_outside() -> None:
    body = {
        "inputs": ["i"],
        "captures": {"inner": "w1"},
        "values": [{"name": "i", "dtype": "float32", "shape": [784, 512]}],
        "nodes": [{"name": "add", "op": "Add", "inputs": ["i", "inner"], "outputs": ["o"]}],
        "outputs": ["o"],
    }
    given = json.loads(json.dumps(LAYER))
    given["nodes"].append({"name": "loop", "op": "my::Loop", "inputs": ["h"], "outputs": [], "bodies": {"body": body}})
    graph = read(given)
    inner = graph.nodes[1].bodies["body"]
    assert inner.graph.values[inner.graph.outputs[0]].type == TensorType("float32", (784, 512))
    assert graph.nodes[1].reads == (2, 1)
    for form in FORMS:
        assert same(load(dump(graph, form)), graph)


def test_gradients_and_the_callers_order_of_inputs_survive() -> None:
    given = {
        "format": "remat/1",
        "values": [{"name": n, "bytes": 4, "role": "input"} for n in "ab"]
        + [{"name": "w", "bytes": 4, "role": "parameter"}, {"name": "dw", "bytes": 4}],
        "nodes": [{"name": "n", "op": "my::Grad", "inputs": ["a", "b", "w"], "outputs": ["dw"], "phase": "backward"}],
        "outputs": ["dw"],
        "inputs": ["b", "a"],
        "gradients": {"w": "dw"},
    }
    graph = read(given)
    assert graph.inputs == (1, 0) and graph.gradients == ((2, 3),)
    for form in FORMS:
        back = load(dump(graph, form))
        assert same(back, graph) and back.gradients == graph.gradients


def test_fixed_bytes_are_kept_whatever_is_inferred() -> None:
    given = json.loads(json.dumps(LAYER))
    given["values"][2] = {"name": "h", "bytes": 5, "fixed_bytes": True}
    h = read(given).values[2]
    assert h.nbytes == 5 and h.type == TensorType("float32", (64, 512))


@pytest.mark.parametrize(("field", "wrong"), [("dtype", "float64"), ("shape", [64, 511]), ("bytes", 7)])
def test_half_a_declaration_must_agree_with_what_is_inferred(field: str, wrong: Any) -> None:
    right = {"dtype": "float32", "shape": [64, 512], "bytes": 64 * 512 * 4}
    given = json.loads(json.dumps(LAYER))
    given["values"][2] = {"name": "h", field: right[field]}
    assert read(given).values[2].type == TensorType("float32", (64, 512))
    given["values"][2][field] = wrong
    with pytest.raises(BadGraph, match=r"expected .*(the output type of|from) MatMul; correct"):
        read(given)


# Shapes the caller sets.


def test_a_batch_is_followed_through_declared_shapes() -> None:
    graph = read(LAYER, ShapeOverrides(batch=8))
    assert [graph.values[v].type.shape for v in (0, 2)] == [(8, 784), (8, 512)]  # type: ignore[union-attr]
    assert same(graph, read(LAYER, ShapeOverrides(inputs={"x": (8, 784)})))


def test_a_named_dimension_is_bound_wherever_it_stands() -> None:
    given = json.loads(json.dumps(LAYER).replace("[64,", '["N",').replace("MatMul", "my::Gemm"))
    for shapes in (ShapeOverrides(dims={"N": 3}), ShapeOverrides(batch=3), ShapeOverrides(inputs={"x": (3, 784)})):
        assert read(given, shapes).values[2].type == TensorType("float32", (3, 512))


def test_the_batch_leaves_a_named_dimension_at_the_length_it_was_given() -> None:
    given = json.loads(json.dumps(LAYER).replace("[64,", '["N",'))
    given["values"].append({"name": "state", "shape": [64, 2], "dtype": "float32", "role": "input"})
    graph = read(given, ShapeOverrides(batch=8, dims={"N": 3}))
    shapes = {value.name: value.type.shape for value in graph.values if value.type is not None}
    assert (shapes["x"], shapes["h"], shapes["state"]) == ((3, 784), (3, 512), (8, 2))


def test_a_baked_reshape_follows_the_batch() -> None:
    b = Builder()
    x = b.value("x", TensorType("float32", (64, 784)), Role.INPUT)
    target = b.constant(np.array([64, 28, 28]), "target")
    (y,) = b.node("Reshape", [x, target], outputs=["y"])
    (z,) = b.node("Reshape", [y, b.constant(np.array([64, -1]), "flat")], outputs=["z"])
    (total,) = b.node("ReduceSum", [z], outputs=["total"], attributes={"keepdims": 0})
    graph = load(dump(b.build([total])), None, ShapeOverrides(batch=8))
    types = {value.name: value.type for value in graph.values}
    assert types["y"] == TensorType("float32", (8, 28, 28)) and types["z"] == TensorType("float32", (8, 784))
    read_by = graph.values[graph.nodes[0].inputs[1]]
    assert read_by.name == "target/1" and read_by.data is not None and read_by.data.tolist() == [8, 28, 28]


@pytest.mark.parametrize(
    ("code", "op", "shapes"),
    [
        ("cannot_rebind", "my::Gemm", ShapeOverrides(batch=8)),
        ("unknown_input", "MatMul", ShapeOverrides(inputs={"y": (1, 2)})),
        ("unknown_dimension", "MatMul", ShapeOverrides(dims={"N": 8})),
        ("negative_size", "MatMul", ShapeOverrides(batch=-1)),
        ("cannot_rebind", "MatMul", ShapeOverrides(inputs={"x": (64, 783)})),
        ("size_too_large", "MatMul", ShapeOverrides(inputs={"x": (2**62, 784)})),
    ],
)
def test_shapes_a_document_cannot_take_are_refused(code: str, op: str, shapes: ShapeOverrides) -> None:
    with pytest.raises(BadGraph) as caught:
        read(json.loads(json.dumps(LAYER).replace("MatMul", op)), shapes)
    assert caught.value.findings[0].code == code


def test_a_dimension_with_two_lengths_is_refused() -> None:
    given = json.loads(json.dumps(LAYER).replace("[64,", '["N",'))
    with pytest.raises(BadGraph) as caught:
        read(given, ShapeOverrides(inputs={"x": (3, 784)}, dims={"N": 4}))
    assert caught.value.findings[0].code == "dimension_conflict"


# Names written more than once.


def test_each_write_of_a_name_is_a_version_without_order_edges() -> None:
    #   w ── step1 ─▶ w ── look ─▶ y        step2 may run before look: it writes another value
    #                 w ── step2 ─▶ w
    rows = [("step1", ["w"], ["w"]), ("look", ["w"], ["y"]), ("step2", ["w"], ["w"])]
    given = {
        "format": "remat/1",
        "naming": "mutable",
        "values": [{"name": "w", "bytes": 4, "role": "state"}, {"name": "y", "bytes": 4}, {"name": "w/1", "bytes": 4}],
        "nodes": [{"name": n, "op": "my::Op", "inputs": i, "outputs": o} for n, i, o in rows]
        + [{"name": "other", "op": "my::Op", "inputs": [], "outputs": ["w/1"]}],
        "outputs": ["w"],
    }
    graph = read(given)
    name = [value.name for value in graph.values]
    written = [[name[v] for v in node.outputs] for node in graph.nodes]
    assert written == [["w/2"], ["y"], ["w/3"], ["w/1"]]  # w/1 was taken
    assert [name[v] for v in graph.nodes[1].inputs] == ["w/2"]
    assert not any(node.after for node in graph.nodes)
    assert name[graph.outputs[0]] == "w/3"
    assert graph.values[name.index("w/3")].bytes == 4


def test_a_mutable_program_written_once_is_the_same_graph() -> None:
    assert same(read(LAYER | {"naming": "mutable"}), read(LAYER))


def test_a_scratch_name_may_change_its_shape() -> None:
    given = json.loads(json.dumps(LAYER))
    given["naming"] = "mutable"
    given["nodes"] = [
        {"name": "a", "op": "MatMul", "inputs": ["x", "w1"], "outputs": ["h"]},
        {"name": "b", "op": "Transpose", "inputs": ["h"], "outputs": ["h"]},
    ]
    graph = read(given)
    assert graph.values[graph.outputs[0]].type == TensorType("float32", (512, 64))


# Schemas and packings.


@pytest.mark.parametrize("name", ["document", "columns"])
def test_the_checked_in_schema_is_the_one_the_reader_has(name: str) -> None:
    """Regenerate with `python -m graph.formats.document.schema`."""
    assert json.loads((SCHEMAS / f"{name}.json").read_text()) == json_schemas()[name]


def test_a_document_is_recognised_by_its_bytes() -> None:
    from graph.formats.native.reader import sniff

    assert (
        sniff(b'  {"format": "remat/1"}')
        and sniff(msgspec.msgpack.encode(LAYER))
        and sniff(b'\xef\xbb\xbf{"format":"remat/1"}')
    )
    assert not sniff(b"") and not sniff(b"\x08\x07\x12") and not sniff(b'{"arg_nodes": [], "heads": []}')


def test_reading_leaves_the_collector_as_it_was() -> None:
    import gc

    for running in (True, False):
        (gc.enable if running else gc.disable)()
        try:
            read(LAYER)
            with pytest.raises(BadGraph):
                load(b'{"format": "remat/1"', Limits())
            assert gc.isenabled() == running
        finally:
            gc.enable()


def test_a_document_counts_as_plain_data() -> None:
    plain = document(read(LAYER))
    assert read(plain).nodes == read(LAYER).nodes and plain["format"] == "remat/1"
