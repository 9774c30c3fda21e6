"""ONNX's node tests: our kernels beside their outputs, our gradients beside finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatch

import numpy as np
from onnx import defs

from graph.autodiff.gradients.registry import GRADIENT_RULES
from graph.ops.registry import Call, infer, run
from graph.ops.registry.onnx_fallback import type_of_array
from tests.contracts.gradient_examples import Example
from tests.contracts.node_cases import NO_CASE, NodeCase, cases_by_op, is_float, ops_with_cases
from tests.contracts.test_every_gradient import built, composites, gradients_of, slope, targets_of

#: Op -> tests whose outputs are not compared, with the reason. Names are patterns.
NOT_RUN: Mapping[str, Mapping[str, str]] = {
    "Attention": {"*_bf16": "the reference rounds after each step"},
    "Bernoulli": {"*": "draws random numbers"},
    "Dropout": {"*_training_*": "draws random numbers"},
    "ImageDecoder": {"*": "needs an image library"},
}
#: Ops with a rule whose gradients no node test can judge, with the reason.
NOT_DIFFERENTIATED = {
    "Cast": "the tests hold NaN and infinity",
    "CastLike": "the tests hold NaN and infinity",
    "GlobalLpPool": "has no test",
    "MaxRoiPool": "has no test",
    "SimplifiedLayerNormalization": "is not of the standard",
    "QuantizeLinear": "the result is an integer",
    "Trilu": "the tests are of integers",
}
#: Op -> floating inputs that count as given: sizes, rates and regions.
GIVEN = {"Dropout": (1,), "MaxRoiPool": (1,), "OneHot": (1,), "Resize": (1, 2), "RoiAlign": (1,), "Upsample": (1,)}

#: Tests without a gradient to compare, with the reason. Names are patterns.
NO_SLOPE = {"test_attention_4d_with_past_and_present_qk_matmul_bias_?d_mask_causal": "an output is -inf"}

TOLERANCE = {"float64": 1e-4, "float32": 1e-2}
JITTER = ((0.0, 0.01), (-0.01, 0.0), (-0.01, 0.01))  # of inputs, away from ties and from ends of domains


def check_outputs(case: NodeCase) -> None:
    """Types and outputs are those of the test."""
    types = tuple(None if x is None else type_of_array(x) for x in case.inputs)
    expected = tuple(None if y is None else type_of_array(y) for y in case.outputs)
    wanted = tuple(y is not None for y in case.outputs)
    call = Call(case.op, case.attributes, types, expected, wanted, case.inputs, case.opset)
    assert tuple(t if want else None for t, want in zip(infer(call), wanted, strict=True)) == expected
    for found, y in zip(run(call, *case.inputs), case.outputs, strict=False):
        if y is None:
            continue
        assert found is not None and type_of_array(found) == type_of_array(y)
        if is_float(y):
            found, y = found.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(found, y, rtol=1e-3 if is_float(y) else 0, atol=1e-6 if is_float(y) else 0)


def is_differentiable(case: NodeCase) -> bool:
    return bool(variables(case)) and any(is_float(y) for y in case.outputs)


def variables(case: NodeCase) -> list[int]:
    """Floating inputs, but those that are empty, not finite, or count as given."""
    found = [(i, x) for i, x in enumerate(case.inputs) if x is not None and is_float(x)]
    return [i for i, x in found if x.size and np.isfinite(x).all() and i not in GIVEN.get(case.op, ())]


def check_gradients(case: NodeCase) -> None:
    """Gradients agree with differences near the inputs, at one of three places: those of a wrong rule never do."""
    for attempt, span in enumerate(JITTER):
        try:
            return _compare_slopes(_example(case, span))
        except AssertionError:
            if attempt == len(JITTER) - 1:
                raise


def _example(case: NodeCase, span: tuple[float, float]) -> Example:
    schema, chance = defs.get_schema(case.op, case.opset), np.random.default_rng(1)
    formals = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(case.inputs))]
    moved, free = list(case.inputs), variables(case)
    kinds = {formals[i].type_str for i in free}
    for i, x in enumerate(moved):
        if x is not None and is_float(x) and formals[i].type_str in kinds:
            moved[i] = x.astype(np.float64) + (chance.uniform(*span, x.shape) if i in free else 0)
    dtype = "float64" if all("tensor(double)" in formals[i].types for i in free) else "float32"
    outputs = tuple(y is not None for y in case.outputs)
    fixed = tuple(i for i in range(len(moved)) if i not in free)
    return Example(case.op, tuple(moved), case.attributes, outputs, fixed, TOLERANCE[dtype], dtype, case.opset)


def _compare_slopes(example: Example) -> None:
    """An input without a gradient must have no slope."""
    graph, given = built(example)
    targets, chance = targets_of(graph, given)[0], np.random.default_rng(0)
    gradients = gradients_of(graph, given, targets)
    for name in (name for name in given if name.startswith("x")):
        direction = chance.uniform(-1, 1, given[name].shape)
        expected = slope(graph, given, targets, name, direction)
        along = gradients.get(name, np.zeros(())) * direction
        scale = max(1.0, abs(expected), float(np.abs(along).sum()))
        assert abs(float(along.sum()) - expected) <= example.tolerance * scale, (name, float(along.sum()), expected)


def faults_of(check: Callable[[NodeCase], None], cases: list[NodeCase]) -> list[str]:
    faults = []
    for case in cases:
        try:
            with np.errstate(all="ignore"):
                check(case)
        except Exception as error:
            faults.append(f"{case}: {type(error).__name__} {str(error)[:300]}")
    return faults


def excuses(case: NodeCase) -> set[tuple[str, str]]:
    return {(case.op, pattern) for pattern in NOT_RUN.get(case.op, {}) if fnmatch(case.name, pattern)}


def test_kernels_and_types_agree_with_the_node_tests_of_onnx():
    cases = [case for cases in cases_by_op().values() for case in cases if not excuses(case)]
    faults = faults_of(check_outputs, cases)
    assert not faults, "\n".join(faults)
    assert len(cases) > 1300


def test_every_op_of_the_standard_has_a_node_test_or_a_reason():
    assert ops_with_cases() <= cases_by_op().keys()
    assert cases_by_op().keys().isdisjoint(op for listed in NO_CASE.values() for op in listed.split())


def test_every_excuse_of_a_node_test_is_needed():
    listed = {(op, pattern) for op, patterns in NOT_RUN.items() for pattern in patterns}
    needed = set()
    for op in NOT_RUN:
        for case in cases_by_op()[op]:
            if excuses(case) and faults_of(check_outputs, [case]):
                needed |= excuses(case)
    assert needed == listed


def differentiable_cases() -> list[NodeCase]:
    by_op = {op: cases for op, cases in cases_by_op().items() if op in GRADIENT_RULES or op in composites()}
    cases = [case for cases in by_op.values() for case in cases if is_differentiable(case)]
    return [case for case in cases if not any(fnmatch(case.name, pattern) for pattern in NO_SLOPE)]


def test_gradients_agree_with_differences_on_the_node_tests_of_onnx():
    cases = differentiable_cases()
    faults = faults_of(check_gradients, cases)
    assert not faults, "\n".join(faults)
    assert len(cases) > 650


def test_every_rule_is_judged_by_a_node_test_or_listed():
    rules = {op for op in (*GRADIENT_RULES, *composites()) if "::" not in op}
    assert rules - {case.op for case in differentiable_cases()} == set(NOT_DIFFERENTIATED)
