"""Page of a plan in Chromium: cursor, zoom, search, blocks, comparison, downloads, and the functions of its scripts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.api.main import create_app
from app.pages.shell.assets import asset_url
from app.settings import Settings
from bench import generators
from planner.report import saved_report
from tests.app.conftest import chain
from tests.browser.conftest import running

pytestmark = pytest.mark.browser
LONG_MS = 120_000  # the machine may be busy
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a service in this process."""
    app = create_app(Settings(data=tmp_path_factory.mktemp("data"), workers=1, wait_seconds=60, drain_seconds=1))
    yield from running(app)


@pytest.fixture(scope="module")
def plans(url: str) -> list[str]:
    """Two plans of a transformer; one value has markup as its name."""
    text = json.dumps(generators.transformer(200)).replace('"v7"', json.dumps(MARKUP))
    asked = {"graph": json.loads(text), "planner": "greedy", "iterations": 50}
    answers = [
        httpx2.post(f"{url}/v1/plans", json=asked | {"budget": budget}, headers={"Prefer": "wait=300"}, timeout=300)
        for budget in ("50%", "75%")
    ]
    assert [answer.status_code for answer in answers] == [201, 201], answers[0].text
    return [answer.json()["id"] for answer in answers]


@pytest.fixture
def page(chromium: Any, url: str) -> Iterator[Any]:
    """A new page; asserts that it has no console errors and no foreign requests."""
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    context.set_default_timeout(LONG_MS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request", lambda asked: None if asked.url.startswith((url, "blob:", "data:")) else complaints.append(asked.url)
    )
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def opened(page: Any, url: str, plans: list[str]) -> Any:
    """Page of the first plan, completely loaded."""
    page.goto(f"{url}/plans/{plans[0]}")
    page.wait_for_selector("html[data-read]", state="attached")
    return page


def pixels(page: Any, place: str) -> bytes:
    """Pixels of a canvas, after the pending frame."""
    page.evaluate("() => new Promise((seen) => requestAnimationFrame(() => requestAnimationFrame(seen)))")
    return bytes(page.locator(f"{place} canvas").first.screenshot())


#: Keeps what both pictures show, or says in which share of their pixels they hardly differ from what was kept.
SHOWN = """() => {
  const now = ["map", "memory"].map((id) => {
    const canvas = document.querySelector(`#${id} canvas`);
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    return copy.getImageData(0, 0, canvas.width, canvas.height).data;
  });
  const before = window.shownBefore ?? now;
  window.shownBefore = now;
  return now.map((data, k) => {
    const isFar = (at) => Math.abs(data[at] - before[k][at]) > 24;
    let far = 0;
    for (let at = 0; at < data.length; at += 4) far += isFar(at) || isFar(at + 1) || isFar(at + 2);
    return 1 - (4 * far) / data.length;
  });
}"""


def test_a_large_plan_shows_its_preview_before_its_columns_arrive(page: Any, url: str) -> None:
    graph = generators.transformer(12_000)
    asked = {"graph": graph, "planner": "as_given", "budget": "100%", "search_seconds": 1}
    answer = httpx2.post(f"{url}/v1/plans", json=asked, headers={"Prefer": "wait=300"}, timeout=300)
    assert answer.status_code == 201, answer.text
    held: list[Any] = []
    page.route("**/memory.bin*", lambda route: held.append(route))
    page.route("**/graph.bin*", lambda route: held.append(route))  # it brings time and kinds, which no preview has
    page.goto(f"{url}/plans/{answer.json()['id']}")
    page.wait_for_function("() => performance.getEntriesByName('remat:preview').length")
    assert page.evaluate("window.remat === undefined") and page.evaluate(SHOWN) == [1, 1]
    held.pop(0).continue_()
    page.wait_for_selector("html[data-named]", state="attached")
    shares = page.evaluate(SHOWN)
    assert min(shares) > 0.8, shares  # it was drawn for another size than this page has, and names no peak
    held.pop(0).continue_()
    page.wait_for_selector("html[data-read]", state="attached")


#: Pixels of the middle of a step in the panel of the plan.
PLACE_OF_STEP = """(step) => {
  const chart = window.remat.memory, after = chart.series[1], { box } = chart.panels()[1];
  return [chart.scales(box)[0](chart.middleOf(after, step)), box.y + box.high / 2];
}"""


