"""A stand-in for a model hub: the endpoints that huggingface_hub uses to download a model, and faults on request."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<revision>[^/?]+)")
_STORAGE = "/storage/"
_RESOLVE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>[^?]+)")


class FakeHub:
    """One model at one commit, `main`. `faults`: per path, what each next download of it suffers.

    A fault is `wrong` (other bytes), `truncated` (half of the content), `stalled` (half, and then nothing until the
    client hangs up), or `500`. With `stores` large files are at another host, as the hub has them.
    """

    def __init__(self, repo: str, files: dict[str, bytes], *, stores: bool = False) -> None:
        self.repo = repo
        self.stores = stores
        self.files = files
        self.faults: dict[str, list[str]] = {}
        self.downloads: list[str] = []
        """Paths of the downloads so far."""
        self.ranges: list[str] = []
        """Ranges that downloads have asked for."""
        self.tokens: dict[str, set[str]] = {"hub": set(), "storage": set()}
        """`Authorization` of the requests for a model to each host; "" = none."""
        self.clients: set[str] = set()
        """User agents that have asked for anything."""
        self.url = ""

    def digest(self, path: str) -> str:
        """SHA-256 of large files, which are the safetensors; git's SHA-1 of the others."""
        content = self.files[path]
        if path.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()

    def describe(self, path: str) -> dict[str, Any]:
        """What the API says of a file."""
        size, digest = len(self.files[path]), self.digest(path)
        if len(digest) == len(COMMIT):
            return {"size": size, "blobId": digest}
        return {"size": size, "blobId": "0" * 40, "lfs": {"sha256": digest, "size": size, "pointerSize": 134}}

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve on a free port of loopback; yields the URL for HF_ENDPOINT."""
        hub = self

        class Handler(_Handler):
            served = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self.url
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer the head of a file or of an API reply."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Answer a file or an API reply."""
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        hub = self.served
        hub.clients.add(self.headers.get("User-Agent", ""))
        stored = self.path.removeprefix(_STORAGE) if self.path.startswith(_STORAGE) else ""
        token = self.headers.get("Authorization", "")
        if stored:
            hub.tokens["storage"].add(token)
            return self._content(stored, {}, with_body)
        for pattern in (_API, _RESOLVE):
            match = pattern.match(self.path)
            if match is None:
                continue
            hub.tokens["hub"].add(token)
            if match["repo"] != hub.repo:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
            if match["revision"] not in (COMMIT, "main"):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            if pattern is _API:
                return self._send(
                    200, self._listing(match["what"]), {"Content-Type": "application/json"}, with_body
                )
            return self._file(unquote(match["path"]), with_body)
        return self._send(404, b"{}", {}, with_body)

    def _listing(self, what: str) -> bytes:
        hub = self.served
        if what == "tree":
            entries = []
            for path in hub.files:
                stated = hub.describe(path)
                lfs = {"lfs": {**stated["lfs"], "oid": stated["lfs"]["sha256"]}} if "lfs" in stated else {}
                entries.append(
                    {"type": "file", "path": path, "size": stated["size"], "oid": stated["blobId"], **lfs}
                )
            return json.dumps(entries).encode()
        siblings = [{"rfilename": path, **hub.describe(path)} for path in hub.files]
        return json.dumps({"id": hub.repo, "sha": COMMIT, "siblings": siblings}).encode()

    def _file(self, path: str, with_body: bool) -> None:
        hub = self.served
        content = hub.files.get(path)
        if content is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, with_body)
        headers = {
            "ETag": f'"{hub.digest(path)}"',
            "X-Repo-Commit": COMMIT,
            "X-Linked-Size": str(len(content)),
        }
        if hub.stores and path.endswith(".safetensors"):
            place = f"http://localhost:{hub.url.rsplit(':', 1)[1]}{_STORAGE}{path}"
            linked = {**headers, "X-Linked-ETag": headers["ETag"], "Location": place}
            return self._send(302, b"", linked, with_body)
        return self._content(path, headers, with_body)

    def _content(self, path: str, headers: dict[str, str], with_body: bool) -> None:
        hub = self.served
        content = hub.files[path]
        if not with_body:
            self._send(200, content, headers, with_body)
            return
        hub.downloads.append(path)
        fault = hub.faults[path].pop(0) if hub.faults.get(path) else ""
        if fault == "500":
            self._send(500, b"", {}, with_body)
            return
        stated, start = len(content), 0
        if given := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            hub.ranges.append(given[0])
            start = int(given[1])
            headers["Content-Range"] = f"bytes {start}-{stated - 1}/{stated}"
        body = content[start:]
        if fault == "wrong":
            body = bytes(byte ^ 1 for byte in body)
        sent = body[: len(body) // 2] if fault in ("truncated", "stalled") else body
        self._send(206 if start else 200, sent, headers, with_body, length=len(body))
        if fault == "stalled":
            self.connection.recv(1)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], with_body: bool, *, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
