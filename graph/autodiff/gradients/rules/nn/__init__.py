"""Rules of neural network layers: activations, attention, convolution, losses, normalization, pooling, recurrent cells.

May import `gradients.registry`, `gradients.rules.numeric` and `gradients.rules.tensor`. Start at `activation.py`.
"""
