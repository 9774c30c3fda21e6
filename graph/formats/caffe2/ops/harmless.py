"""Attributes of Caffe2's ops without an effect on results: they concern speed and memory, or repeat the inputs."""

from __future__ import annotations

from graph.formats.caffe2.ops.table import CAFFE2

_ELEMENTWISE = "Relu Sigmoid Tanh LeakyRelu Elu Selu PRelu Swish Gelu Sum Max Min Mean Add Sub Mul Div Copy Alias"
CAFFE2.harmless(
    {
        _ELEMENTWISE: "order",
        "Conv Conv1D Conv2D Conv3D ConvTranspose": "no_bias",
        "BatchMatMul": "broadcast use_scratch",
        "SpatialBN": "num_batches=1",
        "LayerNorm": "elementwise_affine",
        "LSTMUnit GRUUnit": "hidden_size",
        "SoftmaxWithLoss": "only_loss average_by_batch_size=0",
        "Cast": "from_type",
        "ConstantFill": "run_once",
    }
)
