"""Data URLs, and images fetched from allowed hosts: addresses, redirects, sizes and times."""

import asyncio
import base64
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.media.images.sources import SourceLimits, load_image
from genai_server.system.addresses import is_public

IMAGE = b"\xff\xd8\xff: the bytes of an image"
AS_DATA = "; send the image as data:image/png;base64,…$"
NONE = SourceLimits(frozenset(), 1000, 5.0)
# What the host of a test answers to a path.
Answers = dict[str, bytes | Sequence[bytes]]


def _load(url: str, limits: SourceLimits = NONE) -> bytes:
    return asyncio.run(load_image(url, limits, param="image_url.url"))


def _refused(url: str, limits: SourceLimits = NONE) -> str:
    with pytest.raises(InvalidField) as refused:
        _load(url, limits)
    assert refused.value.param == "image_url.url"
    assert "image_url.url" in refused.value.message
    return refused.value.message


def _data(data: bytes, begin: str = "data:image/png;base64,") -> str:
    return begin + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("url", "data"),
    [
        (_data(IMAGE), IMAGE),
        (_data(IMAGE, "data:;base64,"), IMAGE),
        (_data(IMAGE, "DATA:image/webp;x=y;BASE64,"), IMAGE),
        ("data:image/png;base64," + base64.encodebytes(bytes(range(256)) * 3).decode(), bytes(range(256)) * 3),
        (_data(bytes(1_000_000)), bytes(1_000_000)),
    ],
    ids=["usual", "no type", "upper case", "line breaks", "long"],
)
def test_data_url_gives_its_bytes(url: str, data: bytes) -> None:
    assert _load(url, SourceLimits(frozenset(), 1_000_000, 5.0)) == data


