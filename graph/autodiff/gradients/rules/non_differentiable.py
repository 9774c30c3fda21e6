"""Ops that stop the gradient without an error: integer or boolean results, or zero derivative almost everywhere."""

from __future__ import annotations

from graph.autodiff.gradients.registry import no_gradient

no_gradient("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf")
no_gradient("And", "Or", "Xor", "Not", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitShift", "BitCast")
no_gradient("ArgMax", "ArgMin", "NonZero", "Unique", "Hardmax", "NonMaxSuppression")
no_gradient("Shape", "Size", "Constant", "ConstantOfShape", "Range", "EyeLike")
no_gradient("Floor", "Ceil", "Round", "Sign")
no_gradient("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
no_gradient("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
no_gradient("DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger")
no_gradient("remat::StopGradient")
