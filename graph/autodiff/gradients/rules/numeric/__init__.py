"""Rules of arithmetic, elementwise functions, matrix products and reductions.

May import `gradients.registry` and `gradients.rules.tensor`. Start at `arithmetic.py`.
"""