def test_pointing_at_the_peak_lists_its_live_values(opened: Any, url: str, plans: list[str]) -> None:
    report = httpx2.get(f"{url}/v1/plans/{plans[0]}?return=timeline&return=explain", timeout=60).json()
    steps = report["timeline"]["step_bytes"]
    peak = steps.index(max(steps))
    canvas = opened.locator("#memory canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = opened.evaluate(PLACE_OF_STEP, peak)
    opened.mouse.move(box["x"] + x, box["y"] + y)
    opened.wait_for_function("(step) => window.remat.memory.step === step", arg=peak)
    assert opened.inner_text("#memory .tooltip strong") == report["plan"]["order"][peak][0]
    opened.click("#memory summary")
    canvas.focus()
    opened.keyboard.press("p")
    after = opened.locator("#memory [data-part=holders] section").nth(1)
    assert ", peak" in after.locator("h3").inner_text()
    shown = after.locator(".holders .name").all_inner_texts()
    assert shown[0] == report["explain"]["holders"][0]["value"]
    ran, again = report["plan"]["order"][peak]
    assert ran in after.locator("p").first.inner_text() and again == 0


def test_before_and_after_share_an_axis_of_time_and_their_kinds_add_up(opened: Any) -> None:
    found = opened.evaluate(
        """() => {
          const chart = window.remat.memory, [before, after] = chart.series, [one, other] = chart.panels();
          const isStack = (sums, step) => sums.every((sum, k) => !k || sum[step] >= sums[k - 1][step]);
          const adds = [before, after].every(({ sums, steps }) =>
            steps.every((bytes, step) => sums.at(-1)[step] === bytes && isStack(sums, step)));
          return {
            adds, isTimed: chart.isTimed, aligned: one.box.x === other.box.x && one.box.wide === other.box.wide,
            order: before.starts.at(-1) <= after.starts.at(-1), again: after.again.includes(1),
            phases: [...new Set(before.phases)],
          };
        }"""
    )
    assert found == {"adds": True, "isTimed": True, "aligned": True, "order": True, "again": True, "phases": [0, 1]}


def test_the_timeline_zooms_and_moves_and_reset_restores_it(opened: Any) -> None:
    before, view = pixels(opened, "#memory"), "() => window.remat.memory.view"
    whole = opened.evaluate(view)
    opened.click("#memory [data-do=in]")
    low, high = opened.evaluate(view)
    assert whole[0] < low < high < whole[1] and pixels(opened, "#memory") != before
    box = opened.locator("#memory canvas").nth(1).bounding_box()
    opened.mouse.move(box["x"] + 500, box["y"] + 100)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 400, box["y"] + 100, steps=4)
    opened.mouse.up()
    assert opened.evaluate(view)[0] > low
    opened.click("#memory [data-do=whole]")
    opened.mouse.move(0, 0)
    assert opened.evaluate(view) == whole and pixels(opened, "#memory") == before


def test_tabs_have_the_id_of_the_plan_and_copy_their_code(opened: Any, plans: list[str]) -> None:
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.focus("#use [role=tab][aria-selected=true]")
    opened.keyboard.press("End")
    panel = opened.locator("#use [role=tabpanel]:visible")
    assert panel.count() == 1 and f"/v1/plans/{plans[0]}" in panel.inner_text()
    panel.locator("[data-copy]").click()
    opened.wait_for_function(
        "() => document.querySelector('#use [role=tabpanel]:not([hidden]) [data-copy]').textContent === 'copied'"
    )
    assert opened.evaluate("navigator.clipboard.readText()") == panel.locator("pre").inner_text()


SLIDE = """(budget) => {
  const range = document.getElementById("budget-range");
  range.value = budget;
  range.dispatchEvent(new Event("input"));
}"""


def test_the_slider_shows_the_stored_plan_of_a_budget(opened: Any, url: str, plans: list[str]) -> None:
    opened.wait_for_selector("#budget[data-prefetched]", state="attached")
    report = httpx2.get(f"{url}/v1/plans/{plans[1]}", timeout=60).json()["plan"]
    opened.evaluate(SLIDE, report["budget_bytes"])
    opened.wait_for_selector(f"#use [data-copy*='{plans[1]}']", state="attached")
    opened.wait_for_selector("html[data-read]", state="attached")
    assert opened.url.endswith(plans[1]) and "Best stored plan" in opened.inner_text("#budget-status")
    assert opened.evaluate("window.remat.memory.series[1].peak") == report["peak_bytes"]
    assert opened.locator("#graph .block").count() > 1


