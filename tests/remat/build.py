"""The build of the wheel as a module: `setup.py`, which is in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def build_module() -> Any:
    """`setup.py` imported without running the build."""
    spec = importlib.util.spec_from_file_location("setup_of_remat", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
