"""The errors of the server in one tree, without HTTP: http/error_responses.py maps them.

GenaiServerError
├── ConfigurationError          a setting or the installation is wrong: the start ends with one line
│   ├── ModelDirectoryError     the model directory is missing or incomplete
│   └── ChatTemplateError       the chat template that an operator gives cannot be used
├── PullFailed                  a model could not be fetched; the incomplete folder is not used
├── ExportFailed                a model could not be built; the incomplete folder is not used
├── ChatFailed                  there is no server to chat with, or it does not answer
├── RequestError                the request is wrong; raised before any work is done
│   ├── InvalidField            a field has a value that cannot be used
│   │   ├── UnknownField        a field that the endpoint does not know
│   │   ├── UnsupportedField    a field of the API that this server does not support
│   │   ├── MissingField        a required field is missing
│   │   ├── WrongType           a field has the wrong JSON type
│   │   ├── NoChatTemplate      the model has no chat template, and so takes no messages
│   │   ├── PromptTooLong       the prompt does not fit the length that the server allows
│   │   ├── TaskUnsupported     the model cannot do what the request asks for
│   │   └── PreviousNotFound    the response to continue is not kept
│   ├── MalformedHead           the head of the request is not valid HTTP
│   ├── HeadTooLarge            the head is over the size limit
│   ├── MalformedBody           the body is not JSON
│   ├── BodyTooLarge            the body is over the size limit
│   ├── ModelNotFound           no such model is served
│   ├── UnsupportedEndpoint     the API has this endpoint, and this server does not support it
│   ├── ModelLoadFailed         the model that an operator wants to serve cannot be loaded
│   ├── AdapterLoadFailed       the adapter that an operator wants to load cannot be loaded
│   ├── RequestNotFound         no such request is running or waiting
│   ├── AmbiguousRequest        several running or waiting requests have this name
│   ├── ThreadUnsupported       the request asks the server to keep its conversation
│   ├── ResponseNotFound        no such response is kept
│   ├── ConversationNotFound    no such conversation, or no such item of it, is kept
│   ├── BodyTooSlow             the body did not arrive in time
│   ├── TooManyValues           the body has too many lists and objects
│   ├── NestedTooDeep           the body's lists and objects are nested too deeply
│   ├── InvalidApiKey           the request has no key, or a wrong one
│   ├── RateLimitExceeded       the key is over its limit of requests for now
│   ├── ProfileNotFound         there is no such profile, or nothing of it can be read
│   └── AdminForbidden          the request may not use the admin endpoints
├── Unavailable                 the same request may succeed later
│   ├── QueueFull               the limit of waiting requests, or of their tokens, is reached
│   ├── SessionTerminated       the operator has terminated the device's session
│   ├── BodiesTooLarge          the bodies of all requests together are over the size limit
│   ├── NoEngineReady           no engine process can take work now
│   ├── TooManyConnections      the limit of open connections is reached
│   ├── ModelsBusy              all models that may be loaded at once are in use
│   ├── CheckerUnavailable      no process that checks grammars can be started
│   ├── StoreUnavailable        the file of stored responses cannot be read or written
│   ├── ServerStarting          no process of the API is ready yet
│   └── ServerDraining          the server is stopping and accepts no new requests
└── GenerationFailed            accepted, then failed
    ├── GrammarFailed           the answer's grammar cannot be followed further
    ├── DeadlinePassed          the request's time is over, and no part of its result can be returned
    ├── RequestCancelled        an operator has cancelled it, and no part of its result can be returned
    ├── ModelUnloaded           the model was unloaded while the request ran
    ├── EngineDied              the engine process ended while the request was in it
    │   └── EngineHung          it hung in a step, and was killed
    ├── ServerStopping          the server is stopping, and its time to wait is over
    └── RunnerFailed            the library raised while it ran this request
"""

from copy import copy
from typing import ClassVar, Self

# Characters of an exception's text that are shown in one line.
_MAX_REASON = 2000


