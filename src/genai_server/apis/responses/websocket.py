"""The Responses API over WebSockets, as OpenAI and Open Responses define it. A client sends a request to create a
response as a message, and receives the stream events as messages.

`ResponsesSocket` is the ASGI app for WebSockets. It sends each message as a POST request to the HTTP app in the same
process, so that authentication, limits, logs and metrics apply to it as to all other requests.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.apis.responses.store import LatestResponse, WebSocketReceipt
from genai_server.errors import InvalidField, OriginForbidden, RequestError
from genai_server.http.body_budget import BODY_KEY
from genai_server.http.error_wording import DEFAULT, ErrorParts
from genai_server.http.inner_request import InnerResponse, disconnect_at
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER
from genai_server.http.middleware.authentication import is_own_origin
from genai_server.http.middleware.body import check_json, replayed
from genai_server.http.request_state import ParsingThread, Receipt, receipt_of, request_state, with_receipt
from genai_server.timing import ARRIVAL_KEY, request_clock

log = logging.getLogger(__name__)

PATHS = frozenset({"/v1/responses", "/responses"})
# Maximum duration of a connection in seconds, as OpenAI's.
MAX_SECONDS = 3600.0
_UPGRADE = 426
# Headers of the handshake that are not passed on to its turns.
_HANDSHAKE_HEADERS = {"connection", "upgrade", "content-length", "content-type", "transfer-encoding", "x-request-id"}
# Keys that a turn's scope copies from the handshake's.
_PASSED_ON = ("asgi", "http_version", "path", "raw_path", "root_path", "query_string", "client", "server")
_LAST_EVENTS = {"response.completed", "response.failed", "response.incomplete"}
_GOING_AWAY = 1001
_MAX_SHOWN = 100


class ResponsesSocket:
    """The ASGI app for all WebSocket connections of the server. It accepts those at the paths of the Responses API,
    serves them for at most an hour, and refuses all others.

    For each handshake, a GET request is sent to the HTTP app, and if the app refuses this request, the handshake is
    refused with the same error. A handshake by a web page is also refused if the page's origin is neither the server's
    own nor one of `origins`, because browsers let any page open WebSockets to any server.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = origins
        self._parsing = ParsingThread()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        refusal = await self._refusal(scope)
        if refusal is not None:
            await _refuse(refusal, scope, send)
            return
        await send({"type": "websocket.accept"})
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await _serve(self._parsing, scope, receive, send)
        except TimeoutError:
            message = f"a connection may be open for {MAX_SECONDS:.0f} seconds; open a new one"
            await _send_error(send, _error(message, "websocket_connection_limit_reached"))
            await send({"type": "websocket.close", "code": _GOING_AWAY})

    async def _refusal(self, scope: Scope) -> "InnerResponse | None":
        """Return the HTTP response with which a handshake is to be refused; None if it is to be accepted. `scope` is
        the ASGI scope of the WebSocket. Checks origin and path, and then sends a GET request for the handshake to the
        HTTP app, which checks the API key.
        """
        headers = Headers(scope=scope)
        if not is_own_origin(headers) and headers["origin"] not in self._origins:
            error = OriginForbidden()
            return _refusal(403, error.message, error.code)
        if scope["path"] not in PATHS:
            return _refusal(404, f"there is no WebSocket at {scope['path'][:_MAX_SHOWN]}", "not_found")
        answer = InnerResponse()
        get = _http_scope(scope, "GET", b"", receipt_of(scope.get("state", {})))
        await scope["app"](get, replayed(b"", disconnect_at(asyncio.Event())), answer.send)
        scope.setdefault("state", {})[BODY_KEY] = request_state(get).key
        return None if answer.status == _UPGRADE else answer


async def _serve(parsing: ParsingThread, scope: Scope, receive: Receive, send: Send) -> None:
    """Handle the messages of a WebSocket one after another until the client disconnects. A message during a running
    request is answered by an error. When the client disconnects, the running request is cancelled.

    `parsing` runs the parsing of messages in a thread; `scope`, `receive` and `send` are the ASGI arguments of the
    WebSocket.
    """
    latest, turn = LatestResponse(), None
    try:
        while (message := await receive())["type"] != "websocket.disconnect":
            # Only this project's protocol class reports when a message's first byte arrived.
            arrived = message.get(ARRIVAL_KEY, request_clock())
            if turn is not None and not turn.is_finished:
                await _send_error(send, _error("the previous response is still running", "response_in_progress"))
                continue
            if turn is not None:
                await turn.ended()
            receipt = WebSocketReceipt(arrived, receipt_of(scope.get("state", {})).max_files, latest=latest)
            try:
                turn = await _begun(message, receipt, parsing, scope, send)
            except RequestError as error:
                await _send_error(send, _error(error.message, error.code, error.param))
    finally:
        if turn is not None:
            await turn.leave()


async def _begun(
    message: Message, receipt: WebSocketReceipt, parsing: ParsingThread, scope: Scope, send: Send
) -> "_Turn":
    """Start the request that `message`, a message on a WebSocket, asks for, and return the running request. `receipt`
    says when the message arrived and which response was the latest on the connection. Raises RequestError if the
    message is invalid.
    """
    text = (message.get("text") or "").encode(errors="replace") or message.get("bytes") or b""
    body, previous = await parsing.run(lambda: _body(text), num_bytes=len(text), key=scope["state"][BODY_KEY])
    post = _http_scope(scope, "POST", body, receipt)
    return _Turn(scope["app"], post, body, send, lambda: receipt.latest.forget(previous))


