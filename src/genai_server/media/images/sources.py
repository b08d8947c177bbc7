"""Loads the images of requests (`load_image`) from data URLs, and from hosts that the operator allows.

A URL in a request makes this machine connect to an address that the client chooses. So the IP address is checked after
the host name is resolved, and the connection goes to the checked IP address: it has no effect if the name resolves to
another address a moment later.
"""

import asyncio
import binascii
import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin, urlsplit

from genai_server.errors import AsIs, InvalidField, quoted
from genai_server.media.images.image_header import IMAGE_FORMATS, image_type
from genai_server.system.addresses import DEFAULT_PORTS, MAX_URL, has_url_characters, host_of, is_public

if TYPE_CHECKING:
    import httpx

# Maximum number of images that are fetched, or fetched and not prepared yet, at a time in one API process: they take
# memory that no limit of bodies counts.
MAX_PARALLEL_FETCHES = 8
_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_BLANKS = str.maketrans("", "", " \t\r\n")
_DATA_URL_HINT = "send the image as data:image/png;base64,…"
_MAX_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
# Larger data URLs are decoded in a thread: a megabyte takes a millisecond.
_LONG = 256 * 1024


@dataclass(frozen=True)
class SourceLimits:
    """Limits for loading images, from the server's settings.

    `hosts` are the hosts from which images may be fetched, each with a port unless it is the scheme's own. `max_bytes`
    is the maximum size of an image file, and `timeout` the maximum number of seconds for fetching it.
    """

    # Host names, each with a port if it is not the scheme's own.
    hosts: Collection[str]
    # Maximum size of an image file.
    max_bytes: int
    # Maximum seconds for fetching one.
    timeout: float


def is_data_url(url: str) -> bool:
    """Whether a URL contains the content itself (`data:…`), so that nothing has to be fetched."""
    return url[:5].lower() == "data:"


async def load_image(
    url: str, limits: SourceLimits, *, param: str, may_connect: Callable[[str], bool] = is_public
) -> bytes:
    """Return the bytes of an image file from a data URL, or from an http or https URL of an allowed host.

    `may_connect` receives each IP address of the host and says whether this server may connect to it. Raises
    InvalidField, which names the field `param`, if the image cannot be loaded or exceeds a limit.
    """
    scheme = url[:8].partition(":")[0].lower()
    if is_data_url(url):
        decode = partial(_decode, url, limits.max_bytes, param)
        return decode() if len(url) < _LONG else await asyncio.to_thread(decode)
    if scheme not in DEFAULT_PORTS:
        raise InvalidField(param, f"must be a data URL; {_DATA_URL_HINT}", given=url)
    if not limits.hosts:
        raise InvalidField(
            param, f"cannot be used: this server fetches no images (GENAI_IMAGE_HOSTS); {_DATA_URL_HINT}", given=url
        )
    try:
        async with asyncio.timeout(limits.timeout):
            return await _fetch(url, limits, param, may_connect)
    except TimeoutError:
        raise InvalidField(
            param, f"takes longer than {limits.timeout:g} s to fetch (GENAI_MEDIA_TIMEOUT); {_DATA_URL_HINT}", given=url
        ) from None


