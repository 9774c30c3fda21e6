"""Models of torchvision, timm and transformers for `bench/exported.py`: full depth, small widths, random weights.

`models()` maps a name to a function that returns a module and its input, for the packages that are installed. Nothing
is random in training mode: masks of dropout and of stochastic depth differ from PyTorch's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from bench.exported_models import CLASSES, LENGTH, VOCABULARY, WIDTH, Made, Net, images, tokens
from bench.torchvision_on_cpu import import_torchvision

Library = Any  # a package without types
Make = Callable[[Library], nn.Module]

#: Networks by name, of at most a few million parameters as they are.
TORCHVISION = ("resnet18", "squeezenet1_1", "shufflenet_v2_x0_5", "mobilenet_v3_small", "mnasnet0_5", "regnet_y_400mf")
TIMM = (
    "resnet10t",
    "mobilenetv3_small_050",
    "efficientnet_lite0",
    "ghostnet_050",
    "repvgg_a0",
    "mobilenetv4_conv_small",
    "nf_regnet_b0",
    "mobilevit_xxs",
)


def models() -> dict[str, Callable[[], Made]]:
    """The models of all installed packages."""
    try:
        import_torchvision()
    except ImportError:
        return {}
    made: dict[str, Callable[[], Made]] = {}
    vision = importlib.import_module("torchvision.models")
    for name in TORCHVISION:
        made[f"torchvision_{name}"] = partial(
            _image_model, lambda name: vision.get_model(name, num_classes=CLASSES), name
        )
    for name, (size, make) in SMALL_TORCHVISION.items():
        made[f"torchvision_{name}"] = partial(_image_model, make, vision, size)
    if find_spec("timm"):
        timm = importlib.import_module("timm")
        for name in TIMM:
            made[f"timm_{name}"] = partial(_image_model, partial(timm.create_model, num_classes=CLASSES), name)
        for name, (size, fields) in SMALL_TIMM.items():
            create = partial(timm.create_model, num_classes=CLASSES, **fields)
            made[f"timm_{name}"] = partial(_image_model, create, name, size)
        for name, (size, make) in BUILT_TIMM.items():
            made[f"timm_{name}"] = partial(_image_model, make, timm.models, size)
    if find_spec("transformers"):
        transformers = importlib.import_module("transformers")
        for name, entry in TRANSFORMERS.items():
            made[f"transformers_{name}"] = partial(_transformer, transformers, *entry)
    return made


def _image_model(make: Callable[[Any], nn.Module], given: Any, size: int = 64) -> Made:
    return _exportable(make(given)), images(size=size)


def _transformer(library: Library, kind: str, fields: Mapping[str, Any], run: Callable[..., Tensor], x: Any) -> Made:
    model = getattr(library, kind)
    return Net(run, model=_exportable(model(model.config_class(**fields)))), x()


def _exportable(model: nn.Module) -> nn.Module:
    """The model without dropout and stochastic depth, and without `padding_idx`, which ONNX cannot express."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(module, name, 0.0)
    return model


def _vgg11(vision: Library) -> nn.Module:
    widths = [4, "M", 8, "M", WIDTH, WIDTH, "M", WIDTH, WIDTH, "M", WIDTH, WIDTH, "M"]
    model: nn.Module = vision.vgg.VGG(vision.vgg.make_layers(widths), num_classes=CLASSES)
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    return model


def _convnext_tiny(vision: Library) -> nn.Module:
    blocks = [(8, 16, 3), (16, 24, 3), (24, 32, 9), (32, None, 3)]
    made: nn.Module = vision.ConvNeXt([vision.convnext.CNBlockConfig(*b) for b in blocks], num_classes=CLASSES)
    return made


def _efficientnet_b0(vision: Library) -> nn.Module:
    blocks, _ = vision.efficientnet._efficientnet_conf("efficientnet_b0", width_mult=0.25, depth_mult=1.0)
    made: nn.Module = vision.EfficientNet(blocks, 0.0, num_classes=CLASSES)
    return made


def _fcn_resnet18(vision: Library) -> nn.Module:
    body = vision._utils.IntermediateLayerGetter(vision.resnet18(), {"layer4": "out"})
    return Net(_dense, model=vision.segmentation.FCN(body, vision.segmentation.fcn.FCNHead(512, CLASSES)))


