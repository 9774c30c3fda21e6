"""Roles of the tensors of ONNX files: PyTorch's signature, guesses by content and use, requested patterns."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from graph.errors import BadGraph
from graph.formats.readers import load
from graph.ir import Graph, Role
from graph.limits import ShapeOverrides
from graph.training.roles import role_notes, with_roles
from planner.formulation.training_graph import load_model, training_graph
from planner.request.plan_request import parse_request

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
FX = "pkg.torch.onnx.fx_node"
RANDOM = np.random.default_rng(0)


def model(
    nodes: list[NodeProto],
    tensors: dict[str, np.ndarray],
    shape: tuple[int, ...],
    signature: str = "",
    output: str = "y",
) -> bytes:
    """An ONNX file of PyTorch with input `x`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors.items()],
    )
    if signature:
        graph.metadata_props.add(key=SIGNATURE, value=signature)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], producer_name="pytorch")
    return proto.SerializeToString()


def node(op: str, inputs: list[str], output: str, fx: str = "", **attributes: object) -> NodeProto:
    proto = helper.make_node(op, inputs, [output], **attributes)
    if fx:
        proto.metadata_props.add(key=FX, value=fx)
    return proto


def roles(graph: Graph) -> dict[str, Role]:
    return {value.name: value.role for value in graph.values if value.role in (Role.PARAMETER, Role.CONSTANT)}


def weights(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


def test_weight_that_the_exporter_renamed_is_trained_and_is_no_guess() -> None:
    """RMSNorm scale (8,) folded to [1, 8]: the op that reads it is no layer."""
    nodes = [
        node("Mul", ["x", "val_3"], "y", "%mul : call_function[target=mul](args = (%x, %p_norm_scale), kwargs = {})")
    ]
    graph = load(model(nodes, {"val_3": weights(1, 8)}, (4, 8), "p_norm_scale: PARAMETER target='norm.scale'\n"))
    assert roles(graph) == {"val_3": Role.PARAMETER}
    assert role_notes(graph) == []


@pytest.mark.parametrize("op", ["Gather", "GatherND"])
def test_weights_of_a_mixture_of_experts_are_trained_under_their_new_names(op: str) -> None:
    fx = "%index : call_function[target=torch.ops.aten.index.Tensor](args = (%p_experts, [%chosen]), kwargs = {})"
    chosen = helper.make_node("Cast", ["x"], ["chosen"], to=TensorProto.INT64)
    nodes = [chosen, node(op, ["val_1", "chosen"], "y", fx)]
    graph = load(model(nodes, {"val_1": weights(4, 3, 2)}, (2, 1), "p_experts: PARAMETER target='experts'\n"))
    assert roles(graph) == {"val_1": Role.PARAMETER}


def test_unit_scale_that_the_exporter_adds_to_a_norm_is_a_constant() -> None:
    fx = "%layer_norm : call_function[target=layer_norm](args = (%x, [8], None, None), kwargs = {})"
    nodes = [node("LayerNormalization", ["x", "val_0"], "h", fx), node("Add", ["h", "b"], "y")]
    signature = "p_b: PARAMETER target='b'\np_unused: PARAMETER target='unused'\n"
    graph = load(model(nodes, {"val_0": np.ones(8), "b": weights(8)}, (4, 8), signature))
    assert roles(graph) == {"val_0": Role.CONSTANT, "b": Role.PARAMETER}


def test_folded_results_are_listed_with_size_and_remedy() -> None:
    """A_log of a state-space model is folded to -exp(A_log), and no node names it."""
    nodes = [node("Mul", ["x", "neg"], "y", "%mul : call_function[target=mul](args = (%x, %neg), kwargs = {})")]
    graph = load(model(nodes, {"neg": weights(8)}, (4, 8), "p_a_log: PARAMETER target='A_log'\n"))
    assert roles(graph) == {"neg": Role.PARAMETER}
    trained, untraced = role_notes(graph)
    assert "neg float32[8]" in trained
    assert "--frozen" in trained
    assert "A_log" in untraced
    assert "optimize=False" in untraced


@pytest.mark.parametrize(("source", "is_told"), [("w", True), ("table", False)])
def test_results_that_the_exporter_computed_from_parameters_are_named_with_them(source: str, is_told: bool) -> None:
    """The first step of an RNN from a zero state: its product with the weight is folded to the bias alone."""
    nodes = [
        node("MatMul", ["x", "w"], "h"),
        node("Add", ["h", "linear_1"], "y", "%add = add](args = (%h, %linear_1))"),
    ]
    signature = "p_w: PARAMETER target='w'\nb_table: BUFFER target='table' persistent=True\n"
    proto = onnx.load_from_string(model(nodes, {"w": weights(8, 8), "linear_1": weights(1, 8)}, (4, 8), signature))
    info = proto.graph.value_info.add(name="linear_1")
    info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=f"['val_0', '{source}']")
    graph = load(proto.SerializeToString())
    assert roles(graph) == {"w": Role.PARAMETER, "linear_1": Role.CONSTANT}
    notes = [note for note in role_notes(graph) if "linear_1 float32[1,8] (from w)" in note]
    assert bool(notes) == is_told
    assert all("optimize=False" in note for note in notes)


