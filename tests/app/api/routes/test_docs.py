"""The docs work offline: vendored files, as they were fetched, and no address of another host."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from starlette.testclient import TestClient

VENDOR = Path(__file__).parents[4] / "app" / "pages" / "vendor"


def test_vendored_files_are_what_was_fetched_and_carry_their_licence() -> None:
    for folder in VENDOR.iterdir():
        origin = json.loads((folder / "origin.json").read_text())
        found = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.iterdir()
            if path.name != "origin.json"
        }
        assert found == origin["sha256"]
        assert "LICENSE.txt" in found


def test_the_page_asks_its_own_host_only(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    asked = [address for address in named if not address.startswith("data:")]
    assert {"/docs/assets/swagger-ui.css", "/docs/assets/swagger-ui-bundle.js", "/", "/upload"} <= set(asked)
    for address in asked:
        assert address.startswith(("/", "#"))
        assert client.get(address).status_code == 200
    (start,) = [address for address in asked if address.endswith("js/docs.js")]
    assert "http" not in client.get(start).text and 'aria-current="page">HTTP' in page.text


def test_assets_are_those_of_the_folder_only(client: TestClient) -> None:
    for name in ("origin.json", "..%2f..%2fcli.py", "nothing.js"):
        assert client.get(f"/docs/assets/{name}").status_code == 404


def test_every_operation_is_described(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], (path, method)
            assert {"500", "503"} <= set(operation["responses"]), (path, method)
    text = json.dumps(document)
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= set(document["components"]["schemas"])
