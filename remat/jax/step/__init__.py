"""One training step of a JAX function: traced to equations, grouped as XLA fuses them, written as a document, emitted.

May import jax and the standard library, `planning.py` the planner too. Start with program.py. private.py has the
private names of JAX.
"""
