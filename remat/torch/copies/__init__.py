"""Copies of a plan between the device and host memory, which run beside compute.

report ──▶ waits.py ──▶ which entries of the order wait for which copies ──▶ split ──▶ calls of engines.py
"""
