"""Recurrent nets: a step graph over time as a Scan, what it holds for the way back, and what it makes again."""

from __future__ import annotations

from graph.recurrent.expand_rnn_ops import expanded
from graph.recurrent.net import Alias, Link, RecurrentNet, State, StepOp, cell
from graph.recurrent.recompute import as_preferred, names_in_steps, recomputed, recomputed_where_named
from graph.recurrent.recompute_presets import hints
from graph.recurrent.split_time import in_parts
from graph.recurrent.tables import BackwardOp, BackwardStep, Held, Recurrence, recurrence_of, recurrences
from graph.recurrent.to_scan import add_recurrent
from graph.recurrent.unroll import add_unrolled

__all__ = [
    "Alias",
    "BackwardOp",
    "BackwardStep",
    "Held",
    "Link",
    "Recurrence",
    "RecurrentNet",
    "State",
    "StepOp",
    "add_recurrent",
    "add_unrolled",
    "as_preferred",
    "cell",
    "expanded",
    "hints",
    "in_parts",
    "names_in_steps",
    "recomputed",
    "recomputed_where_named",
    "recurrence_of",
    "recurrences",
]