def test_a_resting_slider_plans_a_missing_budget_and_moving_on_cancels_it(opened: Any, url: str) -> None:
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url) if request.method == "POST" else None)
    opened.evaluate(
        "() => { const { dataset } = document.getElementById('budget');"
        " dataset.request = JSON.stringify({...JSON.parse(dataset.request), search_seconds: 30}); }"
    )
    top = int(opened.get_attribute("#budget-range", "max"))
    opened.evaluate(SLIDE, round(0.62 * top))
    opened.wait_for_function(
        "() => document.getElementById('budget-status').textContent.includes('7 more on this page')"
    )
    opened.evaluate(SLIDE, top)
    opened.wait_for_timeout(1500)
    assert [one.rpartition("/")[2].partition(":")[2] for one in asked] in (["", "cancel"], [""])
    opened.uncheck("#budget [data-do=plan-missing]")
    opened.evaluate(SLIDE, round(0.66 * top))
    opened.wait_for_timeout(1500)
    assert len(asked) <= 2


def test_keys_move_the_cursor_and_announce_its_step(opened: Any) -> None:
    canvas = opened.locator("#memory canvas").nth(1)
    canvas.focus()
    canvas.press("Home")
    canvas.press("ArrowRight")
    opened.wait_for_function(
        "() => document.querySelector('[data-part=announcement]').textContent.includes('at step 1,')"
    )
    canvas.press("p")
    opened.wait_for_function("() => window.remat.memory.step === window.remat.memory.series[1].at")
    canvas.press("Escape")
    assert opened.evaluate("window.remat.memory.step") is None


def test_zooming_changes_the_map_and_reset_restores_it(opened: Any) -> None:
    canvas = opened.locator("#map canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    before = pixels(opened, "#map")
    box = canvas.bounding_box()
    opened.mouse.move(box["x"] + 400, box["y"] + 300)
    for _ in range(6):
        opened.mouse.wheel(0, -100)
    opened.wait_for_function(
        "() => window.remat.map.view.x[1] - window.remat.map.view.x[0] < window.remat.map.steps / 2"
    )
    zoomed = pixels(opened, "#map")
    assert zoomed != before
    opened.mouse.down()
    opened.mouse.move(box["x"] + 300, box["y"] + 250, steps=4)
    opened.mouse.up()
    assert pixels(opened, "#map") != zoomed
    opened.click("#map [data-do=whole]")
    opened.mouse.move(0, 0)
    assert pixels(opened, "#map") == before


def test_the_map_names_the_buffer_at_the_pointer(opened: Any) -> None:
    i = opened.evaluate(
        "() => { const m = window.remat.map; return m.rects.bytes.indexOf(Math.max(...m.rects.bytes)); }"
    )
    at = opened.evaluate(
        "(i) => { const m = window.remat.map, r = m.rects;"
        "return [m.toX((r.first[i] + r.last[i] + 1) / 2), m.toY(r.offset[i] + r.bytes[i] / 2)]; }",
        i,
    )
    canvas = opened.locator("#map canvas").nth(1)
    canvas.hover(position={"x": at[0], "y": at[1]})
    opened.wait_for_function("(i) => window.remat.map.chosen === i", arg=i)
    name = opened.evaluate("(i) => window.remat.data.column('values')[window.remat.map.rects.value[i]]", i)
    assert opened.locator("#map [data-part=selection]").inner_text().startswith(f"{name}:")
    canvas.focus()
    canvas.press("ArrowRight")
    assert opened.evaluate("window.remat.map.chosen") != i


def test_a_search_marks_matches_and_zooms_to_them(opened: Any) -> None:
    before = pixels(opened, "#map")
    opened.fill("#map [data-do=search]", "onerror")
    assert "rectangle" in opened.inner_text("#map [data-part=matches]")
    assert pixels(opened, "#map") != before
    opened.press("#map [data-do=search]", "Enter")
    assert MARKUP in opened.inner_text("#map [data-part=selection]")
    assert opened.locator("img").count() == 0
    opened.fill("#map [data-do=search]", "no such name")
    assert "No names match" in opened.inner_text("#map [data-part=matches]")


@pytest.mark.parametrize("by", ["again", "layer", "away"])
def test_the_map_is_coloured_by_the_selected_attribute(opened: Any, by: str) -> None:
    before = pixels(opened, "#map")
    opened.select_option("#map [data-do=by]", by)
    assert pixels(opened, "#map") != before
    assert opened.locator("#map .legend li").count() >= 1


def test_a_block_opens_to_nodes_with_the_reason_for_each_recomputation(opened: Any) -> None:
    opened.check("#graph [data-do=only]")
    rows = opened.locator("#graph .nodes tr.recomputed-node")
    assert rows.count() >= 1  # blocks with few such nodes are open
    assert "runs twice: frees" in rows.first.inner_text()
    opened.fill("#graph [data-do=find]", "no such node")
    assert opened.inner_text("#graph [data-part=count]") == "No nodes match."


def test_long_names_fit_the_screen(page: Any, url: str) -> None:
    text = (
        json.dumps(chain(8, "model_" + "x" * 150))
        .replace('"h', f'"{"value_" * 25}h')
        .replace('"f', f'"{"node_" * 30}f')
    )
    graph = json.loads(
        text.replace(f'"{"node_" * 30}format"', '"format"').replace(f'"{"node_" * 30}float32"', '"float32"')
    )
    asked = {"graph": graph, "planner": "greedy", "iterations": 20, "budget": "60%"}
    answer = httpx2.post(f"{url}/v1/plans", json=asked, headers={"Prefer": "wait=300"}, timeout=300)
    assert answer.status_code == 201, answer.text
    for path in (f"/plans/{answer.json()['id']}", "/", "/jobs"):
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{url}{path}")
            if "plans" in path:
                page.wait_for_selector("html[data-read]", state="attached")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)


