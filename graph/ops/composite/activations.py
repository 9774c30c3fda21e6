"""Activations fused with a bias or a gate: SwiGLU of the standard, and those of onnxruntime's optimiser."""

from __future__ import annotations

from graph.builder.emit import Emit
from graph.ir import Val
from graph.ops.numeric.by_body import composite
from graph.ops.registry.registry import Call


def swish(e: Emit, x: Val, alpha: float = 1.0) -> Val:
    """x · sigmoid(alpha · x)."""
    scaled = x if alpha == 1 else e.mul(x, e.scalar_like(alpha, x))
    return e.mul(x, e.op("Sigmoid", scaled))


def _swiglu(e: Emit, call: Call, gate: Val, x: Val) -> Val:
    return e.mul(swish(e, gate, float(call.attribute("alpha", 1.0))), x)


def _gelu(e: Emit, call: Call, x: Val, bias: Val | None = None) -> Val:
    approximate = "tanh" if call.op.endswith("FastGelu") else "none"
    return e.op("Gelu", x if bias is None else e.add(x, bias), approximate=approximate)  # type: ignore[no-any-return]


def _quick_gelu(e: Emit, call: Call, x: Val) -> Val:
    return swish(e, x, float(call.attribute("alpha", 1.702)))


composite("SwiGLU", _swiglu)
composite("com.microsoft::Gelu", _gelu)
composite("com.microsoft::BiasGelu", _gelu)
composite("com.microsoft::FastGelu", _gelu)
composite("com.microsoft::QuickGelu", _quick_gelu)
