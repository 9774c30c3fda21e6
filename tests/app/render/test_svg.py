"""Pictures as SVG and PNG: whole documents, to scale, that say in words what they show."""

from __future__ import annotations

import builtins
import importlib.util
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import BadUsage
from app.render import svg as plots
from app.render.axes import budget_of
from tests.app.pictures import curve, point, report

SVG = "{http://www.w3.org/2000/svg}"
STEPS = st.lists(st.integers(0, 2**45), max_size=50)
NAMES = st.text(max_size=60)


def shapes(svg: str, style: str) -> list[ElementTree.Element]:
    return [found for found in ElementTree.fromstring(svg).iter() if found.get("class") == style]


@given(STEPS, STEPS, st.none() | st.integers(0, 2**46), NAMES)
@settings(max_examples=100, deadline=None)
def test_every_timeline_is_a_document_with_title_and_description(
    before: list[int], after: list[int], budget: int | None, name: str
) -> None:
    root = ElementTree.fromstring(plots.timeline(report(before, after, budget, name)))
    assert root.get("role") == "img"
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and title.text and title.text.endswith(": memory over steps")
    assert description is not None and description.text
    assert ("before: peak" in description.text) == bool(before)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**40), st.floats(0, 3), st.sampled_from(["found", "proven", "over_budget"])),
        min_size=1,
        max_size=20,
    ),
    NAMES,
)
@settings(max_examples=100, deadline=None)
def test_every_curve_is_a_document_with_a_mark_a_point(rows: list[tuple[int, float, str]], name: str) -> None:
    document = curve(*(point(b, extra, extra / 2, status) for b, extra, status in rows), name=name)
    svg, narrow = plots.curve(document), plots.curve(document, plots.NARROW)
    shapes_drawn = [sum(1 for _ in ElementTree.fromstring(one).iter(SVG + "circle")) for one in (svg, narrow)]
    assert len(set(shapes_drawn)) == 1
    marked = {style: len(shapes(svg, style)) for style in ("proven", "dot", "missed")}
    status = [row[2] for row in rows]
    key = {"proven": 1, "dot": 1, "missed": int("over_budget" in status)}
    counts = {"proven": status.count("proven"), "dot": status.count("found"), "missed": status.count("over_budget")}
    assert marked == {style: counts[style] + key[style] for style in key}


def test_areas_reach_as_high_as_their_bytes() -> None:
    svg = plots.timeline(report([1, 8, 3], [1, 4, 3, 1], budget=4))
    (line,), areas = shapes(svg, "budget")[:1], [shapes(svg, style)[0].get("d") or "" for style in ("before", "after")]
    ground = float(re.findall(r"V([\d.]+)z", areas[0])[0])
    before, after = ([ground - float(y) for y in re.findall(r"V([\d.]+)", d)] for d in areas)
    unit = before[0]
    assert [round(high / unit, 1) for high in before] == [1, 8, 3, 0]
    assert [round(high / unit, 1) for high in after] == [1, 4, 3, 1, 0]
    (at,) = re.findall(r" ([\d.]+)L", line.get("d") or "")
    assert round((ground - float(at)) / unit, 1) == 4


def test_a_hundred_thousand_steps_stay_small_and_keep_their_peak() -> None:
    steps = [1000 + i % 7 for i in range(100_000)]
    steps[70_001] = 9000
    svg = plots.timeline(report(steps, steps))
    assert len(svg) < 60_000
    assert "at step 70001 of 100000" in svg
    area = shapes(svg, "before")[0].get("d") or ""
    (dot, _) = shapes(svg, "dot")
    assert dot.get("cy") in re.findall(r"V([\d.]+)", area)


def test_markup_in_a_name_stays_text() -> None:
    svg = plots.timeline(report([1], [1], name='<script x="&">alert(1)</script>\x00'))
    assert "<script" not in svg
    assert "&lt;script" in svg


