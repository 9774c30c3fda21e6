"""Recurrent nets: conversion of a step graph to a Scan, and recomputation in its backward pass.

May import ir, builder, analysis, ops, loop_remat, validate, formats.shared and errors. Start at `net.py`.
"""

from __future__ import annotations

from graph.recurrent.expand_rnn_ops import expand_rnns
from graph.recurrent.net import Alias, Link, RecurrentNet, RecurrentState, StepOp, cell_net
from graph.recurrent.recompute import recompute_named, recompute_preferred, recompute_values, step_value_names
from graph.recurrent.recompute_presets import recompute_hints
from graph.recurrent.split_time import split_over_time
from graph.recurrent.tables import (
    BackwardOp,
    BackwardStep,
    RecurrenceInfo,
    SavedStepValue,
    describe_recurrence,
    describe_recurrences,
)
from graph.recurrent.to_scan import add_recurrent
from graph.recurrent.unroll import add_unrolled

__all__ = [
    "Alias",
    "BackwardOp",
    "BackwardStep",
    "Link",
    "RecurrenceInfo",
    "RecurrentNet",
    "RecurrentState",
    "SavedStepValue",
    "StepOp",
    "add_recurrent",
    "add_unrolled",
    "cell_net",
    "describe_recurrence",
    "describe_recurrences",
    "expand_rnns",
    "recompute_hints",
    "recompute_named",
    "recompute_preferred",
    "recompute_values",
    "split_over_time",
    "step_value_names",
]
