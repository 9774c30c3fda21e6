"""Scoped subgraphs: what is wrong with one is told by a code of its own, and the sound ones run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from graph.errors import BadGraph, Findings
from graph.execution.interpreter import execute
from graph.formats.caffe2.compat.scopes import (
    DoOp,
    SavedScopes,
    check_do,
    check_do_gradient,
    check_if_gradient,
    check_while_gradient,
    distinct_gradients,
)
from graph.formats.caffe2.ops import CAFFE2
from graph.formats.paddle.loops import while_loop
from graph.formats.shared.blocks import Block, add_if, add_loop, carried_states, check_condition_written
from graph.formats.shared.program import Program
from graph.ir import TensorType
from graph.limits import Limits

NUMBER = TensorType("float32", (1,))
SOUND = DoOp("do", ["oX", "oY", "W"], ["oZ", "W"], inner_names=["X", "Y", "Z"], outer_index=[0, 1, 2])
PAIRS = replace(SOUND, inner_names=None, outer_index=None, bindings={"X": "oX", "Y": "oY", "Z": "oZ"})

FAULTS: dict[str, tuple[str, DoOp, str]] = {
    "no graph": ("missing_body", replace(SOUND, has_graph=False), "do"),
    "no list": ("missing_bindings", replace(SOUND, inner_names=None), "do"),
    "no places": ("missing_bindings", replace(SOUND, outer_index=None), "do"),
    "an empty list": ("missing_bindings", replace(SOUND, inner_names=[]), "do"),
    "two lists": ("bindings_twice", replace(SOUND, bindings={"X": "oX"}), "do"),
    "lists of other lengths": ("length_mismatch", replace(SOUND, outer_index=[0, 1]), "do"),
    "an inner name twice": ("duplicate_inner_name", replace(SOUND, inner_names=["X", "X", "Z"]), "X"),
    "no inputs": ("missing_scope", replace(SOUND, inputs=[]), "do"),
    "no outputs": ("missing_scope", replace(SOUND, outputs=[]), "do"),
    "another handle": ("scope_mismatch", replace(SOUND, outputs=["oZ", "W2"]), "W2"),
    "an input twice": ("duplicate_outer_name", replace(SOUND, inputs=["oX", "oX", "W"]), "oX"),
    "an output twice": ("duplicate_outer_name", replace(SOUND, outputs=["oZ", "oZ", "W"]), "oZ"),
    "a place too far": ("outer_index", replace(SOUND, outer_index=[0, 1, 3]), "Z"),
    "a place before": ("outer_index", replace(SOUND, outer_index=[0, -1, 2]), "Y"),
    "bound twice": ("outer_name_bound_twice", replace(PAIRS, bindings={**PAIRS.bindings, "Q": "oX"}), "oX"),  # type: ignore[dict-item]
    "unbound": ("unbound_outer_name", replace(PAIRS, inputs=["oX", "oY", "oQ", "W"]), "oQ"),
}


@pytest.mark.parametrize(("code", "do", "named"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_a_scoped_subgraph_has_its_code(code: str, do: DoOp, named: str):
    with pytest.raises(BadGraph) as refused:
        check_do(do)
    assert [finding.code for finding in refused.value.findings] == [code]
    assert repr(named) in str(refused.value)


@pytest.mark.parametrize("do", [SOUND, PAIRS, replace(SOUND, reuses_scope=False)])
def test_a_sound_one_is_let_through(do: DoOp):
    check_do(do)
    check_do_gradient(do, ["g", None])


def test_an_outer_name_may_be_input_and_output_and_its_place_either():
    for place in (0, 1):
        do = DoOp("do", ["x", "W"], ["x", "W"], inner_names=["a"], outer_index=[place])
        check_do(do)
        assert do.bound() == {"a": "x"}


ASKED: dict[str, tuple[str, Any]] = {
    "too few": ("gradient_count", lambda: check_do_gradient(SOUND, ["g"])),
    "none": ("no_output_gradient", lambda: check_do_gradient(SOUND, [None, None])),
    "too few for an If": ("gradient_count", lambda: check_if_gradient("if", ["c"], ["y", "z"], True, ["g"])),
    "none for an If": ("no_output_gradient", lambda: check_if_gradient("if", ["c"], ["y"], True, [None])),
    "too few for a loop": ("gradient_count", lambda: check_while_gradient("w", ["c"], ["y", "z"], [SOUND], ["g"])),
    "none for a loop": ("no_output_gradient", lambda: check_while_gradient("w", ["c"], ["y"], [SOUND], [None])),
    "nothing bound": ("missing_bindings", lambda: check_do_gradient(replace(SOUND, inner_names=[]), ["g", None])),
    "an older scope": ("scope_reused", lambda: check_do_gradient(replace(SOUND, reuses_scope=True), ["g", None])),
    "an If without inputs": ("missing_condition", lambda: check_if_gradient("if", [], ["y"], True, ["g"])),
    "an If without a graph": ("missing_body", lambda: check_if_gradient("if", ["c"], ["y"], False, ["g"])),
    "a loop of two ops": ("loop_body", lambda: check_while_gradient("w", ["c"], ["y"], [SOUND, SOUND], ["g"])),
    "a loop of another op": ("loop_body", lambda: check_while_gradient("w", ["c"], ["y"], [None], ["g"])),
    "a loop without a graph": ("missing_body", lambda: check_while_gradient("w", ["c"], ["y"], None, ["g"])),
    "a loop without inputs": ("missing_condition", lambda: check_while_gradient("w", [], ["y"], [SOUND], ["g"])),
    "a loop in an older scope": (
        "scope_reused",
        lambda: check_while_gradient("w", ["c"], ["y"], [replace(SOUND, reuses_scope=True)], ["g"]),
    ),
    "a body without outputs": (
        "missing_scope",
        lambda: check_while_gradient("w", ["c"], ["y"], [replace(SOUND, outputs=[])], ["g"]),
    ),
}


@pytest.mark.parametrize(("code", "ask"), ASKED.values(), ids=ASKED)
def test_a_gradient_that_may_not_be_asked_for_has_its_code(code: str, ask: Any):
    with pytest.raises(BadGraph) as refused:
        ask()
    assert [finding.code for finding in refused.value.findings] == [code]


def test_the_same_gradient_for_several_outputs_is_copied_for_all_but_the_first():
    copies, gradients = distinct_gradients(["a", "b", "c", "b"], ["g", "g", None, "g"])
    assert copies == [("g", "b_g_DEDUP")] and gradients == ["g", "b_g_DEDUP", None, "b_g_DEDUP"]


def program(**types: TensorType) -> Program:
    made = Program(CAFFE2, Limits(), Findings())
    for name, type in types.items():
        made.give(name, type)
    return made


def test_a_scope_that_was_never_made_cannot_be_looked_into():
    do = DoOp("do", ["x", "W"], ["y", "W"], bindings={"a": "x", "b": "y"}, reuses_scope=True)
    with pytest.raises(BadGraph, match="no saved scope") as refused:
        SavedScopes().block(program(x=NUMBER), do)
    assert refused.value.findings[0].code == "scope_empty"


def test_bound_names_are_renamed_and_the_rest_is_local():
    p, scopes = program(oX=NUMBER, oY=NUMBER, local=NUMBER), SavedScopes()
    block = scopes.block(p, PAIRS)
    block.program.op("Mul", "mul", ["X", "Y"], ["local"], {})
    block.program.op("Add", "add", ["local", "X"], ["Z"], {})
    scopes.add(p, PAIRS, block)
    p.op("Add", "sum", ["oZ", "local"], ["y"], {})
    fed = {"oX": np.float32([2]), "oY": np.float32([3]), "local": np.float32([100])}
    assert next(iter(execute(p.graph("do", ["y"], {}), fed).outputs.values())).tolist() == [108]


def test_names_that_nothing_defines_are_named():
    p = program(c=TensorType("bool", ()), x=NUMBER)
    then = Block(p)
    then.program.op("Copy", "copy", ["x"], ["fresh"], {})
    with pytest.raises(BadGraph, match="'fresh'") as refused:
        add_if(p, "if", "c", then, None, [("fresh", "fresh", "fresh")])
    assert refused.value.findings[0].code == "undefined_value"


def test_a_state_exists_before_the_loop():
    p = program(c=TensorType("bool", ()), x=NUMBER)
    block = Block(p)
    block.program.types["s"] = NUMBER
    block.outside.add("s")
    block.program.op("Copy", "copy", ["x"], ["s"], {})
    with pytest.raises(BadGraph, match=r"'s'.*before the loop") as refused:
        add_loop(p, "loop", "c", block, "c", carried_states(block))
    assert refused.value.findings[0].code == "undefined_value"


def test_a_condition_graph_writes_the_condition():
    p = program(i=TensorType("int64", ()), two=TensorType("int64", ()))
    p.op("LE", "test", ["i", "two"], ["cond"], {})
    check_condition_written("loop", "cond", p.nodes)
    with pytest.raises(BadGraph, match="'other'") as refused:
        check_condition_written("loop", "other", p.nodes)
    assert refused.value.findings[0].code == "condition_not_written"


@pytest.mark.parametrize("returned", [["n"], ["n", "n", "n"], ["n", ["n"]], "n"])
def test_a_loop_body_returns_what_its_variables_are(returned: Any):
    p = program(i=NUMBER, j=NUMBER)

    def condition(there: Program, names: Any) -> str:
        name = there.free_name("flag")
        there.op("LT", name, [names["i"], names["j"]], [name], {})
        return name

    def body(block: Block) -> Any:
        block.program.op("Negative", "n", ["i"], ["n"], {})
        return returned

    with pytest.raises(BadGraph, match="structure") as refused:
        while_loop(p, "loop", condition, body, ["i", "j"], ["a", "b"])
    assert [finding.code for finding in refused.value.findings] == ["bad_request"]
