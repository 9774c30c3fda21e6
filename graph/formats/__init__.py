"""Model file formats: `readers.load` recognises a file and reads it, `writers.dump` writes a graph.

May import `graph.errors`, `graph.gc_pause`, `graph.ir` and `graph.limits`; a format is imported when first needed.
Start with `readers.py` and `writers.py`; each format is a package with `reader`, `writer` and, if any, `ops`.
"""
