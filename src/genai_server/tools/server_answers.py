"""HTTP requests that commands such as `top` and `launch` send to a server: checks of addresses and API keys
(`checked_url`, `authorization`), a request (`ask`), and error messages for people (`unanswered`, `error_message`).
"""

import errno
import http.client
import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from genai_server.errors import ServerUnusable

_EXAMPLE = "http://127.0.0.1:8002"
_WITHOUT_SCHEME = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}(/\S*)?")


def is_address(text: str) -> bool:
    """Whether a text that the user has typed is meant as the address of a server (a URL, or HOST:PORT) and not, for
    example, as a directory.
    """
    return "://" in text or _WITHOUT_SCHEME.fullmatch(text) is not None


def checked_url(url: str) -> str:
    """Return the URL of a server as the user has given it, without a slash at the end. HOST:PORT becomes an http URL.

    Raises ServerUnusable if it is not the address of a server.
    """
    if _WITHOUT_SCHEME.fullmatch(url):
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # the port, or a name that no host can have
        is_right = False
    if not is_right or not url.isprintable() or " " in url:
        raise ServerUnusable(f"{url} is not the address of a server, such as {_EXAMPLE}")
    return url.rstrip("/")


def authorization(api_key: str | None) -> dict[str, str]:
    """Return the HTTP header that sends an API key, as a dictionary; empty without a key. Raises ServerUnusable if the
    key has characters that no API key has.
    """
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise ServerUnusable("--api-key has characters that no API key has")
    return {"authorization": f"Bearer {api_key}"}


def ask(
    server: str,
    path: str,
    headers: Mapping[str, str],
    seconds: float,
    method: str = "GET",
    sent: bytes | None = None,
) -> bytes:
    """Send an HTTP request to the path `path` of the server at the URL `server`, and return the body of the response.
    `sent` is the body of the request, None for no body.

    Raises ServerUnusable if the server does not answer within `seconds` seconds, or responds with an error.
    """
    request = urllib.request.Request(server + path, sent, dict(headers), method=method)
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            body: bytes = response.read()
            return body
    except urllib.error.HTTPError as error:
        with error:
            raise ServerUnusable(error_message(error.code, error.reason, error.read())) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerUnusable(unanswered(server, error)) from None


def unanswered(url: str, error: BaseException) -> str:
    """Return a message for the user, with advice, about the server at `url`, which did not answer. `error` is the
    exception that an HTTP client has raised.
    """
    # Exceptions of urllib and aiohttp contain that of the system.
    for name in ("reason", "os_error", "certificate_error"):
        if isinstance(inner := getattr(error, name, None), BaseException):
            error = inner
    if isinstance(error, ConnectionRefusedError):
        return f"no server at {url}; start one with genai-server serve"
    if isinstance(error, socket.gaierror):
        return f"no server at {url}: the name {urlsplit(url).hostname} is unknown"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{url}: its certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{url} does not speak HTTPS; does its address begin with http://?"
    if isinstance(error, TimeoutError):
        return f"{url} does not answer in time"
    is_closed = getattr(error, "errno", None) == errno.ECONNRESET or "Disconnected" in type(error).__name__
    if is_closed or isinstance(error, (ConnectionError, http.client.HTTPException)):
        return f"{url} closed the connection without an answer; does it speak HTTP, or should this be https://?"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{url} does not answer: {reason.lower()}"


def error_message(status: int, reason: str, body: bytes) -> str:
    """Return a message for the user about an HTTP error response: the status, and the error message in the response's
    body, in the format of OpenAI's API or another one. If there is none, the body itself is used if it is plain text,
    otherwise `reason`, the reason phrase of the status.
    """
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = body.decode(errors="replace").strip()
        message = text[:200] if text and not text.startswith(("<", "{")) else reason
    if status == http.client.UNAUTHORIZED:
        message = f"{message.partition(':')[0]}; give one with --api-key"
    return f"{status}: {message}"
