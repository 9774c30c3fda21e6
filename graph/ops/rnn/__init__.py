"""Recurrent operators and their gradients: RNN, GRU, LSTM, and single LSTM and GRU units.

May import ir, builder, ops.registry and ops.numeric. Start at `cells.py`, then `rnn.py`.
"""
