"""Imports every family, so that its ops are registered. A new family is one line here."""

from __future__ import annotations

from graph.ops import activation as activation
from graph.ops import elementwise as elementwise
from graph.ops import elementwise_gradient as elementwise_gradient
