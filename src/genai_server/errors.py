"""All errors that the server raises on purpose, in one tree below GenaiServerError. They know nothing of HTTP:
http/error_responses.py maps them to responses.

Below GenaiServerError there are four branches, and errors of single commands of the command line:

- ConfigurationError: a setting or the installation is wrong. The start ends with one line.
- RequestError: the request is wrong. It is raised before any work is done.
- Unavailable: the same request may succeed later.
- GenerationFailed: the request was accepted, then failed.

Messages show values from clients and files with `quoted`: as JSON, not in Python's notation.
"""

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

# Characters of an exception's text that are shown in one line.
_MAX_REASON = 2000

# How similar a known name must be to be suggested, of 1.
_MIN_SIMILARITY = 0.6
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def quoted(value: object, limit: int = 100) -> str:
    """Return a value as JSON on one line, to be shown in a message: `true`, `null`, `"text"`.

    Text of more than `limit` characters is cut there and ends with `…`; what is cut off is not even encoded.
    """
    text = ""
    for piece in _ENCODER.iterencode(value[: limit + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > limit:
            text = text[:limit] + "…"
            break
    return escaped(text)


def escaped(text: str) -> str:
    """Return `text` on one line for a terminal or a log: control characters, invisible characters and lone surrogates
    are replaced by escapes.
    """
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Return the end of an error message about the unknown name `text`: "; did you mean NAME?" with the most similar of
    the known `names`, or "" if none is similar.
    """
    matches = difflib.get_close_matches(text, list(names), 1, _MIN_SIMILARITY)
    return f"; did you mean {matches[0]}?" if matches else ""


class GenaiServerError(Exception):
    """Base of all errors that the server raises on purpose. `code` identifies the class of the error, both to clients
    and in messages between processes. `param` is the field of the request that the error is about, if any.

    `retry_after` is the number of seconds after which the same request may succeed; None if waiting does not help.
    Message and `param` may quote what a client has sent. Lone surrogates in them, which no response can contain, are
    escaped.
    """

    code: ClassVar[str] = "server_error"
    # For errors that are always raised for the same reason.
    default_message: ClassVar[str] = ""
    default_retry_after: ClassVar[int | None] = None

    def __init_subclass__(cls, *, code: str) -> None:
        cls.code = code

    def __init__(self, message: str = "", *, param: str | None = None, retry_after: int | None = None) -> None:
        self._message = _encodable(message or self.default_message)
        self.param = None if param is None else _encodable(param)
        self.retry_after = self.default_retry_after if retry_after is None else retry_after
        super().__init__(self._message)

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        """A sentence that says what is wrong."""
        return self._message

    @property
    def facts(self) -> Mapping[str, object]:
        """The values, by name, of which an API can make a message in the words that its clients recognize; empty if all
        APIs show `message`.
        """
        return {}

    def at(self, path: str) -> Self:
        """Return a copy of this error that is about the field at `path` of the request. The message of the copy begins
        with the path.
        """
        return type(self)(f"{path}: {self.message}", param=path, retry_after=self.retry_after)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def in_one_line(error: BaseException) -> str:
    """Describe any exception in one line for an operator: its type and text. The type is left out of errors whose text
    is a full sentence (GenaiServerError and RuntimeError).
    """
    try:
        text = _encodable(" ".join(str(error).split()))[:_MAX_REASON]
    except Exception:  # the exception's own code makes the text
        text = ""
    if isinstance(error, GenaiServerError) or type(error) is RuntimeError:
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ConfigurationError(GenaiServerError, code="configuration_error"):
    """A setting or the installation is wrong. The message names the setting and its value."""


class ModelDirectoryError(ConfigurationError, code="model_directory_error"):
    """The model directory is missing or incomplete. The message names the file."""


class ChatTemplateError(ConfigurationError, code="chat_template_error"):
    """The chat template that the operator has configured in place of the model's own cannot be used."""


class PullFailed(GenaiServerError, code="pull_failed"):
    """A model could not be downloaded from a hub. The message says why, and what to do."""


class ExportFailed(GenaiServerError, code="export_failed"):
    """A model directory could not be built. The message says why, and where the builder's log is."""


class ChatFailed(GenaiServerError, code="chat_failed"):
    """The terminal chat has no server, or got no response from it. The message says why."""


class ServerUnusable(GenaiServerError, code="server_unusable"):
    """A command got no response from a server, or none that it can use. The message says why."""


class RequestError(GenaiServerError, code="invalid_request"):
    """The request is wrong or not allowed, and no work was done for it. Base of all such errors."""


# Stands for a value that is not shown.
_NOT_SHOWN = object()


class AsIs(str):
    """A text that messages of errors show as it is, such as `512x512`. Other values are shown as JSON, texts in
    quotation marks.
    """


class InvalidField(RequestError, code="invalid_value"):
    """A field of a request has a value that cannot be used.

    `path` is the field's path in the body, such as `messages[0].content`; None if only the caller knows the path, and
    adds it with `at`. The message is composed of parts, so that an API can use the field name that its clients know:
    PATH RULE OTHER LIMIT (LIMITED_BY); given VALUE. Only path and rule are always present. `rule` says what the value
    must be. `other` is the path of a second field, which follows the rule, as in "cannot be combined with".
    `limited_by` is the setting, or whatever else determines the limit. Long values are cut.
    """

    def __init__(
        self,
        path: str | None,
        rule: str,
        *,
        limit: int | str | None = None,
        limited_by: str = "",
        other: str | None = None,
        given: object = _NOT_SHOWN,
    ) -> None:
        super().__init__(rule, param=path)
        self.limit = limit
        self.limited_by = limited_by
        self.other = other
        # As text.
        self.given = None if given is _NOT_SHOWN else given if isinstance(given, AsIs) else quoted(given)

    @property
    def rule(self) -> str:
        """What the value of the field must be, as a text that follows the field's name in the message, such as "must be
        at most".
        """
        return self._message

    @property
    def message(self) -> str:
        """The complete sentence, in which the fields are named by their paths."""
        return self.sentence(self.param, self.other, self.given)

    def sentence(self, name: str | None, other: str | None, given: str | None) -> str:
        """Compose the message with other names: `name` for the field, `other` for the second field, and `given` for the
        value, as JSON. What is None is left out of the message.
        """
        parts = (name, self.rule, other, self.limit, f"({self.limited_by})" if self.limited_by else None)
        sentence = " ".join(str(part) for part in parts if part is not None)
        return sentence if given is None else f"{sentence}; given {given}"

    def at(self, path: str, rule: str = "cannot be used") -> Self:
        """Return a copy of this error that is about the field at `path`. Its message is the path, `rule`, and this
        error's message as the reason.
        """
        return type(self)(path, f"{rule}: {self.message}")


class UnknownField(InvalidField, code="unknown_parameter"):
    """The endpoint has no field with this name."""


class UnsupportedField(InvalidField, code="unsupported_parameter"):
    """The API has this field, but this server does not support it."""


class MissingField(InvalidField, code="missing_required_parameter"):
    """A required field of the request is missing."""


class WrongType(InvalidField, code="invalid_type"):
    """A field of the request has the wrong JSON type."""


class NoChatTemplate(InvalidField, code="no_chat_template"):
    """The model has no chat template, so it accepts raw prompts but no messages."""


class PromptTooLong(InvalidField, code="context_length_exceeded"):
    """A prompt is so long that no token is left for the answer, or another text of the request is too long.

    `tokens` is the length of a prompt in tokens, and 0 for other texts. For a prompt, each API uses the words by which
    its clients recognize that they must shorten the conversation.
    """

    def __init__(self, path: str | None, rule: str = "leaves no token", *, tokens: int = 0, **parts: Any) -> None:
        super().__init__(path, rule, **parts)
        self.tokens = tokens

    @property
    def facts(self) -> Mapping[str, object]:
        values = {"tokens": self.tokens, "limit": self.limit, "limited_by": self.limited_by}
        return values if self.tokens else {}


class TaskUnsupported(InvalidField, code="unsupported_task"):
    """The model does not support the task of the request, such as embeddings. The message names the models that do."""


class PreviousNotFound(InvalidField, code="previous_response_not_found"):
    """The response that a request continues is not stored, or has been removed from the store."""


class MalformedHead(RequestError, code="invalid_http"):
    """The head of the request is not valid HTTP, or is ambiguous."""


class HeadTooLarge(RequestError, code="head_too_large"):
    """The head of the request exceeds the size limit. The message names the limit."""


class MalformedBody(RequestError, code="invalid_json"):
    """The body is not JSON."""


class MalformedForm(RequestError, code="invalid_form"):
    """The body is not a form in multipart/form-data."""


class BodyTooLarge(RequestError, code="body_too_large"):
    """The body exceeds the size limit for one request. The message names the limit."""


class ModelNotFound(RequestError, code="model_not_found"):
    """No model with this name is served. `name` is the name in the request; None if the request names none."""

    def __init__(self, message: str = "", *, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.name = name

    @property
    def facts(self) -> Mapping[str, object]:
        return {} if self.name is None else {"name": quoted(self.name)}


class UnsupportedEndpoint(RequestError, code="unsupported_endpoint"):
    """The API has this endpoint, but this server does not support it. The message names an alternative."""


class ModelLoadFailed(RequestError, code="model_load_failed"):
    """The model in a directory that an operator has named cannot be loaded. The message has the library's reason."""


class AdapterLoadFailed(RequestError, code="adapter_load_failed"):
    """The adapter in a file that an operator has named cannot be loaded. The message says what does not fit."""


class RequestNotFound(RequestError, code="request_not_found"):
    """No request with the name that an operator has given is running or waiting."""


class AmbiguousRequest(RequestError, code="request_ambiguous"):
    """Several running or waiting requests have the name that an operator has given. The message has the unique id of
    each.
    """


class ThreadUnsupported(RequestError, code="thread_unsupported_request"):
    """The request asks the server to store the conversation (a thread), which this server does not do for Anthropic's
    API.

    Anthropic's client recognizes the code of this error and continues without a stored conversation.
    """


class ResponseNotFound(RequestError, code="response_not_found"):
    """No response with this id is stored. It may have been removed."""


class ConversationNotFound(RequestError, code="conversation_not_found"):
    """No conversation with this id is stored, or the conversation has no item with this id. It may have been
    deleted.
    """


class StoredFileNotFound(RequestError, code="file_not_found"):
    """No file with this id is stored for the API key. It may have been removed."""


class BatchNotFound(RequestError, code="batch_not_found"):
    """The API key has no batch with this id."""


class BodyTooSlow(RequestError, code="body_too_slow"):
    """The body of the request did not arrive in time."""


class TooManyValues(RequestError, code="too_many_values"):
    """The JSON body has more lists and objects than are allowed. The message names the limit."""


class NestedTooDeep(RequestError, code="nested_too_deep"):
    """The JSON body's lists and objects are nested too deeply. The message names the limit."""


class InvalidApiKey(RequestError, code="invalid_api_key"):
    """The request has no API key, or an unknown one."""


class RateLimitExceeded(RequestError, code="rate_limit_exceeded"):
    """The API key has reached its limit of running requests, or of requests per minute."""


class ProfileNotFound(RequestError, code="profile_not_found"):
    """There is no performance profile, profile session or file of one with this name, or it cannot be read."""


class AdminForbidden(RequestError, code="admin_forbidden"):
    """The request may not use the admin endpoints. The message says what would allow it."""


class OriginForbidden(RequestError, code="origin_forbidden"):
    """A web page of an origin that is not allowed sent the request."""

    default_message = "web pages of this Origin may not use the server (GENAI_CORS_ORIGINS)"


class Unavailable(GenaiServerError, code="unavailable"):
    """The server cannot accept this request now; the same request may succeed later. Base of the errors of a server
    that is overloaded, loading a model or stopping.
    """

    # Engines restart and queues move on within seconds.
    default_retry_after: ClassVar[int | None] = 1


class QueueFull(Unavailable, code="queue_full"):
    """Too much work waits already: requests or prompt tokens for a device, requests for a model that is being loaded,
    or tasks for worker processes. The message names the limit.
    """


class BodiesTooLarge(Unavailable, code="bodies_too_large"):
    """The bodies of all current requests together have reached their memory limit. The message names the limit."""


class SessionTerminated(Unavailable, code="session_terminated"):
    """An operator has set the runtime option terminate_session to "1" on the device, which ends the running requests
    there and refuses new ones.
    """

    # Until the operator decides otherwise.
    default_retry_after = None


class NoEngineReady(Unavailable, code="no_engine_ready"):
    """No engine process of the model can accept work now: none is running, or the model is still being loaded."""


class TooManyConnections(Unavailable, code="too_many_connections"):
    """The server has as many open connections and files as the process may have (its limit of file descriptors)."""


class ModelsBusy(Unavailable, code="models_busy"):
    """The model could not be loaded in time, because other models are in use or occupy the memory that it needs."""


class ModelTooLarge(Unavailable, code="insufficient_memory"):
    """There is too little memory for the model, even if all others were unloaded. The message has the numbers."""


class CheckerUnavailable(Unavailable, code="checker_unavailable"):
    """The process that checks grammars cannot be started."""


class ImageReaderUnavailable(Unavailable, code="image_reader_unavailable"):
    """The process that prepares images cannot be started, or has no space for its files."""


class UploadUnavailable(Unavailable, code="upload_unavailable"):
    """An uploaded file cannot be written to the disk. The message has the reason."""


class AudioReaderUnavailable(Unavailable, code="audio_reader_unavailable"):
    """A process that decodes or reads recordings cannot be started, or has no space for its files."""


class ToolServerUnavailable(Unavailable, code="tool_server_unavailable"):
    """A tool server is not running, or does not list its tools."""


class StoreUnavailable(Unavailable, code="store_unavailable"):
    """A database file of the server cannot be read or written now, for example that of stored responses, files and
    batches. The message has the reason.
    """


class ServerDraining(Unavailable, code="server_draining"):
    """The server is stopping: running requests continue, and new ones are refused."""

    default_message = "the server is about to stop and accepts no new requests"


class GenerationFailed(GenaiServerError, code="generation_failed"):
    """A request failed after it was accepted. Base of the errors that may come in a stream that has begun."""


class GrammarFailed(GenerationFailed, code="grammar_failed"):
    """The answer so far and the request's grammar allow no further token. Unlike an invalid grammar, this can only be
    noticed while the answer is generated.
    """


class DeadlinePassed(GenerationFailed, code="timeout"):
    """The request's deadline has passed, and no part of the result can be returned."""


class RequestCancelled(GenerationFailed, code="cancelled"):
    """An operator has cancelled the request, and no part of the result can be returned."""


class ModelUnloaded(GenerationFailed, code="model_unloaded"):
    """The model was unloaded while the request was running or before the request reached its engine."""


class EngineDied(GenerationFailed, code="engine_died"):
    """The engine process died while it ran the request."""


class EngineHung(EngineDied, code="engine_hung"):
    """The engine process did not finish a step within the time limit, and the supervisor has killed it."""


class ServerStopping(GenerationFailed, code="server_stopping"):
    """The server is stopping, and the time within which running answers could end is over."""

    default_message = "the server is stopping"
    # Another server takes its place, or it starts again.
    default_retry_after = 1


class RunnerFailed(GenerationFailed, code="runner_failed"):
    """ONNX Runtime GenAI, the library that runs the model, raised an error while it ran this request. Other requests
    continue.
    """


def _tree(root: type[GenaiServerError]) -> list[type[GenaiServerError]]:
    return [root, *(error for child in root.__subclasses__() for error in _tree(child))]


ALL_ERRORS = tuple(_tree(GenaiServerError))


# What pydantic's types of errors mean; for others its own message is used.
_RULES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be a smaller number",
    "int_type": "must be an integer",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "too_long": "must have at most {max_length} elements, not {actual_length}",
    "too_short": "must have at least {min_length} elements",
}
# Python's notation of values, and JSON's.
_JSON = {"'": '"', "True": "true", "False": "false", "None": "null"}


def rule_of(finding: Mapping[str, Any]) -> str:
    """Return what a value must be, as the rule of an InvalidField. `finding` is an entry of pydantic's list of
    errors.
    """
    context = finding.get("ctx", {})
    if finding["type"] not in _RULES:
        return str(finding["msg"]).removeprefix("Value error, ")
    if finding["type"].endswith("too_short") and context["min_length"] == 1:
        return "must not be empty"
    if finding["type"] == "literal_error":
        for python, json in _JSON.items():
            context = {**context, "expected": context["expected"].replace(python, json)}
    return _RULES[finding["type"]].format_map(context)
