"""PyTorch modules that the zoo does not have: dropout, shifted windows, two stacks, experts, a state-space scan.

Their output is the logits of classes or of tokens. Each is written from its paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from app.zoo.networks.attention import Mlp
from app.zoo.networks.language import RmsNorm

CLASSES = 1000


class DroppedBlock(nn.Module):
    """Transformer block with dropout of attention weights and of both branches; norms before or after."""

    def __init__(self, width: int, heads: int, dropout: float, norm_first: bool):
        super().__init__()
        self.heads, self.dropout, self.norm_first = heads, dropout, norm_first
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(width), nn.LayerNorm(width), Mlp(width, 4 * width)
        self.drop1, self.drop2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.norm_first)
        return self.drop1(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))

    def forward(self, x: Tensor) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.norm1(x))
            return x + self.drop2(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.drop2(self.mlp(x)))


class Dropped(nn.Module):
    """GPT-2 (`norm_first`, causal) or BERT as they are trained, dropout of 0.1 everywhere.

    Radford et al., 2019, section 2.3; Devlin et al., 2019, section 3.
    """

    def __init__(
        self, vocabulary: int, longest: int, width: int, layers: int, heads: int, norm_first: bool, dropout: float = 0.1
    ):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.drop, self.norm = nn.Dropout(dropout), nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(DroppedBlock(width, heads, dropout, norm_first) for _ in range(layers)))
        self.norm_first = norm_first

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.words(tokens) + self.positions(torch.arange(tokens.shape[1])))
        x = self.norm(self.blocks(x)) if self.norm_first else self.blocks(self.norm(x))
        return functional.linear(x, self.words.weight)


class WindowBlock(nn.Module):
    """Liu et al., Swin Transformer, 2021, section 3.2: attention inside windows, shifted by half of one or not."""

    def __init__(self, width: int, heads: int, window: int, shift: int):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(width), nn.LayerNorm(width), Mlp(width, 4 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        cells = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij"), -1).flatten(0, 1)
        apart = cells[:, None] - cells[None] + window - 1
        self.register_buffer("apart", apart[..., 0] * (2 * window - 1) + apart[..., 1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attention(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        n, w = side // self.window, self.window
        x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(batch, n, w, n, w, width).transpose(2, 3).reshape(batch * n * n, w * w, width)
        q, k, v = self.qkv(x).view(-1, w * w, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads) + self.bias[self.apart].permute(2, 0, 1)
        if self.shift:
            scores = (scores.view(batch, n * n, self.heads, w * w, w * w) + self.mask(side, n)).view_as(scores)
        x = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, n, n, w, w, width)
        x = self.out(x).transpose(2, 3).reshape(batch, side, side, width)
        return torch.roll(x, (self.shift, self.shift), (1, 2))

    def mask(self, side: int, n: int) -> Tensor:
        """Minus infinity between cells of a shifted window that come from opposite borders: [n·n, 1, w·w, w·w]."""
        rows = torch.arange(side)
        part = (rows >= side - self.window).long() + (rows >= side - self.shift).long()
        parts = (3 * part[:, None] + part).view(n, self.window, n, self.window).transpose(1, 2).reshape(n * n, 1, -1)
        return torch.where(parts[..., None] == parts[..., None, :], 0.0, -torch.inf)


class Swin(nn.Module):
    """Liu et al., Swin Transformer, 2021, section 3.1: stages of windows, between them patches are merged."""

    def __init__(self, depths: Sequence[int], width: int, head: int, window: int):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.stages, self.merges = nn.ModuleList(), nn.ModuleList()
        for stage, depth in enumerate(depths):
            wide = width << stage
            shifts = (0, window // 2)
            blocks = (WindowBlock(wide, wide // head, window, shifts[i % 2]) for i in range(depth))
            self.stages.append(nn.Sequential(*blocks))
            if stage < len(depths) - 1:
                merge = nn.Sequential(nn.LayerNorm(4 * wide), nn.Linear(4 * wide, 2 * wide, bias=False))
                self.merges.append(merge)
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).permute(0, 2, 3, 1)
        for i, stage in enumerate(self.stages):
            x = stage(x)
            if i < len(self.merges):
                corners = [x[:, row::2, column::2] for row in (0, 1) for column in (0, 1)]
                x = self.merges[i](torch.cat(corners, -1))
        return self.head(self.norm(x).mean((1, 2)))


class T5Attention(nn.Module):
    """Attention without scaling and biases; positions are a bias of the scores, shared by the layers of a stack."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(dropout)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (
            layer(y).view(*y.shape[:2], self.heads, -1).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = q @ k.transpose(-1, -2)
        weights = self.drop((scores if bias is None else scores + bias).softmax(-1))
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


