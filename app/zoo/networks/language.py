"""BERT, GPT-2, a Llama-like decoder and an LSTM; their output is the logits of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from app.zoo.networks.attention import Attention, Mlp, PreNorm


class PostNorm(nn.Module):
    """Transformer block of BERT: norms after the residual sums of attention and MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.mlp, self.norm2 = Mlp(width, 4 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    """Devlin et al., BERT, 2019, section 3, with its masked-language-model head; one segment, no padding."""

    def __init__(self, vocabulary: int, longest: int, width: int, layers: int, heads: int):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.segments, self.norm = nn.Parameter(torch.zeros(width)), nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(PostNorm(width, heads) for _ in range(layers)))
        self.guess = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1])) + self.segments
        return functional.linear(self.guess(self.blocks(self.norm(x))), self.words.weight, self.bias)


class Gpt2(nn.Module):
    """Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.3."""

    def __init__(self, vocabulary: int, longest: int, width: int, layers: int, heads: int):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(PreNorm(width, heads, True, "tanh") for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.words.weight)


class RmsNorm(nn.Module):
    """Zhang, Sennrich, Root Mean Square Layer Normalization, 2019, equation 4, in primitive ops."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class LlamaBlock(nn.Module):
    """Touvron et al., LLaMA, 2023, section 2.2: pre-norm, rotary positions, gated MLP."""

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int):
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attention = Attention(width, heads, key_heads, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), True, rotary)
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Touvron et al., LLaMA, 2023, section 2; key heads shared as in TinyLlama, separate output projection."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, key_heads: int, hidden: int):
        super().__init__()
        self.head = width // heads
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, key_heads, hidden) for _ in range(layers))
        self.norm, self.logits = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        frequencies = 10000.0 ** (-torch.arange(0, self.head, 2) / self.head)
        angles = torch.arange(tokens.shape[1])[:, None] * frequencies
        angles = torch.cat((angles, angles), -1)
        x = self.words(tokens)
        rotary = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, rotary)
        return self.logits(self.norm(x))


class Lstm(nn.Module):
    """Zaremba, Sutskever, Vinyals, Recurrent Neural Network Regularization, 2014, section 4.1; without dropout."""

    def __init__(self, vocabulary: int, width: int, layers: int):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.over_time = nn.LSTM(width, width, layers, batch_first=True)
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.over_time(self.words(tokens))[0])
