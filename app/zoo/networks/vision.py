"""ResNet, ViT, ConvNeXt and U-Net."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from app.zoo.networks.attention import Mlp, PreNorm

CLASSES = 1000


def conv(of: int, to: int, side: int, stride: int = 1) -> nn.Sequential:
    """Padded convolution and batch norm; only the stride changes the size."""
    return nn.Sequential(nn.Conv2d(of, to, side, stride, side // 2, bias=False), nn.BatchNorm2d(to))


class Residual(nn.Module):
    """Residual block; the input is projected if its shape differs from the result."""

    def __init__(self, inside: nn.Module, of: int, to: int, stride: int):
        super().__init__()
        self.inside = inside
        self.shortcut = nn.Identity() if of == to and stride == 1 else conv(of, to, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.inside(x) + self.shortcut(x))


def basic_block(of: int, width: int, stride: int) -> Residual:
    inside = nn.Sequential(conv(of, width, 3, stride), nn.ReLU(), conv(width, width, 3))
    return Residual(inside, of, width, stride)


def bottleneck_block(of: int, width: int, stride: int) -> Residual:
    """Bottleneck block; the middle convolution has the stride, as in frameworks since 2017."""
    inside = nn.Sequential(
        conv(of, width, 1), nn.ReLU(), conv(width, width, 3, stride), nn.ReLU(), conv(width, 4 * width, 1)
    )
    return Residual(inside, of, 4 * width, stride)


class ResNet(nn.Module):
    """He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition, 2016, table 1."""

    def __init__(self, block: str, depths: Sequence[int], width: int = 64, classes: int = CLASSES):
        super().__init__()
        make, wider = {"Basic": (basic_block, 1), "Bottleneck": (bottleneck_block, 4)}[block]
        self.stem = nn.Sequential(conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, of = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(make(of, width << stage, 2 if stage and i == 0 else 1))
                of = wider * (width << stage)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(of, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pixels)).mean((2, 3)))


class ViT(nn.Module):
    """Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, section 3.1, equations 1 to 4."""

    def __init__(self, image: int, patch: int, width: int, layers: int, heads: int, classes: int = CLASSES):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (image // patch) ** 2, width))
        self.blocks = nn.Sequential(*(PreNorm(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Liu et al., 2022, figure 4: depthwise 7x7 convolution, norm, expansion by four, GELU, projection, scale."""

    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.mlp = nn.LayerNorm(width), Mlp(width, 4 * width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale * self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Liu et al., A ConvNet for the 2020s, 2022, section 2 and table 9."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int], classes: int = CLASSES):
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                parts += [ChannelNorm(widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, 2)]
            parts += [ConvNeXtBlock(width) for _ in range(depth)]
        self.body = nn.Sequential(*parts)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.norm(self.body(pixels).mean((2, 3))))


def double_conv(of: int, to: int) -> nn.Sequential:
    return nn.Sequential(conv(of, to, 3), nn.ReLU(), conv(to, to, 3), nn.ReLU())


class UNet(nn.Module):
    """Ronneberger, Fischer, Brox, U-Net, 2015, figure 1; padded, so that skip connections need no cropping.

    Its loss is that of section 3, the cross-entropy of every pixel, with equal weights.
    """

    def __init__(self, widths: Sequence[int], classes: int):
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(double_conv(of, to) for of, to in [(3, widths[0]), *pairs])
        self.up = nn.ModuleList(nn.ConvTranspose2d(to, of, 2, 2) for of, to in reversed(pairs))
        self.join = nn.ModuleList(double_conv(2 * of, of) for of, _ in reversed(pairs))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        x, across = pixels, []
        for i, part in enumerate(self.down):
            x = part(functional.max_pool2d(x, 2) if i else x)
            across.append(x)
        for up, join, left in zip(self.up, self.join, reversed(across[:-1]), strict=True):
            x = join(torch.cat((left, up(x)), 1))
        return functional.cross_entropy(self.head(x), labels)
