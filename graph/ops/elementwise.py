"""Elementwise ops. An output may take over an input of its own type."""

from __future__ import annotations
