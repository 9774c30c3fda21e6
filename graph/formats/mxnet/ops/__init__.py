"""Op table of MXNet and NNVM, which share the file format: translations to standard and `remat` ops.

Semantics: MXNet 1.x operator documentation (mxnet.symbol, src/operator parameter structs); NNVM top-level ops.

May import `graph.builder` and `graph.formats.shared`. Start at `table.py`; each of FAMILIES adds rules to it.
"""

from graph.formats.mxnet.ops import elementwise, fills, harmless, layers, reductions, reshaping
from graph.formats.mxnet.ops.table import DTYPE_NUMBERS, MXNET, dtype_of

__all__ = ["DTYPE_NUMBERS", "MXNET", "dtype_of"]

FAMILIES = (elementwise, layers, reshaping, reductions, fills, harmless)
