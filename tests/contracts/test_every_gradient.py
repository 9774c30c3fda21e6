"""Every gradient rule against finite differences, over shapes, dtypes and attributes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import defs

from graph.autodiff.differentiate import differentiate
from graph.autodiff.gradients.registry import GRADIENT_RULES, NON_DIFFERENTIABLE
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.ir import ABSENT, FLOAT_DTYPES, Graph, Phase, Role
from graph.ops.registry import all_ops
from graph.ops.registry.onnx_fallback import numpy_dtype, schema_of, type_of_array
from tests.contracts.composite_examples import COMPOSITES
from tests.contracts.gradient_examples import EXAMPLES, Example
from tests.graph.evaluate import evaluate

STEP = {"float64": 1e-5, "float32": 1e-2}  # of central differences


def built(example: Example, dtype: str = "") -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of this one node and its floating inputs, with an input `d{i}` for each floating output's gradient."""
    builder, given, ids = Builder("one op", {"": example.opset}), {}, []
    dtype = dtype or example.dtype
    for i, array in enumerate(example.inputs):
        if array is None:
            ids.append(ABSENT)
            continue
        floating = array.dtype == np.float64
        array = array.astype(numpy_dtype(dtype)) if floating else array
        free = floating and i not in example.fixed
        role = Role.PARAMETER if free else Role.CONSTANT
        ids.append(builder.value(f"x{i}", type_of_array(array), role, data=None if free else array))
        if free:
            given[f"x{i}"] = array
    slots = [f"y{i}" if wanted else None for i, wanted in enumerate(example.outputs)]
    attributes = {**example.attributes, **({"to": 10} if example.op == "Cast" and dtype == "float16" else {})}
    outputs = builder.node(example.op, ids, name="node", outputs=slots, attributes=attributes)
    for i, v in enumerate(outputs):
        type = builder.values[v].type if v != ABSENT else None
        if type is not None and type.dtype in FLOAT_DTYPES:
            builder.value(f"d{i}", type, Role.INPUT)
            chance = np.random.default_rng(i)
            given[f"d{i}"] = chance.uniform(-1, 1, type.shape).astype(numpy_dtype(type.dtype))
    return builder.build([v for v in outputs if v != ABSENT]), given


def targets_of(graph: Graph, given: dict[str, np.ndarray]) -> list[list[str]]:
    """All differentiable outputs together, then each alone where there are several."""
    every = [f"y{i}" for i in range(len(graph.nodes[0].outputs)) if f"d{i}" in given and differentiable(graph, i)]
    return [every] + ([[name] for name in every] if len(every) > 1 else [])


def differentiable(graph: Graph, output: int) -> bool:
    statistics = {"LayerNormalization": (1, 2), "remat::BatchNorm": (1, 2), "BatchNormalization": (1, 2)}
    return output not in statistics.get(graph.nodes[0].op, ())


def gradients_of(graph: Graph, given: dict[str, np.ndarray], targets: list[str]) -> dict[str, np.ndarray]:
    heads = {name: f"d{name[1:]}" for name in targets}
    step = differentiate(graph, targets, head_gradients=heads)
    found = evaluate(step, given)
    return {step.values[x].name: found[step.values[dx].name] for x, dx in step.gradients}


def slope(graph: Graph, given: dict[str, np.ndarray], targets: list[str], name: str, direction: np.ndarray) -> float:
    """Derivative of the sum of head gradient times target along a direction in one input."""
    step = STEP[given[name].dtype.name]

    def at(offset: float) -> float:
        values = evaluate(graph, {**given, name: given[name] + (offset * direction).astype(given[name].dtype)})
        return sum(float((values[target].astype(np.float64) * given[f"d{target[1:]}"]).sum()) for target in targets)

    return (at(step) - at(-step)) / (2 * step)


@pytest.mark.parametrize("example", [*EXAMPLES, *COMPOSITES], ids=str)
def test_a_gradient_agrees_with_finite_differences(example: Example):
    graph, given = built(example)
    chance = np.random.default_rng(0)
    wanted = [name for name in given if name.startswith("x")]
    for i, targets in enumerate(targets_of(graph, given)):
        gradients = gradients_of(graph, given, targets)
        assert i > 0 or set(gradients) == set(wanted), "one output alone may leave an input without gradient, and slope"
        for name in wanted:
            for _ in range(2):
                direction = chance.uniform(-1, 1, given[name].shape)
                expected = slope(graph, given, targets, name, direction)
                along = gradients.get(name, np.zeros(())) * direction
                found, scale = float(along.sum()), max(1.0, abs(expected), float(np.abs(along).sum()))
                assert abs(found - expected) <= example.tolerance * scale, (name, targets, found, expected)


