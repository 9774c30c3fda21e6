"""Gradient rules of ops, one module per family, registered by the decorator `gradient`.

May import what graph.autodiff may. Start at `numeric/arithmetic.py`; `graph.autodiff.rule_families` lists the modules.
"""
