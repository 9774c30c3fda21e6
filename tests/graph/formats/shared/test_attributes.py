"""Attributes of MXNet, Caffe2 and Paddle files: frozen layers, and attributes that no rule reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bench.mxnet_symbols import Symbols
from bench.paddle_program import Program
from graph.autodiff.differentiate import differentiate
from graph.errors import BadGraph
from graph.formats.readers import import_warnings, load
from graph.ir import FROZEN, Graph
from graph.limits import ShapeOverrides
from graph.training.train_mode import in_training_mode
from planner.report.model_summary import info
from planner.request.plan_request import Request
from tests.graph.evaluate import evaluate
from tests.graph.formats.caffe2.nets import net, op

SHAPE = (2, 3, 4, 4)


def mxnet(is_frozen: bool) -> bytes:
    s = Symbols()
    x = s.variable("x", __shape__=str(SHAPE))
    y = s.layer("BatchNorm", "bn", x, "s", "b", "m", "v", use_global_stats=is_frozen, fix_gamma=False, eps=1e-5)
    return s.data(s.op("Dropout", "drop", y, p=0.5))


def caffe2(is_frozen: bool) -> bytes:
    ops = [
        op("SpatialBN", "x bn_s bn_b bn_m bn_v", "y", is_test=int(is_frozen)),
        op("Dropout", "y", "z", is_test=int(is_frozen)),
    ]
    data: bytes = net(*ops, inputs="x bn_s bn_b bn_m bn_v", outputs="z").SerializeToString()
    return data


def paddle(is_frozen: bool) -> bytes:
    p = Program()
    names = ["x", "bn_s", "bn_b", "bn_m", "bn_v"]
    for name in names:
        p.variable(name, SHAPE if name == "x" else (3,), weight=name != "x")
    y = p.op("batch_norm", names, SHAPE, is_test=is_frozen)
    p.op("dropout", [y], SHAPE, is_test=is_frozen, dropout_prob=0.5, dropout_implementation="upscale_in_train")
    data: bytes = p.message.SerializeToString()
    return data


SHAPES = ShapeOverrides(inputs={"x": SHAPE} | {f"bn_{name}": (3,) for name in "sbmv"})


def read(data: bytes, framework: Callable[[bool], bytes]) -> Graph:
    return load(data, shapes=SHAPES if framework is caffe2 else None)


@pytest.mark.parametrize("framework", [mxnet, caffe2, paddle])
@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_file_freezes_batch_norm_and_dropout(framework: Callable[[bool], bytes], is_frozen: bool) -> None:
    graph = read(framework(is_frozen), framework)
    marked = {node.op for node in graph.nodes if node.annotations.get(FROZEN)}
    wanted = {"BatchNormalization"} if framework is mxnet else {"BatchNormalization", "Dropout"}
    assert marked == (wanted if is_frozen else set())


@pytest.mark.parametrize("framework", [mxnet, caffe2, paddle])
def test_the_gradient_of_a_frozen_batch_norm_is_that_of_its_running_statistics(
    framework: Callable[[bool], bytes],
) -> None:
    graph, _ = in_training_mode(read(framework(True), framework))
    chance = np.random.default_rng(0)
    values = {f"bn_{name}": chance.uniform(0.5, 1.5, 3).astype(np.float32) for name in "sbmv"}
    x = values["x"] = chance.normal(size=SHAPE).astype(np.float32)
    output = next(graph.values[node.outputs[0]].name for node in graph.nodes if node.op == "BatchNormalization")
    step = differentiate(graph, {output: None}, ["bn_s"])
    found = evaluate(step, values)[step.values[step.gradients[0][1]].name]
    centred = (x - values["bn_m"][:, None, None]) / np.sqrt(values["bn_v"] + 1e-5)[:, None, None]
    np.testing.assert_allclose(found, centred.sum((0, 2, 3)), rtol=1e-4)


def _dense(**attributes: Any) -> bytes:
    s = Symbols()
    x = s.variable("x", __shape__="(2, 6)")
    symbol = s.symbol(s.layer("FullyConnected", "fc", x, "w", "b", num_hidden=4, **attributes))
    symbol["attrs"] = {"shape": ["list_shape", [[2, 6], [4, 6], [4], [2, 4]]]}
    return json.dumps(symbol).encode()


def test_an_attribute_that_no_rule_reads_leaves_the_op_opaque_with_a_warning() -> None:
    graph = load(_dense(clip_weights=0.1))
    assert [node.op for node in graph.nodes] == ["mxnet::FullyConnected"]
    (warning,) = import_warnings(graph)
    assert "'fc'" in warning and "'clip_weights'" in warning
    assert warning in info(_dense(clip_weights=0.1), Request(differentiate=False))["warnings"]
    assert not import_warnings(load(_dense(__clip_weights__=0.1)))


def test_attributes_of_the_user_are_told_from_those_of_the_op_in_old_symbols() -> None:
    s = Symbols("param")
    symbol = s.symbol(s.layer("FullyConnected", "fc", s.variable("x", __shape__="(2, 6)"), "w", "b", num_hidden=4))
    symbol["nodes"][-1]["attr"] = {"mood": "angry", "ctx_group": "dev1"}
    graph = load(json.dumps(symbol).encode())
    assert [node.op for node in graph.nodes] == ["Gemm"] and not import_warnings(graph)


def test_attributes_that_contradict_the_weight_are_refused() -> None:
    s = Symbols()
    x, w = s.variable("x", __shape__="(2, 6)"), s.variable("w", __shape__="(5, 6)")
    with pytest.raises(BadGraph, match="num_hidden is 4, but the weight has 5"):
        load(s.data(s.op("FullyConnected", "fc", x, w, num_hidden=4, no_bias=True)))
