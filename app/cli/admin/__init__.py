"""Operator commands of `remat`: serve, worker, keys, store maintenance, job monitor, catalogue.

Imports: as app.cli. Start reading: serve.py.
"""
