"""Route classes of FastAPI that validate the body of a request before any other work, such as dependencies.

`BodyRoute` validates the body as it was sent. `lenient_route` makes a class that first removes the fields that clients
send although this server has no use for them, so that they are no errors. `history_route` makes a class that does so
only in the earlier messages of a conversation. An API's router gets one of these classes as its `route_class`.
"""

import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Annotated, Any, cast

from fastapi import Depends, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.types import Scope

from genai_server.config.settings import Settings
from genai_server.http.error_responses import from_findings, malformed
from genai_server.http.leniency import Change, Leniency, RemovalRules
from genai_server.http.request_state import request_state
from genai_server.http.upload import form_object

_FORM = "application/x-www-form-urlencoded"
# Some HTTP clients give it to each body of bytes.
_BYTES = "application/octet-stream"


class BodyRoute(APIRoute):
    """A class of FastAPI routes that validate the body before any other work, and pass the validated body to FastAPI.
    Response headers name the parts of the body that were left out or converted.

    A form that http/middleware/body.py has received is treated like a JSON object whose field `file` is a path. Not for
    admin routes, because the body is validated before the dependencies that check access.
    """

    # Whether a body that is not declared as JSON is taken for JSON, unless a web page may have sent it.
    takes_undeclared = False

    def leniency(self, request: Request) -> Leniency:
        """Return a new Leniency for a request, the object that says what may be left out of the request's body. Routes
        of this class leave out nothing; subclasses allow more.
        """
        return Leniency()

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        field_info = self.body_field.field_info
        # A union of bodies has its discriminator in the metadata.
        body = Annotated[field_info.annotation, *field_info.metadata] if field_info.metadata else field_info.annotation
        adapter: TypeAdapter[Any] = TypeAdapter(cast(type[Any], body))

        async def checked(request: Request) -> Response:
            leniency = request_state(request.scope).leniency = self.leniency(request)
            response = await handle(_CheckedRequest(request, adapter, takes_undeclared=self.takes_undeclared))
            response.headers.update(leniency.report())
            return response

        return checked


def lenient_route(
    left_out: RemovalRules,
    *,
    convert: Change | None = None,
    caps: bool = False,
    takes_undeclared: bool = False,
    takes_unknown: bool = False,
) -> type[BodyRoute]:
    """Return a class of routes that remove fields without effect from a body before they validate it, as the table
    `left_out` describes.

    `takes_unknown` also removes unknown keys. `caps` reduces the maximum number of tokens to what fits the context.
    `convert` changes the form of parts of the conversation history. `takes_undeclared` accepts bodies without a content
    type. If the operator has set GENAI_STRICT, only `convert` and `takes_undeclared` apply.
    """
    undeclared = takes_undeclared

    class LenientRoute(BodyRoute):
        takes_undeclared = undeclared

        def leniency(self, request: Request) -> Leniency:
            settings: Settings = request.app.state.services.settings
            if settings.strict:
                return Leniency(convert=convert)
            table = left_out
            if takes_unknown and self.body_field is not None:
                table = replace(left_out, forms={**left_out.forms, "": self.body_field.field_info.annotation})
            return Leniency(table, convert=convert, caps=caps and settings.cap_max_tokens)

    return LenientRoute


def history_route(left_out: RemovalRules, *, convert: Change | None = None) -> type[BodyRoute]:
    """Return a class of routes that remove fields only from the conversation history in a body, as the table `left_out`
    describes, and validate everything else strictly.

    `convert` changes the form of parts of the history. If the operator has set GENAI_STRICT, only `convert` applies.
    """

    class HistoryRoute(BodyRoute):
        def leniency(self, request: Request) -> Leniency:
            settings: Settings = request.app.state.services.settings
            return Leniency(history=None if settings.strict else left_out, convert=convert)

    return HistoryRoute


async def leniency(request: Request) -> Leniency:
    """Return the Leniency that the BodyRoute of the request has created, which says what may be left out of the
    request. This is a FastAPI dependency; routes declare it with `LeniencyDep`.
    """
    return request_state(request.scope).leniency


# The type of a route's parameter.
LeniencyDep = Annotated[Leniency, Depends(leniency)]


class _CheckedRequest(Request):
    def __init__(self, request: Request, adapter: TypeAdapter[Any], *, takes_undeclared: bool) -> None:
        scope = request.scope
        headers = request.headers
        self._upload = request_state(scope).upload
        if self._upload is not None or _is_bytes(headers) or (takes_undeclared and _is_undeclared(headers)):
            scope = _as_json(scope)
        super().__init__(scope, request.receive)
        self._adapter = adapter

    async def body(self) -> bytes:
        """Return a placeholder for FastAPI: `{}` for a request with a body, otherwise nothing. FastAPI then calls
        `json` to get the validated body.
        """
        return b"{}" if self._upload is not None or await super().body() else b""

    async def json(self) -> Any:
        """Return the validated body, and drop its text in order to free the memory. Raises RequestError if the body is
        invalid.
        """
        if self._upload is not None:
            return validated(self._adapter, form_object(self._upload))
        state, text = request_state(self.scope), await super().body()
        parsed = await state.parse(lambda: _read(text, self._adapter, state.leniency), num_bytes=len(text))
        self._body = b""
        state.held_body.parsed()
        return parsed


def _is_bytes(headers: Mapping[str, str]) -> bool:
    """Return whether the content type is application/octet-stream, which is taken for JSON. A web page can send this
    type only after a preflight request, so it is safe to accept.
    """
    return headers.get("content-type", "").partition(";")[0].strip().lower() == _BYTES


def _is_undeclared(headers: Mapping[str, str]) -> bool:
    """Return whether a program other than a browser has sent a body without naming its content type, as curl does.

    A web page can send such a body to any server without a preflight request, but browsers then add a header that names
    the page.
    """
    return headers.get("content-type", _FORM) == _FORM and not {"origin", "sec-fetch-site"} & set(headers)


def _read(text: bytes, adapter: TypeAdapter[Any], leniency: Leniency) -> Any:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise malformed(error) from None
    leniency.apply(body)
    return validated(adapter, body)


def validated(adapter: TypeAdapter[Any], body: Any) -> Any:
    """Validate a parsed body with `adapter`, the pydantic type of the route's body, and return the resulting object.
    Raises RequestError if the body is invalid.
    """
    try:
        return adapter.validate_python(body)
    except ValidationError as error:
        findings = [{**finding, "loc": ("body", *finding["loc"])} for finding in error.errors(include_url=False)]
        raise from_findings(findings, body) from None


def _as_json(scope: Scope) -> Scope:
    """Return a copy of an ASGI scope in which the content type of the request is JSON."""
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
