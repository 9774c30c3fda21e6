"""Rewriting of graphs, one file a pass. Each is a function from a graph to a new one, or to an answer about it.

All work on values that are written once, so a pass never meets a name that means two things; names that are
written more than once are versions there, and come back with `graph.formats.native.mutable_names`.
"""
