"""Gradients of signal processing: Fourier transforms, quantization, sampling at computed points.

Start at `sampling.py`.
"""
