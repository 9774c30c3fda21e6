"""The code of the guide runs, and the loop with Flax, which needs the extra `loops`."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_the_code_of_the_guide_trains_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "guides" / "train-in-jax.md").read_text(), re.DOTALL)
    ran: dict[str, object] = {}
    exec(blocks[0], ran)
    assert "% saved" in capsys.readouterr().out
    assert float(ran["value"]) < float(ran["loss"]([(ran["up"], ran["down"])] * 6, ran["batch"]))  # type: ignore[operator, arg-type]
    exec(blocks[1], ran)
    assert "names saved" in capsys.readouterr().out


@pytest.mark.loops
def test_the_loop_with_flax_trains_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    missing = [package for package in ("flax", "optax") if importlib.util.find_spec(package) is None]
    assert not missing, f"needs {', '.join(missing)}: pip install -c constraints.txt '.[jax,loops]'"
    runpy.run_path(str(DOCS / "examples" / "flax_loop.py"), run_name="__main__")
    assert "% saved" in capsys.readouterr().out