def test_equal_blocks_are_one_row_that_opens_to_its_members(opened: Any) -> None:
    found = opened.evaluate(
        """async (at) => {
          const { equalLayers } = await import(at);
          const columns = { phase: [0, 0, 0, 0, 0], written: [8, 4, 8, 4, 8], ops: ["a", "b", "a", "b", "a"] };
          const data = { column: (name) => columns[name], list: (...names) => names.map((name) => columns[name]) };
          const layers = [[0, 1], [2, 3], [4]].map((nodes, id) => ({ id, nodes }));
          return equalLayers(layers, data, data).map((group) => group.map(({ id }) => id));
        }""",
        asset_url("js/blocks.js"),
    )
    assert found == [[0, 1], [2]]
    group = opened.locator("#graph .block.group > button").first
    whole = opened.locator("#graph .block").count()
    members = int(group.inner_text().split()[0])
    group.click()
    assert opened.locator("#graph .block").count() == whole + members


def test_the_whole_graph_moves_zooms_and_jumps_to_a_node(opened: Any) -> None:
    opened.click("#graph [data-part=whole-graph] > summary")
    opened.wait_for_function("() => window.remat.graph")
    name = opened.evaluate("window.remat.data.column('nodes').at(-1)")
    opened.fill("#graph [data-do=jump]", name)
    opened.press("#graph [data-do=jump]", "Enter")
    view = "() => [window.remat.graph.at[0], window.remat.graph.scale]"
    at, scale = opened.evaluate(view)
    assert name in opened.inner_text("#graph [data-part=whole-graph] [data-part=selection]")
    canvas = opened.locator("#graph .sheet.graph canvas").nth(1)
    box = canvas.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.mouse.move(*middle)
    opened.mouse.down()
    opened.mouse.move(middle[0] - 90, middle[1], steps=3)
    opened.mouse.up()
    assert opened.evaluate(view)[0] > at
    opened.click("#graph [data-part=whole-graph] [data-do=in]")
    assert opened.evaluate(view)[1] > scale
    opened.fill("#graph [data-do=jump]", "no such node")
    opened.press("#graph [data-do=jump]", "Enter")
    assert opened.inner_text("#graph [data-part=whole-graph] [data-part=selection]") == "No nodes match."


def test_the_http_interface_has_the_look_of_the_pages(page: Any, url: str) -> None:
    page.emulate_media(color_scheme="dark")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{url}/docs")
        page.wait_for_selector(".swagger-ui .opblock")
        assert page.evaluate("document.documentElement.classList.contains('dark-mode')")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".authorization__btn:visible").count() == 0  # no keys are asked for
    page.click("nav >> text=Jobs")
    page.wait_for_url("**/jobs")


