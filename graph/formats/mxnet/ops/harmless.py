"""Attributes of MXNet's ops without an effect on results.

They concern speed and memory, repeat what the inputs say, or are defaults without a counterpart. Indices out of range
have no defined result, so both ways to treat them are left out.
"""

from __future__ import annotations

from graph.formats.mxnet.ops.elementwise import REVERSED, SCALARS
from graph.formats.mxnet.ops.table import MXNET

MXNET.harmless(
    {
        "FullyConnected": "no_bias",
        "dense": "use_bias",
        "Convolution Convolution_v1 Deconvolution": "no_bias workspace",
        "conv2d": "use_bias kernel_layout=OIHW out_layout=__undef__ out_dtype=same",
        "Pooling Pooling_v1": "p_value",
        "max_pool2d avg_pool2d": "out_layout=__undef__",
        "BatchNorm BatchNorm_v1 CuDNNBatchNorm": "min_calib_range max_calib_range",
        "LayerNorm GroupNorm": "output_mean_var=0",
        "LeakyReLU": "lower_bound upper_bound",
        "Embedding": "dtype sparse_grad",
        "softmax log_softmax softmin": "use_length=0",
        "MakeLoss make_loss": "valid_thresh",
        "RNN": "num_layers mode lstm_state_clip_min lstm_state_clip_max lstm_state_clip_nan",
        "dot": "forward_stype",
        "batch_dot": "forward_stype",
        "_linalg_gemm2 linalg_gemm2": "axis=-2",
        "take pick batch_take choose_element_0index": "mode=clip mode=raise",
        "Reshape reshape": "target_shape keep_highest=0",
        "stack Concat concat concatenate _rnn_param_concat add_n ElementWiseSum elemwise_sum _sum_n": "num_args",
        "UpSampling": "num_args num_filter workspace multi_input_mode",
        "_arange": "infer_range=0",
        f"smooth_l1 {' '.join(SCALARS.values())}": "is_int",
        " ".join(REVERSED.values()): "is_int",
    }
)
