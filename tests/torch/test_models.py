"""Whole models exported by torch: the gradients of our training step are torch's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from graph.formats.readers import load
from graph.ir import Role
from graph.limits import Limits, ShapeOverrides
from graph.training.step import training_step
from tests.graph.evaluate import evaluate
from tests.models.make_models import Decoder, Encoder, Gpt, export

TOKENS = (2, 8)


def agree(path: Path, model: nn.Module, feeds: dict[str, Tensor], loss: Tensor, loss_name: str | None) -> None:
    """Assert that torch's gradients after `loss.backward()` are those of the exported model's training step."""
    loss.backward()
    proto = onnx.load(path)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    shapes = ShapeOverrides({name: tuple(feed.shape) for name, feed in feeds.items() if name != "labels" or loss_name})
    step, _ = training_step(load(path.read_bytes(), Limits(), shapes), loss_name)
    given = {value.name: weights[value.name] for value in step.values if value.name in weights and value.data is None}
    found = evaluate(step, {**given, **{name: feed.numpy() for name, feed in feeds.items()}})
    assert found[step.values[step.outputs[0]].name] == pytest.approx(loss.item(), rel=1e-5)
    ours = {step.values[v].name: found[step.values[dv].name] for v, dv in step.gradients}
    assert ours.keys() == {value.name for value in step.values if value.role is Role.PARAMETER}
    matched = 0
    for name, gradient in ours.items():
        theirs = matching(model, weights[name], gradient)
        scale = max(1e-3, float(np.abs(theirs).max()))
        np.testing.assert_allclose(gradient, theirs, atol=2e-5 * scale, err_msg=name)
        matched += 1
    assert matched == len([p for p in model.parameters() if p.requires_grad])


def matching(model: nn.Module, weight: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Torch's gradient of the parameter with this content; the exporter stores some transposed."""
    for parameter in model.parameters():
        content = parameter.detach().numpy()
        assert parameter.grad is not None
        if content.shape == weight.shape and (content == weight).all():
            return parameter.grad.numpy()
        if content.ndim == 2 and content.T.shape == weight.shape and (weight == content.T).all():
            return parameter.grad.numpy().T
    raise AssertionError("no parameter has this content")


def tokens(*shape: int, high: int = 96) -> Tensor:
    return torch.randint(0, high, shape)


def test_an_encoder_has_the_gradients_of_torch(tmp_path):
    torch.manual_seed(1)
    model = Encoder()
    names = ("ids", "segments", "attention_mask")
    export("encoder", model, {**dict.fromkeys(names, TOKENS), "labels": (2,)}, ["loss", "logits"], tmp_path)
    feeds = {"ids": tokens(*TOKENS), "segments": tokens(*TOKENS, high=2), "labels": tokens(2, high=4)}
    feeds["attention_mask"] = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    loss, _ = model(**feeds)
    agree(tmp_path / "encoder.onnx", model, feeds, loss, "loss")


def test_a_decoder_has_the_gradients_of_torch(tmp_path):
    torch.manual_seed(2)
    model = Decoder()
    export("decoder", model, dict.fromkeys(("ids", "labels"), TOKENS), ["loss", "logits"], tmp_path)
    feeds = {"ids": tokens(*TOKENS), "labels": tokens(*TOKENS)}
    loss, _ = model(**feeds)
    agree(tmp_path / "decoder.onnx", model, feeds, loss, "loss")


def test_a_language_model_without_a_loss_gets_the_cross_entropy_of_torch(tmp_path):
    torch.manual_seed(3)
    model = Gpt()
    export("gpt", model, {"ids": TOKENS}, ["logits"], tmp_path)
    feeds = {"ids": tokens(*TOKENS), "labels": tokens(*TOKENS)}
    loss = functional.cross_entropy(model(feeds["ids"]).flatten(0, 1), feeds["labels"].flatten())
    agree(tmp_path / "gpt.onnx", model, feeds, loss, None)


class ConvNet(nn.Module):
    """Strided, grouped and pointwise convolutions, batch norms, a residual, pools, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.depth, self.point = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.Conv2d(8, 8, 1)
        self.again, self.out = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = x + functional.silu(self.again(self.point(self.depth(x))))
        return self.out(x.mean((2, 3))).softmax(-1)


def test_a_convolutional_net_exported_for_inference_is_trained_as_torch_trains_it(tmp_path):
    torch.manual_seed(4)
    model = ConvNet().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3)
    for norm in (model.norm, model.again):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    x, labels = torch.randn(4, 3, 16, 16), tokens(4, high=5)
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        model,
        (x,),
        str(path),
        input_names=["x"],
        opset_version=20,
        dynamo=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    loss = functional.nll_loss(model(x).log(), labels)
    agree_after = {name: buffer.numpy() for name, buffer in model.named_buffers() if "running" in name}
    agree(path, model, {"x": x, "labels": labels}, loss, None)
    step, _ = training_step(load(path.read_bytes()), None)
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    found = evaluate(step, {**weights, "x": x.numpy(), "labels": labels.numpy()})
    for name, theirs in agree_after.items():
        ours = found[f"{name}/updated"]
        if "var" in name:  # torch's variance is the unbiased one
            old, count = before[name].numpy(), 4 * (64 if name.startswith("norm") else 16)
            ours = 0.9 * old + (ours - 0.9 * old) * count / (count - 1)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
