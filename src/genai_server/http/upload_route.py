"""Routes of FastAPI whose bodies are forms with a file, received by `http/middleware/uploads.py`."""

from typing import Any

from fastapi import Request
from pydantic import TypeAdapter

from genai_server.errors import InvalidField
from genai_server.http.body_route import BodyRoute, as_json, validated
from genai_server.http.request_state import request_state
from genai_server.http.upload import FILE, Upload
from genai_server.quoted_values import quoted

FORM = "multipart/form-data"
_MAX_SHOWN = 100


class UploadRoute(BodyRoute):
    """Gives FastAPI a form that is validated already, as if it were a JSON object; its file is a path.

    The parameter of the route is declared as `Body(media_type=FORM)`.
    """

    def checked_request(self, request: Request, adapter: TypeAdapter[Any]) -> Request:
        """The request whose `json` gives the validated form."""
        return _FormRequest(request, adapter)


class _FormRequest(Request):
    def __init__(self, request: Request, adapter: TypeAdapter[Any]) -> None:
        super().__init__(as_json(request.scope), request.receive)
        self._adapter = adapter

    async def body(self) -> bytes:
        """Not empty, so that FastAPI asks for the object."""
        return b"{}"

    async def json(self) -> Any:
        """The validated form. Raises RequestError."""
        upload = request_state(self.scope).upload
        assert upload is not None
        return validated(self._adapter, form_object(upload))


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