def _decode(url: str, max_bytes: int, param: str) -> bytes:
    head = _DATA_URL.match(url)
    if head is None:
        raise InvalidField(param, f"must be a data URL in base64; {_DATA_URL_HINT}", given=url)
    if (size := (len(url) - head.end()) * 3 // 4 - 2) > max_bytes:
        raise _too_large(f"about {size}", max_bytes, param)
    try:
        data = binascii.a2b_base64(url[head.end() :].translate(_BLANKS), strict_mode=True)
    except ValueError as error:  # also of characters that are not ASCII
        raise InvalidField(param, f"is not valid base64: {error}") from None
    if not data:
        raise InvalidField(param, f"has no bytes after {head[0]}")
    return data


def _too_large(size: str, max_bytes: int, param: str) -> InvalidField:
    return InvalidField(
        param, "may have at most", limit=f"{max_bytes} bytes", limited_by="GENAI_MAX_MEDIA_BYTES", given=AsIs(size)
    )


class _Target(NamedTuple):
    """The parts of a checked http or https URL from which to fetch an image. `path` includes the query."""

    scheme: str
    host: str
    port: int
    # Path and query.
    path: str


def _target(url: str, hosts: Collection[str], param: str) -> _Target:
    """Check a URL against the allowed hosts `hosts`, and return its parts.

    Raises InvalidField, which names the field `param`, if the URL is invalid or its host is not allowed.
    """
    if len(url) > MAX_URL:
        raise InvalidField(
            param, "cannot be used: a URL may have at most", limit=f"{MAX_URL} characters", given=len(url)
        )
    if not has_url_characters(url):
        raise InvalidField(param, "must be a URL of ASCII characters, without blanks and backslashes", given=url)
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise InvalidField(param, f"is not a URL: {error}", given=url) from None
    if parts.scheme not in DEFAULT_PORTS or not host:
        raise InvalidField(param, "must be an http or https URL with a host", given=url)
    if "@" in parts.netloc:
        raise InvalidField(param, "must have no user name or password in its URL")
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    shown = host_of(parts)
    if shown not in hosts:
        raise InvalidField(
            param,
            f"cannot be used: this server fetches images from the hosts {', '.join(sorted(hosts))} only "
            f"(GENAI_IMAGE_HOSTS); {_DATA_URL_HINT}",
            given=shown,
        )
    return _Target(parts.scheme, host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


async def _fetch(url: str, limits: SourceLimits, param: str, may_connect: Callable[[str], bool]) -> bytes:
    for _ in range(_MAX_REDIRECTS + 1):
        target = _target(url, limits.hosts, param)
        response = await _get(target, limits.max_bytes, param, may_connect)
        if response.status in _REDIRECTS and response.location:
            url = _redirected(url, response.location, target.host, param)
            continue
        if response.status != 200:
            raise InvalidField(
                param, f"cannot be used: {target.host} answers with status {response.status}; {_DATA_URL_HINT}"
            )
        if response.too_large:
            raise _too_large(response.too_large, limits.max_bytes, param)
        if image_type(response.body) is None:
            raise InvalidField(param, f"cannot be used: {target.host} sends no {IMAGE_FORMATS} file; {_DATA_URL_HINT}")
        return response.body
    raise InvalidField(param, f"is redirected more than {_MAX_REDIRECTS} times; {_DATA_URL_HINT}")


def _redirected(url: str, location: str, host: str, param: str) -> str:
    """Return the URL to which a host redirects a request.

    `url` is the URL of the request, and `location` the one in the response of `host`, which may be relative. Raises
    InvalidField, which names the field `param`, if `location` is not a valid URL.
    """
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise InvalidField(
            param,
            f"cannot be used: {host} redirects to {quoted(location)}, which is not a URL: {error}; {_DATA_URL_HINT}",
        ) from None


class _Response(NamedTuple):
    """The response of a host to a request for an image.

    `location` is where it redirects to; "" if it does not. `too_large` describes a size above the limit, in which case
    the body is incomplete; otherwise it is "".
    """

    status: int
    # Where it redirects to; empty if it does not.
    location: str
    body: bytes = b""
    # Description of a size over the limit; the body is then incomplete.
    too_large: str = ""


async def _get(target: _Target, max_bytes: int, param: str, may_connect: Callable[[str], bool]) -> _Response:
    import httpx  # takes a tenth of a second, and most servers fetch nothing

    try:
        addresses = await _addresses(target, param, may_connect)
        verify = _secure() if target.scheme == "https" else False
        async with httpx.AsyncClient(verify=verify, trust_env=False, timeout=None) as client:
            for address in addresses[:-1]:
                with contextlib.suppress(httpx.ConnectError):
                    return await _get_from(client, address, target, max_bytes)
            return await _get_from(client, addresses[-1], target, max_bytes)
    except (OSError, UnicodeError, httpx.HTTPError, httpx.InvalidURL) as error:
        # A name that no host can have, such as one with a part of more than 63 characters, is a UnicodeError.
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        raise InvalidField(
            param, f"cannot be fetched from {target.host}: {reason.rstrip('.')}; {_DATA_URL_HINT}"
        ) from None


async def _get_from(client: "httpx.AsyncClient", address: str, target: _Target, max_bytes: int) -> _Response:
    """Request an image from one of a host's IP addresses, `address`, and return the response.

    At most `max_bytes` bytes of the body are accepted; larger bodies are cut off and marked. TLS certificates are
    checked against the host's name. Raises httpx.HTTPError if the host cannot be reached or does not answer properly.
    """
    name = f"[{target.host}]" if ":" in target.host else target.host
    is_default_port = target.port == DEFAULT_PORTS[target.scheme]
    headers = {
        "Host": name if is_default_port else f"{name}:{target.port}",
        "Accept": "image/*",
        "Accept-Encoding": "identity",
        "User-Agent": "genai-server",
        "Connection": "close",
    }
    shown = f"[{address}]" if ":" in address else address
    url = f"{target.scheme}://{shown}:{target.port}{target.path}"
    async with client.stream("GET", url, headers=headers, extensions={"sni_hostname": target.host}) as response:
        head = _Response(response.status_code, response.headers.get("location", ""))
        if head.status != 200:
            return head
        size = response.headers.get("content-length", "")
        if size.isdecimal() and int(size) > max_bytes:
            return head._replace(too_large=size)
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > max_bytes:
                return head._replace(too_large=f"more than {max_bytes}")
        return head._replace(body=bytes(body))


@cache
def _secure() -> ssl.SSLContext:
    """Return the TLS settings with which certificates are checked. They are cached because making them takes tens of
    milliseconds.
    """
    return ssl.create_default_context()


async def _addresses(target: _Target, param: str, may_connect: Callable[[str], bool]) -> list[str]:
    """Return the IP addresses to which the host of `target` resolves.

    Raises InvalidField, which names the field `param`, if `may_connect` refuses any of them, and OSError if the name
    cannot be resolved.
    """
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in infos))
    if refused := next((address for address in addresses if not may_connect(address)), None):
        raise InvalidField(
            param,
            f"cannot be used: {target.host} resolves to {refused}, which is not a public address; {_DATA_URL_HINT}",
        )
    return addresses
