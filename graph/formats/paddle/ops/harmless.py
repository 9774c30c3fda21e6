"""Attributes of Paddle's ops without an effect on results.

They concern speed, memory and quantization that is off, repeat what the inputs say, or are defaults without a
counterpart. The seed of a random op is that of a plan.
"""

from __future__ import annotations

from graph.formats.paddle.ops.elementwise import BINARY
from graph.formats.paddle.ops.table import PADDLE

_FUSIONS = (
    "fuse_relu=0 fuse_with_relu=0 fuse_relu_before_depthwise_conv=0 fuse_residual_connection=0 fuse_activation "
    "fuse_alpha fuse_beta Scale_in=1 Scale_out=1 Scale_in_eltwise=1 Scale_weights=[1] Scale_weights=[1.0]"
)
_QUANTIZED = "Scale_x=1 Scale_y=1 Scale_out=1 scale_x=1 scale_y=1 scale_y=[1] scale_y=[1.0] scale_out=1"
PADDLE.harmless(
    {
        " ".join(BINARY.values()): f"{_QUANTIZED} x_data_format y_data_format",
        "elementwise_mod": f"{_QUANTIZED} x_data_format y_data_format",
        "mul": f"{_QUANTIZED} force_fp32_output",
        "fc": f"{_QUANTIZED} padding_weights=0 ALPHA=1 force_fp32_output enable_int8=0 Scale_in=1 Scale_weights=[1]",
        "matmul": f"{_QUANTIZED} head_number=1 force_fp32_output",
        "matmul_v2": f"{_QUANTIZED} force_fp32_output "
        + " ".join(f"fused_{op}_{end}=[]" for op in ("reshape", "transpose") for end in ("X", "Y", "Out")),
        "lookup_table lookup_table_v2 embedding": "is_sparse sparse is_distributed remote_prefetch trainer_id slot "
        "epmap table_names height_sections entry entry_config grad_inplace",
        "conv2d depthwise_conv2d conv3d conv2d_transpose": f"{_FUSIONS} use_addto workspace_size_MB exhaustive_search "
        "force_fp32_output skip_quant",
        "batch_norm sync_batch_norm": "fuse_with_relu=0 fuse_with_add=0",
        "rms_norm": "quant_scale=-1 quant_round_type quant_max_bound quant_min_bound",
        "dropout": "seed fix_seed",
        "softmax log_softmax": "data_format",
        "mish": "threshold=20",
        "prelu": "mode data_format=NCHW",
        "softmax_with_cross_entropy cross_entropy_with_softmax": "numeric_stable_mode",
        "cast": "in_dtype",
        "reshape2 transpose transpose2 squeeze2 unsqueeze2": "data_format",
        "unstack": "num",
        "slice strided_slice": "infer_flags",
        "expand_as_v2": "target_shape",
        "gather": "overwrite",
        "one_hot one_hot_v2": "allow_out_of_range=0",
        "top_k_v2 topk": "sorted=1",
        "reduce_sum reduce_mean reduce_max max reduce_min min reduce_prod prod": "in_dtype out_dtype=-1",
        "p_norm": "epsilon",
        "gaussian_random": "seed",
        "uniform_random": "seed diag_num=0 diag_step=0 diag_val",
        "seed": "deterministic rng_name",
    }
)
