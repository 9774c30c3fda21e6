"""The document `remat/1`, as rows and as columns, in JSON and msgpack.

bytes ──decode──▶ Document ──rows──▶ Draft ──▶ Graph
                  Columns ──columns──╯  types inferred, shapes bound, checked
"""
