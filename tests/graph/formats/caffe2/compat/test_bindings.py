"""Names of a scoped subgraph by lexical scope, against the scoped calls that are made of the same ops."""

from __future__ import annotations

import pytest

from graph.errors import BadGraph
from graph.formats.caffe2.compat.bindings import NamedOp, inferred_bindings
from graph.formats.caffe2.compat.scopes import DoOp, check_do


def test_what_is_inferred_is_a_sound_do():
    ops = [NamedOp(["x", "w"], ["t"]), NamedOp(["t"], ["y"]), NamedOp(["y", "t"], ["y"])]
    found = inferred_bindings(ops, ["x", "w", "y", "do/scope"])
    assert (found.inputs, found.outputs, found.local) == (("x", "w"), ("y",), ("t",))
    check_do(DoOp("do", [*found.inputs, found.scope], [*found.outputs, found.scope], bindings=found.bindings))


def test_every_name_that_is_nowhere_is_told():
    with pytest.raises(BadGraph) as caught:
        inferred_bindings([NamedOp(["a", "b"], ["c"]), NamedOp(["c", "d"], [])], ["a"])
    assert [finding.found.split(",")[0] for finding in caught.value.findings] == ["'b'", "'d'"]
