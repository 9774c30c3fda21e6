"""Operators: the registry of what is known about each, and families of kernels with types and costs.

May import ir, errors and builder; `registry` imports no family. Start at `registry/registry.py`.
"""
