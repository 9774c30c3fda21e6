"""Models of torch.nn for `bench/exported.py`: small random configurations; each returns scores of classes.

`MODELS` maps a name to a function that returns a module and its input. No dropout: masks differ from PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WIDTH, LENGTH, VOCABULARY = 5, 16, 6, 11
Made = tuple[nn.Module, Tensor]  # the module and its input; the first axis is the batch


class Net(nn.Module):
    """Layers with one forward function."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module | nn.Parameter):
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def images(channels: int = 3, size: int = 16) -> Tensor:
    return torch.randn(2, channels, size, size)


def rows(*shape: int) -> Tensor:
    return torch.randn(2, *(shape or (WIDTH,)))


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (2, LENGTH))


def head(width: int = WIDTH) -> nn.Linear:
    return nn.Linear(width, CLASSES)


def perceptron() -> Made:
    acts = (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.ELU(), nn.Softplus(), nn.Mish(), nn.LeakyReLU(0.1), nn.Hardswish())
    return nn.Sequential(*(m for act in acts for m in (nn.Linear(WIDTH, WIDTH), act)), head()), rows()


def gated() -> Made:
    layers = {name: nn.Linear(WIDTH, 2 * WIDTH, bias=False) for name in ("gate", "up")}
    down, norm = nn.Linear(2 * WIDTH, WIDTH, bias=False), nn.RMSNorm(WIDTH)

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.norm(x)
        x = x + m.down(functional.silu(m.gate(h)) * m.up(h))
        return m.head(functional.glu(m.prelu(x), -1))

    return Net(run, **layers, down=down, norm=norm, prelu=nn.PReLU(), head=head(WIDTH // 2)), rows()


def convolutional() -> Made:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, WIDTH, 3, padding=1), nn.Tanh()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head()), images()


def normalized() -> Made:
    layers = [nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)]
    layers += [nn.Conv2d(8, WIDTH, 3, groups=8), nn.BatchNorm2d(WIDTH), nn.Hardswish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head()), images()


def residual() -> Made:
    def block(width: int, stride: int) -> nn.Module:
        def run(m: Any, x: Tensor) -> Tensor:
            h = functional.relu(m.norm1(m.conv1(x)))
            return functional.relu(m.norm2(m.conv2(h)) + m.short(x))

        pair = {f"norm{i}": nn.BatchNorm2d(width) for i in (1, 2)}
        conv1, conv2 = nn.Conv2d(8, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
        return Net(run, conv1=conv1, conv2=conv2, short=nn.Conv2d(8, width, 1, stride), **pair)

    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), block(8, 1), block(WIDTH, 2), Pool(), head()), images()


class Pool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def squeezed() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.depth(m.stem(x))
        scale = torch.sigmoid(m.up(functional.relu(m.down(h.mean((2, 3), keepdim=True)))))
        return m.head((h * scale).amax((2, 3)))

    stem, depth = nn.Conv2d(3, WIDTH, 3, 2), nn.Conv2d(WIDTH, WIDTH, 3, padding=2, dilation=2, groups=WIDTH)
    return Net(
        run, stem=stem, depth=depth, down=nn.Conv2d(WIDTH, 4, 1), up=nn.Conv2d(4, WIDTH, 1), head=head()
    ), images()


def grouped() -> Made:
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(),
        nn.Conv2d(8, WIDTH, 3),
        nn.InstanceNorm2d(WIDTH, affine=True),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), head(4 * WIDTH)), images()


def unet() -> Made:
    def run(m: Any, x: Tensor) -> Tensor:
        top = functional.relu(m.down1(x))
        low = functional.relu(m.down2(functional.max_pool2d(top, 2)))
        up = functional.interpolate(m.up2(low), scale_factor=0.5, mode="bilinear")
        h = torch.cat([functional.interpolate(up, size=top.shape[2:], mode="nearest"), top], 1)
        return m.head(functional.relu(m.mix(h)).mean((2, 3)))

    layers = {"down1": nn.Conv2d(3, 8, 3, padding=1), "down2": nn.Conv2d(8, WIDTH, 3, padding=1)}
    return Net(
        run, **layers, up2=nn.ConvTranspose2d(WIDTH, 8, 2, 2), mix=nn.Conv2d(WIDTH, WIDTH, 3), head=head()
    ), images()


def segmented() -> Made:
    """Scores of every pixel."""
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, CLASSES, 1)]
    return nn.Sequential(*layers, nn.Upsample(scale_factor=2, mode="bilinear")), images()


def shuffled() -> Made:
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.PixelShuffle(2),
        nn.Conv2d(4, 4, 3, 2),
        nn.PixelUnshuffle(3),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Conv2d(36, WIDTH, 1), Pool(), head()), images()


