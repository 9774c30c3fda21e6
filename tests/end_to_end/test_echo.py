"""Echo's own cases, as MXNet symbols: scoring features recomputed per step, and a deep residual net."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

import remat
from bench import echo
from bench.mxnet_symbols import decoder, resnet

ASKED: dict[str, Any] = {
    "planner": "mirror",
    "budget": "0",
    "loss": "softmax_loss",
    "counts": "activations",
    "execute": "no",
    "search_seconds": 30,
}


def test_scoring_features_share_one_workspace_because_copies_run_late() -> None:
    """At no moment of the plan are the features of two steps there, while the baseline ends up with all of them."""
    model = decoder(batch=16, source=30, steps=8, width=32, scoring=64, layers=1, words=50)
    report = remat.plan(model, **ASKED, **{"return": ["plan", "layout"]})
    layout = report["layout"]
    features = [
        (start, end)
        for value, start, end in zip(layout["value"], layout["from_step"], layout["to_step"], strict=True)
        if re.fullmatch(r"features\d+_output", value)
    ]
    assert len(features) == 2 * 8  # each step forward, and again
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(features)))
    assert report["plan"]["peak_by"]["activations"] < 0.6 * report["baseline"]["peak_by"]["activations"]


def test_a_plan_of_a_decoder_is_executed_equal() -> None:
    model = decoder(batch=2, source=5, steps=3, width=8, scoring=6, layers=2, words=11)
    report = remat.plan(model, **(ASKED | {"execute": "yes"}))
    assert report["executed"]["status"] == "equal"


@pytest.mark.heavy
def test_an_attention_decoder_needs_a_third_of_its_activations_for_three_percent() -> None:
    report = remat.plan(decoder(), **ASKED)
    row = echo.row(report)
    assert row["activations"] <= 1 / 3
    assert row["overhead"] <= 0.03


@pytest.mark.heavy
def test_a_residual_net_of_152_layers_keeps_to_the_published_bound() -> None:
    assert echo.row(remat.plan(resnet(), **ASKED))["peak"] <= 0.6


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "iterations"), [("attention decoder, 80 steps", 300), ("ResNet-152", 50)])
def test_auto_is_below_mirroring_for_no_more_time(name: str, iterations: int) -> None:
    rows = echo.compare(echo.CASES[name](), seconds=36_000.0, iterations=iterations)  # iterations end it, no clock
    mirror, auto = rows["mirror"], rows["auto"]
    assert auto["activations"] < mirror["activations"] and auto["peak_bytes"] < mirror["peak_bytes"]
    assert auto["overhead"] <= mirror["overhead"]
    if name.startswith("attention"):
        assert auto["activations"] <= 1 / 3 and auto["overhead"] <= 0.03
    else:
        assert auto["peak"] <= 0.6


@pytest.mark.parametrize("preactivated", [True, False])
def test_a_symbol_of_a_residual_net_has_the_convolutions_of_its_depth(preactivated: bool) -> None:
    symbol = json.loads(resnet(depth=152, preactivated=preactivated))
    assert sum(node["op"] == "Convolution" for node in symbol["nodes"]) == 151 + 4
