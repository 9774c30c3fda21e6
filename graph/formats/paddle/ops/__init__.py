"""Op table of Paddle: translations to standard and `remat` ops.

Programs name an op's inputs and outputs by slot; `SLOTS` defines their order in the rules. Semantics: the op
definitions of Paddle 1.x to 2.x (framework.proto programs), and the PIR dialect `pd_op` of 3.x, with positional
operands.

May import `graph.builder` and `graph.formats.shared`. Start at `table.py`; each of FAMILIES adds rules to it.
"""

from graph.formats.paddle.ops import elementwise, fills, harmless, layers, reductions, reshaping
from graph.formats.paddle.ops.table import DTYPE_NUMBERS, DTYPES, PADDLE, SLOTS, slots_of

__all__ = ["DTYPES", "DTYPE_NUMBERS", "PADDLE", "SLOTS", "slots_of"]

FAMILIES = (elementwise, layers, reshaping, reductions, fills, harmless)
