"""The ops and input positions that read each tensor, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import NodeProto

#: Ops whose tensors are weights even with a single element.
_WEIGHT_OPS = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "Gemm",
        "MatMul",
        "BatchNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "GroupNormalization",
        "RMSNormalization",
        "PRelu",
        "LSTM",
        "GRU",
        "RNN",
        "Einsum",
    }
)
#: Input positions that configure an op; never trained.
_SETTINGS = {
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Clip": (1, 2),
    "Pad": (1, 2, 3),
    "Dropout": (1, 2),
    "Range": (0, 1, 2),
    "OneHot": (1, 2),
    "QuantizeLinear": (1, 2),
    "DequantizeLinear": (1, 2),
    "LSTM": (4, 5, 6),
    "GRU": (4, 5),
    "RNN": (4, 5),
    "Loop": (0, 1),
    "If": (0,),
    "NonMaxSuppression": (2, 3, 4),
    "RotaryEmbedding": (1, 2, 3),
    "GroupQueryAttention": (5, 6, 7, 8, 9),
    "SoftmaxCrossEntropyLoss": (2,),
    "NegativeLogLikelihoodLoss": (2,),
}
TensorUses = dict[str, set[tuple[str, int]]]


def tensor_uses(nodes: Iterable[NodeProto]) -> TensorUses:
    """(op, input position) pairs that read each name, nested graphs included."""
    uses: TensorUses = {}
    for node in nodes:
        for i, name in enumerate(node.input):
            uses.setdefault(name, set()).add((node.op_type, i))
        for attribute in node.attribute:
            for name, nested in tensor_uses(attribute.g.node).items() if attribute.HasField("g") else ():
                uses.setdefault(name, set()).update(nested)
    return uses


def is_setting(readers: set[tuple[str, int]]) -> bool:
    """True for a tensor that only configures ops."""
    return bool(readers) and all(i in _SETTINGS.get(op, ()) for op, i in readers)


def is_layer_weight(readers: set[tuple[str, int]]) -> bool:
    """True for a tensor read by an op with weights, such as Conv or MatMul."""
    return any(op in _WEIGHT_OPS for op, _ in readers)


def folded_norms(nodes: Iterable[NodeProto]) -> list[str]:
    """Weights that PyTorch's legacy exporter renamed with their biases, since it folded a BatchNorm into both."""
    return [
        node.input[1]
        for node in nodes
        if len(node.input) == 3 and all(name.startswith(f"onnx::{node.op_type}_") for name in node.input[1:])
    ]
