"""Attention, MLP and the pre-norm transformer block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Vaswani et al., Attention Is All You Need, 2017, section 3.2; query heads may share key heads."""

    def __init__(self, width: int, heads: int, key_heads: int | None = None, bias: bool = True):
        super().__init__()
        self.heads, self.key_heads, self.head = heads, key_heads or heads, width // heads
        keys = self.key_heads * self.head
        self.query, self.out = (nn.Linear(width, width, bias=bias) for _ in range(2))
        self.key, self.value = (nn.Linear(width, keys, bias=bias) for _ in range(2))

    def forward(self, x: Tensor, causal: bool = False, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        batch, length, width = x.shape
        q = self.query(x).view(batch, length, self.heads, self.head).transpose(1, 2)
        k, v = (
            layer(x).view(batch, length, self.key_heads, self.head).transpose(1, 2) for layer in (self.key, self.value)
        )
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        if self.key_heads != self.heads:
            k, v = (_repeated(part, self.heads // self.key_heads) for part in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def _repeated(x: Tensor, times: int) -> Tensor:
    """Each head repeated `times` times, consecutively."""
    batch, heads, length, head = x.shape
    return x[:, :, None].expand(batch, heads, times, length, head).reshape(batch, heads * times, length, head)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, Su et al., RoFormer, 2021, section 3.4: rotation of the two halves of each head."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Mlp(nn.Sequential):
    """Two linear layers with a GELU in between."""

    def __init__(self, width: int, hidden: int, approximate: str = "none"):
        super().__init__(nn.Linear(width, hidden), nn.GELU(approximate), nn.Linear(hidden, width))


class PreNorm(nn.Module):
    """Transformer block with norms before attention and MLP: ViT, GPT-2."""

    def __init__(self, width: int, heads: int, causal: bool = False, approximate: str = "none"):
        super().__init__()
        self.causal = causal
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width, 4 * width, approximate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), self.causal)
        return x + self.mlp(self.norm2(x))
