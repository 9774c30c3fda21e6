"""Guards around repeats in exported files, and their removal when a file is read.

May import `graph.ir`. Start with `guards.py`.
"""
