"""A small object store that speaks as much of S3 as the blobs need, over files of a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

Objects = dict[str, tuple[bytes, datetime]]  # "/BUCKET/KEY" -> content, and when it was written
PAGE = 3  # keys a listing returns at a time


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: Objects

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path)

    def do_PUT(self) -> None:
        self.objects[self.key] = self.rfile.read(int(self.headers["content-length"])), datetime.now(UTC)
        self._answer(200, b"", ETag='"tag"')

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._answer(200, self._listed(query))
        elif self.key in self.objects:
            data, at = self.objects[self.key]
            self._answer(200, data, ETag='"tag"', **{"Last-Modified": format_datetime(at, usegmt=True)})
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET

    def do_POST(self) -> None:  # DeleteObjects
        body = ElementTree.fromstring(self.rfile.read(int(self.headers["content-length"])))
        keys = [str(part.text) for part in body.iter() if part.tag.endswith("Key")]
        for key in keys:
            self.objects.pop(f"{self.key.rstrip('/')}/{key}", None)
        said = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{said}</DeleteResult>".encode())

    def _listed(self, query: dict[str, list[str]]) -> bytes:
        bucket = f"{self.key.rstrip('/')}/"
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        keys = sorted(path.removeprefix(bucket) for path in self.objects if path.startswith(bucket))
        keys = [key for key in keys if key.startswith(query.get("prefix", [""])[0]) and key > after]
        more = f"<NextContinuationToken>{keys[PAGE - 1]}</NextContinuationToken>" if len(keys) > PAGE else ""
        contents = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.objects[bucket + key][0])}</Size><ETag>tag</ETag>"
            f"<LastModified>{self.objects[bucket + key][1].isoformat()}</LastModified></Contents>"
            for key in keys[:PAGE]
        )
        head = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}"
        return f"<ListBucketResult>{head}{contents}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(objects: Objects) -> Iterator[str]:
    """URL of a server over the objects."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"objects": objects}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
