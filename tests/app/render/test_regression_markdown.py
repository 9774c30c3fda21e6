"""Comment of a check: its lines, and names that would be Markdown, HTML or mentions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.render.regression_markdown import code, comment


def document(**other: Any) -> dict[str, Any]:
    figures = [
        {"what": "baseline.peak_bytes", "was": 1024, "now": 1024, "drift": 0.0},
        {"what": "baseline.seconds", "was": 1.0, "now": 1.0, "drift": 0.0},
        {"what": "plan.peak_bytes", "was": 512, "now": 768, "drift": 0.5},
        {"what": "plan.seconds", "was": 1.0, "now": 2.0, "drift": 1.0},
    ]
    grown = {"value": "h2", "node": "f2", "op": "Conv", "was": 256, "now": 512, "bytes": 256, "why": "grew"}
    grown |= {"type_was": "float32[8,8]", "type_now": "float32[16,8]"}
    slow = {"node": "f2", "op": "Conv", "was": 0.1, "now": 0.2, "type_was": "float32[8]", "type_now": "float32[8]"}
    return {
        "within": False,
        "max_drift": 0.02,
        "figures": figures,
        "drifted": ["plan.peak_bytes", "plan.seconds"],
        "budget_bytes": 600,
        "over_budget": True,
        "replay": {"runs": True, "why": ""},
        "blame": ["f2"],
        "holds_more": {"baseline": [], "plan": [grown]},
        "takes_longer": [slow],
        "warnings": [],
        **other,
    }


DRAWN = {
    "model": {"name": "net"},
    "plan": {"budget_bytes": 600},
    "timeline": {"baseline_step_bytes": [1, 512], "step_bytes": [1, 768]},
}


def test_the_comment_has_verdict_figures_blame_batch_chart_and_picture() -> None:
    batch = {"fits": "a100-80gb", "was": 96, "now": 80, "why": {"was": "", "now": ""}}
    text = comment(document(largest_batch=batch), "net.onnx", DRAWN, ["value  h2"], "memory.svg")
    lines = text.splitlines()
    assert lines[0].startswith("**remat check failed** · `net.onnx` · over budget: the plan peaks at 768 B of 600 B; ")
    assert "| **peak with the plan** | 512 B | 768 B | +50.00% |" in lines
    assert "| **time with the plan** | 1 s | 2 s | +100.00% |" in lines
    assert "Largest batch that fits a100-80gb with this plan: 96 → 80." in lines
    assert "**Ops to blame**: `f2`" in lines
    assert "| `Conv` | `f2` | `h2` | `float32[8,8] → float32[16,8]` | 256 B | 512 B | grew |" in lines
    assert "| `Conv` | `f2` | `float32[8]` | 100 ms | 200 ms |" in lines
    assert "Picture of memory before and after: `memory.svg`." in lines
    assert "before: peak 512 B at step 1 of 2" in text and "<svg" not in text


def test_a_check_that_holds_blames_nothing() -> None:
    text = comment(document(within=True, drifted=[], over_budget=False), "net.onnx", DRAWN, [], "")
    assert text.startswith("**remat check passed** · `net.onnx` · holds: nothing grew by more than 2.0%")
    assert "blame" not in text and "Picture" not in text and "Largest" not in text


@pytest.mark.parametrize(
    "name",
    [
        "@team/all",
        "a`b",
        "`",
        " ",
        "a|b",
        "a\\|@x",
        "<img src=x>",
        "-->",
        "x\n# head\n",
        "[a](http://x)",
        "$x$",
        "``` ",
    ],
)
def test_a_name_is_code_whatever_it_holds(name: str) -> None:
    shown = code(name)
    assert "\n" not in shown
    if shown.startswith("`"):
        assert re.fullmatch(r"`[^`|\\]+`", shown)
    else:
        inside = re.fullmatch(r"<code>(.*)</code>", shown)
        assert inside and re.fullmatch(r"(?:&#\d+;|[^\W_]|\s)*", inside[1])


def test_lines_of_the_model_stay_inside_their_fence_and_reasons_are_code() -> None:
    batch = {"fits": "8GiB", "was": None, "now": 80, "why": {"was": "node @x", "now": ""}}
    replay = {"runs": False, "why": "step 3: @x reads <b>"}
    given = document(replay=replay, warnings=["````\n@all"], largest_batch=batch)
    text = comment(given, "net", DRAWN, ["```"], "")
    assert text.splitlines()[0].endswith("does not run on this model: `step 3: @x reads <b>`")
    assert "\n````text\n```\n````\n" in text and "\n`````text\n````\ufffd@all\n`````\n" in text
    assert "unknown → 80 (`node @x`)." in text


def test_long_lists_are_cut_and_say_so() -> None:
    rows = document()["holds_more"]["plan"] * 30
    text = comment(document(holds_more={"plan": rows}), "net", DRAWN, [], "")
    assert "Growth at the peak with the plan (10 of 30):" in text and text.count("| grew |") == 10