def test_a_memory_snapshot_is_drawn_over_the_prediction(opened: Any) -> None:
    events = [{"action": "alloc", "size": 1 << 28, "time_us": k} for k in range(3)]
    snapshot = {"segments": [{"device": 0, "allocated_size": 3 << 28}], "device_traces": [events]}
    file = {"name": "snapshot.pickle", "mimeType": "", "buffer": pickle.dumps(snapshot)}
    opened.set_input_files("#snapshot", files=[file])
    opened.locator("#snapshot-status", has_text="3 events on cuda:0").wait_for()
    drawn = opened.evaluate(
        "() => { const [, after, { name, steps, peak }] = window.remat.memory.series;"
        " return [name, steps.length === after.steps.length, steps[0], peak]; }"
    )
    assert drawn == ["measured", True, 1 << 28, 3 << 28]
    assert "measured: 768.0 MiB" in opened.text_content("#memory [data-part=holders]")
    opened.reload()
    opened.wait_for_selector("html[data-read]", state="attached")
    opened.click("#measured [data-do=draw]")
    opened.locator("#memory [data-part=holders] h3", has_text="measured: 768.0 MiB").wait_for(state="attached")


def test_downloaded_files_are_valid(opened: Any, tmp_path: Path) -> None:
    for place, name in (
        ("a[href$='plan.json']", "plan.json"),
        ("#map a:has-text('SVG')", "map.svg"),
        ("#trade a:has-text('SVG')", "curve.svg"),
    ):
        with opened.expect_download() as download:
            opened.locator(place).first.click()
        download.value.save_as(tmp_path / name)
    assert saved_report.verify(json.loads((tmp_path / "plan.json").read_text()))["valid"]
    assert "<svg" in (tmp_path / "map.svg").read_text()
    with opened.expect_download() as download:
        opened.click("#map [data-do=png]")
    download.value.save_as(tmp_path / "view.png")
    assert (tmp_path / "view.png").read_bytes()[:4] == b"\x89PNG"


def test_two_plans_are_compared(page: Any, url: str, plans: list[str]) -> None:
    page.goto(f"{url}/plans/{plans[0]}")
    page.click("text=Compare >> nth=-1")
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert "/compare?a=" in page.url
    assert page.locator(".differences tbody tr").count() >= 3
    assert "\npeak\t" in page.inner_text(".differences")
    assert page.locator("#memory [data-part=holders] section").count() == 2


def test_each_compared_plan_is_chosen_by_its_number(page: Any, url: str, plans: list[str]) -> None:
    asked = {"graph": generators.transformer(40), "planner": "greedy", "iterations": 5}
    third = httpx2.post(f"{url}/v1/plans", json=asked, headers={"Prefer": "wait=300"}, timeout=300).json()["id"]
    page.goto(f"{url}/compare?plan={plans[0]}&plan={plans[1]}&plan={third}")
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert "1 to 3 peak of A to C" in page.inner_text("#memory-keys")
    page.locator("#memory canvas").nth(1).focus()
    for letter, key, id in (("C", "3", third), ("A", "1", plans[0]), ("B", "2", plans[1])):
        steps = httpx2.get(f"{url}/v1/plans/{id}/timeline", timeout=60).json()["step_bytes"]
        page.keyboard.press(key)
        page.wait_for_function(
            "(text) => RegExp(text).test(document.getElementById('memory-step').textContent)",
            arg=f"{letter}: [^.]*[.]?[^.]* at step {steps.index(max(steps))},",
        )


