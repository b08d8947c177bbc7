"""The middleware that authenticates requests by API key (`Authentication`), and the dependencies with which routes ask
for the rights of a request (`rights`, `require_admin`) and for the owner of stored data (`holder`). The body is not
read.
"""

import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from functools import partial
from hashlib import blake2b
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from genai_server.errors import AdminForbidden, InvalidApiKey, RateLimitExceeded
from genai_server.http.api_keys import Access, ApiKey, ApiKeys, hash_key
from genai_server.http.error_responses import error_response
from genai_server.http.middleware.request_lifetime import OPEN_PATHS
from genai_server.http.rate_limit import RateLimits
from genai_server.http.request_state import HttpRequestState, request_state
from genai_server.system.addresses import is_loopback

# Paths of stored data. Responses to reads can be large: a list of files has up to 10,000 entries.
_STORED_PATHS = ("/responses/", "/conversations/", "/files")
_FORWARDING_HEADERS = {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
# uri-host [ ":" port ]: an IPv6 address, or a registered name, whose form addresses of IPv4 have, too.
_HOST = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+))(?::(?P<port>[0-9]{1,5}))?"
)
_MAX_PORT = 65535
_REMEDY = "set GENAI_ADMIN_API_KEY and send it as a bearer token"
_NO_KEY = "an API key is required: authorization: Bearer KEY, or x-api-key: KEY"
_WRONG_KEY = "this server does not know the API key that was given"
_NO_KEYS = (
    "this server has no API keys and serves programs on its own machine only, which call it by a name of this machine "
    "(Host: localhost, or its address); set GENAI_API_KEYS, or GENAI_INSECURE to serve every client that can reach it"
)


class Authentication:
    """A pure ASGI middleware that refuses requests without a valid API key, if one is required, and requests beyond the
    key's limits.

    It stores the request's Access, which says what the request may do, in the request's state. A request without a key
    at one of the `open_paths`, such as health checks, has the Access None. The admin key gives access to everything.

    A server without keys serves only its own machine, unless `insecure` is True. The Host header must name this
    machine: a web page can let its own host name resolve to this machine (DNS rebinding), but it cannot send another
    Host header. Unless the server is known to listen only on loopback (`on_loopback`), the connection must come from
    this machine, too.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        limits: RateLimits,
        *,
        admin_key: str | None,
        on_loopback: bool,
        insecure: bool,
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self.app = app
        self._keys = keys
        self._limits = limits
        self._admin = None if admin_key is None else hash_key(admin_key)
        self._open_paths = open_paths
        self._on_loopback = on_loopback
        self._access = partial(Access, has_admin_key=admin_key is not None, on_loopback=on_loopback)
        self._insecure = insecure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = request_state(scope)
        on_behalf = state.receipt.on_behalf
        access = self._identify(headers, scope) if on_behalf is None else self._of_holder(on_behalf.holder)
        state.access = access
        state.record.key_name = "" if access is None else access.key_name
        if access is None and scope["path"] not in self._open_paths:
            message = (_WRONG_KEY if key_in_headers(headers) else _NO_KEY) if self._keys.required else _NO_KEYS
            await error_response(InvalidApiKey(message), scope)(scope, receive, send)
            return
        with state.counted:
            if access is not None and access.key is not None:
                try:
                    self._count(access.key, scope, state)
                except RateLimitExceeded as error:
                    await error_response(error, scope)(scope, receive, send)
                    return
            await self.app(scope, receive, send)

    def _count(self, key: ApiKey, scope: Scope, state: HttpRequestState) -> None:
        """Count a request against the limits of its API key until the request ends. Raises RateLimitExceeded if it is
        beyond them.

        Only requests that cause work count: POST requests, and reads of stored data, which have a limit of their own.
        """
        if state.receipt.is_counted:
            return
        if scope["method"] == "POST":
            if not scope["path"].endswith(("/cancel", "/end_reasoning")):
                state.counted.enter_context(self._limits.request(key))
                state.count_answers = partial(self._count_answers, key, state)
        elif scope["path"].removeprefix("/v1").startswith(_STORED_PATHS):
            state.counted.enter_context(self._limits.read(key))

    def _count_answers(self, key: ApiKey, state: HttpRequestState, number: int, param: str) -> None:
        state.counted.enter_context(self._limits.answers(key, number, param))

    def _of_holder(self, holder: str | None) -> Access | None:
        """Return the access of a request that the server itself makes on behalf of a client. `holder` is the id of the
        client's API key or admin key, as `holder_of` makes it. None if the key no longer exists.

        If `holder` is None, the client had no key; it has access only if the server requires no key.
        """
        if not self._keys.required:
            return self._access() if holder is None else None
        if self._admin is not None and holder == holder_of(self._admin):
            return self._access(is_admin=True, digest=self._admin)
        key = next((key for key in self._keys if holder_of(key.digest) == holder), None)
        return None if key is None else self._access(key, digest=key.digest)

    def _identify(self, headers: Headers, scope: Scope) -> Access | None:
        sent_key = key_in_headers(headers)
        if sent_key and self._admin is not None and hmac.compare_digest(hash_key(sent_key), self._admin):
            return self._access(is_admin=True, digest=self._admin if self._keys.required else None)
        if self._keys.required:
            key = self._keys.find(sent_key)
            return None if key is None else self._access(key, digest=key.digest)
        client = scope.get("client")
        is_near = client is not None and is_loopback(client[0]) and forwarded_by(headers) is None
        is_own = _names_this_machine(headers) and (self._on_loopback or is_near)
        return self._access() if self._insecure or is_own else None


def key_in_headers(headers: Mapping[str, str]) -> str:
    """Return the API key in a request's headers, as OpenAI's clients (`authorization`) or Anthropic's (`x-api-key`)
    send it; "" if there is none.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def forwarded_by(headers: Mapping[str, str]) -> str | None:
    """Return the name of a header that shows that a proxy has forwarded the request; None if there is no such
    header.
    """
    return next((name for name in headers if name in _FORWARDING_HEADERS or name.startswith("x-forwarded")), None)


