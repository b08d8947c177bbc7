"""The ingress of a Ray Serve application: reads a request, chooses the model's deployment and passes its response on.

It knows neither models nor engines. Keys and bodies are checked here as in the app of every replica, so that a
stranger's body takes no memory and goes to no replica.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi.middleware.cors import CORSMiddleware
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genai_server.api.admin import adapters, profiles, requests, runtime_options
from genai_server.api.admin import models as model_admin
from genai_server.api.app import cors_options, open_paths
from genai_server.api.errors import error_body, error_response, speaks_anthropic, speaks_ollama
from genai_server.api.middleware.all_bodies import AllBodies
from genai_server.api.middleware.auth import Authentication
from genai_server.api.middleware.body import BodyLimits
from genai_server.api.middleware.internal_errors import InternalErrors
from genai_server.api.middleware.keys import load_keys
from genai_server.api.middleware.rate_limit import RateLimits
from genai_server.api.middleware.request_head import RequestHead
from genai_server.api.middleware.request_id import RequestId
from genai_server.api.routes import metrics, ollama_pull
from genai_server.cli.deploy.forwarded import (
    READINESS,
    REPLICA_HEADER,
    ForwardedRequest,
    ReplicaAnswer,
    body_head,
    prompt_text,
    with_header,
)
from genai_server.cli.deploy.merging import joined, merged, merged_metrics
from genai_server.config import Settings
from genai_server.errors import (
    EngineDied,
    GenaiServerError,
    InvalidField,
    ModelNotFound,
    NoEngineReady,
    QueueFull,
    UnsupportedEndpoint,
)
from genai_server.logs import configure_logging
from genai_server.messages.status_file import ANY_NAME
from genai_server.quoted_values import quoted

log = logging.getLogger(__name__)

# Seconds for all replicas to answer, and for how long an answer about their health is kept.
_PATIENCE = 25.0
_HEALTH_LASTS = 1.0
_HEALTH = frozenset({"/health", "/readyz"})
# What every replica is asked for.
_OF_ALL = frozenset({"/healthz"})
# What one replica of each model is asked for.
_OF_MODELS = frozenset({"/v1/models", "/models", "/api/tags", "/api/ps"})
_MODEL_PATHS = ("/v1/models/", "/models/")
# Texts for these are no prompts, and leave no prefix in a cache.
_NO_PROMPTS = ("embed", "rerank", "score", "tokenize")
_UNSUPPORTED = 1008


@dataclass(frozen=True)
class ModelNames:
    """The names by which requests choose a model, as `Catalog.choose` takes them."""

    settings: Settings

    @cached_property
    def _first(self) -> str:
        return next(iter(self.settings.served))

    def choose(self, id: object) -> str:
        """The model of an id; the first one without an id, and for one that is no text. Raises ModelNotFound."""
        served, aliases = self.settings.served, self.settings.aliases
        if not isinstance(id, str) or len(served) == 1:
            return self._first
        for name in (id, id.partition(":")[0], ANY_NAME):
            if name in served or name in aliases:
                return aliases.get(name, name)
        names = ", ".join(map(quoted, served))
        raise ModelNotFound(f"model {quoted(id)} is not served; {names} are", param="model")


class Ingress:
    """The deployment: makes its app where Serve runs it. `models` has the handle of each model's deployment."""

    def __init__(self, settings: Settings, models: Mapping[str, Any]) -> None:
        self._settings = settings
        self._models = models

    def __serve_build_asgi_app__(self) -> ASGIApp:  # the name that Serve looks for
        return _IngressApp(self._settings, self._models)


