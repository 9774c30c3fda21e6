"""Imports every family, so that its ops are registered. A new family is one line here."""

from __future__ import annotations

from graph.ops import elementwise as elementwise
