"""Writes the small transformer models of this folder: `python -m tests.models.make_models [FOLDER]`.

Needs the `torch` extra. Weights come from a fixed seed, so a run with the same torch writes the same model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 96, 32, 2, 2, 64
HEAD = WIDTH // HEADS
OPSET = 20


class Attention(nn.Module):
    """Attention spelled out as MatMul, mask, Softmax, MatMul; `mask` is true where a query may look."""

    def __init__(self, bias: bool):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor] | None = None) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            layer(x).view(batch, length, HEADS, HEAD).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        if rotary is not None:
            q, k = turned(q, *rotary), turned(k, *rotary)
        scores = q @ k.transpose(-2, -1) / math.sqrt(HEAD)
        scores = torch.where(mask, scores, torch.tensor(torch.finfo(scores.dtype).min))
        mixed = torch.softmax(scores, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: halves of each head turned against each other."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


def tied_logits(embedding: Tensor, x: Tensor) -> Tensor:
    """Logits by the embedding itself; written the other way round, the exporter stores a transposed second copy."""
    return (embedding @ x.transpose(1, 2)).transpose(1, 2)


class EncoderLayer(nn.Module):
    """Post-norm block of BERT: attention, add, LayerNorm, GELU network, add, LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(bias=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(functional.gelu(self.up(x))))


class Encoder(nn.Module):
    """BERT-like classifier with segment embeddings, padding mask, pooler, and loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.segments, self.norm = nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.pooler, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(ids.shape[1])
        x = self.norm(self.words(ids) + self.positions(positions) + self.segments(segments))
        mask = (attention_mask != 0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.classifier(torch.tanh(self.pooler(x[:, 0])))
        return functional.cross_entropy(logits, labels), logits


class RMSNorm(nn.Module):
    """Root-mean-square norm from its parts, as exporters of language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class DecoderLayer(nn.Module):
    """Pre-norm block of Llama: attention with rotary positions, then a gated network."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(bias=False)
        self.norm1, self.norm2 = RMSNorm(), RMSNorm()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), mask, rotary)
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Llama-like language model: causal mask, rotary positions, tied embedding, next-token loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = RMSNorm()
        self.register_buffer("frequencies", 1.0 / 10000.0 ** (torch.arange(0, HEAD, 2) / HEAD))

    def forward(self, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(ids.shape[1])
        angles = positions[:, None] * self.frequencies[None, :]
        angles = torch.cat((angles, angles), -1)
        rotary = angles.cos(), angles.sin()
        mask = positions[:, None] >= positions[None, :]
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, mask, rotary)
        logits = tied_logits(self.words.weight, self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


class GptLayer(nn.Module):
    """Pre-norm block of GPT-2: one projection split in three, fused attention call, tanh GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, HEAD).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2-like language model: learned positions, LayerNorm, logits without a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(GptLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return tied_logits(self.words.weight, self.norm(x))


def export(
    name: str, model: nn.Module, inputs: Mapping[str, tuple[int, ...]], outputs: list[str], folder: Path
) -> None:
    """Write `folder/name.onnx` with the dimensions `batch` and `sequence` left open.

    Every parameter is drawn anew, for the exporter stores equal ones (all the norms') once.
    """
    names = {0: "batch", 1: "sequence"}
    for parameter in model.parameters():
        nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.1)
    program = torch.onnx.export(
        model.eval(),
        kwargs={n: torch.ones(shape, dtype=torch.int64) for n, shape in inputs.items()},
        input_names=list(inputs),
        output_names=outputs,
        dynamic_shapes={n: {i: names[i] for i in range(len(shape))} for n, shape in inputs.items()},
        opset_version=OPSET,
        dynamo=True,
        verbose=False,
    )
    proto = program.model_proto
    for part in (proto, *proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # stack traces
    del proto.graph.value_info[:]
    (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())


def main(folder: Path) -> None:
    torch.manual_seed(0)
    tokens = (2, 8)
    with torch.no_grad():
        texts = dict.fromkeys(("ids", "segments", "attention_mask"), tokens)
        export("encoder", Encoder(), {**texts, "labels": (2,)}, ["loss", "logits"], folder)
        export("decoder", Decoder(), {"ids": tokens, "labels": tokens}, ["loss", "logits"], folder)
        export("gpt", Gpt(), {"ids": tokens}, ["logits"], folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