def test_pure_functions_of_the_charts(opened: Any) -> None:
    """Index of spans, scales, search, zoom and pixels, against brute force."""
    found = opened.evaluate(
        """async ([spansAt, scaleAt, rasterAt]) => {
          const { Spans, search, atMost } = await import(spansAt);
          const { byteTicks, countTicks, maxima, zoomed, moved, roundUp } = await import(scaleAt);
          const { paint, pixelOf, mixed } = await import(rasterAt);
          let seed = 1;
          const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
          const faults = [];
          for (let round = 0; round < 200; round++) {
            const many = random(30), first = Int32Array.from({length: many}, () => random(40)).sort();
            const last = first.map((at) => at + random(12)), bytes = Float64Array.from(first, () => random(5));
            const spans = new Spans(first, last), step = random(50), there = [];
            spans.at(step, (i) => there.push(i));
            const obvious = [...first.keys()].filter((i) => first[i] <= step && step <= last[i]);
            if (String(there) !== String(obvious)) faults.push(["at", step, there, obvious]);
            const { largest, count } = spans.largest(step, bytes, 3);
            const best = obvious.sort((a, b) => bytes[b] - bytes[a] || a - b).slice(0, 3);
            if (count !== obvious.length || String(largest) !== String(best)) faults.push(["largest", largest, best]);
            const low = random(40), high = low + random(9), [from, to] = spans.window(low, high);
            if ([...first.keys()].some((i) => first[i] <= high && last[i] >= low && (i < from || i >= to)))
              faults.push(["window", low, high, from, to]);
          }
          const target = {pixels: new Uint32Array(40), wide: 10, high: 4};
          const rects = {first: [2], last: [4], offset: [1], bytes: [2]};
          paint(target, rects, [0, 1], {x: [0, 10], y: [0, 4]}, () => 7, 0);
          return {
            faults, painted: [...target.pixels].map((p, k) => (p ? k : -1)).filter((k) => k >= 0),
            search: [search(["Ab", "cd"], " B "), search(["a"], ""), search(["a"], "x")].map((s) => s && [...s]),
            ticks: byteTicks(0, 3 * 2 ** 30, 3), counts: countTicks(0, 7, 3), none: countTicks(0, 1, 10),
            maxima: [...maxima([1, 5, 2, 9, 3], 2)], short: [...maxima([4, 1], 9)],
            zoom: zoomed([0, 100], 0.5, 25, 100, 4), edge: zoomed([0, 100], 2, 25, 100, 4),
            moved: moved([90, 100], 50, 100),
            round: [roundUp(3), roundUp(0.21), roundUp(1)], atMost: [atMost([1, 1, 2], 1), atMost([], 3)],
            pixel: pixelOf("rgb(1, 2, 3)"), mixed: mixed(pixelOf("rgb(0,0,0)"), pixelOf("rgb(200,100,0)"), 0.5),
          };
        }""",
        [asset_url(f"js/{name}.js") for name in ("spans", "scale", "raster")],
    )
    assert found["faults"] == []
    assert found["painted"] == [12, 13, 14, 22, 23, 24]  # rows from above: bytes 1 to 3 of 4 are rows 1 and 2
    assert found["search"] == [[0], None, []]
    assert found["ticks"] == [[0, "0"], [2**30, "1 GiB"], [2**31, "2 GiB"], [3 * 2**30, "3 GiB"]]
    assert found["counts"] == [[0, "0"], [5, "5"]]  # whole numbers alone
    assert found["none"] == [[0, "0"], [1, "1"]]
    assert found["maxima"] == [5, 9] and found["short"] == [4, 1]
    assert found["zoom"] == [12.5, 62.5] and found["edge"] == [0, 100] and found["moved"] == [90, 100]
    assert found["round"] == [5, 0.25, 1] and found["atMost"] == [2, 0]
    assert found["pixel"] == 0xFF030201 and found["mixed"] == 0xFF003264


def test_the_drawing_of_a_block_shows_the_reason_for_each_recomputation(opened: Any) -> None:
    from axe_playwright_python.sync_playwright import Axe

    button = opened.locator("#graph .block > button").filter(has_text="recomputed").first
    button.click()
    drawing = opened.locator("#graph .drawing").first
    drawing.wait_for()
    again = drawing.locator("[role=button].recomputed-node")
    assert again.count() >= 1 and again.count() == drawing.locator(".what", has_text="↻").count()
    again.first.click()
    said = drawing.locator("[role=status]")
    assert again.first.get_attribute("aria-pressed") == "true"
    assert "runs twice: frees" in said.inner_text() and drawing.locator(".edge.selected").count() >= 1
    opened.keyboard.press("End")
    opened.keyboard.press("ArrowUp")
    opened.keyboard.press("Enter")
    chosen = drawing.locator("[role=button][aria-pressed=true]")
    assert chosen.count() == 1 and chosen.get_attribute("aria-label").split(",")[0] in said.inner_text()
    assert chosen.evaluate("(box) => box === document.activeElement")
    found = Axe().run(opened, context="#graph")
    assert not found.response["violations"], found.generate_report()
    button.click()
    assert opened.locator("#graph .drawing").count() == 0


