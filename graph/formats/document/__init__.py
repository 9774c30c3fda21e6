"""Wire schema of the document `remat/1` (rows or columns, JSON or msgpack), decoding, and type inference.

bytes ──decode──▶ Document ──native/rows─────▶ Draft ──▶ Graph
                  Columns ──native/columns──╯  types inferred, shapes bound, checked

May import `graph.ir`, `graph.limits` and `graph.ops.registry`. Start with `schema.py`, then `decode.py`.
"""
