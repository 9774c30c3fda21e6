"""Models as graphs: records, formats, operators, validation, gradients, transforms and execution.

Imports no other room. Start at `ir/records.py`; `formats` reads and writes files, `autodiff` appends the backward pass,
`transforms` holds passes `Graph -> Graph`, `execution` runs a graph.
"""
