"""Clusters that people own, as places to solve: Dask and Ray.

Imports `app.solver` and `app.errors`; Dask and Ray themselves are imported when a cluster is connected.
Start with `interface`, then `calls` (this side) and `remote` (the cluster's worker).
"""
