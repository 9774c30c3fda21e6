"""The process of a framework ends with the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from app.cli.console import framework_process
from app.cli.console.framework_process import Framework


def test_sigterm_ends_the_process_of_a_framework_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[subprocess.Popen[bytes]]()

    class Sleeping(subprocess.Popen[bytes]):
        def __init__(self, _: object, **options: Any):
            super().__init__([sys.executable, "-c", "import time; time.sleep(600)"], **options)
            started.append(self)

        def communicate(self, *given: Any, **options: Any) -> tuple[bytes, bytes]:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().communicate(*given, **options)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(subprocess, "Popen", Sleeping)
    with pytest.raises(SystemExit) as ended:
        framework_process.answer("module", {}, "model", "measures it", "failed", framework=Framework("json", "JSON"))
    assert ended.value.code == 128 + signal.SIGTERM and signal.getsignal(signal.SIGTERM) == before
    assert started[0].wait(60) == -signal.SIGKILL