def test_lifted_constants_and_buffers_are_not_trained_by_a_layer() -> None:
    nodes = [node("MatMul", ["x", "c"], "h"), node("MatMul", ["h", "table"], "y")]
    signature = "c_c: CONSTANT_TENSOR target='c'\nb_table: BUFFER target='table' persistent=True\n"
    graph = load(model(nodes, {"c": weights(8, 8), "table": weights(8, 8)}, (4, 8), signature))
    assert set(roles(graph).values()) == {Role.CONSTANT}


@pytest.mark.parametrize("low", [-1e4, -65504.0, -1e9, -np.inf])
def test_masks_are_constants(low: float) -> None:
    mask = np.triu(np.full((4, 4), low), 1)
    graph = load(model([node("Add", ["x", "mask"], "y")], {"mask": mask}, (2, 4, 4)))
    assert roles(graph) == {"mask": Role.CONSTANT}
    assert "mask float32[4,4]" in role_notes(graph)[0]


def sinusoidal() -> np.ndarray:
    angles = np.arange(16)[:, None] / 1e4 ** (np.arange(0, 8, 2) / 8)
    return np.stack([np.sin(angles), np.cos(angles)], 2).reshape(16, 8)


@pytest.mark.parametrize("function", [np.sin, np.cos, None])
def test_tables_of_sines_and_cosines_are_constants_and_learned_ones_are_not(function: np.ufunc | None) -> None:
    angles = np.arange(16)[:, None] / 1e4 ** (np.arange(0, 16, 2) / 16)
    fixed = sinusoidal() if function is None else function(angles)
    nodes = [node("Mul", ["x", "fixed"], "h"), node("Add", ["h", "learned"], "y")]
    graph = load(model(nodes, {"fixed": fixed, "learned": weights(16, 8)}, (2, 16, 8)))
    assert roles(graph) == {"fixed": Role.CONSTANT, "learned": Role.PARAMETER}
    assert ["learned" in role_notes(graph)[0], "fixed" in role_notes(graph)[1]] == [True, True]


def test_rotary_frequencies_read_by_a_matmul_are_constants() -> None:
    frequencies = (1e4 ** -(np.arange(0, 16, 2) / 16))[None]
    graph = load(model([node("MatMul", ["x", "f"], "y")], {"f": frequencies}, (4, 1)))
    assert roles(graph) == {"f": Role.CONSTANT}


def test_literals_of_nodes_are_constants_in_files_of_pytorch() -> None:
    """Mean of an image's channels, written as a Constant node; weights are initialisers."""
    mean = helper.make_tensor("", TensorProto.FLOAT, [8], weights(8))
    nodes = [
        helper.make_node("Constant", [], ["/Constant_output_0"], value=mean),
        node("Sub", ["x", "/Constant_output_0"], "h"),
        node("Mul", ["h", "scale"], "y"),
    ]
    graph = load(model(nodes, {"scale": weights(8)}, (4, 8)))
    assert roles(graph) == {"/Constant_output_0": Role.CONSTANT, "scale": Role.PARAMETER}


def test_learned_scale_of_one_element_is_trained_and_listed() -> None:
    made = ("onnx::Mul_7", "val_72", "_to_copy_1", "scalar_tensor_default")  # by the exporters
    nodes = [node("Mul", ["x", "gate.scale"], "h"), node("Sum", ["h", *(f"h{i}" for i in range(4))], "y")]
    nodes[1:1] = [node("Mul", ["h", name], f"h{i}") for i, name in enumerate(made)]
    tensors = {"gate.scale": np.array([0.5]), **{name: np.array([2.0]) for name in made}}
    graph = load(model(nodes, tensors, (4, 8)))
    assert roles(graph) == {"gate.scale": Role.PARAMETER, **dict.fromkeys(made, Role.CONSTANT)}
    assert "gate.scale" in role_notes(graph)[0]


