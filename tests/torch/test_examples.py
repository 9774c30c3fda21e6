"""The training loops of `docs/examples` run; two of them need the extra `loops`."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NEEDS = {"lightning_loop": ("lightning",), "plain_loop": (), "transformers_trainer": ("transformers", "accelerate")}


@pytest.mark.loops
@pytest.mark.parametrize(
    "name", sorted(path.stem for path in EXAMPLES.glob("*.py") if "remat.torch" in path.read_text())
)
def test_an_example_trains_within_its_budget(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    missing = [package for package in NEEDS[name] if importlib.util.find_spec(package) is None]
    assert not missing, f"{name} needs {', '.join(missing)}: pip install -c constraints.txt '.[torch,loops]'"
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "% saved" in capsys.readouterr().out
