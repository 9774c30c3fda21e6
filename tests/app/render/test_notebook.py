"""Pictures in a notebook follow its theme, which may differ from the system's."""

from __future__ import annotations

import json
import re

from app.render.notebook import THEMED_PLACES, document_html
from planner.pipeline.curve import curve
from planner.pipeline.solve import solve
from planner.request.curve_and_fit_request import parse_curve
from planner.request.plan_request import parse_request
from tests.app.conftest import chain


def test_every_picture_has_the_colours_of_both_themes() -> None:
    model = json.dumps(chain()).encode()
    fields = {"planner": "greedy", "iterations": 5}
    report = solve(model, parse_request({**fields, "budget": "80%"})).report
    document = curve(model, parse_curve({**fields, "budgets": ["80%"]})).document
    paper = {"light": "#fff", "dark": "#16181c"}
    for html in (document_html(report), document_html(document)):
        assert html is not None
        for scheme, places in THEMED_PLACES.items():
            for place in places:
                found = re.findall(re.escape(place) + r" svg\.remat \.paper\{fill:(#[0-9a-f]+)\}", html)
                assert found[-1] == paper[scheme], place