class T5Layer(nn.Module):
    """Pre-norm attention to itself, in the decoder to the encoder as well, and an MLP."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, crosses: bool):
        super().__init__()
        self.itself = T5Attention(width, heads, dropout)
        self.across = T5Attention(width, heads, dropout) if crosses else None
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(3))
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        y = self.norms[0](x)
        x = x + self.drop(self.itself(y, y, bias))
        if self.across is not None and memory is not None:
            x = x + self.drop(self.across(self.norms[1](x), memory, None))
        return x + self.drop(self.down(self.drop(functional.relu(self.up(self.norms[2](x))))))


class T5(nn.Module):
    """Raffel et al., Exploring the Limits of Transfer Learning, 2020, section 2.1: an encoder and a decoder."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, hidden: int, dropout: float = 0.1):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.near = nn.ModuleList(nn.Embedding(32, heads) for _ in range(2))  # bias by distance
        make = (width, heads, hidden, dropout)
        self.encoder = nn.ModuleList(T5Layer(*make, crosses=False) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Layer(*make, crosses=True) for _ in range(layers))
        self.norms, self.drop = nn.ModuleList(RmsNorm(width) for _ in range(2)), nn.Dropout(dropout)

    def bias(self, stack: int, length: int) -> Tensor:
        """[heads, length, length]; distances of 16 and more share a bucket, the decoder sees no later position."""
        steps = torch.arange(length)
        apart = steps[None] - steps[:, None]
        bias = self.near[stack](apart.clamp(-16, 15) + 16).permute(2, 0, 1)
        return bias.masked_fill(apart > 0, -torch.inf) if stack else bias

    def forward(self, tokens: Tensor) -> Tensor:
        memory = x = self.drop(self.words(tokens))
        bias = self.bias(0, tokens.shape[1])
        for layer in self.encoder:
            memory = layer(memory, bias)
        memory, bias = self.drop(self.norms[0](memory)), self.bias(1, tokens.shape[1])
        for layer in self.decoder:
            x = layer(x, bias, memory)
        return functional.linear(self.drop(self.norms[1](x)), self.words.weight)


class Experts(nn.Module):
    """Lepikhin et al., GShard, 2021, algorithm 1: two experts a token, each with a fixed number of places."""

    def __init__(self, width: int, hidden: int, experts: int, spare: float = 1.25):
        super().__init__()
        self.experts, self.spare = experts, spare
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / math.sqrt(hidden))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        places = math.ceil(2 * self.spare * len(flat) / self.experts)
        share, chosen = self.gate(flat).softmax(-1).topk(2, -1)
        asked = functional.one_hot(chosen, self.experts)  # [tokens, 2, experts]
        place = asked.flatten(0, 1).cumsum(0).view_as(asked) * asked - 1
        seats = functional.one_hot(place.clamp(0, places - 1), places) * ((place >= 0) & (place < places))[..., None]
        weights = (share / share.sum(-1, keepdim=True))[..., None, None]
        combine = (seats * weights).sum(1)  # [tokens, experts, places]
        inside = torch.einsum("tep,tw->epw", (combine > 0).to(x.dtype), flat)
        outside = functional.gelu(inside @ self.up) @ self.down
        return torch.einsum("tep,epw->tw", combine, outside).view_as(x)


class Mixture(nn.Module):
    """Decoder with experts in place of every second MLP."""

    def __init__(self, vocabulary: int, longest: int, width: int, layers: int, heads: int, experts: int):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(DroppedBlock(width, heads, 0.0, norm_first=True) for _ in range(layers))
        for block in list(self.blocks)[1::2]:
            block.mlp = Experts(width, 4 * width, experts)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.words.weight)


class MambaBlock(nn.Module):
    """Gu, Dao, Mamba, 2023, section 3.4 and algorithm 2: a gated scan whose steps depend on the input."""

    def __init__(self, width: int, states: int):
        super().__init__()
        inner, self.rank = 2 * width, math.ceil(width / 16)
        self.norm, self.inside = RmsNorm(width), nn.Linear(width, 2 * inner, bias=False)
        self.over_time = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.step, self.out = nn.Linear(self.rank, inner), nn.Linear(inner, width, bias=False)
        self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().expand(inner, -1).clone())
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.inside(self.norm(x)).chunk(2, -1)
        u = functional.silu(self.over_time(u.transpose(1, 2))[..., :length].transpose(1, 2))
        states = self.decay.shape[1]
        delta, into, out = self.select(u).split([self.rank, states, states], -1)
        delta = functional.softplus(self.step(delta))
        keep = torch.exp(delta[..., None] * -self.decay.exp())  # [batch, length, inner, states]
        new = (delta * u)[..., None] * into[:, :, None]
        state, read = torch.zeros_like(new[:, 0]), []
        for t in range(length):
            state = keep[:, t] * state + new[:, t]
            read.append((state * out[:, t, None]).sum(-1))
        y = torch.stack(read, 1) + self.skip * u
        return x + self.out(y * functional.silu(gate))


class Mamba(nn.Module):
    """Gu, Dao, Mamba, 2023, figure 3."""

    def __init__(self, vocabulary: int, width: int, layers: int, states: int = 16):
        super().__init__()
        self.words, self.norm = nn.Embedding(vocabulary, width), RmsNorm(width)
        self.blocks = nn.Sequential(*(MambaBlock(width, states) for _ in range(layers)))

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.linear(self.norm(self.blocks(self.words(tokens))), self.words.weight)


class DroppedLstm(nn.Module):
    """Zaremba, Sutskever, Vinyals, 2014, section 3.1: dropout between the layers, none over time."""

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float = 0.5):
        super().__init__()
        self.words, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = list(self.drop(self.words(tokens)).unbind(1))
        for cell in self.cells:
            state = (torch.zeros_like(rows[0]), torch.zeros_like(rows[0]))
            for t, row in enumerate(rows):
                state = cell(row, state)
                rows[t] = self.drop(state[0])
        return self.logits(torch.stack(rows, 1))
