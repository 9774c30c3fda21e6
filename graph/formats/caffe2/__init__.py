"""Caffe2 nets (NetDef), binary and text.

bytes ──proto──▶ NetDef ──reader──▶ rows of a document ──▶ Graph
                           │ ops: translation · control_flow: If, While, Do · recurrent: step nets

May import `graph.builder`, `graph.formats.shared`, `graph.recurrent`, `graph.transforms` and `compat`.
Start with `reader.py` and `writer.py`.
"""

from graph.formats.caffe2.proto import sniff
from graph.formats.caffe2.reader import load

__all__ = ["load", "sniff"]
