"""Times of a newcomer's first three tasks, from a clean clone: each command as the documentation has it.

    python bench/first_minutes.py                     # installs PyTorch for the third task
    python bench/first_minutes.py --torch FOLDER      # site-packages with PyTorch, in place of its installation

First the demo, which installs remat and plans a bundled model; then an ONNX file of one's own, exported by PyTorch, and
its rewritten graph; then the training loop of docs/first-training-loop.md, which runs under its plan. Goals on a quiet
machine: 90 s to the first answer, 30 s more for the file, 2 min more for PyTorch. Exits 1 if a command fails or a goal
is missed; the load is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Task -> (seconds allowed, commands).
TASKS: dict[str, tuple[float, tuple[str, ...]]] = {
    "an answer on a bundled model": (90.0, ("./demo",)),
    "an ONNX file of one's own": (
        30.0,
        (
            ".venv/bin/remat plan own.onnx --batch 8 --dim sequence=64 --budget 50%"
            " -o plan.json --graph rewritten.onnx",
            ".venv/bin/remat explain plan.json --top 5",
        ),
    ),
    "a plan applied in PyTorch": (120.0, (".venv/bin/pip install -q '.[torch]'", ".venv/bin/python train.py")),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", type=Path, help="site-packages with PyTorch, in place of its installation")
    parser.add_argument("--show", action="store_true", help="show what the commands print")
    asked = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    late = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "remat"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        (clone / "own.onnx").write_bytes((clone / "tests/models/encoder.onnx").read_bytes())
        page = (clone / "docs/first-training-loop.md").read_text()
        (clone / "train.py").write_text("".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)))
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for task, (allowed, commands) in TASKS.items():
            began = time.monotonic()
            for command in commands:
                if asked.torch is not None and "[torch]" in command:
                    environment["PYTHONPATH"] = str(asked.torch)
                    continue
                typed = time.monotonic()
                done = subprocess.run(
                    ["bash", "-c", command], cwd=clone, env=environment, capture_output=not asked.show
                )
                print(f"  {time.monotonic() - typed:6.1f} s  {command}", flush=True)
                if done.returncode:
                    print((done.stderr or b"").decode()[-2000:])
                    return 1
            spent = time.monotonic() - began
            late += [task] * (spent > allowed)
            print(f"{spent:8.1f} s of {allowed:g} s  {task}", flush=True)
    print(f"later than allowed: {', '.join(late) or 'none'}; load {os.getloadavg()[0]:.1f}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