def is_own_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from this server's own web page, or from a program that is no browser, judged by
    its Origin header.
    """
    origin, host = headers.get("origin"), headers.get("host", "").lower()
    return origin is None or (host != "" and origin.lower() in (f"http://{host}", f"https://{host}"))


def rights(request: Request) -> Access:
    """Return what an authenticated request is allowed to do. Must not be used at the open paths, where requests may
    have no Access.
    """
    access = request_state(request.scope).access
    assert access is not None
    return access


async def holder(request: Request) -> str | None:
    """Return the id of the owner of stored data, such as responses and files, that a request reads or writes: one for
    each API key and for the admin key. None where no key is needed. This is a FastAPI dependency; routes declare it
    with `KeyHolderDep`.

    The id is derived from the key itself, because a name may later be given to another key.
    """
    digest = rights(request).digest
    return None if digest is None else holder_of(digest)


def holder_of(digest: bytes) -> str:
    """Return the id of the owner of stored data for the API key whose SHA-256 is `digest`. The id does not reveal the
    digest.
    """
    return blake2b(digest, digest_size=16, person=b"stored responses").hexdigest()


# The type of a route's parameter.
KeyHolderDep = Annotated[str | None, Depends(holder)]


async def require_admin(request: Request) -> None:
    """Allow a request with the admin key or, if neither an admin key nor API keys are set, a request of a program on
    this machine. This is a FastAPI dependency of the admin routes.

    Raises AdminForbidden for all others. Without a key, the server must listen only on loopback, and the request must
    not have passed a proxy or come from a web page, although such requests come from this machine, too.
    """
    access = rights(request)
    if access.is_admin:
        return
    if access.has_admin_key:
        raise AdminForbidden("the admin endpoints need GENAI_ADMIN_API_KEY as a bearer token")
    if access.key is not None:
        raise AdminForbidden(f"with API keys the admin endpoints need one of their own; {_REMEDY}")
    reason = _not_local(request, access)
    if reason is not None:
        raise AdminForbidden(f"without an admin key this endpoint serves local programs only, but {reason}; {_REMEDY}")


def _not_local(request: Request, access: Access) -> str | None:
    """Return the reason, in words for an error, why a request cannot be trusted to come from a program on this machine;
    None if it can.
    """
    client = request.client.host if request.client else ""
    if not access.on_loopback or not is_loopback(client):
        return "the server is not known to be bound to loopback alone"
    if (name := forwarded_by(request.headers)) is not None:
        return f"the request was forwarded ({name})"
    host = request.headers.get("host", "")
    if not host or not _names_this_machine(request.headers):
        return "the Host header names another machine"
    if not is_own_origin(request.headers):
        return "the Origin header names a web page"
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        if kind or "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0":
            return "the body is not declared as JSON (send content-type: application/json)"
        # A web page can send an empty body without asking first; browsers name the page in one of these headers.
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            return "a web page may have sent it without a body"
    return None


def _names_this_machine(headers: Mapping[str, str]) -> bool:
    """Return whether the Host header of a request names this machine or is missing. Browsers set this header, so a web
    page cannot choose its value.
    """
    host = headers.get("host", "")
    return not host or is_loopback(host_name(host) or "")


def host_name(header: str) -> str | None:
    """Return the host in a Host header, in lower case and without port and brackets; None if the header is invalid.

    The whole header must follow RFC 9110 and RFC 3986, with an IPv6 address in brackets. URL parsers accept more, and
    find "localhost" in "localhost?evil.example" or "evil.example@localhost". An empty port is refused as well.
    """
    match = _HOST.fullmatch(header)
    if match is None or int(match["port"] or 0) > _MAX_PORT:
        return None
    if match["address"] is None:
        return match["name"].lower()
    try:
        return str(ipaddress.IPv6Address(match["address"]))
    except ValueError:
        return None