@pytest.mark.parametrize("copy", ["onnx::MatMul_5", "val_0"])
def test_transposed_copy_of_a_tied_weight_stays_one_parameter(copy: str) -> None:
    table = weights(6, 4)
    fx = "%linear : call_function[target=linear](args = (%x, %p_emb), kwargs = {})"
    nodes = [node("MatMul", ["x", "emb"], "h"), node("MatMul", ["h", copy], "y", fx if copy == "val_0" else "")]
    signature = "p_emb: PARAMETER target='emb'\n" if copy == "val_0" else ""
    graph = load(model(nodes, {"emb": table, copy: table.T}, (2, 6), signature))
    assert roles(graph) == {"emb": Role.PARAMETER}
    assert [n.op for n in graph.nodes].count("Transpose") == 1


def test_equal_shapes_alone_do_not_tie() -> None:
    nodes = [node("MatMul", ["x", "a"], "h"), node("MatMul", ["h", "onnx::MatMul_5"], "y")]
    graph = load(model(nodes, {"a": weights(6, 4), "onnx::MatMul_5": weights(4, 6)}, (2, 6)))
    assert set(roles(graph)) == {"a", "onnx::MatMul_5"}


def test_requested_patterns_overrule_every_guess() -> None:
    nodes = [
        node("Add", ["x", "mask"], "h"),
        node("MatMul", ["h", "head.w"], "g"),
        node("MatMul", ["g", "body.w"], "y"),
    ]
    mask = np.triu(np.full((4, 4), -1e4), 1)
    data = model(nodes, {"mask": mask, "head.w": weights(4, 4), "body.w": weights(4, 4)}, (4, 4))
    request = parse_request({"trainable": ["mask", "head.*"], "frozen": ["*"]})
    graph = load_model(data, request)
    assert roles(graph) == {"mask": Role.PARAMETER, "head.w": Role.PARAMETER, "body.w": Role.CONSTANT}
    step, notes = training_graph(data, graph, request)
    assert sorted(step.values[v].name for v, _ in step.gradients) == ["head.w", "mask"]
    assert not any("taken as" in note for note in notes)
    again = with_roles(load(data), ("mask", "head.*"), ("*",))  # a graph that was read without patterns
    assert roles(again) == roles(graph)
    assert role_notes(again) == []


def test_pattern_without_a_match_is_refused() -> None:
    data = model([node("MatMul", ["x", "w"], "y")], {"w": weights(4, 4)}, (4, 4))
    with pytest.raises(BadGraph, match="no parameter or constant"):
        load_model(data, parse_request({"frozen": ["nothing.*"]}))


def test_frozen_weight_is_read_without_its_content() -> None:
    data = model([node("MatMul", ["x", "w"], "y")], {"w": weights(16, 16)}, (4, 16))
    graph = load(data, shapes=ShapeOverrides(frozen=("w",)))
    assert roles(graph) == {"w": Role.CONSTANT}
    assert graph.values[graph.value_named("w")].data is None


def test_guesses_reach_the_warnings_of_a_training_step() -> None:
    data = model(
        [node("MatMul", ["x", "w"], "h"), node("Add", ["h", "table"], "y")],
        {"w": weights(4, 4), "table": weights(4, 4)},
        (4, 4),
    )
    assert onnx.load_from_string(data).producer_name == "pytorch"
    request = parse_request({})
    _, notes = training_graph(data, load_model(data, request), request)
    assert any("table float32[4,4]" in note for note in notes)


