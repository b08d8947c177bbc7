"""The ingress of a Ray Serve application, which is the deployment that receives all HTTP requests: it reads a request,
chooses the model's deployment, forwards the request to a replica and passes on the response.

The ingress uses neither models nor engines. It checks keys and bodies like the app of every replica, so the body of a
client without a key takes no memory and is sent to no replica.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from fastapi.middleware.cors import CORSMiddleware
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.datastructures import Headers
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.apis import metrics, models
from genai_server.apis.admin import engines, requests
from genai_server.apis.admin import models as model_admin
from genai_server.apis.admin import profile_sessions as profiles
from genai_server.apis.app import DIALECTS, cors_options, open_paths
from genai_server.apis.messages.errors import speaks_anthropic
from genai_server.apis.ollama import routes as ollama
from genai_server.apis.responses import routes as responses
from genai_server.apis.responses.response import stream_error
from genai_server.apis.transcriptions.routes import UPLOAD_PATHS
from genai_server.config.settings import Settings
from genai_server.errors import (
    EngineDied,
    GenaiServerError,
    InvalidField,
    NoEngineReady,
    QueueFull,
    UnsupportedEndpoint,
)
from genai_server.http.api_keys import load_keys
from genai_server.http.body_budget import BodyBudget
from genai_server.http.error_responses import error_body, error_response
from genai_server.http.middleware.authentication import Authentication
from genai_server.http.middleware.body import BodyLimits
from genai_server.http.middleware.request_lifetime import RequestLifetime
from genai_server.http.rate_limit import RateLimits
from genai_server.http.request_state import request_state
from genai_server.http.streams import EventStream, LineStream, event_bytes, line_bytes
from genai_server.logs import configure_logging
from genai_server.model_files.speech_and_vision import any_takes_media
from genai_server.ray_serve.broadcast import ask_replicas
from genai_server.ray_serve.forwarded import (
    FORWARDED,
    READINESS,
    REPLICA_HEADER,
    ForwardedRequest,
    ReplicaAnswer,
    body_fields,
    form_fields,
    prompt_text,
    with_header,
)
from genai_server.ray_serve.merging import joined, merged, merged_metrics
from genai_server.ray_serve.model_choice import ModelNames, matches, requested_task

_NAMED = b"event: "
_DATA = b"\ndata: "


def is_event(message: Message) -> bool:
    """Return whether an ASGI message of a response contains a named server-sent event."""
    return bool(message.get("body", b"").startswith(_NAMED))


def stream_end(start: Message, last_event: bytes, error: GenaiServerError, scope: Scope) -> Message:
    """Return the last ASGI message of a response that has begun with the message `start` and cannot be completed: an
    event or line of the stream that contains `error`.

    If the response is not a stream of events or lines, the message's body is empty. `last_event` is the last named
    event that was sent, because the events of /v1/responses are numbered. `scope` is that of the request.
    """
    kind = Headers(raw=start["headers"]).get("content-type", "")
    body = b""
    if kind.startswith(LineStream.MEDIA_TYPE):
        body = line_bytes(error_body(error, scope))
    elif kind.startswith(EventStream.MEDIA_TYPE):
        if matches(responses.router.routes, scope):
            number = json.loads(last_event.partition(_DATA)[2])["sequence_number"] + 1 if last_event else 0
            body = event_bytes(stream_error(error, number), named=True)
        else:
            body = event_bytes(error_body(error, scope), named=speaks_anthropic(scope))
    return {"type": "http.response.body", "body": body, "more_body": False}


log = logging.getLogger(__name__)

# Seconds for replicas to report what their apps know, and to carry out an admin call. A call of one named replica has
# more, because no other waits for it, and an engine replies only after its longest pass.
_STATE_TIMEOUT = 5.0
_ADMIN_TIMEOUT = 10.0
_SINGLE_ADMIN_TIMEOUT = 25.0
# For how many seconds an answer about the replicas' health is kept.
_HEALTH_LASTS = 1.0
# Whether the ingress itself lives: Serve replaces replicas.
_LIVENESS = "/livez"
_HEALTH = frozenset({"/health", "/readyz"})
# What every replica is asked for.
_ALL_REPLICAS_PATHS = frozenset({"/healthz", metrics.HISTORY_PATH})
# What one replica of each model is asked for.
_EACH_MODEL_PATHS = frozenset({"/v1/models", "/models", "/api/tags", "/api/ps", "/api/v0/models", "/api/v1/models"})
_MODEL_PATHS = ("/v1/models/", "/models/", "/api/v0/models/")
# Texts for these are no prompts, and leave no prefix in a cache.
_NO_PROMPTS = ("embed", "rerank", "score", "tokenize")
_REQUEST_ID = b"x-request-id"
_UNSUPPORTED = 1008


class Ingress:
    """The class of the ingress deployment, which receives all HTTP requests and forwards them to replicas of the
    models. Ray Serve creates its instances.

    `names` chooses the model of a request, and `models` maps model names to the handles of their deployments. The ASGI
    app is created in the process where Ray Serve runs the ingress.
    """

    def __init__(self, names: ModelNames, models: Mapping[str, Any]) -> None:
        self._names = names
        self._models = models

    def __serve_build_asgi_app__(self) -> ASGIApp:  # the name that Serve looks for
        return _IngressApp(self._names, self._models)


class _IngressApp:
    """The ASGI app of the ingress. It checks each HTTP request, forwards it to a replica of the model or to all
    replicas, and sends their response to the client.
    """

    def __init__(self, names: ModelNames, models: Mapping[str, Any]) -> None:
        settings = names.settings
        configure_logging(settings.log_level, settings.log_format)
        self._names = names
        self._metrics_path = None if settings.metrics == "off" else metrics.PATH
        self._replicas = models
        self._streams = {name: handle.options(stream=True, method_name="stream") for name, handle in models.items()}
        self._health: tuple[float, ReplicaAnswer | None] = (float("-inf"), None)
        self._app = self._guarded(settings)

    def _guarded(self, settings: Settings) -> ASGIApp:
        """Return the ASGI app that forwards requests, wrapped in those checks of a normal server that need no replica:
        API keys, rate limits, and the size of bodies.
        """
        bodies = BodyBudget(settings.max_bodies_bytes)
        media_limit = settings.max_media_body_bytes if any_takes_media(settings.served.values()) else 0
        app: ASGIApp = BodyLimits(
            self._forward,
            settings.max_body_bytes,
            settings.body_timeout,
            bodies,
            media_limit=lambda: media_limit,
            form_limits=dict.fromkeys(UPLOAD_PATHS, settings.max_audio_body_bytes),
        )
        app = Authentication(
            app,
            load_keys(settings),
            RateLimits(settings.max_concurrent_per_key, settings.rate_per_key, time.monotonic),
            admin_key=settings.admin_api_key,
            on_loopback=False,
            insecure=settings.insecure,
            open_paths=open_paths(settings),
        )
        if settings.cors_origins:
            app = CORSMiddleware(app, **cors_options(settings))
        return RequestLifetime(app, dialects=DIALECTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _UNSUPPORTED, "reason": "no WebSockets under Ray Serve"})
        else:
            # Serve's proxy sets the request's id on the response itself.
            async def send_unnamed(message: Message) -> None:
                is_start = message["type"] == "http.response.start"
                await send(with_header(message, _REQUEST_ID.decode(), "") if is_start else message)

            await self._app(scope, receive, send_unnamed)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        try:
            await self._answer(scope, message.get("body", b""), send)
        except GenaiServerError as error:
            await error_response(error, scope)(scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        headers = Headers(scope=scope)
        is_form = scope["path"] in UPLOAD_PATHS
        fields = await request_state(scope).parse(
            lambda: form_fields(headers, body) if is_form else body_fields(body), num_bytes=len(body)
        )
        request = _request(scope, body, fields)
        path, named = scope["path"], headers.get(REPLICA_HEADER)
        is_metrics = path == self._metrics_path
        if matches(_FIXED, scope):
            raise UnsupportedEndpoint(
                "what a deployment serves is in its settings: change GENAI_MODELS or GENAI_ADAPTERS, and deploy again"
            )
        if path == _LIVENESS:
            await _send(_ALIVE, send)
        elif path in _HEALTH:
            await _send(await self._state(), send)
        elif is_metrics or path in _ALL_REPLICAS_PATHS or matches(_ADMIN, scope):
            seconds = _ADMIN_TIMEOUT if matches(_ADMIN, scope) else _STATE_TIMEOUT
            answers = await self._ask_all(request, seconds if named is None else _SINGLE_ADMIN_TIMEOUT, named=named)
            await _send(merged_metrics(answers) if is_metrics else merged(answers), send)
        elif named is not None:
            raise InvalidField(
                REPLICA_HEADER, "is for admin calls, /metrics and /healthz; the request router chooses otherwise"
            )
        elif matches(_MODEL_LIST_ROUTES, scope):
            model_names = self._replicas if path in _EACH_MODEL_PATHS else [self._model(scope, fields)]
            await _send(joined(await asyncio.gather(*(self._ask_one(request, model) for model in model_names))), send)
        else:
            await self._pass_on(request, self._model(scope, fields), scope, send)

    def _model(self, scope: Scope, fields: Mapping[str, Any]) -> str:
        """Return the name of the model that a request chooses by its path or the fields of its body. Raises
        ModelNotFound, and TaskUnsupported if the model cannot do what the endpoint needs.
        """
        for prefix in _MODEL_PATHS:
            if scope["path"].startswith(prefix):
                return self._names.choose(scope["path"].removeprefix(prefix))
        model = fields.get("model")
        # Ollama's older name of it.
        id = fields.get("name") if model is None else model
        return self._names.choose(id, requested_task(scope, fields))

    async def _pass_on(self, request: ForwardedRequest, model: str, scope: Scope, send: Send) -> None:
        """Send a request to one replica of a model, and send the response to the client as it arrives.

        If the replica dies before its response begins, the request is sent to another replica, once. If it dies later,
        the stream ends with an error event. Raises EngineDied if no response begins.
        """
        start: Message | None = None
        last_event = b""
        has_ended = False
        for is_last in (False, True):
            try:
                async with aclosing(self._messages(request, model)) as messages:
                    async for message in messages:
                        start = start or message
                        await send(message)
                        last_event = message["body"] if is_event(message) else last_event
                        has_ended = message["type"] == "http.response.body" and not message.get("more_body")
                return
            except RayActorError:
                if has_ended:
                    return
                log.warning("a replica of %s has died", model)
                error = EngineDied("the replica that answered this request has died")
                if start is None and is_last:
                    raise error from None
                if start is not None:
                    await send(stream_end(start, last_event, error, scope))
                    return

    async def _messages(self, request: ForwardedRequest, model: str) -> AsyncGenerator[Message]:
        """Send a request to one replica of a model, and yield the ASGI messages of the response. Raises QueueFull if
        all replicas are busy, NoEngineReady if none can be started, and RayActorError if the replica dies.
        """
        handle = self._streams[model]
        # The request router reads the prompt of positional arguments only, and refuses an empty one.
        answers = handle.remote(request) if request.prompt else handle.remote(request=request)
        try:
            async for messages in answers:
                for message in messages:
                    yield message
        except BackPressureError as error:
            raise QueueFull(
                f"all replicas of {model} are busy, and {error.args[1]} requests wait for one (max_queued_requests)",
                retry_after=None if error.retry_after_s is None else max(1, round(error.retry_after_s)),
            ) from None
        except DeploymentUnavailableError:
            raise NoEngineReady(f"no replica of {model} can be started; Serve's status has the reason") from None
        except (asyncio.CancelledError, GeneratorExit):
            answers.cancel()
            raise

    async def _ask_one(self, request: ForwardedRequest, model: str) -> ReplicaAnswer:
        """Send a request to the replicas of a model and return the first successful answer, or an unsuccessful one if
        there is no other. Raises NoEngineReady if no replica is running.
        """
        answers = await ask_replicas([self._replicas[model]], request, _STATE_TIMEOUT, is_enough=_is_success)
        if not answers:
            raise NoEngineReady(f"no replica of {model} is running")
        return _best(answers)

    async def _ask_all(
        self, request: ForwardedRequest, seconds: float, *, named: str | None = None, **options: Any
    ) -> list[ReplicaAnswer]:
        """Send a request to the replicas of all models, or only to the replica `named`, and return their answers. A
        replica that does not answer within `seconds` seconds counts as failed. `options` are further arguments of
        `ask_replicas`.

        Raises NoEngineReady if no replica is running, and InvalidField if there is no replica `named`.
        """
        answers = await ask_replicas(self._replicas.values(), request, seconds, named=named, **options)
        if not answers and named is not None:
            raise InvalidField(REPLICA_HEADER, "must be a running replica", given=named)
        if not answers:
            raise NoEngineReady("no replica is running")
        return answers

    async def _state(self) -> ReplicaAnswer:
        """Return a replica's answer to a readiness check: that of a replica which accepts work or, if there is none,
        that of another replica.

        The answer is cached for a moment, because load balancers ask often. Raises NoEngineReady if no replica is
        running.
        """
        checked, state = self._health
        if state is None or time.monotonic() - checked > _HEALTH_LASTS:
            state = _best(await self._ask_all(READINESS, _STATE_TIMEOUT, is_enough=_is_success))
            self._health = time.monotonic(), state
        return state


# Calls about what runs on any replica; that of the readers of answers is one of them.
_ADMIN: list[BaseRoute] = [
    *(route for module in (engines, requests, profiles) for route in module.router.routes),
    *requests.readers_router.routes,
]
# A replica that is started later would not have what these bring.
_FIXED: list[BaseRoute] = [*model_admin.router.routes, *ollama.pull_router.routes]
_MODEL_LIST_ROUTES: list[BaseRoute] = [
    *models.router.routes,
    *ollama.models_router.routes,
    *models.lm_studio_router.routes,
]
_ALIVE = ReplicaAnswer("", "", HTTPStatus.OK, [(b"content-type", b"application/json")], b'{"status":"ok"}')


def _is_success(answer: ReplicaAnswer) -> bool:
    return answer.status < HTTPStatus.BAD_REQUEST


def _best(answers: Sequence[ReplicaAnswer]) -> ReplicaAnswer:
    return min(answers, key=lambda answer: answer.status)


def _request(scope: Scope, body: bytes, fields: Mapping[str, Any]) -> ForwardedRequest:
    record = request_state(scope).record
    has_prompt = not any(word in scope["path"] for word in _NO_PROMPTS)
    parts = {name: scope[name] for name in FORWARDED if name in scope}
    headers = [(bytes(name), bytes(value)) for name, value in scope["headers"] if name.lower() != _REQUEST_ID]
    parts["headers"] = [*headers, (_REQUEST_ID, record.request_id.encode())]
    return ForwardedRequest(parts, body, prompt_text(fields) if has_prompt else "", record.began_at)


async def _send(answer: ReplicaAnswer, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
