"""Where the images of requests come from: data URLs, and hosts that the operator allows.

A request chooses an address that this machine connects to. So the address is checked after the name is resolved, and
the connection goes to the checked address itself: a name that resolves to something else a moment later has no effect.
"""

import asyncio
import binascii
import contextlib
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httptools

from genai_server.errors import AsIs, InvalidField
from genai_server.image_types import IMAGE_FORMATS, image_type
from genai_server.quoted_values import quoted

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_BLANKS = str.maketrans("", "", " \t\r\n")
_AS_DATA = "send the image as data:image/png;base64,…"
_PORTS = {"http": 80, "https": 443}
_PUBLIC_IPV6 = ipaddress.ip_network("2000::/3")
_MAX_URL = 8192
_MAX_HEAD = 64 * 1024
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_CHUNK = 64 * 1024
# Larger data URLs are decoded in a thread: a megabyte takes a millisecond.
_LONG = 256 * 1024


@dataclass(frozen=True)
class SourceLimits:
    """What an image's source may be."""

    # Host names, each with a port if it is not the scheme's own.
    hosts: Collection[str]
    # Maximum size of an image file.
    max_bytes: int
    # Maximum seconds for fetching one.
    timeout: float


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet, and not to this machine or its networks."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.sixtofour is not None or ip.teredo is not None:  # lead to an IPv4 address by a gateway
            return False
        if ip.ipv4_mapped is None and ip not in _PUBLIC_IPV6:
            return False
        ip = ip.ipv4_mapped or ip
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_link_local or ip.is_unspecified)


def is_data_url(url: str) -> bool:
    """Whether a URL has the image itself."""
    return url[:5].lower() == "data:"


async def load_image(
    url: str, limits: SourceLimits, *, param: str, may_connect: Callable[[str], bool] = is_public
) -> bytes:
    """The bytes of an image. Raises InvalidField, which names `param`.

    `may_connect` decides by the address that a host's name resolves to.
    """
    scheme = url[:8].partition(":")[0].lower()
    if is_data_url(url):
        decode = partial(_decode, url, limits.max_bytes, param)
        return decode() if len(url) < _LONG else await asyncio.to_thread(decode)
    if scheme not in _PORTS:
        raise InvalidField(param, f"must be a data URL; {_AS_DATA}", given=url)
    if not limits.hosts:
        raise InvalidField(
            param, f"cannot be used: this server fetches no images (GENAI_IMAGE_HOSTS); {_AS_DATA}", given=url
        )
    try:
        async with asyncio.timeout(limits.timeout):
            return await _fetch(url, limits, param, may_connect)
    except TimeoutError:
        raise InvalidField(
            param, f"takes longer than {limits.timeout:g} s to fetch (GENAI_MEDIA_TIMEOUT); {_AS_DATA}", given=url
        ) from None


