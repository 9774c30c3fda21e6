"""Every rule of the tables of other frameworks computes what numpy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.formats.caffe2.ops import CAFFE2
from graph.formats.mxnet.ops import MXNET
from graph.formats.paddle.ops import PADDLE
from graph.ops.registry.onnx_fallback import type_of_array
from tests.contracts.foreign_examples import USES, Use
from tests.graph.evaluate import evaluate

TABLES = {"mxnet": MXNET, "caffe2": CAFFE2, "paddle": PADDLE}


def test_every_rule_has_an_example() -> None:
    for name, table in TABLES.items():
        shown = {_source(table.rules[use.op]) for use in USES if use.framework == name}
        assert {type for type, rule in table.rules.items() if _source(rule) not in shown} == set(), name


def _source(rule: Any) -> tuple[Any, str]:
    """The function a rule was written as; rows with attributes are told apart by their standard op."""
    return rule.__code__, rule.__name__


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.framework}-{use.op}")
def test_an_op_computes_what_numpy_says(use: Use) -> None:
    types = [None if a is None else type_of_array(a) for a in use.inputs]
    made = TABLES[use.framework].translate(
        use.op, use.attributes, types, name="op", outputs=use.outputs, contents=_small_integers(use)
    )
    assert made is not None
    assert len(made.outputs) == use.outputs
    if any("::" in node.op and not node.op.startswith("remat::") for node in made.graph.nodes):
        assert all(made.graph.values[v].type is not None for v in made.outputs if v is not None)
        return  # planned, not executed
    found = evaluate(made.graph, {f"i{i}": a for i, a in enumerate(use.inputs) if a is not None})
    results = [None if v is None else found[made.graph.values[v].name] for v in made.outputs]
    if use.expected is None:
        assert all(np.isfinite(result).all() for result in results if result is not None)
        return
    expected = use.expected(*(a for a in use.inputs if a is not None))
    for result, wanted in zip(results, expected if isinstance(expected, list) else [expected], strict=False):
        assert result is not None and result.shape == (np.shape(wanted) or result.shape)
        np.testing.assert_allclose(result.astype(np.float64), np.asarray(wanted, np.float64), rtol=2e-3, atol=2e-5)


def _small_integers(use: Use) -> list[np.ndarray | None]:
    """Contents a rule may look at: lengths and sizes, as a file's constants tell them."""
    kept = use.framework == "caffe2" and use.op in ("OneHot", "ConstantFill")
    return [a if kept and a is not None and a.ndim == 1 else None for a in use.inputs]
