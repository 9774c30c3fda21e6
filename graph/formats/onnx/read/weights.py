"""Classification of the tensors of a file as parameters or constants."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from onnx import GraphProto, NodeProto

from graph.ir import FLOAT_DTYPES, Role, TensorType

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
_SIGNATURE_KEY = "pkg.torch.export.ExportedProgram.graph_signature"
_SIGNATURE_LINE = re.compile(r"^\w+: (PARAMETER|BUFFER) target='([^']+)'", re.MULTILINE)
_MAX_MASK_ELEMENTS = 1 << 24  # larger tensors are not searched for masked entries
_MASKED = 1e30  # absolute values from here on mark masked entries

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


def signature_of(graph: GraphProto) -> dict[str, str]:
    """Kind ("PARAMETER" or "BUFFER") by tensor name, from PyTorch's export signature; empty without one."""
    text = next((m.value for m in graph.metadata_props if m.key == _SIGNATURE_KEY), "")
    return {name: kind for kind, name in _SIGNATURE_LINE.findall(text)}


def role_of(
    name: str, type: TensorType, content: np.ndarray | None, uses: TensorUses, signature: dict[str, str]
) -> Role:
    """PARAMETER for a trainable tensor, else CONSTANT.

    Constants: integers, op configuration, scalars outside layers, masks (entries of about infinity), and buffers in
    PyTorch's signature. A tensor derived by the exporter is classified by its readers.
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
    """True when a ConstantOfShape replaces a trained weight; False for initial states and op configuration."""
    return any(i not in _SETTINGS.get(op, ()) for op, i in readers)


def _is_mask(content: np.ndarray) -> bool:
    if content.size > _MAX_MASK_ELEMENTS:
        return False
    return not bool((np.abs(content.astype(np.float32)) < _MASKED).all())