class GenaiServerError(Exception):
    """Base of all errors that the server raises on purpose; `code` names the class to clients and across processes.

    `retry_after` is the number of seconds after which the same request may succeed; None if waiting does not help.
    Message and parameter may quote what a client has sent: lone surrogates, which no response can hold, become escapes.
    """

    code: ClassVar[str] = "server_error"
    # For errors that are always raised for the same reason.
    default_message: ClassVar[str] = ""
    default_retry_after: ClassVar[int | None] = None

    def __init__(self, message: str = "", *, param: str | None = None, retry_after: int | None = None) -> None:
        self.message = _encodable(message or self.default_message)
        self.param = None if param is None else _encodable(param)
        self.retry_after = self.default_retry_after if retry_after is None else retry_after
        super().__init__(self.message)

    def reworded(self, message: str, *, param: str | None) -> Self:
        """The same error with another message and parameter."""
        found = copy(self)
        GenaiServerError.__init__(found, message, param=param, retry_after=self.retry_after)
        return found


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def in_one_line(error: BaseException) -> str:
    """Any exception as one line for an operator: type and text, or only the text if that is meant to be read."""
    try:
        text = _encodable(" ".join(str(error).split()))[:_MAX_REASON]
    except Exception:  # the exception's own code makes the text
        text = ""
    if isinstance(error, GenaiServerError) or type(error) is RuntimeError:
        return text or type(error).__name__
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ConfigurationError(GenaiServerError):
    """A setting or the installation is wrong; the message names key and value."""

    code = "configuration_error"


class ModelDirectoryError(ConfigurationError):
    """The model directory is missing or incomplete; the message names the file."""

    code = "model_directory_error"


class ChatTemplateError(ConfigurationError):
    """The chat template that an operator gives in place of the model's own cannot be used; the message says why."""

    code = "chat_template_error"


class PullFailed(GenaiServerError):
    """A model could not be fetched from a hub; the message says why, and what to do."""

    code = "pull_failed"


class ExportFailed(GenaiServerError):
    """A model directory could not be built; the message says why, and where the builder's log is."""

    code = "export_failed"


class ChatFailed(GenaiServerError):
    """The terminal chat has no server, or did not get an answer from it; the message says why."""

    code = "chat_failed"


class RequestError(GenaiServerError):
    """The request is at fault; no work was done for it."""

    code = "invalid_request"


class InvalidField(RequestError):
    """A field has a value that cannot be used; `param` names it."""

    code = "invalid_value"


class UnknownField(InvalidField):
    """The endpoint does not know a field."""

    code = "unknown_parameter"


class UnsupportedField(InvalidField):
    """The API has this field, and this server does not support it."""

    code = "unsupported_parameter"


class MissingField(InvalidField):
    """A required field is missing."""

    code = "missing_required_parameter"


class WrongType(InvalidField):
    """A field has the wrong JSON type."""

    code = "invalid_type"


class NoChatTemplate(InvalidField):
    """The model has no chat template, so it takes raw prompts but no messages."""

    code = "no_chat_template"


class PromptTooLong(InvalidField):
    """The prompt leaves no token for the answer; http/error_responses.py says so in the words of each API."""

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        tokens: int = 0,
        limit: int = 0,
        limited_by: str = "",
    ) -> None:
        super().__init__(message, param=param, retry_after=retry_after)
        # Length of the prompt; 0 if unknown.
        self.tokens = tokens
        # Maximum number of tokens of prompt and answer together.
        self.limit = limit
        # The setting, or what else sets this limit.
        self.limited_by = limited_by


class TaskUnsupported(InvalidField):
    """The model cannot do what the request asks for; the message names the models that can."""

    code = "unsupported_task"


class PreviousNotFound(InvalidField):
    """The response that a request continues is not kept, or not any more."""

    code = "previous_response_not_found"


class MalformedHead(RequestError):
    """The head of the request is not valid HTTP, or can be read in more than one way."""

    code = "invalid_http"


class HeadTooLarge(RequestError):
    """The head of the request is over the size limit; the message names the limit."""

    code = "head_too_large"


