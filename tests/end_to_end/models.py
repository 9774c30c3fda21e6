"""The real models tests plan: nine architectures of the onnx wheel, three exported by PyTorch."""

from __future__ import annotations

from pathlib import Path

import onnx

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
OURS = Path(__file__).parent.parent / "models"

#: Name -> (file, request fields that bind its shapes).
MODELS: dict[str, tuple[Path, dict[str, object]]] = {
    **{path.stem.removeprefix("light_"): (path, {"batch": 1}) for path in sorted(LIGHT.glob("*.onnx"))},
    "encoder": (OURS / "encoder.onnx", {"batch": 2, "dims": {"sequence": 16}}),
    "decoder": (OURS / "decoder.onnx", {"batch": 2, "dims": {"sequence": 16}, "loss": "loss"}),
    "gpt": (OURS / "gpt.onnx", {"batch": 2, "dims": {"sequence": 16}}),
}
#: Those small enough for every run of the tests.
QUICK = ("encoder", "decoder", "gpt", "squeezenet")
