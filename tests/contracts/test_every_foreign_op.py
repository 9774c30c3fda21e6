"""Every rule of the tables of other frameworks: results and gradients beside numpy, and attributes accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graph.autodiff.differentiate import differentiate
from graph.builder.builder import Builder
from graph.errors import BadGraph
from graph.formats.caffe2.ops import CAFFE2
from graph.formats.mxnet.ops import MXNET
from graph.formats.paddle.ops import PADDLE
from graph.formats.shared.op_table import Translation, Untranslated
from graph.ir import Role
from graph.ops.registry.onnx_fallback import type_of_array
from tests.contracts.foreign_attributes import DOCUMENTED
from tests.contracts.foreign_examples import USES, Array, Use
from tests.graph.evaluate import evaluate

TABLES = {"mxnet": MXNET, "caffe2": CAFFE2, "paddle": PADDLE}


def test_every_rule_has_an_example() -> None:
    for name, table in TABLES.items():
        shown = {_source(table.rules[use.op]) for use in USES if use.framework == name}
        assert {type for type, rule in table.rules.items() if _source(rule) not in shown} == set(), name


def _source(rule: Any) -> tuple[Any, str]:
    """The function a rule was written as; rows with attributes are told apart by their standard op."""
    return rule.__code__, rule.__name__


def _name(use: Use) -> str:
    return f"{use.framework}-{use.op}"


@pytest.mark.parametrize("use", USES, ids=_name)
def test_an_op_computes_what_numpy_says(use: Use) -> None:
    made = _translated(use, use.inputs)
    assert len(made.outputs) == use.outputs
    if _is_opaque(made):
        assert all(made.graph.values[v].type is not None for v in made.outputs if v is not None)
        return  # planned, not executed
    found = _values(made, use.inputs)
    results = [None if v is None else found[v] for v in made.outputs]
    if use.expected is None:
        assert all(np.isfinite(result).all() for result in results if result is not None)
        return
    for result, wanted in zip(results, _expected(use, use.inputs), strict=False):
        assert result is not None and result.shape == (np.shape(wanted) or result.shape)
        np.testing.assert_allclose(result.astype(np.float64), np.asarray(wanted, np.float64), rtol=2e-3, atol=2e-5)


STEP = 1e-5
#: Ops whose gradient is another one than that of their result: a factor of it.
FACTORS = {"BlockGrad": 0.0, "StopGradient": 0.0, "NegateGradient": -1.0}
#: Ops whose outputs after the first have no gradient.
STATISTICS = ("SpatialBN", "batch_norm", "LayerNorm", "layer_norm")


@pytest.mark.parametrize("use", [use for use in USES if use.gradient is None], ids=_name)
def test_a_gradient_agrees_with_finite_differences(use: Use) -> None:
    """Along a direction of all inputs, in float64: differences of numpy's result, or of ours where numpy says none."""
    arrays = [_wide(a) for a in use.inputs]
    made = _translated(use, arrays)
    assert not made.losses
    chance = np.random.default_rng(0)
    along = {i: chance.uniform(-1, 1, a.shape) for i, a in enumerate(arrays) if a is not None and _is_free(a)}
    outputs = made.outputs[: 1 if use.op in STATISTICS else len(_expected(use, arrays)) or None]
    types = {v: made.graph.values[v].type for v in outputs if v is not None}
    heads = {v: chance.uniform(-1, 1, type.shape) for v, type in types.items() if type and type.dtype == "float64"}
    if _is_opaque(made) or not along or not heads:
        return

    def total(offset: float) -> float:
        moved = [a + offset * along[i] if a is not None and i in along else a for i, a in enumerate(arrays)]
        values = _values(made, moved)
        results = {v: values[v] for v in heads} | dict(zip(outputs, _expected(use, moved), strict=False))
        return sum(float((np.reshape(results[v], head.shape) * head).sum()) for v, head in heads.items())

    slope = (total(STEP) - total(-STEP)) / (2 * STEP) * FACTORS.get(use.op, 1.0)
    gradients = _gradients(made, arrays, list(heads.items()))
    found = sum(float((gradients[i] * direction).sum()) for i, direction in along.items() if i in gradients)
    assert found == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("use", [use for use in USES if use.gradient is not None], ids=_name)