def signals() -> Made:
    layers = [nn.Conv1d(3, 8, 5, 2), nn.LeakyReLU(), nn.AvgPool1d(2), nn.Conv1d(8, WIDTH, 3, dilation=2), nn.SELU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), head()), rows(3, 40)


def volumes() -> Made:
    layers = [nn.Conv3d(2, 4, 3, 1, 1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(4, WIDTH, 3), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), head()), rows(2, 8, 8, 8)


def recurrent(kind: type[nn.RNNBase], bidirectional: bool = False) -> Made:
    net = kind(VOCABULARY, WIDTH, 2, batch_first=True, bidirectional=bidirectional)
    return Net(lambda m, x: m.head(m.net(x)[0][:, -1]), net=net, head=head(WIDTH << bidirectional)), rows(
        LENGTH, VOCABULARY
    )


def encoder(norm_first: bool) -> Made:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.0, batch_first=True, norm_first=norm_first, activation="gelu")
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    parts = {"words": nn.Embedding(VOCABULARY, WIDTH), "stack": stack, "head": head()}
    return Net(lambda m, x: m.head(m.stack(m.words(x)).mean(1)), **parts), tokens()


def decoder() -> Made:
    """Causal attention with rotary positions, RMSNorm, SwiGLU; scores by the embedding itself."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.words(x)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in m.qkv(m.norm1(h)).chunk(3, -1))
        q, k = (turned(part) for part in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + m.out(mixed.transpose(1, 2).flatten(2))
        gate, up = m.wide(m.norm2(h)).chunk(2, -1)
        h = h + m.down(functional.silu(gate) * up)
        return functional.linear(h, m.words.weight)

    parts: dict[str, nn.Module] = {f"norm{i}": nn.RMSNorm(WIDTH) for i in (1, 2)}
    parts |= {"qkv": nn.Linear(WIDTH, 3 * WIDTH, bias=False), "out": nn.Linear(WIDTH, WIDTH, bias=False)}
    parts |= {"wide": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(2 * WIDTH, WIDTH)}
    return Net(run, words=nn.Embedding(VOCABULARY, WIDTH), **parts), tokens()


def turned(x: Tensor) -> Tensor:
    """Rotary positions: halves of each head turned against each other."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(half)
    cos, sin = angles.cos().repeat(1, 2).to(x.dtype), angles.sin().repeat(1, 2).to(x.dtype)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def attention() -> Made:
    """`nn.MultiheadAttention` over patches of an image, with learned positions."""

    def run(m: Any, x: Tensor) -> Tensor:
        h = m.patches(x).flatten(2).transpose(1, 2) + m.positions
        return m.head(m.norm(h + m.attention(h, h, h, need_weights=False)[0])[:, 0])

    parts = {
        "attention": nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        "norm": nn.LayerNorm(WIDTH),
        "head": head(),
    }
    return Net(
        run, patches=nn.Conv2d(3, WIDTH, 4, 4), positions=nn.Parameter(torch.randn(16, WIDTH)), **parts
    ), images()


def experts() -> Made:
    """A soft mixture of experts whose weights are one tensor, by einsum."""

    def run(m: Any, x: Tensor) -> Tensor:
        share = m.gate(x).softmax(-1)
        hidden = torch.einsum("bi,eij->bej", x, m.up).relu()
        return m.head(torch.einsum("bej,eji,be->bi", hidden, m.down, share))

    tensors = {"up": nn.Parameter(torch.randn(3, WIDTH, 8)), "down": nn.Parameter(torch.randn(3, 8, WIDTH))}
    return Net(run, gate=nn.Linear(WIDTH, 3), head=head(), **tensors), rows()


def bilinear() -> Made:
    run = lambda m, x: m.head(functional.normalize(m.pair(x, x.cumsum(-1)), dim=-1) * m.scale.exp())  # noqa: E731
    return Net(run, pair=nn.Bilinear(WIDTH, WIDTH, 8), head=head(8), scale=nn.Parameter(torch.randn(()))), rows()


MODELS: dict[str, Callable[[], Made]] = {
    "perceptron": perceptron,
    "gated": gated,
    "convolutional": convolutional,
    "normalized": normalized,
    "residual": residual,
    "squeezed": squeezed,
    "grouped": grouped,
    "unet": unet,
    "segmented": segmented,
    "shuffled": shuffled,
    "signals": signals,
    "volumes": volumes,
    "lstm": partial(recurrent, nn.LSTM),
    "gru": partial(recurrent, nn.GRU),
    "rnn": partial(recurrent, nn.RNN),
    "lstm_bidirectional": partial(recurrent, nn.LSTM, True),
    "encoder": partial(encoder, False),
    "encoder_norm_first": partial(encoder, True),
    "decoder": decoder,
    "attention": attention,
    "experts": experts,
    "bilinear": bilinear,
}