PRECISION = {"float32": 1e-4, "float16": 0.03, "bfloat16": 0.2}


@pytest.mark.parametrize("example", [*EXAMPLES, *COMPOSITES], ids=str)
def test_a_gradient_keeps_its_dtype(example: Example):
    for dtype in PRECISION:
        assert_dtype_is_kept(example, dtype)


def assert_dtype_is_kept(example: Example, dtype: str) -> None:
    try:
        graph, given = built(example, dtype)
    except BadGraph:
        assert dtype != "float32" or example.op == "CastLike", "every op takes float32"
        return  # the op does not take this dtype
    targets = targets_of(graph, given)[0]
    found = gradients_of(graph, given, targets)
    exact_graph, exact = built(example)
    exact = {name: given[name].astype(array.dtype) for name, array in exact.items()}
    for name, expected in gradients_of(exact_graph, exact, targets).items():
        assert found[name].dtype == numpy_dtype(dtype), (dtype, name)
        distance = np.abs(found[name].astype(np.float64) - expected).max(initial=0)
        assert distance <= PRECISION[dtype] * max(1.0, np.abs(expected).max(initial=0)), (dtype, name)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_gradient_reads_what_the_op_table_says(example: Example):
    from graph.ops.registry import find_op

    graph, given = built(example)
    step = differentiate(graph, targets_of(graph, given)[0], head_gradients={})
    record = find_op(example.op)
    assert record is not None
    forward = step.nodes[0]
    several = is_variadic(example.op)  # the table names the first of a variadic input
    named = {v: "i0" if several else f"i{i}" for i, v in enumerate(forward.inputs)}
    named |= {v: f"o{i}" for i, v in enumerate(forward.outputs)}
    read = {named[v] for node in step.nodes if node.phase is Phase.BACKWARD for v in node.reads if v in named}
    constants = {f"i{i}" for i, v in enumerate(forward.inputs) if v != ABSENT and step.values[v].data is not None}
    assert read - constants <= set(record.gradient_reads)


def is_variadic(op: str) -> bool:
    schema = schema_of(op, 21)
    return schema is not None and schema.max_input > 1000


#: Rules that say in which form their op has a gradient, as `test_second_derivatives` shows.
REFUSING = {"remat::RNNGrad", "remat::GRUGrad", "remat::LSTMGrad"}


#: Rules that are not derivatives: see `test_straight_through.py`.
ESTIMATING = {"QuantizeLinear"}


def test_every_rule_has_an_example():
    assert set(GRADIENT_RULES) - REFUSING - ESTIMATING == {example.op for example in EXAMPLES}


def composites() -> set[str]:
    """Ops of others that are defined by their decomposition, and differentiated through it."""
    return {op for op, record in all_ops().items() if record.body is not None and not op.startswith("remat::")}


def test_every_composite_op_has_an_example_and_no_rule():
    assert composites() == {example.op for example in COMPOSITES}
    assert not composites() & (set(GRADIENT_RULES) | NON_DIFFERENTIABLE)


#: Attributes that no example can show, with the reason.
UNSHOWN = {
    ("Cast", "round_mode"): "of float8, which has no gradient",
    ("Cast", "saturate"): "of float8, which has no gradient",
    ("CastLike", "round_mode"): "of float8, which has no gradient",
    ("CastLike", "saturate"): "of float8, which has no gradient",
}


def test_every_attribute_of_an_op_with_a_rule_is_in_an_example():
    standard = set(GRADIENT_RULES) - ESTIMATING | composites() - {"SimplifiedLayerNormalization"}
    newest = {op: defs.get_schema(op) for op in standard if "::" not in op}
    named = {
        (op, attribute) for op, schema in newest.items() for attribute in schema.attributes if not schema.deprecated
    }
    shown = {(example.op, attribute) for example in (*EXAMPLES, *COMPOSITES) for attribute in example.attributes}
    assert named - shown == set(UNSHOWN)


def test_an_op_has_a_rule_or_ends_the_path_but_not_both():
    assert not set(GRADIENT_RULES) & NON_DIFFERENTIABLE
