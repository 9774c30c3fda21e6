"""Address map by touch and keyboard: pinching, dragging, zooming."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_plan_page import opened, page, pixels, plans, url

__all__ = ["opened", "page", "plans", "url"]
pytestmark = pytest.mark.browser

VIEW = "() => ({...window.remat.map.view, steps: window.remat.map.steps, arena: window.remat.map.arena})"


def touch(cdp: Any, kind: str, *points: tuple[float, float]) -> None:
    """Dispatch a touch event."""
    at = [{"x": x, "y": y, "id": k} for k, (x, y) in enumerate(points)]
    cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})


def test_pinching_zooms_about_the_point_between_two_fingers(opened: Any) -> None:
    canvas = opened.locator("#map canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before, drawn = opened.evaluate(VIEW), pixels(opened, "#map")
    cdp = opened.context.new_cdp_session(opened)
    cdp.send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})

    touch(cdp, "touchStart", (x - 40, y), (x + 40, y))
    for apart in range(50, 170, 10):
        touch(cdp, "touchMove", (x - apart, y), (x + apart, y))
    touch(cdp, "touchEnd")
    wider = "(least) => (({x}) => x[1] - x[0] < least)(window.remat.map.view)"
    opened.wait_for_function(wider, arg=before["steps"] / 2)
    near = opened.evaluate(VIEW)
    shown = near["x"][1] - near["x"][0]
    assert shown == pytest.approx(before["steps"] * 40 / 160, rel=0.1)  # four times as far apart
    between = (x - box["x"] - opened.evaluate("window.remat.map.sheet.inside.x")) / opened.evaluate(
        "window.remat.map.sheet.inside.wide"
    )
    assert near["x"][0] + between * shown == pytest.approx(between * before["steps"], abs=0.02 * before["steps"])
    assert pixels(opened, "#map") != drawn

    touch(cdp, "touchStart", (x, y))  # one finger moves
    touch(cdp, "touchMove", (x - 60, y))
    touch(cdp, "touchEnd")
    opened.wait_for_function("(low) => window.remat.map.view.x[0] > low", arg=near["x"][0])
    moved = opened.evaluate(VIEW)
    assert moved["x"][1] - moved["x"][0] == pytest.approx(shown)

    touch(cdp, "touchStart", (x - 160, y), (x + 160, y))
    for apart in range(150, 20, -10):
        touch(cdp, "touchMove", (x - apart, y), (x + apart, y))
    touch(cdp, "touchEnd")
    whole = "(most) => (({x}) => x[1] - x[0] > most)(window.remat.map.view)"
    opened.wait_for_function(whole, arg=before["steps"] - 1e-6)  # and no further
    assert opened.evaluate(VIEW)["x"] == pytest.approx(before["x"], abs=1e-6)


def test_keys_zoom_move_and_reset_the_map(opened: Any) -> None:
    canvas = opened.locator("#map canvas").nth(1)
    canvas.focus()
    whole, drawn = opened.evaluate(VIEW), pixels(opened, "#map")
    for _ in range(4):
        canvas.press("+")
    near = opened.evaluate(VIEW)
    for axis, most in (("x", whole["steps"]), ("y", whole["arena"])):
        low, high = near[axis]
        assert high - low == pytest.approx(most / 1.25**4) and (low + high) / 2 == pytest.approx(most / 2)
    assert pixels(opened, "#map") != drawn
    canvas.press("Shift+ArrowRight")
    canvas.press("Shift+ArrowUp")
    moved = opened.evaluate(VIEW)
    assert moved["x"][0] > near["x"][0] and moved["y"][0] > near["y"][0]
    canvas.press("-")
    assert opened.evaluate("window.remat.map.view.x[1] - window.remat.map.view.x[0]") == pytest.approx(
        whole["steps"] / 1.25**3
    )
    canvas.press("0")
    assert opened.evaluate(VIEW) == whole
    assert pixels(opened, "#map") == drawn
