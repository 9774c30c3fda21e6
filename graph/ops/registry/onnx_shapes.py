"""Shapes and attributes that the text of the ONNX standard requires and its inference does not check.

Tables say what several ops require; `onnx_shape_rules.py` has the rules of single ops.
`tests/contracts/test_malformed_models.py` mutates the inputs and attributes of every op.
"""

from __future__ import annotations

from graph.ops.registry.onnx_shape_rules import RULES, check_choice, check_lengths, require, type_of
from graph.ops.registry.registry import Call


def check_shapes(call: Call) -> None:
    """Raise ValueError with the contradiction for a call that the standard excludes."""
    name = call.op.removeprefix("ai.onnx::")
    check_lengths(call, _PATTERNS.get(name, ""))
    for i in _VECTORS.get(name, ()):
        type = type_of(call, i)
        require(type is None or len(type.shape) == 1, f"input {i} is {type}; the op takes a tensor of rank 1")
    for i in _FILLED.get(name, ()):
        type = type_of(call, i)
        require(type is None or type.elements > 0, f"input {i} is {type}; the op takes at least one element")
    for key, least in _AT_LEAST.get(name, ()):
        value = call.attribute(key, least)
        require(value >= least, f"attribute {key} is {value}; it must be at least {least}")
    for key, allowed in _CHOICES.items():
        if key in call.attributes and "::" not in name:
            check_choice(call, key, allowed)
    rule = RULES.get(name)
    if rule is not None:
        rule(call)


#: Values of attributes, in every op that has them.
_CHOICES: dict[str, tuple[object, ...]] = {
    "auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", ""),
    "ceil_mode": (0, 1),
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "tf_half_pixel_for_nn",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
        "output_half_pixel",
    ),
    "keepdims": (0, 1),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "stash_type": (1, 10, 11, 16),
    "update_rule": ("linear", "gated", "delta", "gated_delta"),
}
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
#: Op -> pattern of each input: a letter an axis; equal letters are equal lengths.
_PATTERNS = {
    "Attention": "B* B* B* - B* B* B",
    "CausalConvWithState": "BCL C** C BC*",
    "Conv": "NC* M* M",
    "ConvInteger": "NC* M*",
    "ConvTranspose": "NC* C*",
    "DeformConv": "NC* M* N* M N*",
    "InstanceNormalization": "NC* C C",
    "NegativeLogLikelihoodLoss": "NC* * C",
    "RoiAlign": "NC** RK R",
    "STFT": "BLP - W -",
    "SoftmaxCrossEntropyLoss": "NC* * C",
}
#: Op -> inputs that are vectors.
_VECTORS = {
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS},
    "CenterCropPad": (1,),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1, 3),
    "Slice": (1, 2, 3, 4),
}
#: Op -> inputs with at least one element.
_FILLED = {
    "Conv": (1,),
    "ConvInteger": (1, 2, 3),
    "DynamicQuantizeLinear": (0,),
    "MatMulInteger": (2, 3),
    "QLinearConv": (1, 2, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
}
#: Op -> attributes and the lowest value of each.
_AT_LEAST = {"GlobalLpPool": (("p", 1),), "LRN": (("size", 1),), "LpPool": (("p", 1),)}
