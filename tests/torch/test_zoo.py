"""The zoo's own networks: files of their shapes only, that our training step takes, and the sizes of the papers."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import onnx
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from app.zoo import networks as modules
from app.zoo.build import build_zoo
from app.zoo.catalogue import ZooNetwork, networks
from app.zoo.export import export_onnx
from graph.formats.readers import load
from graph.ir import Role
from graph.limits import Limits, ShapeOverrides
from graph.training.step import training_step

#: Arguments that make each network small; its shape stays.
SMALL = {
    "resnet50": {"depths": (1, 1, 1, 1), "width": 8},
    "vit_base": {"image": 32, "width": 32, "layers": 1, "heads": 4},
    "convnext_tiny": {"depths": (1, 1, 2, 1), "widths": (8, 16, 32, 64)},
    "unet": {"widths": (4, 8, 16)},
    "bert_base": {"vocabulary": 96, "longest": 32, "width": 32, "layers": 1, "heads": 4},
    "gpt2_small": {"vocabulary": 96, "longest": 32, "width": 32, "layers": 1, "heads": 4},
    "llama_1b": {"vocabulary": 96, "width": 32, "layers": 1, "heads": 4, "key_heads": 2, "hidden": 64},
    "lstm_medium": {"vocabulary": 96, "width": 16},
}
#: Parameters in millions, as papers and frameworks state them.
STATED = {
    "resnet18": 11.69,
    "resnet50": 25.56,
    "resnet101": 44.55,
    "vit_base": 86.57,
    "convnext_tiny": 28.59,
    "gpt2_small": 124.44,
    "llama_1b": 1100.05,
}


def small(name: str) -> ZooNetwork:
    network = networks()[name]
    inputs = {"pixels": ("batch", 3, 32, 32), "labels": ("batch", 32, 32)}
    shapes = {given: inputs.get(given, shape) for given, shape in network.inputs.items()}
    return dataclasses.replace(network, arguments={**network.arguments, **SMALL[name]}, inputs=shapes)


@cache
def file(name: str) -> bytes:
    return export_onnx(small(name))


def sizes(network: ZooNetwork, batch: int) -> ShapeOverrides:
    return ShapeOverrides({}, batch, dict.fromkeys(network.dims, 24))


@pytest.mark.parametrize("name", SMALL)
def test_a_network_is_exported_without_weights_and_trained(name: str) -> None:
    network, data = small(name), file(name)
    weights = [tensor for tensor in onnx.load_from_string(data).graph.initializer if tensor.name.endswith("weight")]
    assert weights and all(not tensor.raw_data and not tensor.float_data for tensor in weights)
    for batch in (1, 6):
        graph = load(data, Limits(), sizes(network, batch))
        step, _ = training_step(graph)
        fed = [value for value in step.values if value.name in network.inputs]
        assert {value.type.shape[0] for value in fed} == {batch}
        trained = {step.values[v].name for v, _ in step.gradients}
        assert {tensor.name for tensor in weights} <= trained


def test_an_export_is_the_same_twice() -> None:
    assert export_onnx(small("resnet50")) == file("resnet50")


@pytest.mark.parametrize("name", STATED)
def test_a_network_has_as_many_parameters_as_its_paper_says(name: str) -> None:
    network = networks()[name]
    room, _, kind = network.module.partition(".")
    __import__(f"{modules.__name__}.{room}")
    with FakeTensorMode():
        module: torch.nn.Module = getattr(getattr(modules, room), kind)(**network.arguments)
        count = sum(parameter.numel() for parameter in module.parameters())
    assert count / 1e6 == pytest.approx(STATED[name], abs=0.01)


def test_a_zoo_has_what_torch_exports(tmp_path) -> None:
    manifest = build_zoo([small("gpt2_small")], tmp_path, lambda line: None)
    (model,) = manifest.models
    assert (model.name, model.batches, model.dims) == ("gpt2_small", (4, 8), {"sequence": 1024})
    graph = load((tmp_path / model.file).read_bytes(), Limits(), sizes(small("gpt2_small"), 2))
    total = sum(math.prod(value.type.shape) for value in graph.values if value.role is Role.PARAMETER)
    assert total == 96 * 32 + 32 * 32 + (12 * 32 * 32 + 13 * 32) + 2 * 32
