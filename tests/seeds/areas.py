"""Which area runs which cases: (system, category) -> area. A new area is entered here."""

from __future__ import annotations

from tests.seeds import (
    caffe2_gradients,
    control_flow,
    control_flow_faults,
    devices,
    liveness,
    mirroring,
    mxnet_gradients,
    numeric_area,
    paddle_gradients,
    recompute_segments,
    recurrent,
    surgery,
    versions,
)
from tests.seeds.harness import Area

AREAS: dict[tuple[str, str], Area] = {
    ("caffe2", "control-flow"): control_flow.AREA,
    ("caffe2", "control-flow-validation"): control_flow_faults.AREA,
    ("caffe2", "device"): devices.AREA,
    ("caffe2", "gradient-numeric"): numeric_area.AREA,
    ("caffe2", "gradient-structure"): caffe2_gradients.AREA,
    ("caffe2", "liveness"): liveness.AREA,
    ("caffe2", "recurrent"): recurrent.AREA,
    ("caffe2", "ssa"): versions.AREA,
    ("caffe2", "subgraph"): surgery.AREA,
    ("detectron2", "dead-code"): surgery.AREA,
    ("detectron2", "device"): devices.AREA,
    ("detectron2", "ssa"): versions.AREA,
    ("detectron2", "subgraph"): surgery.AREA,
    ("mxnet", "gradient-graph"): mxnet_gradients.AREA,
    ("mxnet", "mirror"): mirroring.AREA,
    ("paddle", "append-backward"): paddle_gradients.BACKWARD,
    ("paddle", "calc-gradient"): paddle_gradients.CALC,
    ("paddle", "control-flow"): control_flow.AREA,
    ("paddle", "control-flow-validation"): control_flow_faults.AREA,
    ("paddle", "recompute-segments"): recompute_segments.AREA,
}
