"""What Caffe2's gradient makers read and write, op by op, as declarations for the gradient engine.

Source: GetGradient* of the operators in caffe2/operators. A graph whose ops are opaque `caffe2::Type` is
differentiated with these as Caffe2 does it; one read as ops of ours has our own rules.
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
    """How many inputs an op takes."""

    least: int
    most: int


def _rule(op: str, reads: str, writes: str = "inputs") -> dict[str, Any]:
    """A declaration from words: "i0 o0 d0" is the first input, output and incoming gradient."""
    words = {"i": "inputs", "o": "outputs", "d": "incoming"}
    places = [f"{words[word[0]]}[{word[1:]}]" for word in reads.split()]
    written: Any = writes if writes == "inputs" else [f"inputs[{word[1:]}]" for word in writes.split()]
    return {"op": DOMAIN + op, "reads": places, "writes": written}


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

#: Ops whose inputs a schema counts; Caffe2 looks when gradients are asked for.
SIGNATURES = {
    **dict.fromkeys(
        ["Add", "Sub", "Mul", "Div", "DotProduct", "SquaredL2Distance", "Gather", "SoftmaxWithLoss"], Signature(2, 3)
    ),
    "FC": Signature(3, 3),
    "LabelCrossEntropy": Signature(2, 2),
    **dict.fromkeys(
        ["Softmax", "Relu", "Sigmoid", "Tanh", "AveragedLoss", "Negative", "StopGradient", "EnsureDense"],
        Signature(1, 1),
    ),
}


def _negative(emit: Emit, x: Val) -> Val:
    made = emit.builder.node(
        f"{DOMAIN}Negative", [x.id], name=emit.prefix, types=[x.type], phase=Phase.BACKWARD, **emit.node_fields
    )
    return emit.val(made[0])


def _passed_on(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """Add, Sum: the incoming gradient itself, for every input."""
    return (dz,) * len(node.inputs)


def _difference(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    return dz, _negative(emit, dz) if node.needed(1) else None


def _gathered(emit: Emit, node: ForwardNode, dz: Val) -> InputGradients:
    """IndexedSlices of the table: what was looked up, and the incoming gradient. No op is made."""
    return IndexedSlices(node.inputs[1].id, dz.id), None


def caffe2_rules(declared: dict[str, Any], findings: Findings) -> dict[str, AnyGradientRule]:
    """The rule of each op type, those `declared` beside Caffe2's own first."""
    own: dict[str, AnyGradientRule] = {
        "Add": GradientRule(_passed_on, zeros=False),
        "Sum": GradientRule(_passed_on, zeros=False),
        "EnsureDense": GradientRule(_passed_on, zeros=False),
        "Sub": GradientRule(_difference, zeros=False),
        "Gather": GradientRule(_gathered, zeros=False),
        "Nogradient": GradientStatus.NOT_NEEDED,
        **parse_rules(_DECLARED, "caffe2", findings),
        **parse_rules(declared, "gradient_rules", findings),
    }
    return {DOMAIN + type: rule for type, rule in own.items()}


def check_signatures(graph: Graph, findings: Findings) -> None:
    """Collect ops that take another number of inputs than their schema says."""
    for n, node in enumerate(graph.nodes):
        known = SIGNATURES.get(node.op.removeprefix(DOMAIN)) if node.op.startswith(DOMAIN) else None
        if known is not None and not known.least <= len(node.inputs) <= known.most:
            takes = str(known.least) if known.least == known.most else f"{known.least} to {known.most}"
            findings.add(
                "bad_signature",
                f"nodes[{n}].inputs",
                f"{len(node.inputs)} inputs of {node.op.removeprefix(DOMAIN)}, which makes "
                + ", ".join(quoted(graph.values[v].name) for v in node.writes),
                f"{takes}, as the schema of the op says",
                "give the op the inputs it takes",
            )
