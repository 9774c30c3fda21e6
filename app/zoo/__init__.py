"""Model zoo: networks of the onnx wheel, and well-known architectures with the dimensions of their papers."""
