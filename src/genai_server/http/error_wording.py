"""What the package of an API supplies so that errors have that API's format, words and field names: a `Dialect`, and
`FieldNames` where the client's body is translated to a chat request.

Errors name a field by its path in the chat request (`errors.InvalidField`). http/error_responses.py renders each error
with the Dialect and the FieldNames of the request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from genai_server.errors import quoted


@dataclass(frozen=True)
class ErrorParts:
    """The parts of an error from which the error formats of the different APIs are made: status, type, message, code
    and field.
    """

    # HTTP status, and OpenAI's type of the error.
    status: int
    kind: str
    message: str
    code: str
    # The client's name for the field at fault, if one is.
    param: str | None = None
    # The request's id; empty for an error without a request.
    request_id: str = ""


def _openai_body(error: ErrorParts) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


@dataclass(frozen=True)
class Dialect:
    """How one API writes errors: the format of the body, sentences that the API's clients recognize, and which requests
    belong to the API. The package of each API defines one. The defaults are those of OpenAI's API and of this server's
    own endpoints.
    """

    # Whether a request is one of this API.
    covers: Callable[[Scope], bool] = lambda scope: True
    # The body of an error, or the data of the event that ends a stream.
    error_body: Callable[[ErrorParts], dict[str, Any]] = _openai_body
    # Sentences that clients of the API recognize, keyed by the error's code. They are formatted with the error's facts,
    # its `param` and its `message`.
    words: Mapping[str, str] = field(default_factory=dict)
    # The API's own header with the request's id, next to x-request-id.
    id_header: str | None = None


DEFAULT = Dialect(
    words={
        "context_length_exceeded": "This model's maximum context length is {limit} tokens. However, your {param} "
        "resulted in {tokens} tokens, and the answer needs at least one. Please reduce the length ({limited_by})."
    }
)


@dataclass(frozen=True)
class FieldNames:
    """The field names that error messages use. Bodies of most APIs are translated to a chat request, and errors name
    fields of that request; FieldNames maps these to the fields of the client's body. By default the names are equal.

    `table` maps paths of the chat request to the client's names. A longer path such as `messages[2].content[0]` has the
    name of its longest leading part that is in `table`, followed by the rest of the path. A name may have a remark in
    parentheses, as in `input (message 3)`.
    """

    table: Mapping[str, str] = field(default_factory=dict)
    # What the client gave for a field, by its path, where the chat has another value.
    values: Mapping[str, object] = field(default_factory=dict)

    def name(self, path: str) -> str:
        """Return the client's name for the field at `path` of the chat request."""
        prefix = path
        while prefix and prefix not in self.table:
            prefix = prefix[: max(prefix.rfind("."), prefix.rfind("["), 0)]
        return self.table[prefix] + path[len(prefix) :] if prefix else path

    def param(self, path: str) -> str:
        """Return the client's name for the field at `path` of the chat request, without a remark in parentheses, for
        the field `param` of an error body.
        """
        return self.name(path).partition(" (")[0]

    def value(self, path: str, text: str | None) -> str | None:
        """Return the value that the client sent for the field at `path` of the chat request, as JSON.

        That is `text`, the value in the chat request, unless the translation has changed it. None if `text` is None.
        """
        return quoted(self.values[path]) if text is not None and path in self.values else text
