"""Attention and the block around it, as most transformers have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Vaswani et al., Attention Is All You Need, 2017, section 3.2; heads of queries may share those of keys."""

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
    """Every head `times` over, one after the other."""
    batch, heads, length, head = x.shape
    return x[:, :, None].expand(batch, heads, times, length, head).reshape(batch, heads * times, length, head)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, Su et al., RoFormer, 2021, section 3.4: halves of each head turned against each other."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Mlp(nn.Sequential):
    """Two layers with a GELU between."""

    def __init__(self, width: int, hidden: int, approximate: str = "none"):
        super().__init__(nn.Linear(width, hidden), nn.GELU(approximate), nn.Linear(hidden, width))


class PreNorm(nn.Module):
    """A block whose norms stand before attention and MLP: ViT, GPT-2."""

    def __init__(self, width: int, heads: int, causal: bool = False, approximate: str = "none"):
        super().__init__()
        self.causal = causal
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width, 4 * width, approximate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), self.causal)
        return x + self.mlp(self.norm2(x))