class _IngressApp:
    """The ASGI app."""

    def __init__(self, settings: Settings, models: Mapping[str, Any]) -> None:
        configure_logging(settings.log_level, settings.log_format)
        self._names = ModelNames(settings)
        self._metrics_path = None if settings.metrics == "off" else metrics.PATH
        self._replicas = models
        self._streams = {name: handle.options(stream=True, method_name="stream") for name, handle in models.items()}
        self._health: tuple[float, ReplicaAnswer | None] = (float("-inf"), None)
        self._app = self._guarded(settings)

    def _guarded(self, settings: Settings) -> ASGIApp:
        """The forwarding app behind those checks of the server's own app that a replica must not be asked for."""
        app: ASGIApp = InternalErrors(self._forward)
        app = BodyLimits(app, settings.max_body_bytes, settings.body_timeout, AllBodies(settings.max_bodies_bytes))
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
        return RequestId(RequestHead(app))

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
                await send(with_header(message, "x-request-id", "") if is_start else message)

            await self._app(scope, receive, send_unnamed)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        try:
            await self._answer(scope, message.get("body", b""), send)
        except GenaiServerError as error:
            await error_response(error, scope)(scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        request = _request(scope, body)
        path, named = scope["path"], Headers(scope=scope).get(REPLICA_HEADER)
        is_metrics = path == self._metrics_path
        if _matches(_FIXED, scope):
            raise UnsupportedEndpoint(
                "what a deployment serves is in its settings: change GENAI_MODELS or GENAI_ADAPTERS, and deploy again"
            )
        if path in _HEALTH:
            await _send(await self._state(), send)
        elif is_metrics or path in _OF_ALL or _matches(_ADMIN, scope):
            answers = await self._ask_all(request, named)
            accept = Headers(scope=scope).get("accept", "")
            await _send(merged_metrics(answers, accept) if is_metrics else merged(answers), send)
        elif named is not None:
            raise InvalidField(
                f"{REPLICA_HEADER} is for admin calls, /metrics and /healthz; the request router chooses otherwise",
                param=REPLICA_HEADER,
            )
        elif path in _OF_MODELS and len(self._replicas) > 1:
            answers = await asyncio.gather(*(self._ask_one(request, model) for model in self._replicas))
            await _send(joined(answers), send)
        else:
            await self._pass_on(request, self._model(path, body), scope, send)

    def _model(self, path: str, body: bytes) -> str:
        """The model that a request chooses. Raises ModelNotFound."""
        for prefix in _MODEL_PATHS:
            if path.startswith(prefix):
                return self._names.choose(path.removeprefix(prefix))
        head = body_head(body)
        return self._names.choose(head.name if head.model is None else head.model)

    async def _pass_on(self, request: ForwardedRequest, model: str, scope: Scope, send: Send) -> None:
        """Pass one replica's response on, as it comes.

        A request whose replica dies before its response begins is sent to another one, once; afterwards an event tells
        of the death.
        """
        start: Message | None = None
        for is_last in (False, True):
            try:
                async with aclosing(self._messages(request, model)) as messages:
                    async for message in messages:
                        start = start or message
                        await send(message)
                return
            except RayActorError:
                log.warning("a replica of %s has died", model)
                error = EngineDied("the replica that answered this request has died")
                if start is None and is_last:
                    raise error from None
                if start is not None:
                    await send(_last_words(start, error, scope))
                    return

    async def _messages(self, request: ForwardedRequest, model: str) -> AsyncGenerator[Message]:
        """The messages of one replica's response. Raises QueueFull, NoEngineReady and RayActorError."""
        handle = self._streams[model]
        # By a keyword the request router does not look for a prompt, and refuses an empty one otherwise.
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
        found = [message async for message in self._messages(request, model)]
        body = b"".join(message.get("body", b"") for message in found)
        return ReplicaAnswer("", model, found[0]["status"], found[0]["headers"], body)

    async def _ask_all(self, request: ForwardedRequest, named: str | None = None) -> Sequence[ReplicaAnswer]:
        """The answers of all replicas of all models, or of the named one. Raises NoEngineReady and InvalidField."""
        found = await asyncio.gather(*(self._ask(handle, request, named) for handle in self._replicas.values()))
        answers = [answer for one in found for answer in one]
        if not answers and named is not None:
            raise InvalidField(f"no replica {quoted(named)} is running", param=REPLICA_HEADER)
        if not answers:
            raise NoEngineReady("no replica is running")
        return answers

    async def _ask(self, handle: Any, request: ForwardedRequest, named: str | None) -> list[ReplicaAnswer]:
        try:
            asked = handle.broadcast("answer", request, named)
            found = await asked.results_async(timeout_s=_PATIENCE, return_exceptions=True)
        except DeploymentUnavailableError:
            return []
        except TimeoutError:
            raise NoEngineReady(f"a replica has not answered for {_PATIENCE:.0f} s") from None
        # A replica that dies meanwhile has nothing to say.
        return [answer for answer in found if isinstance(answer, ReplicaAnswer)]

    async def _state(self) -> ReplicaAnswer:
        """The answer of a replica that takes work, or of another; kept for a moment, for balancers ask often."""
        now = time.monotonic()
        told, kept = self._health
        if kept is None or now - told > _HEALTH_LASTS:
            answers = await self._ask_all(READINESS)
            kept = min(answers, key=lambda answer: answer.status)
            self._health = now, kept
        return kept


_ADMIN: list[BaseRoute] = [route for module in (runtime_options, requests, profiles) for route in module.router.routes]
# A replica that is started later would not have what these bring.
_FIXED: list[BaseRoute] = [route for module in (model_admin, adapters, ollama_pull) for route in module.router.routes]


def _matches(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


def _request(scope: Scope, body: bytes) -> ForwardedRequest:
    path: str = scope["path"]
    has_prompt = body and not any(word in path for word in _NO_PROMPTS)
    return ForwardedRequest(
        scope["method"],
        path,
        scope.get("raw_path") or path.encode(),
        scope["query_string"],
        [(bytes(name), bytes(value)) for name, value in scope["headers"]],
        body,
        tuple(scope["client"]) if scope.get("client") else None,
        tuple(scope["server"]) if scope.get("server") else None,
        scope.get("scheme", "http"),
        prompt_text(body_head(body)) if has_prompt else "",
    )


def _last_words(start: Message, error: GenaiServerError, scope: Scope) -> Message:
    """The end of a response that has begun: an event or line with the error where the response has such."""
    kind = Headers(raw=start["headers"]).get("content-type", "")
    told = json.dumps(error_body(error, scope)).encode()
    body = b""
    if kind.startswith("text/event-stream"):
        body = b"%bdata: %b\n\n" % (b"event: error\n" if speaks_anthropic(scope) else b"", told)
    elif speaks_ollama(scope):
        body = told + b"\n"
    return {"type": "http.response.body", "body": body, "more_body": False}


async def _send(answer: ReplicaAnswer, send: Send) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
