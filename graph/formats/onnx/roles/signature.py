"""What torch.onnx.export records about parameters: the signature of the graph, and the FX node of each ONNX node.

    graph.metadata_props    p_lin_weight: PARAMETER target='lin.weight'
    node.metadata_props     %linear : call_function[target=...linear](args = (%x, %p_lin_weight, %p_lin_bias))
    value_info.metadata_props   ['lin.weight', 'val_0']: from what the optimizer computed this tensor

The exporter's optimizer folds and renames tensors; the FX nodes say which parameter a renamed tensor comes from.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from onnx import GraphProto, NodeProto

from graph.formats.onnx.roles.uses import is_layer_weight

_SIGNATURE_KEY = "pkg.torch.export.ExportedProgram.graph_signature"
_SIGNATURE_LINE = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']+)'", re.MULTILINE)
_STATISTICS = ".running_mean"
_FOLDED_KEY = "pkg.onnxscript.optimizer.folded_from"
_QUOTED = re.compile(r"'([^']+)'")
_FX_KEY = "pkg.torch.onnx.fx_node"
_FX_NAME = re.compile(r"%(\w+)")
_PADDED = re.compile(r"aten\.embedding\.default\]\(args = \(%(\w+), %\w+, (\d+)")


class ExportSignature:
    """Kinds of the program's tensors, and the origin of tensors that the signature does not name."""

    def __init__(self, graph: GraphProto, held: Collection[str]):
        text = next((m.value for m in graph.metadata_props if m.key == _SIGNATURE_KEY), "")
        lines = _SIGNATURE_LINE.findall(text)
        self.kinds: dict[str, str] = {name: kind for _, kind, name in lines}
        self.missing = [name for _, kind, name in lines if kind == "PARAMETER" and name not in held]
        #: BatchNorm layers whose statistics are not in the file: the exporter folded them into the layer before.
        self.folded_norms = [
            name.removesuffix(_STATISTICS)
            for _, kind, name in lines
            if kind == "BUFFER" and name.endswith(_STATISTICS) and name not in held
        ]
        #: Tensor that the exporter computed -> the parameters that it computed it from.
        self.computed_from = {
            value.name: trained
            for value in graph.value_info
            for entry in value.metadata_props
            if entry.key == _FOLDED_KEY and value.name in held
            if (trained := [name for name in _QUOTED.findall(entry.value) if self.kinds.get(name) == "PARAMETER"])
        }
        self.has_origins = False  # whether nodes name their FX nodes
        self.folded: set[str] = set()  # results of FX nodes that the exporter computed
        self.sources: dict[str, list[str]] = {}  # tensor without a kind -> parameters that its readers name
        self.padding_rows: list[str] = []  # rows of embeddings that PyTorch does not train, as `weight[row]`
        parameter = {placeholder: name for placeholder, kind, name in lines if kind == "PARAMETER"}
        for node, fx in _fx_nodes(graph.node) if lines else ():
            self.has_origins = True
            if (padded := _PADDED.search(fx)) and padded[1] in parameter:
                self.padding_rows.append(f"{parameter[padded[1]]}[{padded[2]}]")
            mentioned = _FX_NAME.findall(fx)
            names = [parameter[name] for name in mentioned if name in parameter]
            for i, name in enumerate(node.input):
                if name in held and name not in self.kinds:
                    if name in mentioned:
                        self.folded.add(name)
                    elif not _is_synthetic(node, i, fx):
                        self.sources.setdefault(name, []).extend(n for n in names if n not in node.input)

    def __bool__(self) -> bool:
        return bool(self.kinds)

    def traced(self, name: str) -> str | None:
        """Parameter without a tensor in the file from which the exporter made this one; None if none is known."""
        return next((source for source in self.sources.get(name, ()) if source in self.missing), None)


def _fx_nodes(nodes: Collection[NodeProto]) -> Iterator[tuple[NodeProto, str]]:
    for node in nodes:
        for entry in node.metadata_props:
            if entry.key == _FX_KEY:
                yield node, entry.value


def _is_synthetic(node: NodeProto, position: int, fx: str) -> bool:
    """True for an input that the decomposition of an FX node adds: epsilons, and the unit scales of a GroupNorm."""
    if node.op_type == "InstanceNormalization":
        return "instance_norm" not in fx
    if node.op_type in ("GatherND", "GatherElements", "Slice"):
        return position > 0
    is_read = node.op_type in ("Add", "Mul", "Sub", "Div", "Gather")
    return not is_read and not is_layer_weight({(node.op_type, position)})
