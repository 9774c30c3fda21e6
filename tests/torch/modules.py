"""Small modules whose steps have what makes repeats hard: random ops, statistics, views, tied weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 60


class Block(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A language model whose head shares the weights of its embedding; returns the loss."""

    def __init__(self, dropout: float = 0.1, layers: int = 3, width: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, 4, dropout) for _ in range(layers)])
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).view(-1, VOCABULARY), tokens.reshape(-1))


class Convolutions(nn.Module):
    """Convolutions with batch norm, in-place ReLU and dropout; returns logits."""

    def __init__(self, layers: int = 4):
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1),
                    nn.BatchNorm2d(8),
                    nn.ReLU(inplace=True),
                    nn.Dropout(0.1),
                )
                for i in range(layers)
            )
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layers(x).mean((2, 3)))
        return logits


class Cells(nn.Module):
    """A recurrent cell with dropout between its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1], 16)
        for step in x:
            h, c = self.cell(step, (h, c))
            h = F.dropout(h, 0.2, self.training)
        return h.square().mean()


class Views(nn.Module):
    """Chunks, transposes, writes into slices, a buffer that counts, and two outputs, one a view of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32)
        self.weight = nn.Parameter(torch.randn(4, 8))
        self.register_buffer("calls", torch.zeros(3))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1.0)
        left, right = self.linear(x).chunk(2, -1)
        y = torch.sigmoid(left) * torch.tanh(right)
        y.mul_(2)
        z = y.view(-1, 4, 4).transpose(1, 2) @ self.weight
        z[:, 0] = 0
        z = z.cumsum(0) * self.calls[0]
        return z, z[1:].flatten()


class Experts(nn.Module):
    """Tokens sent to one of two experts by masks, in layers; `one_hot` asserts that its classes are in range."""

    def __init__(self, layers: int = 3, width: int = 16):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(width, 2, bias=False) for _ in range(layers))
        self.experts = nn.ParameterList(torch.randn(2, width, width) * 0.1 for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gate, experts in zip(self.gates, self.experts, strict=True):
            share, chosen = gate(x).softmax(-1).max(-1)
            sent = F.one_hot(chosen, 2) * share[:, None]
            x = x + torch.einsum("te,tew->tw", sent, torch.einsum("tw,ewv->tev", x, experts).relu())
        return x.square().mean()
