"""Attention as torch exports it at opset 23: planned at half the memory, run, and its gradients beside torch's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

import remat
from graph.formats.readers import load
from graph.ir import Role
from graph.limits import Limits, ShapeOverrides
from graph.training.step import training_step
from tests.graph.evaluate import evaluate
from tests.torch.test_models import matching

BATCH, LENGTH, WIDTH, HEADS = 2, 6, 32, 4
HEAD = WIDTH // HEADS
SEEN = torch.rand(LENGTH, LENGTH, generator=torch.manual_seed(5)) < 0.6
SEEN[2] = False  # this query sees no key
TURNS = torch.rand(1, LENGTH, HEAD // 2, generator=torch.manual_seed(6))


class Mixer(nn.Module):
    """Two layers of attention with a residual, and the mean of squares as loss."""

    def __init__(self, kv_heads: int = HEADS, rotary: Mapping[str, Any] | None = None, **options: Any):
        super().__init__()
        self.kv_heads, self.rotary, self.options = kv_heads, rotary, options
        widths = (WIDTH, kv_heads * HEAD, kv_heads * HEAD)
        self.maps = nn.ModuleList(nn.Linear(WIDTH, width) for _ in range(2) for width in widths)
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for i, out in enumerate(self.out):
            x = x + out(self.mixed(*(layer(x) for layer in self.maps[3 * i : 3 * i + 3])))
        return (x * x).mean()

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (y.view(BATCH, LENGTH, -1, HEAD).transpose(1, 2) for y in (q, k, v))
        if self.rotary is not None:
            width = self.rotary.get("rotary_embedding_dim", HEAD) // 2
            turns = TURNS[..., :width].expand(BATCH, LENGTH, width)
            q, k = (rotated(y, turns.cos(), turns.sin(), self.rotary) for y in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, **self.options)
        return y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)


def rotated(x: Tensor, cos: Tensor, sin: Tensor, options: Mapping[str, Any]) -> Tensor:
    """The op in an export; it has no gradient in torch, so it is spelled out elsewhere."""
    if torch.onnx.is_in_onnx_export():
        return torch.onnx.ops.rotary_embedding(x, cos, sin, **options)
    width, cos, sin = 2 * cos.shape[-1], cos[:, None], sin[:, None]
    a, b = (
        x[..., :width]
        .unflatten(-1, (-1, 2) if options.get("interleaved") else (2, -1))
        .unbind(-1 if options.get("interleaved") else -2)
    )
    turned = torch.stack((cos * a - sin * b, sin * a + cos * b), -1 if options.get("interleaved") else -2)
    return torch.cat((turned.flatten(-2), x[..., width:]), -1)


class Flat(Mixer):
    """The op on three axes, with grouped heads."""

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not torch.onnx.is_in_onnx_export():
            return super().mixed(q, k, v)
        heads = {"q_num_heads": HEADS, "kv_num_heads": self.kv_heads}
        return torch.onnx.ops.attention(q, k, v, **heads, is_causal=True)[0]


PART = {"interleaved": True, "rotary_embedding_dim": 4}
MODELS: dict[str, tuple[type[Mixer], dict[str, Any]]] = {
    "plain": (Mixer, {"scale": 0.3}),
    "causal": (Mixer, {"is_causal": True}),
    "grouped": (Mixer, {"kv_heads": 2, "enable_gqa": True, "is_causal": True}),
    "bool mask": (Mixer, {"attn_mask": SEEN}),
    "float mask": (Mixer, {"attn_mask": torch.where(SEEN, 0.5, -math.inf)}),
    "rotary": (Mixer, {"rotary": {}, "is_causal": True}),
    "interleaved part": (Mixer, {"rotary": PART, "kv_heads": 1, "enable_gqa": True}),
    "three axes": (Flat, {"kv_heads": 2, "enable_gqa": True, "is_causal": True}),
}


def exported(model: nn.Module, x: Tensor) -> onnx.ModelProto:
    names = {"input_names": ["x"], "output_names": ["loss"]}
    program = torch.onnx.export(model.eval(), (x,), **names, opset_version=23, dynamo=True, verbose=False)
    return program.model_proto


@pytest.mark.parametrize("name", MODELS)
def test_exported_attention_is_planned_and_has_the_gradients_of_torch(name: str) -> None:
    kind, options = MODELS[name]
    torch.manual_seed(1)
    model, x = kind(**options), torch.randn(BATCH, LENGTH, WIDTH)
    proto = exported(model, x)
    assert "Attention" in {node.op_type for node in proto.graph.node}
    data = proto.SerializeToString()
    report = remat.plan(data, budget="50%", loss="loss", iterations=30)
    assert report["executed"]["status"] == "equal"

    loss = model(x)
    loss.backward()
    step, _ = training_step(load(data, Limits(), ShapeOverrides({})), "loss")
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    given = {value.name: weights[value.name] for value in step.values if value.name in weights and value.data is None}
    found = evaluate(step, {**given, "x": x.numpy()})
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    gradients = {step.values[v].name: found[step.values[dv].name] for v, dv in step.gradients}
    assert gradients.keys() == {value.name for value in step.values if value.role is Role.PARAMETER}
    assert len(gradients) == len(list(model.parameters()))
    for parameter, ours in gradients.items():
        theirs = matching(model, weights[parameter], ours)
        wide = max(1e-3, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * wide, err_msg=parameter)