def test_a_loss_has_the_gradient_that_its_framework_gives_it(use: Use) -> None:
    arrays = [_wide(a) for a in use.inputs]
    made = _translated(use, arrays)
    (loss,) = made.losses
    assert use.gradient is not None
    found = _gradients(made, arrays, [(loss, np.ones(()))])
    np.testing.assert_allclose(found[0], use.gradient(*arrays), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("framework", TABLES)
def test_an_attribute_that_a_rule_does_not_read_makes_the_op_opaque(framework: str) -> None:
    uses = [use for use in USES if use.framework == framework]
    assert [_name(use) for use in uses if not _is_opaque_with_more(use, "unheard_of")] == []


def _is_opaque_with_more(use: Use, attribute: str) -> bool:
    """Whether one more attribute makes the op opaque, for a reason that names it."""
    types = [None if a is None else type_of_array(a) for a in use.inputs]
    attributes = {**use.attributes, attribute: 1}
    found = TABLES[use.framework].translate(
        use.op, attributes, types, outputs=use.outputs, contents=_small_integers(use)
    )
    return isinstance(found, Untranslated) and attribute in found.reason


@pytest.mark.parametrize(("framework", "op"), [(name, op) for name, ops in DOCUMENTED.items() for op in ops])
def test_documented_attributes_at_their_defaults_are_read_or_harmless(framework: str, op: str) -> None:
    use = next(use for use in USES if use.framework == framework and use.op == op)
    attributes = {**DOCUMENTED[framework][op], **use.attributes}
    _translated(Use(framework, op, use.inputs, attributes, None, use.outputs), use.inputs)


def _translated(use: Use, arrays: Sequence[Array | None]) -> Translation:
    types = [None if a is None else type_of_array(a) for a in arrays]
    found = TABLES[use.framework].translate(
        use.op, use.attributes, types, name="op", outputs=use.outputs, contents=_small_integers(use)
    )
    assert isinstance(found, Translation), found
    return found


def _is_opaque(made: Translation) -> bool:
    return any("::" in node.op and not node.op.startswith("remat::") for node in made.graph.nodes)


def _wide(a: Array | None) -> Array | None:
    return a.astype(np.float64) if a is not None and a.dtype == np.float32 else a


def _is_free(a: Array) -> bool:
    """False for indices, labels and conditions: integers, also as floating-point numbers."""
    return a.dtype == np.float64 and not np.array_equal(a, np.round(a))


def _fed(arrays: Sequence[Array | None]) -> dict[str, Array]:
    return {f"i{i}": a for i, a in enumerate(arrays) if a is not None}


def _values(made: Translation, arrays: Sequence[Array | None]) -> list[Array | None]:
    """Value id -> array."""
    found = evaluate(made.graph, _fed(arrays))
    return [found.get(value.name) for value in made.graph.values]


def _expected(use: Use, arrays: Sequence[Array | None]) -> list[Array]:
    """Outputs by numpy; empty where the example says none."""
    if use.expected is None:
        return []
    found = use.expected(*(a for a in arrays if a is not None))
    return found if isinstance(found, list) else [found]


def _gradients(
    made: Translation, arrays: Sequence[Array | None], heads: Sequence[tuple[int, Array]]
) -> dict[int, Array]:
    """Input -> gradient of the sum of the values times their heads; inputs without a gradient are left out."""
    builder = Builder.from_graph(made.graph)
    named = {builder.values[v].name: f"head{k}" for k, (v, _) in enumerate(heads)}
    for k, (_, head) in enumerate(heads):
        builder.value(f"head{k}", type_of_array(head), Role.INPUT)
    places = {f"i{i}": i for i, a in enumerate(arrays) if a is not None and a.dtype == np.float64}
    try:
        step = differentiate(builder.build([v for v, _ in heads]), list(named), list(places), head_gradients=named)
    except BadGraph as error:
        assert {finding.code for finding in error.findings} <= {"not_differentiable"}, error
        return {}
    found = evaluate(step, _fed(arrays) | {f"head{k}": head for k, (_, head) in enumerate(heads)})
    return {places[step.values[x].name]: found[step.values[dx].name] for x, dx in step.gradients}


def _small_integers(use: Use) -> list[np.ndarray | None]:
    """Contents a rule may look at: lengths and sizes, as a file's constants tell them."""
    kept = use.framework == "caffe2" and use.op in ("OneHot", "ConstantFill")
    return [a if kept and a is not None and a.ndim == 1 else None for a in use.inputs]
