"""Paddle programs: `.pdmodel` (ProgramDesc) and the newer JSON.

bytes ──proto──▶ ProgramDesc ──program_reader──▶ rows of a document ──▶ Graph
JSON  ──pir_reader──▶ regions, blocks, ops ──────╯
"""

from __future__ import annotations

from graph.formats.document.decode import is_json
from graph.formats.paddle import pir_reader, program_reader
from graph.formats.paddle.proto import is_program
from graph.ir import Graph
from graph.limits import Limits, ShapeOverrides


def sniff(data: bytes) -> bool:
    """True for a ProgramDesc, and for JSON with a program of regions."""
    if is_json(data):
        return b'"program"' in data and b'"regions"' in data
    return is_program(data)


def load(data: bytes, limits: Limits, shapes: ShapeOverrides) -> Graph:
    """The graph of a program in either form. Raises BadGraph."""
    if is_json(data):
        return pir_reader.load(data, limits, shapes)
    return program_reader.load(data, limits, shapes)
