"""Gradient rules of Caffe2: reads and writes of each gradient op, as declarations for the gradient engine.

Source: GetGradient* of the operators in caffe2/operators. They apply to opaque `caffe2::Type` ops; translated ops use
the gradient rules of standard ops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graph.autodiff.gradients.declared import AnyGradientRule, parse_rules
from graph.autodiff.gradients.registry import ForwardNode, GradientRule, GradientStatus, IndexedSlices, InputGradients
from graph.builder.emit import Emit
from graph.errors import Findings, quoted
from graph.ir import Graph, Phase, Val

DOMAIN = "caffe2::"


@dataclass(frozen=True, slots=True)
class Signature:
    """Number of inputs of an op."""

    min_inputs: int
    max_inputs: int


def _rule(op: str, reads: str, writes: str = "inputs") -> dict[str, Any]:
    """Declaration from short forms: "i0 o0 d0" is the first input, output and incoming gradient."""
    sides = {"i": "inputs", "o": "outputs", "d": "incoming"}
    slots = [f"{sides[short[0]]}[{short[1:]}]" for short in reads.split()]
    written: Any = writes if writes == "inputs" else [f"inputs[{short[1:]}]" for short in writes.split()]
    return {"op": DOMAIN + op, "reads": slots, "writes": written}


_DECLARED = {
    "FC": _rule("FCGradient", "i0 i1 d0", "i1 i2 i0"),
    "FCTransposed": _rule("FCTransposedGradient", "i0 i1 d0", "i1 i2 i0"),
    "Conv": _rule("ConvGradient", "i0 i1 d0", "i1 i2 i0"),
    "MatMul": _rule("MatMulGradient", "d0 i0 i1"),
    "BatchMatMul": _rule("BatchMatMulGradient", "d0 i0 i1"),
    "DotProduct": _rule("DotProductGradient", "i0 i1 d0"),
    "SquaredL2Distance": _rule("SquaredL2DistanceGradient", "i0 i1 d0"),
    "Mul": _rule("MulGradient", "d0 i0 i1"),
    "Div": _rule("DivGradient", "i0 i1 o0 d0"),
    "AveragedLoss": _rule("AveragedLossGradient", "i0 d0"),
    "SumElements": _rule("SumElementsGradient", "i0 d0"),
    "SumSqrElements": _rule("SumSqrElementsGradient", "i0 d0"),
    "Softmax": _rule("SoftmaxGradient", "o0 d0"),
    "SoftmaxWithLoss": _rule("SoftmaxWithLossGradient", "i0 i1 o0 d1", "i0"),
    "LabelCrossEntropy": _rule("LabelCrossEntropyGradient", "i0 i1 d0", "i0"),
    "SigmoidCrossEntropyWithLogits": _rule("SigmoidCrossEntropyWithLogitsGradient", "d0 i0 i1", "i0"),
    "Relu": _rule("ReluGradient", "o0 d0"),
    "LeakyRelu": _rule("LeakyReluGradient", "o0 d0"),
    "Elu": _rule("EluGradient", "o0 d0"),
    "Sigmoid": _rule("SigmoidGradient", "o0 d0"),
    "Tanh": _rule("TanhGradient", "o0 d0"),
    "Sqr": _rule("SqrGradient", "i0 d0"),
    "Log": _rule("LogGradient", "i0 d0"),
    "Exp": _rule("Mul", "o0 d0"),
    "MaxPool": _rule("MaxPoolGradient", "i0 o0 d0"),
    "AveragePool": _rule("AveragePoolGradient", "i0 o0 d0"),
    "Dropout": _rule("DropoutGrad", "d0 o1"),
    "LSTMUnit": {**_rule("LSTMUnitGradient", "i0 i1 i2 i3 i4 o0 o1 d0 d1", "i0 i1 i2"), "needs_all_incoming": True},
    "Concat": _rule("Split", "d0 o1"),
    "Split": _rule("Concat", "d0 d1"),
    "Reshape": _rule("Reshape", "d0 o1", "i0"),
    "Flatten": _rule("ResizeLike", "d0 i0"),
    "Negative": _rule("Negative", "d0"),
    "NegateGradient": _rule("Negative", "d0"),
    "Copy": _rule("Copy", "d0"),
    "Cast": _rule("Cast", "d0"),
    "Scale": _rule("Scale", "d0"),
    **dict.fromkeys(
        [
            "ConstantFill",
            "GivenTensorFill",
            "GaussianFill",
            "UniformFill",
            "XavierFill",
            "MSRAFill",
            "Shape",
            "Print",
            "ArgMax",
            "ArgMin",
            "LT",
            "LE",
            "GT",
            "GE",
            "EQ",
            "NE",
            "And",
            "Or",
            "Not",
            "Accuracy",
            "Iter",
            "Const",
        ],
        "none",
    ),
}

#: Number of inputs in the op's schema, which Caffe2 checks when gradients are requested.
SIGNATURES = {
    **dict.fromkeys(
        ["Add", "Sub", "Mul", "Div", "DotProduct", "SquaredL2Distance", "Gather", "LabelCrossEntropy"], Signature(2, 2)
    ),
    "SoftmaxWithLoss": Signature(2, 3),
    "FC": Signature(3, 3),
    **dict.fromkeys(
        ["Softmax", "Relu", "Sigmoid", "Tanh", "AveragedLoss", "Negative", "StopGradient", "EnsureDense"],
        Signature(1, 1),
    ),
}


def _negative(emit: Emit, x: Val) -> Val:
    (negative,) = emit.builder.node(
        f"{DOMAIN}Negative", [x.id], name=emit.prefix, types=[x.type], phase=Phase.BACKWARD, **emit.node_fields
    )
    return emit.val(negative)


def _identity(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Gradient of Add and Sum: the incoming gradient, for every input."""
    return (dz,) * len(node.inputs)


