"""MXNet symbols (`NAME-symbol.json`), and NNVM's graphs, which share the format.

bytes ──symbol──▶ records ──reader──▶ rows of a document ──▶ Graph
                              │ ops: what each op is here · shapes: of weights · control: nested symbols
"""

from graph.formats.mxnet.reader import load, sniff

__all__ = ["load", "sniff"]
