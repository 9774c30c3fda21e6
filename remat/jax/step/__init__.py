"""One training step of a JAX function: traced to equations, grouped as XLA fuses them, written as a document, emitted.

May import jax, the standard library and `remat.steps.errors`. Start with program.py. private.py has the
private names of JAX.
"""
