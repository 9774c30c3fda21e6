"""Shapes that a file states for the results of its ops are compared with those that follow from the inputs."""

from __future__ import annotations

import json

import pytest

from bench.mxnet_symbols import Symbols
from bench.paddle_program import Program
from graph.errors import BadGraph
from graph.formats.readers import load
from graph.ir import Graph
from graph.limits import ShapeOverrides


def paddle(stated: tuple[int, ...], rows: int = 2) -> bytes:
    p = Program()
    p.variable("x", (rows, 4))
    p.variable("w", (4, 3), weight=True)
    p.op("mul", ["x", "w"], stated)
    data: bytes = p.message.SerializeToString()
    return data


def mxnet(stated: tuple[int, ...], rows: int = 2) -> bytes:
    s = Symbols()
    symbol = s.symbol(s.op("dot", "mul", s.variable("x"), s.variable("w_weight")))
    symbol["attrs"] = {"shape": ["list_shape", [[rows, 4], [4, 3], list(stated)]]}
    return json.dumps(symbol).encode()


def pir(stated: tuple[int, ...], rows: int = 2) -> bytes:
    def tensor(*lengths: int) -> dict[str, object]:
        return {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, list(lengths), "NCHW", [], 0]}

    ops = [
        {"#": "p", "A": [0, 1, 0, "w"], "O": {"%": 1, "TT": tensor(4, 3)}},
        {"#": "1.data", "A": [{"N": "name", "AT": {"#": "0.a_str", "D": "x"}}], "O": {"%": 2, "TT": tensor(rows, 4)}},
        {"#": "1.matmul", "A": [], "I": [{"%": 2}, {"%": 1}], "O": [{"%": 3, "TT": tensor(*stated)}]},
    ]
    block = {"#": "block_0", "args": [], "ops": ops}
    return json.dumps({"program": {"regions": [{"#": "region_0", "blocks": [block]}]}}).encode()


EVERY = pytest.mark.parametrize("framework", [paddle, pir, mxnet])


def result(graph: Graph) -> str:
    return str(graph.values[graph.outputs[0]].type)


@EVERY
@pytest.mark.parametrize("stated", [(2, 5), (2, 3, 1), (3, 3)])
def test_another_shape_is_an_error_that_names_the_op_and_both_shapes(framework, stated) -> None:
    with pytest.raises(BadGraph) as caught:
        load(framework(stated))
    (finding,) = caught.value.findings
    assert finding.code == "type_conflict" and "mul" in finding.path
    assert "[2, 3]" in finding.found and str(list(stated)) in finding.found


@EVERY
def test_the_stated_shape_holds_for_the_stated_inputs_only(framework) -> None:
    assert result(load(framework((2, 3)))) == "float32[2,3]"
    assert result(load(framework((2, 3)), shapes=ShapeOverrides(batch=7))) == "float32[7,3]"
    assert result(load(framework((2, 3)), shapes=ShapeOverrides(inputs={"x": (5, 4)}))) == "float32[5,3]"


@pytest.mark.parametrize("framework", [paddle, pir])
def test_a_length_of_minus_one_is_any(framework) -> None:
    data = framework((-1, 3), rows=-1)
    assert result(load(data, shapes=ShapeOverrides(batch=7))) == "float32[7,3]"
    with pytest.raises(BadGraph, match="the file states"):
        load(framework((-1, 4), rows=-1), shapes=ShapeOverrides(batch=7))


def test_an_older_program_has_a_single_element_in_one_dimension() -> None:
    p = Program()
    p.variable("x", (2,))
    p.op("slice", ["x"], (1,), axes=[0], starts=[0], ends=[1], decrease_axis=[0])
    assert result(load(p.message.SerializeToString())) == "float32[1]"
