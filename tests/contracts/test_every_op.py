"""Every op of the table: kernel, types, body and what it may write over, on the uses of `op_calls.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from msgspec import structs

from graph.analysis.aliasing import inplace_candidates, is_view, storage_roots, views_of
from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.registry import GRADIENT_RULES
from graph.builder.builder import Builder
from graph.builder.emit import Emit
from graph.errors import CannotExecute
from graph.execution.interpreter import execute
from graph.ir import ABSENT, FLOAT_DTYPES, Effect, Phase, Role
from graph.ops.registry import Call, all_ops, find_op, infer, run, work
from graph.ops.registry import onnx_fallback as standard
from graph.ops.registry.onnx_fallback import numpy_dtype, type_of_array
from tests.contracts.gradient_examples import EXAMPLES
from tests.contracts.op_calls import Use, graph_of, uses_by_op
from tests.contracts.op_examples import BY_DATA
from tests.contracts.op_runtime import by_runtime, in_float32
from tests.contracts.test_every_gradient import built, is_variadic, targets_of

ALL_OPS = all_ops()

#: Relative error allowed against another way to the same numbers, by the dtype of the result.
TOLERANCE = {"float64": 1e-6, "float32": 2e-5, "bfloat16": 0.05, "float16": 5e-3}

#: Random ops draw other numbers than anybody else.
DRAWS = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Dropout",
    "remat::Seed",
}

#: Ops compared with onnxruntime, because of what `onnx.reference` does.
BY_RUNTIME = {
    "AffineGrid": "computes in float32",
    "DeformConv": "knows images only",
    "GridSample": "computes places in float32",
    "MaxRoiPool": "is missing",
    "ConvTranspose": "fails with groups",
    "GRU": "ignores direction",
    "LSTM": "ignores direction",
    "RNN": "ignores direction",
    "GatherElements": "fails when indices are fewer than rows",
    "GlobalLpPool": "is missing",
    "GlobalMaxPool": "drops the channels",
    "Hardmax": "has opset 13 only",
    "Softmax": "has opset 13 only",
    "LogSoftmax": "has opset 13 only",
    "LRN": "takes another window",
    "LayerNormalization": "keeps statistics in float64",
    "LpPool": "scales windows that reach past the end",
    "LpNormalization": "does not take absolute values",
    "Mean": "does not broadcast",
    "MeanVarianceNormalization": "mixes dtypes",
    "Pad": "does not cut",
    "Scatter": "is missing",
    "SimplifiedLayerNormalization": "is missing",
    "Softsign": "fails on scalars",
    "Upsample": "knows one scale",
}


@cache
def uses() -> dict[str, list[Use]]:
    return uses_by_op()


def uses_of(op: str) -> list[Use]:
    return uses().get(op, [])


def results_of(use: Use) -> list[np.ndarray | None]:
    """What the kernel makes; a kernel may make more than is wanted."""
    made = run(use.call, *use.arrays)
    return [array if want else None for array, want in zip(made, use.call.used, strict=True)]


def assert_close(found: Sequence[np.ndarray | None], expected: Sequence[np.ndarray | None], use: Use) -> None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a is None) == (b is None), (str(use), i)
        if a is None or b is None:
            continue
        assert type_of_array(a) == type_of_array(b), (str(use), i)
        if type_of_array(a).dtype in FLOAT_DTYPES and a.size:
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(wide_b)
            np.testing.assert_array_equal(wide_a[~finite], wide_b[~finite], str(use))
            scale = max(1.0, np.abs(wide_b[finite]).max(initial=0))
            error = np.abs(wide_a[finite] - wide_b[finite]).max(initial=0)
            assert error <= TOLERANCE.get(type_of_array(a).dtype, 0) * scale, (str(use), i, error)
        else:
            np.testing.assert_array_equal(a, b, str(use))


def test_every_op_is_met():
    assert set(ALL_OPS) - set(BY_DATA) - set(uses()) == set()


@pytest.mark.parametrize("op", sorted(ALL_OPS))
def test_a_kernel_makes_what_the_type_rule_says(op: str):
    for use in uses_of(op):
        blank = replace(use.call, outputs=(None,) * len(use.call.outputs))
        made = tuple(None if array is None else type_of_array(array) for array in results_of(use))
        assert tuple(t if want else None for t, want in zip(infer(blank), use.call.used, strict=True)) == made, str(use)


@pytest.mark.parametrize("op", sorted(ALL_OPS))
def test_a_kernel_leaves_its_inputs_alone_and_repeats_bit_for_bit(op: str):
    for use in uses_of(op):
        before = [None if array is None else array.copy() for array in use.arrays]
        first = run(use.call, *use.arrays)
        # The same numbers at an address of another alignment.
        moved = [None if array is None else _elsewhere(array) for array in use.arrays]
        second = run(use.call, *moved)
        for a, b in zip((*use.arrays, *first), (*before, *second), strict=True):
            assert a is None if b is None else a is not None and a.tobytes() == b.tobytes(), str(use)
        if not ALL_OPS[op].views:
            shared = [np.may_share_memory(a, x) for a in first for x in use.arrays if a is not None and x is not None]
            assert not any(shared), f"{use} hands an input out"


def _elsewhere(array: np.ndarray) -> np.ndarray:
    """The same array one element further from where an allocation begins."""
    room = np.empty(array.size + 1, array.dtype)
    room[1:] = array.reshape(-1)
    found = room[1:].reshape(array.shape)
    found.flags.writeable = False
    return found


def compared() -> list[str]:
    """Ops of others with a kernel of ours; the rest run on the reference itself."""
    return sorted(
        op
        for op, record in ALL_OPS.items()
        if not op.startswith("remat::") and record.kernel is not None and op not in DRAWS
    )


@pytest.mark.parametrize("op", compared())
def test_an_op_of_others_agrees_with_another_implementation(op: str):
    found = 0
    for use in uses_of(op):
        if op in BY_RUNTIME or "::" in op:
            use = in_float32(use)
            expected = by_runtime(use)
        else:
            with np.errstate(all="ignore"):
                expected = list(standard.run(use.call, use.arrays))
        if expected is not None:
            found += 1
            assert_close(results_of(use), expected, use)
    assert found


def own_with_body() -> list[str]:
    return sorted(op for op, record in ALL_OPS.items() if record.body is not None and op.startswith("remat::"))


@pytest.mark.parametrize("op", own_with_body())
def test_a_body_of_standard_ops_computes_the_same(op: str):
    body = ALL_OPS[op].body
    assert body is not None
    for use in uses_of(op):
        builder = Builder("body", {"": max(use.call.opset, 21)})
        emit = Emit(builder, "body")
        inputs, feeds = [], {}
        for i, array in enumerate(use.arrays):
            if array is None:
                inputs.append(None)
                continue
            inputs.append(emit.val(builder.value(f"x{i}", type_of_array(array), Role.INPUT)))
            feeds[f"x{i}"] = array
        made = body(emit, use.call, *inputs)
        graph = builder.build([v.id for v in made if v is not None])
        assert not [node.op for node in graph.nodes if "::" in node.op], "a body is made of standard ops"
        outputs = execute(graph, feeds).outputs
        found = [None if v is None else outputs[graph.values[v.id].name] for v in made]
        found += [None] * (len(use.call.used) - len(found))
        found = [a if want else None for a, want in zip(found, use.call.used, strict=True)]
        assert_close(found, results_of(use), use)


def without_body() -> set[str]:
    return {name for name in ALL_OPS if name.startswith("remat::")} - set(own_with_body())


def test_an_op_of_ours_has_a_body_unless_it_runs_through_time():
    assert without_body() == {"remat::RNNGrad", "remat::GRUGrad", "remat::LSTMGrad"}


@pytest.mark.parametrize("op", sorted(name for name, record in ALL_OPS.items() if record.takeover))
def test_an_output_takes_over_only_what_it_fits_element_for_element(op: str):
    possible = 0
    for use in uses_of(op):
        graph = graph_of(use)
        node = graph.nodes[0]
        for output, source in inplace_candidates(graph, node):
            made, taken = graph.values[node.outputs[output]], graph.values[node.inputs[source]]
            assert made.nbytes <= taken.nbytes
            assert made.type is not None and taken.type is not None
            assert made.type.dtype == taken.type.dtype and made.type.elements == taken.type.elements
            possible += 1
    assert possible, "no use lets an output take over what the table lists"


@pytest.mark.parametrize("op", sorted(name for name, record in ALL_OPS.items() if record.views))
def test_a_view_has_its_storages_elements_in_their_order(op: str):
    for use in uses_of(op):
        graph = graph_of(use)
        node = graph.nodes[0]
        assert is_view(graph, node)
        roots, results = storage_roots(graph), run(use.call, *use.arrays)
        for output, source in views_of(graph, node):
            assert roots[node.outputs[output]] == node.inputs[source]
            made, shown = results[output], use.arrays[source]
            assert made is not None and shown is not None
            assert made.tobytes() == shown.tobytes()


@pytest.mark.parametrize("op", sorted(name for name, record in ALL_OPS.items() if record.shape_only))
def test_what_is_read_for_its_shape_may_hold_anything(op: str):
    record = ALL_OPS[op]
    for use in uses_of(op):
        other = [
            np.broadcast_to(np.zeros((), a.dtype), a.shape) if i in record.shape_only and a is not None else a
            for i, a in enumerate(use.arrays)
        ]
        for a, b in zip(run(use.call, *use.arrays), run(use.call, *other), strict=True):
            assert a is not None and b is not None and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("op", sorted(ALL_OPS))
def test_work_is_counted_in_whole_numbers_that_are_not_negative(op: str):
    for use in uses_of(op):
        found = work(use.call)
        for count in (found.flops, found.traffic_bytes, found.workspace_bytes):
            assert isinstance(count, int) and count >= 0, str(use)
        bytes_made = sum(t.nbytes for t in use.call.outputs if t is not None)
        assert ALL_OPS[op].views or (found.traffic_bytes or 0) >= min(bytes_made, 1), f"{use} moves nothing"


@pytest.mark.parametrize("op", sorted(name for name, record in ALL_OPS.items() if record.effect is Effect.RANDOM))
def test_a_draw_follows_seed_and_stream_alone(op: str):
    for use in uses_of(op):
        if use.call.op == "Dropout" and not (len(use.arrays) > 2 and bool(use.arrays[2])):
            continue  # in inference nothing is drawn
        first = run(use.call, *use.arrays)[-1]
        assert first is not None
        for other in (replace(use.call, stream="another"), replace(use.call, seed=1)):
            again = run(other, *use.arrays)[-1]
            assert again is not None
            assert first.size < 4 or first.tobytes() != again.tobytes(), str(use)


@pytest.mark.parametrize("op", ["Exp", "Tanh", "Sigmoid", "Erf", "Gelu", "Add", "Mul", "Div", "Softmax", "MatMul"])
def test_narrow_floats_are_computed_in_float32_and_rounded_once(op: str):
    narrow = [
        use
        for use in uses_of(op)
        if use.call.inputs[0] is not None and use.call.inputs[0].dtype in ("float16", "bfloat16")
    ]
    assert narrow
    for use in narrow:
        (found,) = run(use.call, *use.arrays)
        (wide,) = run(use.call, *(None if a is None else a.astype(np.float32) for a in use.arrays))
        assert found is not None and wide is not None
        np.testing.assert_array_equal(found, wide.astype(found.dtype))


@pytest.mark.parametrize("op", sorted(BY_DATA))
def test_an_op_shaped_by_data_keeps_its_declaration_where_it_may(op: str):
    arrays, attributes, shapes = BY_DATA[op]
    types = tuple(map(type_of_array, arrays))
    call = Call(op, attributes, types, (None,) * len(shapes), (True,) * len(shapes))
    results = run(call, *arrays)
    assert [a.shape for a in results if a is not None] == shapes
    made = tuple(type_of_array(a) for a in results if a is not None)
    assert infer(replace(call, outputs=made)) == made
    wrong = tuple(structs.replace(t, dtype="bool") for t in made)
    with pytest.raises(ValueError, match="declared"):
        infer(replace(call, outputs=wrong))


def test_an_op_nobody_knows_keeps_what_is_declared():
    declared = (type_of_array(np.zeros((2, 3), np.float32)),)
    assert find_op("acme::Fold") is None
    assert infer(Call("acme::Fold", {"a": 1}, declared, declared, (True,))) == declared
    with pytest.raises(CannotExecute, match="acme::Fold"):
        run(Call("acme::Fold", {}, declared, declared, (True,)), np.zeros((2, 3), numpy_dtype("float32")))


#: Ops whose gradient passes integers: see `test_straight_through.py`.
QUANTIZING = {"QuantizeLinear", "DequantizeLinear"}


@pytest.mark.parametrize("op", sorted((set(GRADIENT_RULES) & set(ALL_OPS)) - QUANTIZING))
def test_a_gradient_reads_all_that_the_table_lists_and_nothing_else(op: str):
    """Over all examples together, since what one reads may depend on its attributes."""
    read: set[str] = set()
    for example in EXAMPLES:
        if example.op != op:
            continue
        graph, given = built(example)
        for targets in targets_of(graph, given):
            step = differentiate(graph, targets, head_gradients={})
            forward, several = step.nodes[0], is_variadic(op)  # the table names the first of a variadic input
            places = {v: "i0" if several else f"i{i}" for i, v in enumerate(forward.inputs) if v != ABSENT}
            places |= {v: f"o{i}" for i, v in enumerate(forward.outputs) if v != ABSENT}
            back = [node for node in step.nodes if node.phase is Phase.BACKWARD]
            read |= {places[v] for node in back for v in node.reads if v in places}
    assert read == set(ALL_OPS[op].gradient_reads)