@pytest.mark.parametrize("size", [1001, 1002, 1003, 100_000])
def test_data_over_the_limit_is_refused_undecoded(size: int) -> None:
    assert _load(_data(bytes(1000))) == bytes(1000)
    words = _refused("data:image/png;base64," + "*" * (-(-size // 3) * 4 + 4))
    assert "may have at most 1000 bytes (GENAI_MAX_MEDIA_BYTES); given about" in words


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,", "has no bytes after data:image/png;base64,"),
        ("data:image/png;base64,  ", "has no bytes"),
        ("data:image/png;base64,%%%%", "is not valid base64"),
        ("data:image/png;base64,abc", "is not valid base64"),
        ("data:image/png;base64,äöüß", "is not valid base64"),
        ("data:image/png,abc", "must be a data URL in base64"),
        ("data:" + "x" * 300 + ";base64,abcd", "must be a data URL in base64"),
        ("file:///etc/passwd", "must be a data URL; send"),
        ("ftp://images.example/a.png", "must be a data URL; send"),
        ("/etc/passwd", "must be a data URL; send"),
        ("aGVsbG8=", "must be a data URL; send"),
        ("", "must be a data URL; send"),
        ("http://images.example/a.png", "this server fetches no images (GENAI_IMAGE_HOSTS)"),
    ],
)
def test_other_source_is_refused(url: str, words: str) -> None:
    assert words in _refused(url)


class Host:
    """A server on loopback under the name images.example, and the requests that it got."""

    def __init__(self, answers: Answers, delay: float = 0) -> None:
        self.requests: list[str] = []
        self.port = 0
        self._answers = answers
        self._answering: list[asyncio.Task[Any]] = []
        self._delay = delay

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Host"]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for answering in self._answering:
                await answering

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.append(task)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(head)
        answer = self._answers[head.split()[1]]
        with contextlib.suppress(OSError):
            for part in [answer] if isinstance(answer, bytes) else answer:
                writer.write(part.replace(b"PORT", str(self.port).encode()))
                await writer.drain()
                await asyncio.sleep(self._delay)
            writer.close()
            await writer.wait_closed()


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that are resolved: images.example and cdn.example to loopback, others as they are."""
    names: list[str] = []
    original = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **options: Any) -> Any:
        if str(host).endswith(".example"):
            names.append(host)
            host = "127.0.0.1"
        return original(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


def _fetch(
    host: Host,
    path: str = "/a.png",
    *,
    url: str = "http://images.example:{port}",
    hosts: Sequence[str] = ("images.example:{port}",),
    may_connect: Callable[[str], bool] = lambda address: True,
    max_bytes: int = 1000,
    seconds: float = 30.0,
) -> bytes:
    async def fetch() -> bytes:
        async with host.running():
            allowed = frozenset(name.format(port=host.port) for name in hosts)
            limits = SourceLimits(allowed, max_bytes, seconds)
            return await load_image(
                url.format(port=host.port) + path, limits, param="image_url.url", may_connect=may_connect
            )

    return asyncio.run(fetch())


def _fails(host: Host, words: str, path: str = "/a.png", **options: Any) -> None:
    with pytest.raises(InvalidField, match=words) as refused:
        _fetch(host, path, **options)
    assert refused.value.param == "image_url.url"


def _ok(body: bytes = IMAGE, *headers: bytes) -> bytes:
    lines = (b"HTTP/1.1 200 OK", b"Content-Length: " + str(len(body)).encode(), *headers, b"", body)
    return b"\r\n".join(lines)


def _redirect(location: str) -> bytes:
    return b"HTTP/1.1 302 Found\r\nLocation: " + location.encode() + b"\r\nContent-Length: 0\r\n\r\n"


def test_image_is_fetched_without_credentials(resolved: list[str]) -> None:
    host = Host({"/a.png?size=1": _ok()})
    assert _fetch(host, "/a.png?size=1#part") == IMAGE
    lines = host.requests[0].splitlines()
    assert lines[0] == "GET /a.png?size=1 HTTP/1.1"
    names = {line.partition(":")[0].lower() for line in lines[1:] if line}
    assert names == {"host", "accept", "accept-encoding", "user-agent", "connection"}
    assert f"Host: images.example:{host.port}" in lines
    assert resolved == ["images.example"]  # once: the connection goes to the address that was checked


def test_body_may_be_chunked_or_end_with_the_connection(resolved: list[str]) -> None:
    first, rest = IMAGE[:3], IMAGE[3:]
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(first), first, len(rest), rest)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    assert _fetch(Host({"/a.png": [chunked[:50], chunked[50:]]})) == IMAGE
    assert _fetch(Host({"/a.png": b"HTTP/1.0 200 OK\r\n\r\n" + IMAGE})) == IMAGE


def test_proxies_of_the_environment_are_not_used(resolved: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert _fetch(Host({"/a.png": _ok()})) == IMAGE


def test_address_that_is_not_public_is_refused(resolved: list[str]) -> None:
    host = Host({"/a.png": _ok()})
    reason = "images.example resolves to 127.0.0.1, which is not a public address; send the image as data:"
    _fails(host, reason, may_connect=is_public)
    _fails(host, "not a public", url="http://127.0.0.1:{port}", hosts=["127.0.0.1:{port}"], may_connect=is_public)
    assert host.requests == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://other.example:{port}", "from the hosts images.example:.* only"),
        ("http://images.example.evil.example:{port}", "only"),
        ("http://images.example", "only"),
        ("http://user:secret@images.example:{port}", "no user name or password"),
        ("http://images.example:{port}@other.example", "no user name or password"),
        ("http://images.example:{port}\\@other.example", "backslashes"),
        ("http://images.example:{port}/a b", "blanks"),
        ("http://images.example:{port}/\r\nX: y", "blanks"),
        ("http://images.example:{port}/ä", "ASCII"),
        ("http://images.example:99999", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http:///a.png", "with a host"),
        ("https:images.example", "with a host"),
        ("http://images.example:{port}/" + "a" * 8200, "at most 8192 characters"),
    ],
)
def test_url_beyond_the_allowed_hosts_is_refused(resolved: list[str], url: str, words: str) -> None:
    host = Host({"/a.png": _ok()})
    _fails(host, words, url=url)
    assert host.requests == []
    assert resolved == []


def test_host_without_a_port_allows_its_schemes_own_only() -> None:
    limits = SourceLimits(frozenset({"images.example"}), 1000, 5.0)
    assert "only" in _refused("http://images.example:8080/a.png", limits)
    assert "only" in _refused("https://images.example:80/a.png", limits)


def test_redirects_are_followed_within_the_allowed_hosts(resolved: list[str]) -> None:
    host = Host({"/a.png": _redirect("http://cdn.example:PORT/b"), "/b": _redirect("/c"), "/c": _ok()})
    assert _fetch(host, hosts=["images.example:{port}", "cdn.example:{port}"]) == IMAGE
    assert resolved == ["images.example", "cdn.example", "cdn.example"]


_NO_URL = f"images.example redirects to .*, which is not a URL: .*{AS_DATA}|is not a URL|Invalid URL in location"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("http://other.example:PORT/b", "only"),
        ("file:///etc/passwd", "must be an http or https URL"),
        ("http://127.0.0.1:PORT/b", "only"),
        *((location, _NO_URL) for location in ("http://[", "//[", "http://[1]2", "http://[::g]/a.png")),
    ],
)
def test_redirect_to_anything_but_an_allowed_host_is_refused(resolved: list[str], location: str, words: str) -> None:
    host = Host({"/a.png": _redirect(location), "/b": _ok()})
    _fails(host, words)
    assert len(host.requests) == 1


@pytest.mark.parametrize("name", ["a" * 64 + ".example", "images..example", "nowhere.invalid"])
def test_host_that_cannot_be_found_says_so(name: str) -> None:
    words = _refused(f"http://{name}/a.png", SourceLimits(frozenset({name}), 1000, 5.0))
    assert f"cannot be fetched from {name}: " in words


def test_address_is_checked_again_after_a_redirect(resolved: list[str]) -> None:
    answers = iter([True, False])
    host = Host({"/a.png": _redirect("/b"), "/b": _ok()})
    _fails(host, "not a public address", may_connect=lambda address: next(answers))


def test_redirects_end(resolved: list[str]) -> None:
    host = Host({"/a.png": _redirect("/a.png")})
    _fails(host, f"redirected more than 3 times{AS_DATA}")
    assert len(host.requests) == 4


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nsorry", "answers with status 404"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "answers with status 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "sends no PNG, JPEG, WebP, GIF or BMP file"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<!doctype html>", "sends no PNG, JPEG, WebP, GIF or BMP file"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort", "peer closed connection .*"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsh", "peer closed connection .*"),
        (b"220 ftp.example ready\r\n", "cannot be fetched from images.example: .*"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
            "cannot be fetched from images.example: .*",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000, "cannot be fetched from images.example: .*"),
        (b"", "Server disconnected without sending a response"),
    ],
)
def test_host_without_the_image_is_named_with_advice(resolved: list[str], answer: bytes, words: str) -> None:
    _fails(Host({"/a.png": answer}), words + AS_DATA)


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "1001"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + bytes(1001), "more than 1000"),
    ],
)
def test_fetched_file_over_the_limit_is_refused(resolved: list[str], answer: bytes, given: str) -> None:
    _fails(Host({"/a.png": answer}), rf"at most 1000 bytes \(GENAI_MAX_MEDIA_BYTES\); given {given}")


def test_slow_host_is_given_up(resolved: list[str]) -> None:
    host = Host({"/a.png": [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", *[b"x"] * 500]}, delay=0.05)
    _fails(host, r"takes longer than 0.3 s to fetch \(GENAI_MEDIA_TIMEOUT\)" + AS_DATA[:-1], seconds=0.3)


class TlsHost(Host):
    """A server with a certificate, for a number of connections. Its thread closes each, also one that has failed."""

    def __init__(self, secure: ssl.SSLContext, num_connections: int) -> None:
        super().__init__({})
        self._secure = secure
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, args=(num_connections,))
        self._thread.start()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Host]:
        self.port = self._listener.getsockname()[1]
        yield self

    def close(self) -> None:
        """Wait for the end of the last connection."""
        self._thread.join()
        self._listener.close()

    def _serve(self, num_connections: int) -> None:
        for _ in range(num_connections):
            connection, _ = self._listener.accept()
            with (
                connection,
                contextlib.suppress(OSError),
                self._secure.wrap_socket(connection, server_side=True) as stream,
            ):
                self.requests.append(stream.recv(65536).decode())
                stream.sendall(_ok())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_certificate_must_be_that_of_the_name(
    own_folder: Path, resolved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=images.example "
        "-addext subjectAltName=DNS:images.example -keyout key.pem -out cert.pem"
    )
    subprocess.run(request.split(), cwd=own_folder, check=True, capture_output=True)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(own_folder / "cert.pem", own_folder / "key.pem")
    url, hosts = "https://{name}.example:{{port}}", ["images.example:{port}", "cdn.example:{port}"]
    with contextlib.closing(TlsHost(secure, 3)) as host:
        _fails(host, "cannot be fetched .*self-signed", url=url.format(name="images"), hosts=hosts)
        trusting = ssl.create_default_context(cafile=own_folder / "cert.pem")
        monkeypatch.setattr("genai_server.media.images.sources._secure", lambda: trusting)
        assert _fetch(host, url=url.format(name="images"), hosts=hosts) == IMAGE
        _fails(host, "cannot be fetched .*mismatch", url=url.format(name="cdn"), hosts=hosts)
    assert len(host.requests) == 1
