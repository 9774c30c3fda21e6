"""MXNet symbols (`NAME-symbol.json`) and NNVM graphs, which share the format.

bytes ──symbol──▶ records ──reader──▶ rows of a document ──▶ Graph
                              │ ops: translation · shapes: of weights · control_flow: nested symbols

May import `graph.autodiff`, `graph.builder` and `graph.formats.shared`. Start with `reader.py` and `writer.py`.
"""

from graph.formats.mxnet.reader import load, sniff

__all__ = ["load", "sniff"]
