"""Fits: the largest batch, or the longest sequence, whose training step fits a memory within a maximum overhead.

May import what the pipeline imports; only the pipeline and those that call it import it.
Start reading at `largest_fit.py`, then `size_search.py` and `size_trials.py`.
"""

from planner.pipeline.fits.largest_fit import FitResult, fit

__all__ = ["FitResult", "fit"]
