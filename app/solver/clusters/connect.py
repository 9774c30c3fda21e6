"""Connect to a cluster by its address."""

from __future__ import annotations

import importlib.util
import re
import socket

from app.errors import BadUsage
from app.solver.clusters.interface import Cluster

# Imports inside functions: Dask and Ray are extras.

REACH_S = 5.0
ADDRESS = re.compile(r"[a-z]+://(\[[0-9a-fA-F:]+\]|[^\s:/@\[\]]+):(\d{1,5})")
SCHEMES = {"dask": ("tcp", "tls"), "ray": ("ray",)}
PACKAGES = {"dask": "distributed", "ray": "ray"}
#: Addresses by engine, for messages.
EXAMPLES = {"dask": "tcp://HOST:8786", "ray": "ray://HOST:10001, or auto for a cluster on this machine"}


def connect(engine: str, address: str, option: str) -> Cluster:
    """The cluster of `engine` dask or ray at `address`. Raises BadUsage, which names `option`."""
    is_here = engine == "ray" and address == "auto"
    found = ADDRESS.fullmatch(address)
    if not is_here and (found is None or address.partition(":")[0] not in SCHEMES[engine] or int(found[2]) > 65535):
        raise BadUsage(f"{option} {address}: use {EXAMPLES[engine]}", code="bad_flag")
    if importlib.util.find_spec(PACKAGES[engine]) is None:
        name = PACKAGES[engine]
        raise BadUsage(f"{engine} needs the package {name}; run pip install 'remat[{engine}]'", code="not_installed")
    if found is not None:
        _reach(found[1].strip("[]"), int(found[2]), address, option)
    if engine == "dask":
        from app.solver.clusters.dask_cluster import DaskCluster

        return DaskCluster(address)
    from app.solver.clusters.ray_cluster import RayCluster

    return RayCluster(address)


def split_url(url: str, option: str) -> tuple[str, str]:
    """(engine, address) of dask://HOST:PORT, which may be tls:// too, or ray://HOST:PORT. Raises BadUsage."""
    scheme, _, rest = url.partition("://")
    if scheme == "ray":
        return "ray", url
    if scheme in ("dask", "tcp", "tls"):
        return "dask", f"{'tls' if scheme == 'tls' else 'tcp'}://{rest}"
    raise BadUsage(f"{option} {url}: use dask://HOST:8786 or ray://HOST:10001", code="bad_flag")


def _reach(host: str, port: int, address: str, option: str) -> None:
    """Return if something listens there: the clients of Dask and Ray would try for half a minute."""
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        message = f"{option} {address}: nothing answers there ({reason}); check the address and that the cluster runs"
        raise BadUsage(message, code="cluster_unreachable") from error