def test_it_follows_the_scheme_and_asks_nobody() -> None:
    svg = plots.curve(curve(point(5, 0.1, 0.05)))
    assert "@media (prefers-color-scheme:dark)" in svg
    assert re.findall(r"https?://[^\s\"]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "href" not in svg and "url(" not in svg


def test_a_page_may_hold_several_whose_styles_and_ids_are_their_own() -> None:
    one, two = (plots.timeline(report([1, 8], [1, 4], name=name)) for name in ("one", "two"))
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (one, two)]
    assert len(ids[0]) == len(ids[1]) == 2 and not ids[0] & ids[1]
    assert all(f'aria-labelledby="{" ".join(sorted(found, reverse=True))}"' in one + two for found in ids)
    rules = re.findall(
        r"([^{}]+)\{[^{}]*\}", re.sub(r"@media [^{]*\{", "", re.findall(r"<style>(.*)</style>", one, re.S)[0])
    )
    assert len(rules) > 20
    assert all(
        selector.strip().startswith("svg.remat ") for rule in rules for selector in rule.strip(" }\n").split(",")
    )


def test_several_curves_are_panels_of_one_picture() -> None:
    points = [{**point(5, 0.1, 0.05), "budget": "50%"}, {**point(9, 0.0, 0.0, "proven"), "budget": "90%"}]
    root = ElementTree.fromstring(plots.curves({"one": points, "two": points}, "curves"))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts.count("one") == texts.count("two") == 1 and texts.count("100%") == 2


def size_of(png: bytes) -> Any:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_a_png_has_the_letters_of_the_font_beside_the_code(tmp_path: Path) -> None:
    with_letters = plots.png(plots.timeline(report([1, 8, 3], [1, 4, 3, 1])))
    assert size_of(with_letters) == (1920, 900)
    assert with_letters == plots.png(plots.timeline(report([1, 8, 3], [1, 4, 3, 1])))
    without = plots.png(re.sub(r"<text.*?</text>", "", plots.timeline(report([1, 8, 3], [1, 4, 3, 1]))))
    assert with_letters != without
    plots.write(tmp_path / "a.png", plots.curve(curve(point(5, 0.1, 0.05))))
    assert size_of((tmp_path / "a.png").read_bytes()) == (1920, 900)


@pytest.mark.parametrize("name", ["a", "a.pdf", "a.svg.gz", ".svg", "a.jpeg"])
def test_another_suffix_is_told_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadUsage, match=r"use .svg or .png"):
        plots.write(tmp_path / name, "<svg/>")
    assert list(tmp_path.iterdir()) == []


def test_a_png_without_the_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "resvg_py" else real(name))
    with pytest.raises(BadUsage, match=r"pip install 'remat\[png\]'"):
        plots.demand_picture_path(tmp_path / "a.PNG")
    plots.demand_picture_path(tmp_path / "a.SVG")


def test_an_svg_needs_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        assert name != "resvg_py"
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    plots.write(tmp_path / "a.svg", plots.timeline(report([1], [1])))
    assert (tmp_path / "a.svg").read_text().endswith("</svg>\n")


def test_a_missed_budget_is_drawn_at_the_top_and_the_proven_minimum_as_a_wall() -> None:
    points = [
        {"budget_bytes": 100 + 10 * k, "status": status, "overhead": 0.1, "peak_bytes": 115, "bound_overhead": 0.0}
        for k, status in enumerate(("over_budget", "over_budget", "found", "found"))
    ]
    frame = plots.Panel(0, 0, 100, 100, 95, 135, 0.2)
    parts = plots.curve_lines(frame, [{**point, "bound_peak_bytes": 112} for point in points], budget_of)
    crosses = [part for part in parts if 'class="missed"' in part]
    assert len(crosses) == 2 and all(" -4" in part for part in crosses)
    assert len([part for part in parts if 'class="wall"' in part and "proven minimum peak" in part]) == 1
    assert not [part for part in plots.curve_lines(frame, points, budget_of) if 'class="wall"' in part]
