"""Paddle programs (`.pdmodel` and the PIR JSON of 3.x): reading, writing, gradients and recomputation passes.

May import `graph.autodiff`, `graph.builder`, `graph.formats.shared` and `graph.training`.
Start with `load.py`, then `program_reader.py`, `pir_reader.py` and `writer.py`; `ops` is the op table.
"""
