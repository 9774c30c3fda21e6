"""An MXNet symbol for tests."""

from __future__ import annotations

from typing import Any

from bench.mxnet_symbols import Symbols


def lenet(spelling: str = "attrs", **hints: Any) -> bytes:
    """A small classifier with every kind of variable."""
    s = Symbols(spelling)
    x = s.variable("data", **(hints or {"__shape__": "(0, 1, 28, 28)"}))
    x = s.layer("Convolution", "conv1", x, "weight", "bias", kernel="(5, 5)", num_filter=20)
    x = s.layer("BatchNorm", "bn1", x, "gamma", "beta", "moving_mean", "moving_var", force_mirroring=True)
    x = s.op("Activation", "act1", x, act_type="relu", __force_mirroring__=False)
    x = s.op("Pooling", "pool1", x, kernel="(2,2)", stride="(2,2)", pool_type="max")
    x = s.layer("FullyConnected", "fc1", x, "weight", "bias", num_hidden=10)
    return s.data(s.op("SoftmaxOutput", "softmax", x, s.variable("softmax_label")))
