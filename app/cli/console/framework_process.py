"""A program of `remat.torch` or `remat.jax` in a process of its own, which the framework may take down."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec

from app.errors import BadUsage

STANDARD_ERROR = 2  # what the process prints is no part of the result


class Framework(NamedTuple):
    """A framework that a process needs; its package is also the extra that installs it."""

    package: str
    name: str


TORCH, JAX = Framework("torch", "PyTorch"), Framework("jax", "JAX")


def answer(
    module: str,
    request: Mapping[str, Any],
    subject: str,
    doing: str,
    code: str,
    seconds: float | None = None,
    framework: Framework = TORCH,
) -> dict[str, Any]:
    """The JSON object that `python -m module FILE` writes for the request on its standard input.

    Parameters:
        subject: What the request is about, for messages.
        doing: What the process does.
        code: Of the error.
        seconds: Time limit.
        framework: What the module imports.

    Raises:
        BadUsage: The framework is not installed, the process reports a problem, ends without an answer or takes longer.
    """
    if importlib.util.find_spec(framework.package) is None:
        remedy = f"install it with pip install 'remat[{framework.package}]'"
        raise BadUsage(f"{subject}: needs {framework.name}; {remedy}", code="missing_extra")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", module, str(result)]
        given = msgspec.json.encode(request)
        try:
            with _ended_by_sigterm():
                done = subprocess.run(command, input=given, stdout=STANDARD_ERROR, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise BadUsage(f"{subject}: the process that {doing} took more than {seconds:g} s", code=code) from None
        if not result.exists():
            how = f"by signal {-done.returncode}" if done.returncode < 0 else f"with exit code {done.returncode}"
            why = "its messages are above; signal 9 is often a lack of memory: take a smaller batch"
            raise BadUsage(f"the process that {doing} ended {how}; {why}", code=code)
        document: dict[str, Any] = msgspec.json.decode(result.read_bytes())
    if problem := document.get("problem"):
        raise BadUsage(f"{subject}: {problem}", code=code)
    return document


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Scope that SIGTERM ends by SystemExit, so that the process inside it is killed and its files are removed."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
