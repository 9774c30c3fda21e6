"""Operators: the registry, and families of kernels with type inference and costs.

May import ir, errors and builder; `registry` imports no family. Start at `registry/registry.py`.
"""