def _difference(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return dz, _negative(emit, dz) if node.needed(1) else None


def _gathered(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """IndexedSlices of the table: the indices read and the incoming gradient, without a new op."""
    return IndexedSlices(node.inputs[1].id, dz.id), None


def caffe2_rules(declared: dict[str, Any], findings: Findings) -> dict[str, AnyGradientRule]:
    """Rule per op type; `declared` rules override Caffe2's own."""
    own: dict[str, AnyGradientRule] = {
        "Add": GradientRule(_identity, zeros=False),
        "Sum": GradientRule(_identity, zeros=False),
        "EnsureDense": GradientRule(_identity, zeros=False),
        "Sub": GradientRule(_difference, zeros=False),
        "Gather": GradientRule(_gathered, zeros=False),
        "Nogradient": GradientStatus.NOT_NEEDED,
        **parse_rules(_DECLARED, "caffe2", findings),
        **parse_rules(declared, "gradient_rules", findings),
    }
    return {DOMAIN + type: rule for type, rule in own.items()}


def check_signatures(graph: Graph, findings: Findings) -> None:
    """Collect ops whose number of inputs violates their schema."""
    for n, node in enumerate(graph.nodes):
        op = node.op.removeprefix(DOMAIN)
        signature = SIGNATURES.get(op) if node.op.startswith(DOMAIN) else None
        if signature is None or signature.min_inputs <= len(node.inputs) <= signature.max_inputs:
            continue
        low, high = signature.min_inputs, signature.max_inputs
        outputs = ", ".join(quoted(graph.values[v].name) for v in node.writes)
        findings.add(
            "bad_signature",
            f"nodes[{n}].inputs",
            f"{len(node.inputs)} inputs of {op}, which makes {outputs}",
            f"{low if low == high else f'{low} to {high}'}, as the schema of the op says",
            "give the op the inputs it takes",
        )