def _segmenter(name: str) -> Make:
    """A network with a dense head, by name."""
    return lambda vision: Net(_dense, model=vision.get_model(name, num_classes=CLASSES, weights_backbone=None))


def _dense(m: Any, x: Tensor) -> Tensor:
    scores: Tensor = m.model(x)["out"]
    return scores


#: name -> (image size, how it is made)
SMALL_TORCHVISION: dict[str, tuple[int, Make]] = {
    "vgg11": (32, _vgg11),
    "googlenet": (64, lambda vision: vision.googlenet(num_classes=CLASSES, aux_logits=False, init_weights=False)),
    "mobilenet_v2": (64, lambda vision: vision.mobilenet_v2(num_classes=CLASSES, width_mult=0.25)),
    "densenet121": (64, lambda vision: vision.DenseNet(4, (6, 12, 24, 16), 8, 2, num_classes=CLASSES)),
    "efficientnet_b0": (64, _efficientnet_b0),
    "convnext_tiny": (32, _convnext_tiny),
    "vit_b_16": (32, lambda vision: vision.VisionTransformer(32, 8, 12, 2, WIDTH, 24, num_classes=CLASSES)),
    "swin_t": (
        32,
        lambda vision: vision.SwinTransformer([2, 2], 8, [2, 2, 6, 2], [1, 2, 2, 4], [4, 4], num_classes=CLASSES),
    ),
    "fcn_resnet18": (64, _fcn_resnet18),
    "lraspp_mobilenet_v3_large": (64, _segmenter("lraspp_mobilenet_v3_large")),
    "deeplabv3_mobilenet_v3_large": (64, _segmenter("deeplabv3_mobilenet_v3_large")),
}
_WIDTHS = (8, 16, 24, 32)  # of four stages
#: name -> (image size, fields of timm.create_model)
SMALL_TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "convnext_atto": (64, {"dims": _WIDTHS}),
    "edgenext_xx_small": (64, {"dims": _WIDTHS}),
    "inception_next_atto": (64, {"dims": _WIDTHS}),
    "mambaout_femto": (64, {"dims": _WIDTHS}),
    "pvt_v2_b0": (64, {"embed_dims": (8, 16, 40, 64)}),
    "fastvit_t8": (64, {"embed_dims": (16, 16, 32, 32)}),
    "levit_128s": (64, {"img_size": 64, "embed_dim": (16, 32, 48), "key_dim": 4}),
    "vit_tiny_patch16_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": 24}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "patch_size": 7, "embed_dim": 24}),
    "swin_tiny_patch4_window7_224": (32, {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 12}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH}),
    "cait_xxs24_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": WIDTH}),
    "sequencer2d_s": (56, {"embed_dims": (WIDTH,) * 4, "hidden_sizes": (4,) * 4}),
}


def _mixer(block: str, mlp: str = "Mlp", ratio: Any = 4) -> Make:
    """MLP-Mixer, or a variant of it, by the names of its block and of the layer in it."""

    def make(timm: Library) -> nn.Module:
        mixer = timm.mlp_mixer
        blocks = {"block_layer": getattr(mixer, block), "mlp_layer": getattr(mixer, mlp), "mlp_ratio": ratio}
        made: nn.Module = mixer.MlpMixer(CLASSES, 32, 3, 8, 8, WIDTH, **blocks)
        return made

    return make


BUILT_TIMM: dict[str, tuple[int, Make]] = {
    "mixer_s32_224": (32, _mixer("MixerBlock", ratio=(0.5, 4.0))),
    "resmlp_12_224": (32, _mixer("ResBlock")),
    "gmlp_s16_224": (32, _mixer("SpatialGatingBlock", "GatedMlp")),
    "convmixer_768_32": (28, lambda timm: timm.convmixer.ConvMixer(WIDTH, 32, 7, 7, num_classes=CLASSES)),
    "poolformer_s12": (
        64,
        lambda timm: timm.metaformer.MetaFormer(
            depths=(2, 2, 6, 2), dims=_WIDTHS, num_classes=CLASSES, use_mlp_head=False
        ),
    ),
    "coatnet_0": (
        64,
        lambda timm: timm.maxxvit.MaxxVit(
            timm.maxxvit.MaxxVitCfg(
                embed_dim=_WIDTHS,
                depths=(2, 3, 5, 2),
                stem_width=8,
                head_hidden_size=32,
                transformer_cfg=timm.maxxvit.MaxxVitTransformerCfg(dim_head=8),
            ),
            img_size=64,
            num_classes=CLASSES,
        ),
    ),
}


