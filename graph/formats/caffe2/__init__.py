"""Caffe2 nets (NetDef), binary and text.

bytes ──proto──▶ NetDef ──reader──▶ rows of a document ──▶ Graph
                           │ ops: what each op is here · control: If, While, Do · recurrent: step nets
"""

from graph.formats.caffe2.proto import sniff
from graph.formats.caffe2.reader import load

__all__ = ["load", "sniff"]
