"""The errors of the server, one tree; it knows no HTTP (api/errors.py maps it).

GenaiServerError
├── ConfigurationError          a setting or the installation is wrong: the start ends with one line
│   ├── ModelDirectoryError     the model directory is missing or incomplete
│   └── ChatTemplateError       the chat template that an operator gives cannot be used
├── PullFailed                  a model could not be fetched; what is there of it is not taken for one
├── ExportFailed                a model could not be built, likewise
├── ChatFailed                  there is no server to chat with, or it does not answer
├── RequestError                the caller's to mend; raised before any work is done
│   ├── InvalidField            a field has a value that cannot be honoured
│   │   ├── UnknownField        a field that the endpoint does not know
│   │   ├── UnsupportedField    a field that the API has and this server cannot honour
│   │   ├── MissingField        a field without which there is nothing to do
│   │   ├── WrongType           a field of another JSON type than it must have
│   │   ├── NoChatTemplate      the model has no chat template, and so takes no messages
│   │   ├── PromptTooLong       the prompt does not fit the length that the server allows
│   │   └── PreviousNotFound    the response to go on from is not kept
│   ├── MalformedHead           the head of the request is no proper HTTP
│   ├── HeadTooLarge            it is over the size limit
│   ├── MalformedBody           the body is not JSON
│   ├── BodyTooLarge            the body is over the size limit
│   ├── ModelNotFound           no such model is served
│   ├── ModelLoadFailed         the model that an operator wants to serve cannot be loaded
│   ├── AdapterLoadFailed       likewise an adapter
│   ├── RequestNotFound         no such request is running or waiting
│   ├── AmbiguousRequest        several requests are running or waiting by this name
│   ├── ThreadUnsupported       the request wants its conversation to be kept
│   ├── ResponseNotFound        no such response is kept
│   ├── BodyTooSlow             the body did not come in time
│   ├── TooManyValues           the body has too many lists and objects
│   ├── NestedTooDeep           lists and objects of the body lie within each other by too many
│   ├── InvalidApiKey           the caller has no key, or a wrong one
│   ├── RateLimitExceeded       the caller's key has no more requests for now
│   ├── ProfileNotFound         there is no such profile, or nothing of it can be read
│   └── AdminForbidden          the caller may not use the admin endpoints
├── Unavailable                 nobody's fault; the same request may succeed later
│   ├── QueueFull               as many requests, or tokens of prompts, wait as are allowed to
│   ├── SessionTerminated       the operator has terminated the device's session
│   ├── BodiesTooLarge          the bodies of all requests together are over the size limit
│   ├── NoEngineReady           no engine process can take work now
│   ├── TooManyConnections      as many connections are open as there are files for
│   ├── ModelsBusy              as many models as may be loaded are in use
│   ├── CheckerUnavailable      no process that checks grammars can be started
│   └── ServerDraining          the server was told to stop and takes no new work
└── GenerationFailed            accepted, then failed
    ├── GrammarFailed           the answer's grammar cannot be followed any further
    ├── ModelUnloaded           the model was unloaded while the request ran
    ├── EngineDied              the engine process ended while the request was in it
    │   └── EngineHung          it hung in a step, and was killed
    ├── ServerStopping          the server was told to stop and has waited for as long as it may
    └── RunnerFailed            the library raised while it ran this request
"""

from typing import ClassVar


class GenaiServerError(Exception):
    """Base of all errors that the server raises on purpose; `code` names the class to clients and across processes.

    `retry_after` are the seconds after which the same request may succeed; None where time alone changes nothing.
    Message and parameter may quote what a client has sent: lone surrogates, which no response can hold, become escapes.
    """

    code: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        self.message = _encodable(message)
        self.param = None if param is None else _encodable(param)
        self.retry_after = retry_after
        super().__init__(self.message)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


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
    """The caller's request is at fault; no work was done for it."""

    code = "invalid_request"


class InvalidField(RequestError):
    """A field has a value that cannot be honoured; `param` names it."""

    code = "invalid_value"


class UnknownField(InvalidField):
    """The endpoint does not know a field."""

    code = "unknown_parameter"


class UnsupportedField(InvalidField):
    """The API has this field, and this server cannot honour it."""

    code = "unsupported_parameter"


class MissingField(InvalidField):
    """A field is missing without which there is nothing to do."""

    code = "missing_required_parameter"


class WrongType(InvalidField):
    """A field is of another JSON type than it must have."""

    code = "invalid_type"


class NoChatTemplate(InvalidField):
    """The model has no chat template, so that no prompt can be made of messages; raw prompts it takes."""

    code = "no_chat_template"


