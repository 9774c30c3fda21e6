"""Real networks to plan: those of the onnx wheel, and well-known ones written from their papers' dimensions."""
