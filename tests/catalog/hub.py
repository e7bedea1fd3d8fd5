"""A model hub on loopback: as much of the hub's HTTP protocol as a download needs.

`GET /api/models/OWNER/NAME/revision/REV?blobs=true` lists files with sizes and hashes;
`HEAD` and `GET /OWNER/NAME/resolve/COMMIT/PATH` give a file, with ETag, X-Repo-Commit, and ranges.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 100_000


@dataclass
class Hub:
    """The files of one repository, and what was asked.

    Attributes:
        repository: `owner/name`.
        files: Content by path.
        cut_after: Bytes after which a connection is closed, by path; each entry is used once.
        corrupt: Paths whose content is changed on the way.
        sizes: Sizes that the listing claims instead of the true ones.
        requests: Method, path and Range header of each request for a file.
    """

    repository: str
    files: dict[str, bytes]
    cut_after: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    address: str = ""

    def listing(self) -> dict[str, Any]:
        """The answer of the API: small files have git's hash only, large ones SHA-256 too."""
        siblings = []
        for path, content in self.files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            size = self.sizes.get(path, len(content))
            entry: dict[str, Any] = {"rfilename": path, "size": size, "blobId": blob}
            if len(content) > LARGE:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 130}
            siblings.append(entry)
        names = {"id": self.repository, "modelId": self.repository}
        return {**names, "sha": COMMIT, "siblings": siblings}


def read_files(folder: Path, prefix: str) -> dict[str, bytes]:
    """A variant's folder as files of a repository; the second graph is ours and not there."""
    return {
        f"{prefix}{path.name}": path.read_bytes()
        for path in sorted(folder.iterdir())
        if not path.name.endswith(".indices.onnx")
    }


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        api = f"/api/models/{self.hub.repository}"
        resolve = f"/{self.hub.repository}/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self._send(200, json.dumps(self.hub.listing()).encode(), {}, body)
        elif path.startswith(api + "/revision/"):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
        elif path.startswith(resolve) and path.removeprefix(resolve) in self.hub.files:
            self._file(path.removeprefix(resolve), body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)

    def _file(self, path: str, body: bool) -> None:
        wanted = self.headers.get("Range", "")
        self.hub.requests.append((self.command, path, wanted))
        content = self.hub.files[path]
        if path in self.hub.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        status, start = 200, 0
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if wanted:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        cut = self.hub.cut_after.pop(path, None)
        self._send(status, content[start:], headers, body, cut)

    def _send(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str],
        body: bool,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content if cut is None else content[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Answer on a free port of loopback until the block is left."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