class PromptTooLong(InvalidField):
    """The prompt does not leave room for one token of answer."""

    code = "context_length_exceeded"


class PreviousNotFound(InvalidField):
    """The response that a request goes on from is not kept, or no more."""

    code = "previous_response_not_found"


class MalformedHead(RequestError):
    """The head of the request is no proper HTTP, or can be read in more than one way."""

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
    """Several requests are running or waiting by this name; the message has the unique id of each."""

    code = "request_ambiguous"


class ThreadUnsupported(RequestError):
    """The server shall keep the conversation; Anthropic's client goes on without if it gets this code."""

    code = "thread_unsupported_request"


class ResponseNotFound(RequestError):
    """No such response is kept, or no more."""

    code = "response_not_found"


class BodyTooSlow(RequestError):
    """The body did not come in time."""

    code = "body_too_slow"


class TooManyValues(RequestError):
    """The body has more lists and objects than are allowed."""

    code = "too_many_values"


class NestedTooDeep(RequestError):
    """The lists and objects of the body lie within each other by more than is allowed."""

    code = "nested_too_deep"


class InvalidApiKey(RequestError):
    """The caller has no key, or one that this server does not know."""

    code = "invalid_api_key"


class RateLimitExceeded(RequestError):
    """The caller's key has as many requests running, or has begun as many within a minute, as it may."""

    code = "rate_limit_exceeded"


class ProfileNotFound(RequestError):
    """There is no such profile, or nothing of it can be read."""

    code = "profile_not_found"


class AdminForbidden(RequestError):
    """The caller may not use the admin endpoints; the message says what would allow it."""

    code = "admin_forbidden"


class Unavailable(GenaiServerError):
    """The server cannot take this request now; the same request may succeed later."""

    code = "unavailable"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        # Engines restart and queues move on within seconds.
        super().__init__(message, param=param, retry_after=1 if retry_after is None else retry_after)


class QueueFull(Unavailable):
    """As many requests, or tokens of their prompts, wait for the device as are allowed to."""

    code = "queue_full"


class BodiesTooLarge(Unavailable):
    """The bodies of the requests that are there take all the memory that they may."""

    code = "bodies_too_large"


class SessionTerminated(Unavailable):
    """The operator has set terminate_session to "1" on the device."""

    code = "session_terminated"


class NoEngineReady(Unavailable):
    """No engine process can take work now."""

    code = "no_engine_ready"


class TooManyConnections(Unavailable):
    """As many connections are open as the process has files for, but for those that it needs itself."""

    code = "too_many_connections"


class ModelsBusy(Unavailable):
    """As many models as may be loaded (GENAI_MAX_MODELS) have requests, so that none makes room for another."""

    code = "models_busy"


class CheckerUnavailable(Unavailable):
    """The process that checks grammars cannot be started."""

    code = "checker_unavailable"


class ServerDraining(Unavailable):
    """The server was told to stop: it ends what runs and takes no new work."""

    code = "server_draining"

    def __init__(
        self,
        message: str = "the server is about to stop and takes no new work",
        *,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message, param=param, retry_after=retry_after)


class GenerationFailed(GenaiServerError):
    """An accepted request failed."""

    code = "generation_failed"


class GrammarFailed(GenerationFailed):
    """The grammar that the request brought cannot be followed any further, which only shows on the way."""

    code = "grammar_failed"


class ModelUnloaded(GenerationFailed):
    """An operator has unloaded the model, and running answers had their time; or a new one came too late."""

    code = "model_unloaded"


class EngineDied(GenerationFailed):
    """The engine process ended while the request was in it."""

    code = "engine_died"


class EngineHung(EngineDied):
    """The engine process did not end a step in time, and was killed with the request in it."""

    code = "engine_hung"


class ServerStopping(GenerationFailed):
    """The server was told to stop, and has waited for running answers for as long as it may."""

    code = "server_stopping"

    def __init__(
        self, message: str = "the server stops", *, param: str | None = None, retry_after: int | None = None
    ) -> None:
        # Another server takes its place, or it starts again.
        super().__init__(message, param=param, retry_after=1 if retry_after is None else retry_after)


class RunnerFailed(GenerationFailed):
    """The library raised while it ran this request; the others go on."""

    code = "runner_failed"


def _tree(root: type[GenaiServerError]) -> list[type[GenaiServerError]]:
    return [root, *(error for child in root.__subclasses__() for error in _tree(child))]


ALL_ERRORS = tuple(_tree(GenaiServerError))