class _Turn:
    """A request that a message on a WebSocket has started. On creation it is sent to the HTTP app as a POST request in
    a task, and each event of the answer is sent to the WebSocket.

    `is_finished` is set when the last event has been sent. If the app refuses the request, its error is sent as an
    event and `on_refusal` is called.
    """

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes, send: Send, on_refusal: Callable[[], None]) -> None:
        self._on_refusal = on_refusal
        # Whether the last event has been sent.
        self.is_finished = False
        self._send_socket = send
        self._scope = scope
        self._is_left = asyncio.Event()
        self._answer = InnerResponse()
        # What was left out or converted, to be sent with the first event.
        self._named: JsonObject = {}
        self._unsent = b""
        self._task = asyncio.create_task(self._run(app, replayed(body, disconnect_at(self._is_left))))

    async def ended(self) -> None:
        """Wait until the HTTP app has finished the request, including what it does after the last event."""
        await asyncio.wait([self._task])

    async def leave(self) -> None:
        """Cancel the request because the client has disconnected from the WebSocket, and wait until the HTTP app has
        finished it.
        """
        self._is_left.set()
        await self.ended()

    async def _run(self, app: ASGIApp, receive: Receive) -> None:
        try:
            await app(self._scope, receive, self._take)
        except Exception:
            log.exception("internal error in a turn on a WebSocket")
        finally:
            if not self.is_finished and not self._is_left.is_set():
                await self._refused()

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start" or self._answer.status != 200:
            await self._answer.send(message)
            self._named = _named(self._answer.headers)
            return
        self._unsent += message.get("body", b"")
        *events, self._unsent = self._unsent.split(b"\n\n")
        for event in events:
            data = b"".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
            if data:
                if self._named:  # the first event has what the headers of a POST have
                    data = msgspec.json.encode({**msgspec.json.decode(data), **self._named})
                    self._named = {}
                await self._send({"type": "websocket.send", "text": data.decode()})
                name = event.partition(b"\n")[0].removeprefix(b"event: ").decode()
                self.is_finished = self.is_finished or name in _LAST_EVENTS

    async def _refused(self) -> None:
        """Send an error event to the WebSocket, because the HTTP app has answered the request by an error or without
        the last event of a stream.
        """
        self.is_finished = True
        self._on_refusal()
        status = self._answer.status if self._answer.status >= 400 else 500
        try:
            error = {"error": json.loads(self._answer.body)["error"]}
        except (ValueError, KeyError, TypeError):
            error = DEFAULT.error_body(ErrorParts(status, "server_error", "internal error", "server_error"))
        await _send_error(self._send, error, status)

    async def _send(self, message: Message) -> None:
        try:
            await self._send_socket(message)
        except OSError:  # raised by ASGI servers after the client has disconnected
            self._is_left.set()


def _named(headers: Iterable[tuple[bytes, bytes]]) -> JsonObject:
    """Return fields for the first event on a WebSocket from HTTP response headers. They are the headers that report
    which parts of the request were left out or converted; x-genai-ignored becomes the field genai_ignored.
    """
    by_name = {name.decode().lower(): value.decode() for name, value in headers}
    return {name[2:].replace("-", "_"): by_name[name] for name in (IGNORED_HEADER, CONVERTED_HEADER) if name in by_name}


def _body(text: bytes) -> tuple[bytes, object]:
    """Parse a WebSocket message. Returns the body of the POST request that is sent for it, and the value of the
    message's field `previous_response_id`, which may be of any type. Raises RequestError if the message is invalid.
    """
    check_json(text)
    try:
        body = json.loads(text)
    except ValueError as error:
        raise InvalidField(None, f"a message must be JSON: {error}") from None
    if not isinstance(body, dict):
        raise InvalidField(None, "a message must be a JSON object")
    if body.pop("type", None) != "response.create":
        raise InvalidField("type", 'must be "response.create"')
    for field in ("background", "stream_options"):
        if body.get(field):
            raise InvalidField(field, "is not allowed on a WebSocket")
    # Lone surrogates, which cannot be encoded, become JSON escapes.
    post = json.dumps({**body, "stream": True}, ensure_ascii=False).encode(errors="backslashreplace")
    return post, body.get("previous_response_id")


def _http_scope(scope: Scope, method: str, body: bytes, receipt: Receipt) -> Scope:
    """Return the ASGI scope of an HTTP request that is made in the name of a WebSocket's client. `scope` is that of the
    WebSocket, from which it takes path, client and headers. `receipt` has what the HTTP app is told about the request.
    """
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.decode("latin-1") not in _HANDSHAKE_HEADERS and not name.startswith(b"sec-websocket")
    ]
    if body:
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    return {
        **{name: scope[name] for name in _PASSED_ON if name in scope},
        "type": "http",
        "method": method,
        "scheme": {"ws": "http", "wss": "https"}.get(scope.get("scheme", "ws"), "http"),
        "headers": headers,
        "extensions": {},
        "state": with_receipt(receipt),
    }


def _refusal(status: int, message: str, code: str) -> InnerResponse:
    return InnerResponse(status, [(b"content-type", b"application/json")], json.dumps(_error(message, code)).encode())


async def _refuse(answer: InnerResponse, scope: Scope, send: Send) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await send({"type": "websocket.http.response.start", "status": answer.status or 500, "headers": answer.headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})


def _error(message: str, code: str, param: str | None = None) -> JsonObject:
    return DEFAULT.error_body(ErrorParts(400, "invalid_request_error", message, code, param))


async def _send_error(send: Send, error: JsonObject, status: int = 400) -> None:
    event = {"type": "error", "status": status, **error}
    await send({"type": "websocket.send", "text": msgspec.json.encode(event).decode()})
