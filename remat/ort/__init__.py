"""ONNX Runtime: train with a planned step in the order of its plan.

import remat.ort

report = remat.plan("model.onnx", "60%", batch=32, runtime="ort", recipe={"optimizer": "adam"})
session = remat.ort.session(report, weights="model.onnx")
for batch in batches:
    print(session.run(batch)["loss"])
"""

from __future__ import annotations

try:
    import onnxruntime  # noqa: F401
except ImportError as error:
    raise ImportError('remat.ort needs ONNX Runtime: pip install "remat[ort]"') from error

from remat.ort.errors import NotRunnable, NotTrainable
from remat.ort.options import session_options
from remat.ort.session import Session, session
from remat.steps.errors import PlanNotKept

__all__ = ["NotRunnable", "NotTrainable", "PlanNotKept", "Session", "session", "session_options"]
