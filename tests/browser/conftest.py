"""A real `remat serve` and Debian's Chromium. Tests fail on console errors, and on failed or foreign requests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from app.settings import Settings
from app.store.store import Store
from tests.app.pages.conftest import MARKUP
from tests.app.pages.seeded import fill

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("REMAT_TEST_CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE_MS = 120_000  # of everything that waits, on a machine that does much else


class Served:
    """A service in a process of its own."""

    def __init__(self, data: Path):
        environment = {**os.environ, "REMAT_WORKERS": "1", "REMAT_DRAIN_SECONDS": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "remat", "serve", "--port", "0", "--data", str(data)]
        said = data / "said.txt"  # not a pipe: it would fill up
        with said.open("w") as file:
            self.process = subprocess.Popen(command, stderr=file, env=environment)
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while (found := re.search(r"listening on (\S+)\n", said.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        self.url = found[1]

    def stop(self) -> None:
        """Stop the service."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Service with sixty plans of three models, one with markup as its name."""
    data = tmp_path_factory.mktemp("browsed")
    store = Store.open_for_serving(Settings(data=data))
    fill(store, 60, ("resnet50", MARKUP, "lstm"))
    store.close()
    running = Served(data)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        assert not os.environ.get("CI"), f"{CHROMIUM} is not installed"
        pytest.skip("Chromium is not installed")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=PATIENCE_MS)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def running(app: Any) -> Iterator[str]:
    """URL of the application, served by a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(60)


class Watched:
    """A page, and the unexpected errors on it."""

    def __init__(self, page: Page, host: str):
        self.page, self.host = page, host
        self.faults: list[str] = []
        self.expected: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: message.type == "error" and self.note(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.note(f"script: {error}"))
        page.on("request", self._asked)
        page.on("requestfailed", self._failed)

    def expect(self, pattern: str) -> None:
        """Ignore errors that match: the test causes them."""
        self.expected.append(pattern)

    def note(self, fault: str) -> None:
        self.faults.append(fault)

    def _asked(self, request: Any) -> None:
        place = urlsplit(request.url)
        if place.scheme not in ("data", "blob") and place.netloc != self.host:
            self.note(f"foreign: {request.url}")

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left, or a download began
            self.note(f"failed: {request.url} {request.failure}")

    def verify(self) -> None:
        assert not [fault for fault in self.faults if not any(re.search(one, fault) for one in self.expected)]


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens pages of a service; asserts at the end that none had errors."""
    pages: list[Watched] = []

    def open(url: str, size: Any = WIDE, **context: Any) -> Watched:
        inside = chromium.new_context(viewport=size, **context)
        watched = Watched(inside.new_page(), urlsplit(url).netloc)
        pages.append(watched)
        watched.page.goto(url)
        return watched

    yield open
    for watched in pages:
        watched.page.context.close()
    for watched in pages:
        watched.verify()
