"""Op table of Caffe2: translations to standard and `remat` ops.

Semantics: Caffe2 operator catalogue and the schemas in caffe2/operators.

May import `graph.builder` and `graph.formats.shared`. Start at `table.py`; each of FAMILIES adds rules to it.
"""

from graph.formats.caffe2.ops import elementwise, fills, harmless, layers, reductions, reshaping
from graph.formats.caffe2.ops.fills import GIVEN_DTYPES, fill_type
from graph.formats.caffe2.ops.table import CAFFE2, DTYPES

__all__ = ["CAFFE2", "DTYPES", "GIVEN_DTYPES", "fill_type"]

FAMILIES = (elementwise, layers, reshaping, reductions, fills, harmless)
