"""Temperatures of annealing, in mean task costs: a change for the worse by T is accepted with probability 1/e."""

from __future__ import annotations

# Initial temperature of a round: where first runs move, and where they are fixed (of the first round, then the values
# that later rounds draw from).
FREE_TEMPERATURE, TEMPERATURES = 0.3, (0.1, 0.03, 0.3)
# Initial temperature of a try of the search for a lower peak, where the order alone changes, and where it or
# recomputation changes to hold less near the limit.
PEAK_TEMPERATURE, ORDER_TEMPERATURE, FLAT_TEMPERATURE, NEAR_TEMPERATURE = 0.1, 0.3, 0.06, 0.05
# Final temperature: with fixed first runs, and with moving ones.
COLD, FREE_COLD = 0.01, 0.003