def _scores(m: Any, x: Tensor) -> Tensor:
    scores: Tensor = m.model(input_ids=x).logits
    return scores


def _continued(m: Any, x: Tensor) -> Tensor:
    """A call with a mask, as a tokenizer makes it; without one the legacy exporter meets ops that it does not know."""
    scores: Tensor = m.model(input_ids=x, attention_mask=torch.ones_like(x)).logits
    return scores


def _translated(m: Any, x: Tensor) -> Tensor:
    scores: Tensor = m.model(input_ids=x, decoder_input_ids=x.flip(1)).logits
    return scores


def _seen(m: Any, x: Tensor) -> Tensor:
    scores: Tensor = m.model(pixel_values=x).logits
    return scores


def _heard(m: Any, x: Tensor) -> Tensor:
    words = _words(x[:, 0])
    scores: Tensor = m.model(
        input_features=x, decoder_input_ids=words, decoder_attention_mask=torch.ones_like(words)
    ).logits
    return scores


def _matched(m: Any, x: Tensor) -> Tensor:
    scores: Tensor = m.model(input_ids=_words(x[:, 0, 0]), pixel_values=x).logits_per_image
    return scores


def _words(row: Tensor) -> Tensor:
    """A text that depends on the input, for models with two inputs."""
    return (4 * row[:, :LENGTH]).long() % VOCABULARY


_SIZES = {"hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 24}
_WORDS = {**_SIZES, "vocab_size": VOCABULARY}
_LABELS = {"num_labels": CLASSES, "num_hidden_layers": 12}
_CAUSAL = {**_WORDS, "use_cache": False}
_GROUPED = {**_CAUSAL, "num_key_value_heads": 1, "bos_token_id": None, "eos_token_id": None}
_IMAGES = {**_SIZES, "image_size": 32, "patch_size": 8}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "decoder_start_token_id": 0}
_PAIR = {
    f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("attention_heads", 2), ("ffn_dim", 24))
}
_BART = {"d_model": WIDTH, "use_cache": False, "vocab_size": VOCABULARY, **_PAIR, **_TOKENS}


def _photos() -> Tensor:
    return images(size=32)


def _waves() -> Tensor:
    return torch.randn(2, 1600)


def _spectra() -> Tensor:
    return torch.randn(2, 8, 20)


