"""`/samples`: model files of the zoo for the button "Try ..." of empty pages; the browser posts them like an upload."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Response

from app.errors import NotFound
from app.pages.shell.frame import HEADERS, PageRoute
from app.zoo.catalogue import networks

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Network, batch and budget of the button: half the memory of ResNet-50, as `remat try` plans.
SAMPLE = {"name": "light_resnet50", "label": "ResNet-50", "batch": 16, "budget": "50%"}


@router.get("/samples/{name}.onnx")
async def sample(name: str) -> Response:
    """The file of a network that comes with an installed package; others need an export. Raises NotFound."""
    network = networks().get(name)
    if network is None or network.file is None:
        raise NotFound(f"no sample model {name[:40]!r}")
    data = await anyio.to_thread.run_sync(network.file.read_bytes)
    return Response(data, 200, HEADERS, "application/onnx")
