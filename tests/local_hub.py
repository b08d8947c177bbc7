"""A hub over HTTP on this machine that answers like Hugging Face's, and fails on demand.

Model information, trees in pages, files with ranges and etags, large files behind a redirect; private and gated
repositories.
"""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_right"
_PAGE = 3
_LARGE = 64


@cache
def _sha256(content: bytes) -> str:
    """Computed once per large file, because each answer contains it."""
    return hashlib.sha256(content).hexdigest()


@cache
def _blob_id(content: bytes) -> str:
    """The id that git gives the content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class HubRepository:
    """A repository's single commit; files of 64 bytes and more are large files."""

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    private: bool = False
    gated: bool = False
    # The repository that its model card names as its original.
    base: str = ""

    @property
    def commit(self) -> str:
        """Depends on the files."""
        found = hashlib.sha1()
        for name, content in sorted(self.files.items()):
            found.update(f"{name}\0{_sha256(content)}".encode())
        return found.hexdigest()


@dataclass
class LocalHub:
    """The repositories, the faults to inject, and the requests received."""

    url: str = ""
    repositories: dict[str, HubRepository] = field(default_factory=dict)
    # By a file's path: the numbers of bytes after which the connection breaks, once for each number.
    cuts: dict[str, list[int]] = field(default_factory=dict)
    # By a file's path: what is sent instead of its content.
    forged: dict[str, bytes] = field(default_factory=dict)
    # Paths whose content is sent without its length, and those whose content never ends.
    unsized: set[str] = field(default_factory=set)
    endless: set[str] = field(default_factory=set)
    # By a file's path: wrong fields of its entry in the tree.
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Called before a file's content is sent.
    before_sending: Callable[[str], object] = lambda _: None
    # Paths and first bytes of the requested contents.
    sent: list[tuple[str, int]] = field(default_factory=list)


@contextmanager
def run_hub() -> Iterator[LocalHub]:
    """A hub on a free port."""
    hub = LocalHub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: LocalHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if found := re.fullmatch(r"/api/models/(.+?)(?:/revision/([^/]+))?", path):
            if tree := re.fullmatch(r"(.+)/tree/([^/]+)", found[1]):
                self._tree(tree[1], tree[2], parse_qs(url.query))
            else:
                self._info(found[1], found[2] or "main")
        elif found := re.fullmatch(r"(?s)/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        elif found := re.fullmatch(r"(?s)/stored/([^/]+/[^/]+)/(.+)", path):
            self._send_file(self.state.repositories[found[1]], found[2])
        else:
            self._refuse(404, "EntryNotFound")

    def _repository(self, name: str, revision: str) -> HubRepository | None:
        """Returns None if the refusal has been sent."""
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        repository = self.state.repositories.get(name)
        if token and token != TOKEN:
            self._refuse(401, message="Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not token):
            self._refuse(401 if repository or not token else 404, "RepoNotFound")
        elif repository.gated and not token:
            self._refuse(401, "GatedRepo")
        elif revision not in (*repository.revisions, repository.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            return repository
        return None

    def _info(self, name: str, revision: str) -> None:
        if repository := self._repository(name, revision):
            siblings = [{"rfilename": path} for path in repository.files]
            card = {"cardData": {"base_model": repository.base}} if repository.base else {}
            known = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "tags": []}
            self._json(known | card)

    def _tree(self, name: str, revision: str, query: dict[str, list[str]]) -> None:
        repository = self._repository(name, revision)
        if repository is None:
            return
        start = int(query.get("cursor", ["0"])[0])
        changed = self.state.entries
        entries = [_entry(path, content) | changed.get(path, {}) for path, content in repository.files.items()]
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        headers = {}
        if start + _PAGE < len(entries):
            following = f"{self.state.url}/api/models/{name}/tree/{revision}?recursive=True&cursor={start + _PAGE}"
            headers["link"] = f'<{following}>; rel="next"'
        self._json(entries[start : start + _PAGE], headers)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repository = self._repository(name, revision)
        if repository is None:
            return
        if path not in repository.files:
            self._refuse(404, "EntryNotFound")
        elif len(repository.files[path]) >= _LARGE:
            self.send_response(302)
            self.send_header("location", f"{self.state.url}/stored/{name}/{path}")
            self.send_header("x-repo-commit", repository.commit)
            self.send_header("x-linked-etag", f'"{_sha256(repository.files[path])}"')
            self.send_header("x-linked-size", str(len(repository.files[path])))
            self.send_header("content-length", "0")
            self.end_headers()
        else:
            self._send_file(repository, path)

    def _send_file(self, repository: HubRepository, path: str) -> None:
        content = self.state.forged.get(path, repository.files[path])
        if path in self.state.endless | self.state.unsized:
            self._send_unsized(content, is_endless=path in self.state.endless)
            return
        start = int((re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", "")) or [0, 0])[1])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("accept-ranges", "bytes")
        self.send_header("etag", f'"{_sha256(content)}"')
        self.send_header("x-repo-commit", repository.commit)
        self.send_header("content-length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.state.before_sending(path)
        self.state.sent.append((path, start))
        cuts = self.state.cuts.get(path)
        if cuts:
            self.wfile.write(content[start : start + cuts.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(content[start:])

    def _send_unsized(self, content: bytes, *, is_endless: bool) -> None:
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # the client has disconnected
                self.wfile.write(content)
                while is_endless:
                    self.wfile.write(bytes(100_000))
        self.close_connection = True

    def _json(self, value: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str = "", message: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("x-error-code", code)
        if message:
            self.send_header("x-error-message", message)
        self.send_header("content-length", "0")
        self.end_headers()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(content), "oid": _blob_id(content)}
    if len(content) < _LARGE:
        return entry
    return entry | {"lfs": {"oid": _sha256(content), "size": len(content), "pointerSize": 134}}
