"""Routes of FastAPI whose bodies are forms with a file, received by `http/middleware/uploads.py`."""

from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from genai_server.errors import InvalidField
from genai_server.http.error_responses import from_findings
from genai_server.http.request_state import request_state
from genai_server.http.upload import FILE, Upload
from genai_server.quoted_values import quoted

FORM = "multipart/form-data"
_MAX_SHOWN = 100


class UploadRoute(APIRoute):
    """Gives FastAPI a form that is validated already, as if it were a JSON object; its file is a path.

    The parameter of the route is declared as `Body(media_type=FORM)`.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        adapter: TypeAdapter[Any] = TypeAdapter(cast(type[Any], self.body_field.field_info.annotation))

        async def checked(request: Request) -> Response:
            return await handle(_FormRequest(request, adapter))

        return checked


class _FormRequest(Request):
    def __init__(self, request: Request, adapter: TypeAdapter[Any]) -> None:
        others = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
        super().__init__(
            {**request.scope, "headers": [*others, (b"content-type", b"application/json")]}, request.receive
        )
        self._adapter = adapter

    async def body(self) -> bytes:
        """Not empty, so that FastAPI asks for the object."""
        return b"{}"

    async def json(self) -> Any:
        """The validated form. Raises RequestError."""
        upload = request_state(self.scope).upload
        assert upload is not None
        body = form_object(upload)
        try:
            return self._adapter.validate_python(body)
        except ValidationError as error:
            found = [{**finding, "loc": ("body", *finding["loc"])} for finding in error.errors(include_url=False)]
            raise from_findings(found, body) from None


def form_object(upload: Upload) -> dict[str, Any]:
    """The fields by their names, without empty ones. A name such as `include[]` has the list of its values, and names
    such as `expires_after[seconds]` are members of an object.

    Raises InvalidField for a field that is given twice, and for a text in place of the file: a client must not name a
    path.
    """
    found: dict[str, Any] = {} if upload.file is None else {FILE: upload.file}
    for given, value in upload.fields:
        name, bracket, _ = given.partition("[")
        if not value:
            continue
        if name == FILE and upload.file is None:
            raise InvalidField(
                f"{FILE} must be given as {FILE}, with the content of a file; given {quoted(given[:_MAX_SHOWN])}",
                param=FILE,
            )
        if given.endswith("[]"):
            values = found.setdefault(name, [])
            if isinstance(values, list):
                values.append(value)
                continue
        if bracket and (member := given[len(name) + 1 : -1]) and given.endswith("]"):
            members = found.setdefault(name, {})
            if isinstance(members, dict) and member not in members:
                members[member] = value
                continue
        if name in found:
            remedy = "" if bracket else f"; the values of a list are given as {name}[]"
            raise InvalidField(f"{name} may be given once{remedy}", param=name)
        found[name] = value
    return found
