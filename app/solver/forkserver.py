"""The parent of all child processes: a forkserver that has loaded their code, so that a child starts in 20 to 40 ms.

Loading takes it about 3 s of CPU. A command that will need children starts it before its own imports, to load side by
side; this module imports nothing heavy.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
from multiprocessing import forkserver

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", f"{__package__}.preload"])

#: Names of environment variables that child processes do not get: they parse what strangers send.
SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSW|CREDENTIAL|_URL$|^AWS_|^PG")


@functools.cache
def start_forkserver() -> None:
    """Start the parent of all children without the secrets of this process in its environment.

    Once: changing the environment is not safe beside threads that read it.
    """
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if SECRET.search(name)}
    try:
        forkserver.ensure_running()
    finally:
        os.environ.update(hidden)
