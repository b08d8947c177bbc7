"""What an API's package supplies so that errors have that API's format, words and field names.

Errors name a field by its path (`errors.InvalidField`). http/error_responses.py renders them once, with the Dialect of
the request and, where the body was translated to a chat request, with the FieldNames of that translation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from genai_server.errors import quoted


@dataclass(frozen=True)
class ErrorParts:
    """The parts of an error that the error formats of the different APIs show."""

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
    """How one API writes errors: its format, its sentences, and which requests belong to it. The defaults are those of
    OpenAI's API and of this server's own endpoints.
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
    fields of that request; FieldNames maps these to the fields of the client's body. By default the names are the same.

    The name for a path such as `messages[2].content[0]` is that of the longest leading part that is in `table`,
    followed by the rest of the path. A name may have a remark in parentheses, as in `input (message 3)`; `param` omits
    it.
    """

    table: Mapping[str, str] = field(default_factory=dict)
    # What the client gave for a field, by its path, where the chat has another value.
    values: Mapping[str, object] = field(default_factory=dict)

    def name(self, path: str) -> str:
        """The client's name for the field at a path of the chat request."""
        prefix = path
        while prefix and prefix not in self.table:
            prefix = prefix[: max(prefix.rfind("."), prefix.rfind("["), 0)]
        return self.table[prefix] + path[len(prefix) :] if prefix else path

    def param(self, path: str) -> str:
        """The client's name for the field at a path, without a remark, as the `param` of an error."""
        return self.name(path).partition(" (")[0]

    def value(self, path: str, text: str | None) -> str | None:
        """What the client sent for the field at a path, as JSON.

        That is `text`, the value in the chat request, unless the translation has changed it. None if `text` is None.
        """
        return quoted(self.values[path]) if text is not None and path in self.values else text