class MalformedBody(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


class BodyTooLarge(RequestError):
    """The body is over the size limit."""

    code = "body_too_large"


class ModelNotFound(RequestError):
    """No such model is served."""

    code = "model_not_found"


class UnsupportedEndpoint(RequestError):
    """The API has this endpoint, and this server does not support it; the message says what does the same."""

    code = "unsupported_endpoint"


class ModelLoadFailed(RequestError):
    """The model in the directory that an operator has named cannot be loaded; the message has the library's reason."""

    code = "model_load_failed"


class AdapterLoadFailed(RequestError):
    """The adapter in the file that an operator has named cannot be loaded; the message says what does not fit."""

    code = "adapter_load_failed"


class RequestNotFound(RequestError):
    """No such request is running or waiting."""

    code = "request_not_found"


class AmbiguousRequest(RequestError):
    """Several running or waiting requests have this name; the message has the unique id of each."""

    code = "request_ambiguous"


class ThreadUnsupported(RequestError):
    """The request asks the server to keep the conversation. With this code Anthropic's client continues without."""

    code = "thread_unsupported_request"


class ResponseNotFound(RequestError):
    """No such response is kept, or not any more."""

    code = "response_not_found"


class ConversationNotFound(RequestError):
    """No such conversation, or no such item of it, is kept, or not any more."""

    code = "conversation_not_found"


class BodyTooSlow(RequestError):
    """The body did not arrive in time."""

    code = "body_too_slow"


class TooManyValues(RequestError):
    """The body has more lists and objects than are allowed."""

    code = "too_many_values"


class NestedTooDeep(RequestError):
    """The body's lists and objects are nested too deeply."""

    code = "nested_too_deep"


class InvalidApiKey(RequestError):
    """The request has no key, or an unknown one."""

    code = "invalid_api_key"


class RateLimitExceeded(RequestError):
    """The key has reached its limit of running requests, or of requests within a minute."""

    code = "rate_limit_exceeded"


class ProfileNotFound(RequestError):
    """There is no such profile, or nothing of it can be read."""

    code = "profile_not_found"


class AdminForbidden(RequestError):
    """The request may not use the admin endpoints; the message says what would allow it."""

    code = "admin_forbidden"


class Unavailable(GenaiServerError):
    """The server cannot take this request now; the same request may succeed later."""

    code = "unavailable"
    # Engines restart and queues move on within seconds.
    default_retry_after = 1


class QueueFull(Unavailable):
    """The limit of requests that wait for the device, or of their prompts' tokens, is reached."""

    code = "queue_full"


class BodiesTooLarge(Unavailable):
    """The bodies of all requests together have reached their memory limit."""

    code = "bodies_too_large"


class SessionTerminated(Unavailable):
    """The operator has set terminate_session to "1" on the device."""

    code = "session_terminated"


class NoEngineReady(Unavailable):
    """No engine process can take work now."""

    code = "no_engine_ready"


class TooManyConnections(Unavailable):
    """All files that the process may open for connections are in use."""

    code = "too_many_connections"


class ModelsBusy(Unavailable):
    """All models that may be loaded at once (GENAI_MAX_MODELS) have requests, so none can be unloaded."""

    code = "models_busy"


class CheckerUnavailable(Unavailable):
    """The process that checks grammars cannot be started."""

    code = "checker_unavailable"


class StoreUnavailable(Unavailable):
    """The file of stored responses cannot be read or written; the message has the reason."""

    code = "store_unavailable"


class ServerStarting(Unavailable):
    """No process of the API is ready yet."""

    code = "server_starting"
    default_message = "the server is starting; try again"


class ServerDraining(Unavailable):
    """The server is stopping: running requests continue, and new ones are refused."""

    code = "server_draining"
    default_message = "the server is about to stop and accepts no new requests"


class GenerationFailed(GenaiServerError):
    """An accepted request failed."""

    code = "generation_failed"


class GrammarFailed(GenerationFailed):
    """The grammar of the request cannot be followed further, which shows only during the answer."""

    code = "grammar_failed"


class DeadlinePassed(GenerationFailed):
    """The request's deadline has passed, and no part of its result can be returned."""

    code = "timeout"


class RequestCancelled(GenerationFailed):
    """An operator has cancelled the request, and no part of its result can be returned."""

    code = "cancelled"


class ModelUnloaded(GenerationFailed):
    """The model was unloaded, and its time for running answers is over; or the request came too late."""

    code = "model_unloaded"


class EngineDied(GenerationFailed):
    """The engine process ended while the request was in it."""

    code = "engine_died"


class EngineHung(EngineDied):
    """The engine process did not finish a step in time, and was killed."""

    code = "engine_hung"


class ServerStopping(GenerationFailed):
    """The server is stopping, and its time to wait for running answers is over."""

    code = "server_stopping"
    default_message = "the server is stopping"
    # Another server takes its place, or it starts again.
    default_retry_after = 1


class RunnerFailed(GenerationFailed):
    """The library raised while it ran this request. Other requests continue."""

    code = "runner_failed"


def _tree(root: type[GenaiServerError]) -> list[type[GenaiServerError]]:
    return [root, *(error for child in root.__subclasses__() for error in _tree(child))]


ALL_ERRORS = tuple(_tree(GenaiServerError))
