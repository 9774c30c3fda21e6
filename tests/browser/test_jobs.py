"""Jobs in Chromium: upload, progress, cancel, retry, batches, lost connection."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import onnx
import pytest

from app.zoo.catalogue import networks
from bench.generators import layered
from tests.app.api.routes.test_batches import broken
from tests.app.conftest import chain, one_layer
from tests.browser.conftest import PATIENCE_MS, Served, Watched

pytestmark = pytest.mark.browser


def ask(opened: Callable[..., Watched], served: Served, model: Path, **fields: str) -> Watched:
    """Page after the upload form was submitted."""
    watched = opened(f"{served.url}/upload")
    watched.page.locator("#file").set_input_files(model)
    for name, value in fields.items():
        watched.page.locator(f"[name={name}]").fill(value)
    watched.page.get_by_role("button", name="Create plan").click()
    return watched


def test_a_model_is_uploaded_and_its_job_leads_to_the_plan(
    served: Served, opened: Callable[..., Watched], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    model = tmp_path / "chain.json"
    model.write_text(json.dumps(chain(8, "eight <b>blocks</b>")))
    page = ask(opened, served, model, budget="60%", search_seconds="1").page
    expect(page).to_have_url(re.compile("/jobs/op"), timeout=PATIENCE_MS)
    expect(page.get_by_role("heading", level=1)).to_have_text("eight <b>blocks</b>")
    expect(page.locator("#job-bar")).to_be_visible()
    job = page.url
    expect(page).to_have_url(re.compile("/plans/[0-9a-f]{64}"), timeout=PATIENCE_MS)  # opened when the job is done
    page.goto(job)
    plan = page.get_by_role("link", name="Open the plan")
    expect(plan).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("#peak")).to_have_text(re.compile(r"^[0-9.]+ KiB$"))
    plan.click()
    expect(page).to_have_url(re.compile("/plans/[0-9a-f]{64}"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("eight <b>blocks</b>")


def test_a_sample_model_is_planned_by_a_button(served: Served, opened: Callable[..., Watched]) -> None:
    from playwright.sync_api import expect

    page = opened(f"{served.url}/upload").page
    page.get_by_role("button", name="Try ResNet-50").click()
    expect(page).to_have_url(re.compile("/plans/[0-9a-f]{64}"), timeout=PATIENCE_MS)
    expect(page.locator("#plan-head")).to_contain_text("float32[16,3,224,224]")


def test_errors_of_the_form_name_its_fields(served: Served, opened: Callable[..., Watched], tmp_path: Path) -> None:
    from playwright.sync_api import expect

    model = tmp_path / "chain.json"
    model.write_text(json.dumps(chain(4, "four")))
    alert = "#error"
    for fields, text, name in (
        ({"budget": "50"}, "Did you mean 50%?", "budget"),
        ({"budget": "half"}, "is not a budget", "budget"),
        ({"dims": "sequence"}, "Write name=length", "dims"),
    ):
        page = ask(opened, served, model, **fields).page
        expect(page.locator(alert)).to_contain_text(text)
        assert page.evaluate("document.activeElement.name") == name
    for budget in ("0.6", "64kib"):
        watched = ask(opened, served, model, budget=budget, search_seconds="0.1")
        expect(watched.page).to_have_url(re.compile("/(jobs|plans)/"), timeout=PATIENCE_MS)


def test_a_dimension_without_a_length_is_asked_for(
    served: Served, opened: Callable[..., Watched], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    network = networks()["light_squeezenet"]
    assert network.file is not None
    open_model = onnx.load(network.file)
    (image,) = [value for value in open_model.graph.input if value.name == "data_0"]
    image.type.tensor_type.shape.dim[2].dim_param = "height"
    model = tmp_path / "open.onnx"
    model.write_bytes(open_model.SerializeToString())
    watched = ask(opened, served, model)
    watched.expect("status of 4")
    expect(watched.page.locator("#error")).to_contain_text("Write height=8, with its length, under Named dimensions")
    watched.page.locator("[name=dims]").fill("height=224")
    watched.page.get_by_role("button", name="Create plan").click()
    expect(watched.page).to_have_url(re.compile("/(jobs|plans)/"), timeout=PATIENCE_MS)


def test_a_job_over_budget_shows_what_to_change(served: Served, opened: Callable[..., Watched], tmp_path: Path) -> None:
    from playwright.sync_api import expect

    model = tmp_path / "chain.json"
    model.write_text(json.dumps(chain(5, "five")))
    page = ask(opened, served, model, budget="1%", search_seconds="1").page
    expect(page.get_by_role("heading", name="No plan within the budget was found")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".notice")).to_contain_text("Increase the budget")
    expect(page.locator("#gap")).to_have_text("over budget")  # also once its events have been read
    expect(page.locator("#state")).to_have_text("succeeded, over budget")


def test_an_invalid_model_file_shows_the_findings(
    served: Served, opened: Callable[..., Watched], tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    model = tmp_path / "letter.json"
    model.write_text('{"format": "remat/1", "nodes": "none"}')
    watched = ask(opened, served, model)
    watched.expect("status of 4")
    expect(watched.page.get_by_role("alert").filter(has_text="expected")).to_be_visible(timeout=PATIENCE_MS)
    expect(watched.page.get_by_role("button", name="Create plan")).to_be_enabled()


def test_a_job_is_cancelled_and_retried(served: Served, opened: Callable[..., Watched], tmp_path: Path) -> None:
    from playwright.sync_api import expect

    model = tmp_path / "long.json"
    model.write_text(json.dumps(layered(1000) | {"name": "thousand"}))  # what is best of it is not found in hours
    page = ask(opened, served, model, budget="60%", search_seconds="500").page
    expect(page).to_have_url(re.compile("/jobs/op"), timeout=PATIENCE_MS)
    first = page.url
    expect(page.locator("#state")).to_contain_text("running", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_contain_text("cancelled", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Retry").click()
    expect(page).not_to_have_url(first, timeout=PATIENCE_MS)
    expect(page).to_have_url(re.compile("/jobs/op"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#state")).to_contain_text("cancelled", timeout=PATIENCE_MS)
    listed = page.context.new_page()  # the page of a job that ends is loaded again at a moment of its own
    listed.goto(f"{served.url}/jobs?state=cancelled")
    expect(listed.get_by_role("link", name="thousand", exact=True).first).to_be_visible()


def test_a_fit_requested_on_a_plans_page_is_shown_on_the_page_of_its_job(
    served: Served, opened: Callable[..., Watched]
) -> None:
    from playwright.sync_api import expect

    asked = {"graph": one_layer(), "loss": "loss", "budget": "90%", "planner": "greedy", "iterations": 5}
    plan = httpx2.post(f"{served.url}/v1/plans", json=asked, headers={"Prefer": "wait=60"}, timeout=120).json()
    page = opened(f"{served.url}/plans/{plan['id']}").page
    page.get_by_label("Memory", exact=True).fill("64KiB")
    page.get_by_role("button", name="Find the largest batch").click()
    expect(page).to_have_url(re.compile("/jobs/op"), timeout=PATIENCE_MS)
    expect(page.locator("#size")).to_have_text(re.compile(r"^\d+$"), timeout=PATIENCE_MS)
    page.get_by_role("link", name="Open the plan").click()
    expect(page).to_have_url(re.compile("/plans/[0-9a-f]{64}"))


def test_a_batch_is_followed_to_its_end_and_its_failed_items_retried(
    served: Served, opened: Callable[..., Watched]
) -> None:
    from playwright.sync_api import expect

    ids = [httpx2.post(f"{served.url}/v1/graphs", json=one, timeout=120).json()["id"] for one in (chain(3), broken())]
    asked = {"graph_ids": ids, "planners": ["greedy"], "iterations": 5, "budgets": ["90%", "60%"], "loss": "y"}
    page = opened(f"{served.url}/batches").page
    batch = httpx2.post(f"{served.url}/v1/batches", json=asked, timeout=120).json()["id"]
    row = page.locator(f"#row-{batch}")  # comes by itself
    expect(row).to_contain_text("4 of 4", timeout=PATIENCE_MS)
    row.get_by_role("link").first.click()
    expect(page.locator("#batch .status-line .state.failed")).to_have_text("all failed")
    page.locator("#state").select_option("failed")
    expect(page).to_have_url(re.compile("state=failed"))
    expect(page.locator("#batch tbody tr")).to_have_count(4)
    with page.expect_response(re.compile(":retry$")) as answer:
        page.get_by_role("button", name="Retry").click()
    assert answer.value.status == 200
    until = time.monotonic() + PATIENCE_MS / 1000
    while (found := httpx2.get(f"{served.url}/v1/batches/{batch}", timeout=120).json())["ended_at"] is None:
        assert time.monotonic() < until, found
        time.sleep(0.2)
    assert found["items"]["failed"] == 4


def test_a_page_shows_when_the_service_is_unreachable(opened: Callable[..., Watched], tmp_path: Path) -> None:
    from playwright.sync_api import expect

    dying = Served(tmp_path)
    watched = opened(f"{dying.url}/jobs")
    watched.expect("failed|ERR_CONNECTION_REFUSED|console|script")
    expect(watched.page.locator("#offline")).to_be_hidden()
    dying.stop()
    expect(watched.page.locator("#offline")).to_be_visible(timeout=PATIENCE_MS)
    expect(watched.page.get_by_role("alert").first).to_contain_text("does not respond")
