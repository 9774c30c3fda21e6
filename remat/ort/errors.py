"""Exceptions and warnings of sessions of ONNX Runtime.

ValueError
├── NotTrainable     the file is no training step that remat wrote, or its content is not known
└── NotRunnable      this build of ONNX Runtime has no kernel for an op or an element type
UserWarning
└── PlanNotKept      an option of the session undoes the plan
"""

from __future__ import annotations


class NotTrainable(ValueError):
    """The file is no training step that remat wrote, or content of a parameter is missing; the message has a remedy."""


class NotRunnable(ValueError):
    """This build of ONNX Runtime cannot run the file; the message names node, op and element type."""


class PlanNotKept(UserWarning):
    """An option of the session undoes the plan: results are right, its memory is not that of the plan."""
