"""`remat.torch.capture` where PyTorch is installed and none of the other dependencies of remat."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import remat.torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, torch, remat.torch
module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))
remat.torch.capture(module, torch.ones(2, 4), loss=lambda y: y.sum()).save(sys.argv[1])
"""


def files_of(name: str, known: set[str]) -> set[Path]:
    """Folders and modules of a distribution and of all that it requires without an extra."""
    if name in known:
        return set()
    known.add(name)
    distribution = importlib.metadata.distribution(name)
    found = {Path(str(distribution.locate_file(file.parts[0]))) for file in distribution.files or ()}
    for required in distribution.requires or ():
        if "extra ==" not in required and "platform_system" not in required:
            found |= files_of(re.split(r"[^\w.-]", required)[0], known)
    return {path for path in found if path.suffix == ".py" or (path.is_dir() and path.suffix != ".dist-info")}


def test_a_step_is_captured_where_only_pytorch_is_installed(tmp_path: Path) -> None:
    for path in files_of("torch", set()):
        if path.name not in ("..", "__pycache__"):
            (tmp_path / path.name).symlink_to(path)
    for package in ("remat", "graph", "planner", "app"):
        (tmp_path / package).symlink_to(ROOT / package)
    step = tmp_path / "step.json"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-S", "-c", SCRIPT, step], cwd=tmp_path, env=environment, check=True, timeout=300)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))
    captured = remat.torch.capture(module, torch.ones(2, 4), loss=lambda y: y.sum())
    assert without_lines(json.loads(step.read_text())) == without_lines(captured.document)


def without_lines(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of a document without the source lines."""
    return [{key: value for key, value in node.items() if key != "annotations"} for node in document["nodes"]]
