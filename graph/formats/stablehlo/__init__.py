"""StableHLO modules (`.mlir`), the programs that JAX, PyTorch/XLA and TensorFlow hand to XLA, as text.

text ──lexer──▶ tokens ──syntax──▶ statements ──inline──▶ ops ──fusion──▶ tasks ──reader──▶ rows of a document ──▶ Graph

Ops stay opaque: their shapes, costs and storages are known, not their kernels or gradients. Start with `reader.py`.
"""

from graph.formats.stablehlo.reader import load, sniff

__all__ = ["load", "sniff"]
