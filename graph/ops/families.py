"""Imports every family, so that its ops are registered. A new family is one line here."""

from __future__ import annotations

from graph.ops import activation as activation
from graph.ops import attention as attention
from graph.ops import convolution as convolution
from graph.ops import convolution_gradient as convolution_gradient
from graph.ops import copies as copies
from graph.ops import elementwise as elementwise
from graph.ops import elementwise_gradient as elementwise_gradient
from graph.ops import gather as gather
from graph.ops import gradient_marks as gradient_marks
from graph.ops import loss as loss
from graph.ops import matmul as matmul
from graph.ops import normalization as normalization
from graph.ops import normalization_gradient as normalization_gradient
from graph.ops import optimizer as optimizer
from graph.ops import pooling as pooling
from graph.ops import pooling_gradient as pooling_gradient
from graph.ops import products as products
from graph.ops import random as random
from graph.ops import recurrent as recurrent
from graph.ops import recurrent_gradient as recurrent_gradient
from graph.ops import recurrent_units as recurrent_units
from graph.ops import reduce as reduce
from graph.ops import resize as resize
from graph.ops import resize_gradient as resize_gradient
from graph.ops import rows as rows
from graph.ops import seeded as seeded
from graph.ops import shape as shape
from graph.ops import softmax as softmax
from graph.ops import state as state
