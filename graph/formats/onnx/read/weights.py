"""Which tensors held by the file are parameters, and which are constants whose content matters."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from onnx import GraphProto, NodeProto

from graph.ir import FLOAT_DTYPES, Role, TensorType

#: Ops whose tensors are weights even when they hold one number.
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
        "Attention",
        "Einsum",
    }
)
#: Inputs that set what an op does; never trained.
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
    "SoftmaxCrossEntropyLoss": (2,),
    "NegativeLogLikelihoodLoss": (2,),
}
_SIGNATURE_KEY = "pkg.torch.export.ExportedProgram.graph_signature"
_SIGNATURE_LINE = re.compile(r"^\w+: (PARAMETER|BUFFER) target='([^']+)'", re.MULTILINE)
_MOST_MASK_ELEMENTS = 1 << 24
_MASKED = 1e30  # no weight is this large

TensorUses = dict[str, set[tuple[str, int]]]


def tensor_uses(nodes: Iterable[NodeProto]) -> TensorUses:
    """Per name the (op, input position) pairs that read it, nested graphs included."""
    uses: TensorUses = {}
    for node in nodes:
        for i, name in enumerate(node.input):
            uses.setdefault(name, set()).add((node.op_type, i))
        for attribute in node.attribute:
            for name, more in tensor_uses(attribute.g.node).items() if attribute.HasField("g") else ():
                uses.setdefault(name, set()).update(more)
    return uses


def signature_of(graph: GraphProto) -> dict[str, str]:
    """Per tensor "PARAMETER" or "BUFFER", where PyTorch's exporter wrote down which is which."""
    text = next((m.value for m in graph.metadata_props if m.key == _SIGNATURE_KEY), "")
    return {name: kind for kind, name in _SIGNATURE_LINE.findall(text)}


def role_of(
    name: str, type: TensorType, content: np.ndarray | None, uses: TensorUses, signature: dict[str, str]
) -> Role:
    """PARAMETER for what training would change, else CONSTANT.

    Integers, settings of ops, single numbers outside layers, masks (they hold infinities or nearly so), and the
    buffers PyTorch names are constants. A tensor the exporter derived is judged by its readers.
    """
    readers = uses.get(name, set())
    layer = any(op in _WEIGHT_OPS for op, _ in readers)
    if type.dtype not in FLOAT_DTYPES or (readers and all(i in _SETTINGS.get(op, ()) for op, i in readers)):
        return Role.CONSTANT
    if signature:
        kind = signature.get(name, "PARAMETER" if layer else "BUFFER")
        statistics = any(op == "BatchNormalization" for op, _ in readers)
        return Role.PARAMETER if kind == "PARAMETER" or statistics else Role.CONSTANT
    if layer:
        return Role.PARAMETER
    if type.elements == 1 or (content is not None and _is_mask(content)):
        return Role.CONSTANT
    return Role.PARAMETER


def is_filled_weight(readers: set[tuple[str, int]]) -> bool:
    """True when a tensor made by ConstantOfShape stands for a trained weight, not for a first state or a setting."""
    return any(i not in _SETTINGS.get(op, ()) for op, i in readers)


def _is_mask(content: np.ndarray) -> bool:
    if content.size > _MOST_MASK_ELEMENTS:
        return False
    return not bool((np.abs(content.astype(np.float32)) < _MASKED).all())