def test_a_drawing_is_in_rows_and_limited_in_nodes(opened: Any) -> None:
    """Producers are above their readers, in the backward pass below; no two nodes share a place."""
    found = opened.evaluate(
        """async (at) => {
          const { drawn, placed } = await import(at);
          let seed = 7;
          const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
          const faults = [];
          for (let round = 0; round < 100; round++) {
            const many = 1 + random(40), nodes = [...Array(many).keys()].map((k) => 3 * k), edges = [];
            const isBack = (n) => n >= 3 * Math.floor(many / 2);
            for (const n of nodes) for (let k = random(4); k > 0 && n; k--) edges.push([3 * random(n / 3), n]);
            const { place, rows, columns } = placed(nodes, edges, isBack);
            const places = new Set([...place.values()].map(({ row, column }) => `${row} ${column}`));
            if (places.size !== many) faults.push(["shared", round]);
            for (const { row, column } of place.values())
              if (row < 0 || row >= rows || column < 0 || column >= columns) faults.push(["outside", round]);
            for (const [from, to] of edges) {
              if (isBack(from) !== isBack(to)) continue;
              const down = place.get(to).row - place.get(from).row;
              if (isBack(to) ? down >= 0 : down <= 0) faults.push(["order", round, from, to]);
            }
          }
          const nodes = [...Array(50).keys()], edges = nodes.slice(1).map((n) => [n - 1, n]);
          const some = drawn(nodes, edges, (n) => n === 30, 5);
          return { faults, all: drawn(nodes, edges, () => false, 50).length, some };
        }""",
        asset_url("js/drawing.js"),
    )
    assert found == {"faults": [], "all": 50, "some": [0, 1, 29, 30, 31]}


def test_live_values_at_the_peak_have_names_before_the_graph_is_loaded(opened: Any) -> None:
    held = opened.evaluate(
        """async (at) => {
          const { heldAtPeak } = await import(at), held = heldAtPeak([{value: "a", bytes: 3}], [1, 3]);
          return [held(0), held(1)];
        }""",
        asset_url("js/live_values.js"),
    )
    assert held == [None, {"count": 1, "rows": [{"name": "a", "bytes": 3, "note": ""}]}]


def test_tags_and_a_note_are_written_with_the_keyboard(opened: Any, url: str, plans: list[str]) -> None:
    from playwright.sync_api import expect

    place = opened.locator("#annotations")
    place.get_by_text("Add tags or a note").focus()
    opened.keyboard.press("Enter")
    place.get_by_label("Tags").focus()
    opened.keyboard.type(f"prod,{'x' * 40} <b>")
    opened.keyboard.press("Tab")
    opened.keyboard.type("Line one\n" + "y" * 300)
    opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    expect(place.locator(".tag")).to_have_count(3)
    expect(place.get_by_text("Edit tags and note")).to_be_focused()
    assert place.locator(".note").inner_text() == "Line one\n" + "y" * 300
    opened.set_viewport_size({"width": 390, "height": 844})
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.reload()
    place.get_by_role("link", name="prod").click()
    expect(opened.locator("table.savings tbody tr")).to_have_count(1)
    expect(opened.locator("select[name=tag]")).to_have_value("prod")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    opened.goto(f"{url}/plans/{plans[0]}?embed=1")
    expect(opened.locator("#annotations")).to_have_count(0)


def test_a_tag_that_is_refused_is_named_and_nothing_is_lost(chromium: Any, url: str, plans: list[str]) -> None:
    from playwright.sync_api import expect

    page = chromium.new_page()  # whose console has the refusal
    page.goto(f"{url}/plans/{plans[0]}")
    page.wait_for_selector("html[data-read]", state="attached", timeout=LONG_MS)
    place = page.locator("#annotations")
    place.locator("summary").click()
    place.get_by_label("Tags").fill("z" * 41)
    place.get_by_role("button", name="Save").click()
    expect(place.get_by_role("alert")).to_contain_text("tags.0")
    assert place.get_by_label("Tags").input_value() == "z" * 41
    page.close()
