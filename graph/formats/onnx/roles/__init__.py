"""Roles of the tensors of an ONNX file: which are trained parameters, which are constants.

    requested patterns → PyTorch's export signature → content (masks, tables) → the ops that read the tensor

`uses` lists readers, `signature` reads what torch.onnx.export recorded, `contents` recognizes tensors that are never
trained, `equal_tensors` finds weights under several names, `decision` combines them and lists guesses in annotations of
the graph, from which reports take warnings.

May import `graph.ir` and `graph.limits`. Start with `decision.py`.
"""

from __future__ import annotations

from graph.formats.onnx.roles.decision import TensorRoles

__all__ = ["TensorRoles"]