@pytest.mark.parametrize("signature", ["", "p_w: PARAMETER target='w'\n"])
def test_filled_state_is_no_parameter(signature: str) -> None:
    """Only a shape named after a weight, as in the light models of `onnx`, marks a weight stripped from the file."""
    fill = [node("ConstantOfShape", ["n"], "state"), node("ConstantOfShape", ["v__SHAPE"], "v")]
    nodes = [*fill, node("Add", ["x", "state"], "h"), node("MatMul", ["h", "w"], "i"), node("MatMul", ["i", "v"], "y")]
    proto = onnx.load_from_string(model(nodes, {"w": weights(32, 8)}, (4, 32), signature))
    shapes = {"n": [4, 32], "v__SHAPE": [8, 16]}
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(shape), name) for name, shape in shapes.items())
    graph = load(proto.SerializeToString())
    parameters = [value for value in graph.values if value.role is Role.PARAMETER]
    assert {value.name for value in parameters} == {"v", "w"}
    state = graph.values[graph.value_named("state")]
    assert state.role is Role.ACTIVATION or state.data is not None


@pytest.mark.parametrize("transposed", [False, True])
def test_equal_parameters_under_two_names_are_reported_with_both_names(transposed: bool) -> None:
    """Layers copied before training are equal too, so that equal weights are not taken as tied."""
    w = weights(4, 4)
    tensors = {"w": w, "v": w.T if transposed else w, "u": weights(4, 4), "b": np.zeros(4), "c": np.zeros(4)}
    nodes = [node("Gemm", ["x", "w", "b"], "h"), node("Gemm", ["h", "v", "c"], "i"), node("MatMul", ["i", "u"], "y")]
    graph = load(model(nodes, tensors, (2, 4)))
    notes = role_notes(graph)
    assert len(notes) == 1
    assert "w = v;" in notes[0]
    assert {name for name, role in roles(graph).items() if role is Role.PARAMETER} == set(tensors)


def folded(weight: str, bias: str, signature: str = "") -> list[str]:
    """Notes about a Conv with these names and another one, as exports in eval mode write them."""
    nodes = [node("Conv", ["x", weight, bias], "h"), node("Conv", ["h", "d.weight", "d.bias"], "y")]
    tensors = {weight: weights(4, 3, 1, 1), bias: weights(4), "d.weight": weights(2, 4, 1, 1), "d.bias": weights(2)}
    return [note for note in role_notes(load(model(nodes, tensors, (1, 3, 5, 5), signature))) if "BatchNorm" in note]


def test_folded_batch_norms_are_reported_with_the_export_that_keeps_them() -> None:
    (by_name,) = folded("onnx::Conv_26", "onnx::Conv_27")
    assert "onnx::Conv_26;" in by_name
    assert "do_constant_folding=False" in by_name
    signature = "p_c: PARAMETER target='c.weight'\nb_m: BUFFER target='bn.running_mean' persistent=True\n"
    (by_signature,) = folded("c.weight", "c.weight_bias", signature)
    assert "bn;" in by_signature
    assert "optimize=False" in by_signature
    assert not folded("c.weight", "c.bias")
    assert not folded("onnx::Conv_26", "c.bias")


def test_parameters_under_names_of_the_exporter_are_reported_with_their_readers() -> None:
    nodes = [node("Mul", ["x", "onnx::Mul_7"], "h"), node("MatMul", ["h", "head.weight"], "y")]
    nodes[0].name = "/layers.0/norm/Mul_1"
    tensors = {"onnx::Mul_7": weights(8), "head.weight": weights(8, 4)}
    graph = load(model(nodes, tensors, (4, 8)))
    assert roles(graph) == dict.fromkeys(tensors, Role.PARAMETER)
    (note,) = role_notes(graph)
    assert "onnx::Mul_7 (read by /layers.0/norm/Mul_1);" in note and "head.weight" not in note
    assert "do_constant_folding=False" in note


def test_rows_that_pytorch_does_not_train_are_named() -> None:
    fx = "%embedding : call_function[target=torch.ops.aten.embedding.default](args = (%p_words, %ids, 1), kwargs = {})"
    ids = helper.make_node("Cast", ["x"], ["ids"], to=TensorProto.INT64)
    nodes = [ids, node("Gather", ["words", "ids"], "y", fx), node("Gather", ["words", "ids"], "z", fx)]
    graph = load(model(nodes, {"words": weights(4, 3)}, (2,), "p_words: PARAMETER target='words'\n"))
    (note,) = role_notes(graph)
    assert "padding_idx" in note and note.count("words[1]") == 1
    unpadded = [ids, node("Gather", ["words", "ids"], "y", fx.replace(", 1)", ")"))]
    assert not role_notes(load(model(unpadded, {"words": weights(4, 3)}, (2,), "p_words: PARAMETER target='words'\n")))