#: name -> (class, fields of its configuration, its call, its input)
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Callable[..., Tensor], Callable[[], Tensor]]] = {
    "bert": ("BertForSequenceClassification", _WORDS | _LABELS, _scores, tokens),
    "roberta": ("RobertaForSequenceClassification", _WORDS | _LABELS, _scores, tokens),
    "distilbert": (
        "DistilBertForSequenceClassification",
        {"dim": WIDTH, "n_heads": 2, "hidden_dim": 24, "vocab_size": VOCABULARY, "num_labels": CLASSES},
        _scores,
        tokens,
    ),
    "albert": ("AlbertForSequenceClassification", _WORDS | _LABELS | {"embedding_size": 8}, _scores, tokens),
    "electra": ("ElectraForSequenceClassification", _WORDS | _LABELS | {"embedding_size": WIDTH}, _scores, tokens),
    "mpnet": ("MPNetForSequenceClassification", _WORDS | _LABELS, _scores, tokens),
    "deberta_v2": (
        "DebertaV2ForSequenceClassification",
        _WORDS
        | _LABELS
        | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "share_att_key": True},
        _scores,
        tokens,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "num_heads": 2, "d_ff": 24, "use_cache": False}
        | {"attn_implementation": "eager"},  # PyTorch 2.13 cannot decompose the fused one of this model
        _translated,
        tokens,
    ),
    "bart": (
        "BartForConditionalGeneration",
        _BART | {"encoder_layers": 6, "decoder_layers": 6, "max_position_embeddings": 16},
        _translated,
        tokens,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": WIDTH, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 16, "n_layer": 12, "use_cache": False},
        _continued,
        tokens,
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {"hidden_size": WIDTH, "num_heads": 2, "num_layers": 12, "attention_types": [[["global", "local"], 6]]}
        | {"vocab_size": VOCABULARY, "window_size": 4, "max_position_embeddings": 16, "use_cache": False},
        _continued,
        tokens,
    ),
    "opt": (
        "OPTForCausalLM",
        _CAUSAL | {"word_embed_proj_dim": WIDTH, "ffn_dim": 24, "num_hidden_layers": 12, "max_position_embeddings": 16},
        _continued,
        tokens,
    ),
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_head": 2, "n_layer": 12, "use_cache": False},
        _continued,
        tokens,
    ),
    "llama": ("LlamaForCausalLM", _GROUPED | {"num_hidden_layers": 22}, _continued, tokens),
    "qwen2": ("Qwen2ForCausalLM", _GROUPED | {"num_hidden_layers": 22}, _continued, tokens),
    "qwen3": ("Qwen3ForCausalLM", _GROUPED | {"num_hidden_layers": 20, "head_dim": 8}, _continued, tokens),
    "mistral": ("MistralForCausalLM", _GROUPED | {"num_hidden_layers": 16, "sliding_window": 4}, _continued, tokens),
    "gemma": ("GemmaForCausalLM", _GROUPED | {"num_hidden_layers": 18, "head_dim": 8}, _continued, tokens),
    "gemma2": (
        "Gemma2ForCausalLM",
        _GROUPED | {"num_hidden_layers": 26, "head_dim": 8, "sliding_window": 4},
        _continued,
        tokens,
    ),
    "phi": ("PhiForCausalLM", _CAUSAL | {"num_hidden_layers": 24}, _continued, tokens),
    "falcon": (
        "FalconForCausalLM",
        _CAUSAL | {"num_hidden_layers": 16, "ffn_hidden_size": 24, "bos_token_id": None, "eos_token_id": None},
        _continued,
        tokens,
    ),
    "mixtral": (
        "MixtralForCausalLM",
        _GROUPED | {"num_hidden_layers": 8, "num_local_experts": 4, "experts_implementation": "batched_mm"},
        _continued,
        tokens,
    ),
    "mamba": (
        "MambaForCausalLM",
        _CAUSAL | {"state_size": 4, "num_hidden_layers": 8, "time_step_rank": 2},
        _scores,
        tokens,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        _BART
        | {"encoder_layers": 4, "decoder_layers": 4, "num_mel_bins": 8, "max_source_positions": 10}
        | {"max_target_positions": 8},
        _heard,
        _spectra,
    ),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        _WORDS
        | {"num_hidden_layers": 12, "conv_dim": [8] * 7, "num_conv_pos_embeddings": 4, "layerdrop": 0.0}
        | {"num_conv_pos_embedding_groups": 2, "apply_spec_augment": False},
        lambda m, x: m.model(x).logits,
        _waves,
    ),
    "vit": ("ViTForImageClassification", _IMAGES | _LABELS, _seen, _photos),
    "dinov2": ("Dinov2ForImageClassification", _IMAGES | _LABELS, _seen, _photos),
    "segformer": (
        "SegformerForSemanticSegmentation",
        {"hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": WIDTH}
        | {"num_labels": CLASSES},
        _seen,
        _photos,
    ),
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        {"hidden_sizes": [8, 8, 16, 16], "depths": [2, 2, 6, 2], "num_labels": CLASSES},
        _seen,
        _photos,
    ),
    "clip": (
        "CLIPModel",
        {
            "text_config": _WORDS
            | {"max_position_embeddings": 8, "num_hidden_layers": 12, "bos_token_id": 0, "eos_token_id": 2},
            "vision_config": _IMAGES | {"num_hidden_layers": 12},
            "projection_dim": 8,
        },
        _matched,
        _photos,
    ),
}