def _decode(url: str, max_bytes: int, param: str) -> bytes:
    begin = _DATA_URL.match(url)
    if begin is None:
        raise InvalidField(param, f"must be a data URL in base64; {_AS_DATA}", given=url)
    if (size := (len(url) - begin.end()) * 3 // 4 - 2) > max_bytes:
        raise _too_large(f"about {size}", max_bytes, param)
    try:
        data = binascii.a2b_base64(url[begin.end() :].translate(_BLANKS), strict_mode=True)
    except ValueError as error:  # also of characters that are not ASCII
        raise InvalidField(param, f"is not valid base64: {error}") from None
    if not data:
        raise InvalidField(param, f"has no bytes after {begin[0]}")
    return data


def _too_large(size: str, max_bytes: int, param: str) -> InvalidField:
    return InvalidField(
        param, "may have at most", limit=f"{max_bytes} bytes", limited_by="GENAI_MAX_MEDIA_BYTES", given=AsIs(size)
    )


class _Target(NamedTuple):
    """What to ask a host for."""

    scheme: str
    host: str
    port: int
    # Path and query.
    path: str


def _target(url: str, hosts: Collection[str], param: str) -> _Target:
    """Check a URL against the allowed hosts. Raises InvalidField."""
    if len(url) > _MAX_URL:
        raise InvalidField(
            param, "cannot be used: a URL may have at most", limit=f"{_MAX_URL} characters", given=len(url)
        )
    if not re.fullmatch(r"[!-\[\]-~]+", url):
        raise InvalidField(param, "must be a URL of ASCII characters, without blanks and backslashes", given=url)
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise InvalidField(param, f"is not a URL: {error}", given=url) from None
    if parts.scheme not in _PORTS or not host:
        raise InvalidField(param, "must be an http or https URL with a host", given=url)
    if "@" in parts.netloc:
        raise InvalidField(param, "must have no user name or password in its URL")
    usual = _PORTS[parts.scheme]
    port = usual if port is None else port
    shown = f"[{host}]" if ":" in host else host
    if port != usual:
        shown += f":{port}"
    if shown not in hosts:
        raise InvalidField(
            param,
            f"cannot be used: this server fetches images from the hosts {', '.join(sorted(hosts))} only "
            f"(GENAI_IMAGE_HOSTS); {_AS_DATA}",
            given=shown,
        )
    return _Target(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


async def _fetch(url: str, limits: SourceLimits, param: str, may_connect: Callable[[str], bool]) -> bytes:
    for _ in range(_MAX_REDIRECTS + 1):
        target = _target(url, limits.hosts, param)
        response = await _get(target, limits.max_bytes, param, may_connect)
        if response.status in _REDIRECTS and b"location" in response.headers:
            url = _redirected(url, response.headers[b"location"].decode("latin-1"), target.host, param)
            continue
        if response.status != 200:
            raise InvalidField(
                param, f"cannot be used: {target.host} answers with status {response.status}; {_AS_DATA}"
            )
        if response.too_large:
            raise _too_large(response.too_large, limits.max_bytes, param)
        if image_type(response.body) is None:
            raise InvalidField(param, f"cannot be used: {target.host} sends no {IMAGE_FORMATS} file; {_AS_DATA}")
        return bytes(response.body)
    raise InvalidField(param, f"is redirected more than {_MAX_REDIRECTS} times; {_AS_DATA}")


def _redirected(url: str, location: str, host: str, param: str) -> str:
    """The URL to which a host redirects. Raises InvalidField."""
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise InvalidField(
            param, f"cannot be used: {host} redirects to {quoted(location)}, which is not a URL: {error}; {_AS_DATA}"
        ) from None


class _Response:
    """What httptools' parser finds; the methods are its callbacks."""

    def __init__(self, max_bytes: int) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        # Description of a size over the limit; the body is not read on.
        self.too_large = ""
        self.has_head = False
        self.is_complete = False
        self._max_bytes = max_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.has_head = True
        with contextlib.suppress(ValueError):
            if (size := int(self.headers.get(b"content-length", b"0"))) > self._max_bytes:
                self.too_large = str(size)

    def on_body(self, part: bytes) -> None:
        if len(self.body) + len(part) > self._max_bytes:
            self.too_large = self.too_large or f"more than {self._max_bytes}"
        else:
            self.body += part

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def has_all(self) -> bool:
        """Whether nothing more needs to be received: everything is there, or the body does not matter."""
        return self.is_complete or (self.has_head and (self.status != 200 or bool(self.too_large)))


async def _get(target: _Target, max_bytes: int, param: str, may_connect: Callable[[str], bool]) -> _Response:
    try:
        reader, writer = await _connect(target, param, may_connect)
        try:
            host = f"[{target.host}]" if ":" in target.host else target.host
            if target.port != _PORTS[target.scheme]:
                host += f":{target.port}"
            head = ("Accept: image/*", "Accept-Encoding: identity", "User-Agent: genai-server", "Connection: close")
            lines = (f"GET {target.path} HTTP/1.1", f"Host: {host}", *head, "", "")
            writer.write("\r\n".join(lines).encode())
            return await _receive(reader, max_bytes)
        finally:
            writer.transport.abort()
    except (OSError, EOFError, UnicodeError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        # A name that no host can have, such as one with a part of more than 63 characters, is a UnicodeError.
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise InvalidField(param, f"cannot be fetched from {target.host}: {reason}; {_AS_DATA}") from None


async def _receive(reader: asyncio.StreamReader, max_bytes: int) -> _Response:
    response = _Response(max_bytes)
    parser = httptools.HttpResponseParser(response)
    received = 0
    while not response.has_all:
        part = await reader.read(_CHUNK)
        if not part:
            if response.has_head and not response.headers.keys() & {b"content-length", b"transfer-encoding"}:
                break  # the end of the connection ends the body
            raise EOFError("the connection ends before the file does")
        parser.feed_data(part)
        response.status = parser.get_status_code()
        received += len(part)
        if not response.has_head and received > _MAX_HEAD:
            raise EOFError(f"its head has more than {_MAX_HEAD} bytes")
    return response


@cache
def _secure() -> ssl.SSLContext:
    """Checks certificates. Takes tens of milliseconds to make."""
    return ssl.create_default_context()


async def _connect(
    target: _Target, param: str, may_connect: Callable[[str], bool]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    if refused := next((address for address in addresses if not may_connect(address)), None):
        raise InvalidField(
            param, f"cannot be used: {target.host} resolves to {refused}, which is not a public address; {_AS_DATA}"
        )
    secure = _secure() if target.scheme == "https" else None
    server_hostname = target.host if secure else None
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(address, target.port, ssl=secure, server_hostname=server_hostname)
    return await asyncio.open_connection(addresses[-1], target.port, ssl=secure, server_hostname=server_hostname)
