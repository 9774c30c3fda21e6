"""Exceptions of sessions of ONNX Runtime; its warning is `remat.steps.errors.PlanNotKept`.

ValueError
├── NotTrainable     the file is no training step that remat wrote, or its content is not known
└── NotRunnable      this build of ONNX Runtime has no kernel for an op or an element type
"""

from __future__ import annotations


class NotTrainable(ValueError):
    """The file is no training step that remat wrote, or content of a parameter is missing; the message has a remedy."""


class NotRunnable(ValueError):
    """This build of ONNX Runtime cannot run the file; the message names node, op and element type."""
