"""The role of each tensor of a file, the guesses among the roles, and tied copies."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from onnx import ModelProto

from graph.errors import listed
from graph.formats.onnx.roles.contents import MAX_ELEMENTS, is_fixed, is_uniform
from graph.formats.onnx.roles.equal_tensors import ContentOf, equal_groups
from graph.formats.onnx.roles.signature import ExportSignature
from graph.formats.onnx.roles.uses import folded_norms, is_layer_weight, is_setting, tensor_uses
from graph.ir import FLOAT_DTYPES, Role, TensorType
from graph.limits import ShapeOverrides

_MAX_SERIES = 1 << 16  # elements of a layer's tensor that may be a mask or frequencies
_MAX_LISTED = 1000  # names in an annotation
#: Readers of a scale or logit scale of one element.
_SCALE_OPS = frozenset({"Mul", "Div", "Add", "Sub", "Exp", "Neg", "Sigmoid", "Softplus", "Tanh"})
#: Names that PyTorch's exporters give to tensors of their own; those of modules are attribute paths.
_EXPORTER_NAME = re.compile(r"onnx::|/|_|val_\d+\Z|scalar_tensor")


class TensorRoles:
    """Roles of the tensors of one file."""

    def __init__(self, proto: ModelProto, shapes: ShapeOverrides):
        graph = proto.graph
        self.shapes = shapes
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.nodes = graph.node
        self.uses = tensor_uses(graph.node)
        self.from_torch = proto.producer_name == "pytorch"
        self.signature = ExportSignature(graph, self.tensors)
        self._unaccounted = self._count_unaccounted()
        self.guessed: dict[Role, list[str]] = {Role.PARAMETER: [], Role.CONSTANT: []}
        self.computed: list[str] = []  # constants that the exporter computed from parameters

    def needs_content(self, name: str, type: TensorType) -> bool:
        """Whether the role of a float tensor may depend on its content."""
        if self.signature.kinds.get(name) or self._requested(name) is not None:
            return False
        is_layer = is_layer_weight(self.uses.get(name, set()))
        return type.elements <= (_MAX_SERIES if is_layer and not self.signature else MAX_ELEMENTS)

    def is_frozen(self, name: str) -> bool:
        """Whether the request freezes this tensor."""
        return self._requested(name) is Role.CONSTANT

    def role_of(self, name: str, type: TensorType, content: np.ndarray | None) -> Role:
        """PARAMETER for a trained tensor, else CONSTANT. Integers and op configuration are constants."""
        readers = self.uses.get(name, set())
        if type.dtype not in FLOAT_DTYPES or is_setting(readers):
            return Role.CONSTANT
        requested = self._requested(name)
        if requested is not None:
            return requested
        kind = self.signature.kinds.get(name)
        if kind == "PARAMETER" or any(op == "BatchNormalization" for op, _ in readers):
            return Role.PARAMETER
        if kind is not None:
            return Role.CONSTANT
        role = (self._derived_role if self.signature else self._guessed_role)(name, type, content)
        sources = self.signature.computed_from.get(name)
        if role is Role.CONSTANT and sources and not (content is not None and is_uniform(content)):
            self.computed.append(f"{name} {type} (from {listed(sources)})")
        return role

    def tied(self, content_of: ContentOf) -> dict[str, str]:
        """Matrix that is a transposed copy of a parameter -> that parameter.

        A copy is recognized by the parameter that its readers name and by its content, where the file has it.
        """
        matrices = [t for t in self.tensors.values() if len(t.dims) == 2 and min(t.dims) > 1]
        named: dict[tuple[int, ...], list[str]] = {}
        for tensor in matrices:
            if not self._is_derived(tensor.name):
                named.setdefault((tensor.data_type, *tensor.dims), []).append(tensor.name)
        copies = {}
        for tensor in matrices:
            if self._is_derived(tensor.name) and self.signature.traced(tensor.name) is None:
                sources = self.signature.sources.get(tensor.name, ())
                for name in named.get((tensor.data_type, *reversed(tensor.dims)), ()):
                    own, other = content_of(tensor), content_of(self.tensors[name])
                    known = own is not None and other is not None
                    if (name in sources) if not known else _is_transposed(own, other):
                        copies[tensor.name] = name
                        break
        return copies

    def annotations(self, parameters: Collection[str], content_of: ContentOf) -> dict[str, Any]:
        """Annotations of the graph: guessed roles, and parameters folded, renamed, equal or without a tensor."""
        traced = {self.signature.traced(name) for name in self.tensors}
        lists = {
            "padding_rows": list(dict.fromkeys(self.signature.padding_rows)),
            "guessed_parameters": self.guessed[Role.PARAMETER],
            "guessed_constants": self.guessed[Role.CONSTANT],
            "untraced_parameters": [name for name in self.signature.missing if name not in traced]
            if self.guessed[Role.PARAMETER]
            else [],
            "computed_constants": self.computed,
            "renamed_parameters": self._renamed(parameters),
            "folded_norms": self.signature.folded_norms or (folded_norms(self.nodes) if self.from_torch else []),
            "equal_parameters": [
                " = ".join(names)
                for names in equal_groups([t for t in self.tensors.values() if t.name in parameters], content_of)
            ],
        }
        return {key: names[:_MAX_LISTED] for key, names in lists.items() if names}

    def _renamed(self, parameters: Collection[str]) -> list[str]:
        """Parameters that PyTorch's legacy exporter made from the module's, each with the node that reads it.

        Without those of convolutions, which it renames for a folded BatchNorm only.
        """
        if self.signature or not self.from_torch:
            return []
        readers = {name: node for node in self.nodes for name in node.input}
        names = [name for name in self.tensors if name in parameters and name in readers and self._is_derived(name)]
        return [f"{name} (read by {readers[name].name})" for name in names if "Conv" not in readers[name].op_type]

    def _derived_role(self, name: str, type: TensorType, content: np.ndarray | None) -> Role:
        """Role of a tensor that PyTorch's signature does not name: folded, renamed or made by the exporter."""
        signature, layer = self.signature, is_layer_weight(self.uses.get(name, set()))
        if name not in self.tensors or not signature.missing:
            return Role.CONSTANT  # nodes hold literals
        is_slope = ("PRelu", 1) in self.uses.get(name, ())  # of one element, but no literal
        if (type.elements > 1 or is_slope) and signature.traced(name) is not None:
            return Role.PARAMETER
        if not signature.has_origins and layer and self._unaccounted == 0:
            return Role.PARAMETER
        is_result = name in signature.folded or (layer and type.elements > 1)
        if signature.has_origins and not is_result and not signature.sources.get(name):
            return Role.CONSTANT
        if not signature.has_origins and type.elements == 1:
            return Role.CONSTANT
        if self._unaccounted <= 0 or (content is not None and type.elements > 1 and is_uniform(content)):
            return Role.CONSTANT
        if content is not None and is_fixed(content):
            return Role.CONSTANT
        if type.elements == 1 and name not in signature.folded:
            return Role.CONSTANT
        return self._guess(name, Role.PARAMETER)

    def _guessed_role(self, name: str, type: TensorType, content: np.ndarray | None) -> Role:
        """Role in a file without a signature."""
        if self.from_torch and name not in self.tensors:
            return Role.CONSTANT  # nodes hold literals
        readers = self.uses.get(name, set())
        if type.elements > 1 and content is not None and is_fixed(content):
            return self._guess(name, Role.CONSTANT)
        if is_layer_weight(readers):
            return Role.PARAMETER
        if type.elements == 1:
            scale = {op for op, _ in readers} <= _SCALE_OPS and name in self.tensors
            if scale and self.from_torch and not self._is_derived(name):
                return self._guess(name, Role.PARAMETER)
            return Role.CONSTANT
        is_table = sum(n > 1 for n in type.shape) > 1 and ("Gather", 0) not in readers
        return self._guess(name, Role.PARAMETER) if is_table else Role.PARAMETER

    def _guess(self, name: str, role: Role) -> Role:
        self.guessed[role].append(name)
        return role

    def _requested(self, name: str) -> Role | None:
        """Role set by the request; `trainable` patterns are exceptions to `frozen` ones."""
        for patterns, role in ((self.shapes.trainable, Role.PARAMETER), (self.shapes.frozen, Role.CONSTANT)):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                return role
        return None

    def _is_derived(self, name: str) -> bool:
        """True for a tensor that the exporter made from others."""
        return name not in self.signature.kinds if self.signature else _EXPORTER_NAME.match(name) is not None

    def _count_unaccounted(self) -> int:
        """Parameters of the signature minus the tensors that are known to come from them.

        Without origins every layer weight that the signature does not name is taken as one of them.
        """
        missing = self.signature.missing
        if self.signature.has_origins:
            return len(set(missing) - {self.signature.traced(name) for name in self.tensors})
        unnamed = [name for name in self.tensors if name not in self.signature.kinds]
        weights = [
            name
            for name in unnamed
            if is_layer_weight(readers := self.uses.get(name, set())) and not is_setting(readers)
        ]
        return max(0, len(missing) - len(weights))


def _is_transposed(own: np.ndarray | None, other: np.ndarray | None) -> bool:
    assert own is not None and other is not None
    same_corner = bool(own[0, -1] == other[-1, 0])
    return same_corner and not is_uniform(own) and np.array_equal(own, other.T)
