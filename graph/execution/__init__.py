"""Reference execution of graphs with numpy, by value or in a planned arena, and comparison of results; free memory.

May import ir, analysis, ops.registry, ops.control_flow, errors and cancellation. Start at `interpreter.py`.
"""
