"""Imports every family, so that its rules are registered. A new family is one line here."""

from __future__ import annotations

from graph.gradients import arithmetic as arithmetic
from graph.gradients import attention as attention
from graph.gradients import branches as branches
from graph.gradients import calls as calls
from graph.gradients import convolution as convolution
from graph.gradients import elementwise as elementwise
from graph.gradients import indexing as indexing
from graph.gradients import losses as losses
from graph.gradients import marks as marks
from graph.gradients import none as none
from graph.gradients import normalisation as normalisation
from graph.gradients import pooling as pooling
from graph.gradients import products as products
from graph.gradients import recurrent as recurrent
from graph.gradients import recurrent_units as recurrent_units
from graph.gradients import reductions as reductions
from graph.gradients import resize as resize
from graph.gradients import shape as shape
from graph.gradients import trips as trips
