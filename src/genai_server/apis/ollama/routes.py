"""The endpoints of Ollama's API. /api/chat, /api/generate, /api/embed and the older /api/embeddings use a model;
/api/tags, /api/show, /api/ps and /api/version describe the models and the server; operators may download a model from
the Hugging Face Hub with /api/pull. Ollama's other endpoints, which create, copy, push or delete models, are refused.

Like Ollama's own decoder, the endpoints that use a model accept unknown keys at every level, among them options of
model loading and memory use. The field `keep_alive` says how long a model stays loaded, and a request without a prompt
only loads or unloads its model.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from genai_server import __version__
from genai_server.apis.embeddings import FEW_NUMBERS, Pooled, PooledFields, embed
from genai_server.apis.models import ModelFiles, model_entry, read_files
from genai_server.apis.ollama.schemas import (
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    KeepAliveFields,
    OllamaChatRequest,
    OllamaErrorResponse,
    PullRequest,
    ShowRequest,
    nanoseconds,
)
from genai_server.apis.ollama.translate import AnswerBuilder, Translation, ending, timestamp
from genai_server.apis.shared.router import error_responses
from genai_server.errors import AdminForbidden, MissingField, ModelNotFound, PullFailed, UnsupportedEndpoint
from genai_server.generation.answers import Generation
from genai_server.generation.catalog import ChosenModel, PullProgress, names_of, plain_name
from genai_server.generation.dependencies import (
    RequestContext,
    RequestContextDep,
    Services,
    ServicesDep,
    while_connected,
)
from genai_server.generation.generate import generate
from genai_server.http.body_route import BodyRoute, lenient_route
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.leniency import RemovalRules, objects_at
from genai_server.http.middleware.authentication import require_admin
from genai_server.http.streams import LINES, LineStream
from genai_server.messages.server_status import ModelState, ModelStatus
from genai_server.messages.supervisor_protocol import KeepModel, LoadModel, SetAlias
from genai_server.model_files.pooling_model import Task

_ERRORS = error_responses(400, 404, 500, 503, error=OllamaErrorResponse)
# Responses of endpoints with features that require an admin key.
ADMIN_ERRORS = error_responses(400, 403, 404, 500, 503, error=OllamaErrorResponse)
models_router = APIRouter(
    route_class=lenient_route(RemovalRules(), takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=_ERRORS,
)
# The version of Ollama that this API corresponds to: some clients refuse older ones.
OLLAMA_VERSION = "0.19.0"
# The expiry of a model that is never unloaded.
_FOREVER = timedelta(days=100 * 365)


@models_router.get("/api/version")
async def version() -> dict[str, str]:
    """Get the version of Ollama whose API this server implements, and this server's version."""
    return {"version": OLLAMA_VERSION, "server": f"genai-server {__version__}"}


@models_router.get("/api/tags")
async def list_models(services: ServicesDep) -> dict[str, Any]:
    """List the models, whether they are loaded or not, in Ollama's format, with an entry for each alias and LoRA
    adapter. Models that failed to load are left out.
    """
    models = []
    for status in services.models.usable():
        files = await asyncio.to_thread(read_files, status)
        more = {"modified_at": timestamp(files.modified), "capabilities": model_entry(services, status)["capabilities"]}
        models += [{**_entry(name, status, files), **more} for name in names_of(status)]
    return {"models": models}


@models_router.get("/api/ps")
async def list_running(services: ServicesDep) -> dict[str, Any]:
    """List the loaded models in Ollama's format. `expires_at` is the time at which a model is unloaded if no more
    requests for it arrive.
    """
    models = []
    for status in services.models.statuses():
        if status.state != ModelState.READY:
            continue
        files = await asyncio.to_thread(read_files, status)
        remaining = _FOREVER if status.idle_unload is None else timedelta(seconds=status.idle_unload)
        is_on_host = all(device.partition(":")[0] in ("cpu", "scripted") for device in status.devices)
        models.append(
            {
                **_entry(status.name, status, files),
                "expires_at": timestamp(datetime.now(UTC) + min(remaining, _FOREVER)),
                "size_vram": 0 if is_on_host else files.size,
                "context_length": _context_length(services, status) or 0,
            }
        )
    return {"models": models}


@models_router.post("/api/show")
async def show_model(body: ShowRequest, services: ServicesDep) -> dict[str, Any]:
    """Get details of one model: its chat template, context length (`num_ctx`), capabilities and the time of its last
    change.
    """
    name = body.model or body.name
    if not name:
        raise MissingField("model", "is required")
    status = services.models.choose(name).about
    files = await asyncio.to_thread(read_files, status)
    length = _context_length(services, status)
    architecture = files.family or "unknown"
    served = services.models.served(status)
    template = served.codec.writer.source if served is not None and served.is_readable else ""
    parameters = {} if length is None else {"num_ctx": length}
    model_info = {"general.architecture": architecture, "general.basename": status.name}
    return {
        "modelfile": f"FROM {status.name}\n",
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        "template": template,
        "details": _details(files),
        "model_info": model_info | ({} if length is None else {f"{architecture}.context_length": length}),
        "capabilities": model_entry(services, status)["capabilities"],
        "modified_at": timestamp(files.modified),
    }


def _entry(name: str, status: ModelStatus, files: ModelFiles) -> JsonObject:
    named = name if ":" in name else f"{name}:latest"
    return {"name": named, "model": named, "size": files.size, "digest": files.digest, "details": _details(files)}


def _details(files: ModelFiles) -> JsonObject:
    return {
        "parent_model": "",
        "format": "onnx",
        "family": files.family,
        "families": [files.family] if files.family else [],
        "parameter_size": "",
        "quantization_level": "unknown",
    }


def _context_length(services: Services, status: ModelStatus) -> int | None:
    served = services.models.served(status)
    return None if served is None else served.max_length


pull_router = APIRouter(tags=["ollama"], dependencies=[Depends(require_admin)], responses=ADMIN_ERRORS)
_SUCCESS = {"status": "success"}


@pull_router.post("/api/pull", responses=LINES)
async def pull_model(body: PullRequest, request: Request, services: ServicesDep) -> Response:
    """Download a model from the Hugging Face Hub, and serve it under the name of its repository. The first request for
    the model loads it. If the model is already served, nothing is downloaded.

    The response is a stream of lines that report the progress or, with `stream` false, one object at the end.
    """
    name = plain_name(body.model or body.name or "")
    if not name:
        raise MissingField("model", "is required")
    pull = _Pull(services, name)
    if body.stream is not False:
        return LineStream(pull, pull.lines())
    try:
        await while_connected(pull.whole(), request.receive)
    finally:
        pull.close()
    return JSONResponse(_SUCCESS)


class _Pull:
    """One download of a model from the Hugging Face Hub, created for each request to /api/pull. Either `lines`, which
    reports the progress, or `whole` runs it. `close` stops it when the client disconnects; the next request for the
    same model resumes it.
    """

    # Streams of answers have progress of prompts.
    progress = None

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._given = name
        self._name, _, self._folder = name.partition(":")
        self._is_left = threading.Event()

    def close(self) -> None:
        """Stop the download after the current chunk of data."""
        self._is_left.set()

    async def whole(self) -> None:
        """Download the model and serve it, without reporting the progress. Raises PullFailed, and the errors with which
        the supervisor, the process that starts engines, refuses to serve the model.
        """
        async for _ in self.lines():
            pass

    async def lines(self) -> AsyncGenerator[JsonObject]:
        """Download the model and serve it; yields the progress as the objects of Ollama's stream, and at the end the
        status "success".

        Raises PullFailed, and the errors with which the supervisor, the process that starts engines, refuses to serve
        the model.
        """
        yield {"status": "pulling manifest"}
        if self._is_served():
            yield _SUCCESS
            return
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[PullProgress | None] = asyncio.Queue()

        def report(progress: PullProgress) -> None:
            if self._is_left.is_set():
                raise PullFailed("stopped; the same pull continues from here")
            loop.call_soon_threadsafe(arrived.put_nowait, progress)

        # Use a separate thread: a download may take hours, and requests need asyncio's threads.
        thread = ThreadPoolExecutor(1, "pull")
        working = loop.run_in_executor(thread, self._services.store.pull, self._name, self._folder, report)
        thread.shutdown(wait=False)

        def ended(done: "asyncio.Future[Any]") -> None:
            if not done.cancelled():
                done.exception()  # retrieves the exception even if the client has disconnected
            arrived.put_nowait(None)

        working.add_done_callback(ended)
        while (progress := await arrived.get()) is not None:
            figures = {"digest": progress.digest, "total": progress.total, "completed": progress.completed}
            yield {"status": f"pulling {progress.name}", **figures}
        directory = await working
        yield {"status": "verifying sha256 digest"}
        await self._serve(str(directory))
        yield {"status": "writing manifest"}
        yield _SUCCESS

    def _is_served(self) -> bool:
        """Return whether the model to download is already served under its name and has not failed to load."""
        try:
            status = self._services.models.find(self._given)
        except ModelNotFound:
            return False
        return self._services.models.state(status) != ModelState.FAILED

    async def _serve(self, path: str) -> None:
        """Serve the downloaded model in the directory `path` under the name of its repository, unless that name is
        already used. A model from a folder of the repository also gets the alias `NAME:FOLDER`.
        """
        models = self._services.models
        used_names = {name for status in models.statuses() for name in (status.name, *status.aliases)}
        if self._name not in used_names:
            await models.command(LoadModel(self._name, path, self._services.settings.device.split(","), at_once=False))
        alias = f"{self._name}:{self._folder}"
        if self._folder and alias not in used_names:
            await models.command(SetAlias(alias, self._name))


def _remove_calls_of_other_roles(body: Any) -> Iterator[str]:
    """Remove the field `tool_calls` from the messages in `body` that are not the assistant's. Changes `body`, and
    yields the location of each removed field.
    """
    for location, message in objects_at(body, "messages[]"):
        role = message.get("role")
        if message.get("tool_calls") and isinstance(role, str) and role.lower() != "assistant":
            del message["tool_calls"]
            yield f"{location}.tool_calls"


LEFT_OUT = RemovalRules(
    # A conversation that is too long is an error; it is never truncated.
    values={"truncate": (True,), "shift": (True,)},
    rules=(_remove_calls_of_other_roles,),
)
router = APIRouter(
    route_class=lenient_route(LEFT_OUT, caps=True, takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=ADMIN_ERRORS,
)
unsupported = APIRouter(route_class=BodyRoute, include_in_schema=False)
embed_router = APIRouter(
    route_class=lenient_route(RemovalRules(), takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=ADMIN_ERRORS,
)
# Truncates texts to the model's maximum length.
_TO_MODEL_LIMIT = -1
# More seconds than this mean forever.
_MAX_KEPT = 10 * 365 * 86400.0


async def seconds_to_keep(
    body: KeepAliveFields, request: Request, context: RequestContext, *, is_all: bool
) -> float | None:
    """Return for how many seconds the client wants the model to stay loaded after the request, as its field
    `keep_alive` says: infinite for "always"; None if the field is absent or ignored.

    Only operators may use the field. For other clients it is ignored, or AdminForbidden is raised if the request does
    nothing else (`is_all`) or if GENAI_STRICT is set.
    """
    if body.seconds_to_keep is None:
        return None
    try:
        await require_admin(request)
    except AdminForbidden as error:
        if is_all or not context.leniency.leave_out("keep_alive"):
            raise error.at("keep_alive") from None
        return None
    return body.seconds_to_keep


async def keep(services: Services, status: ModelStatus, seconds: float | None) -> None:
    """Set for how many seconds a model stays loaded without requests. More than ten years mean forever. Does nothing if
    `seconds` is None, or if a loaded model already has this limit.
    """
    if seconds is None:
        return
    limit = None if seconds > _MAX_KEPT else seconds
    if status.idle_unload != limit or status.state in (ModelState.UNLOADED, ModelState.UNLOADING):
        await services.models.command(KeepModel(status.name, limit))


async def load(services: Services, context: RequestContext, chosen: ChosenModel, seconds: float | None) -> None:
    """Load a model for a request without a prompt, wait until it is loaded, and set for how many `seconds` it then
    stays loaded without requests; None leaves the limit unchanged. With 0, the model is unloaded instead.
    """
    services.drain.require_open()
    context.record.model = chosen.id
    if seconds != 0:
        with context.record.arrival.loading():
            await context.run_while_connected(services.models.serving(chosen, context.deadline.seconds_left))
    await keep(services, chosen.about, seconds)


@router.post("/api/chat", responses=LINES)
async def chat(
    body: OllamaChatRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Generate the assistant's next message in a chat, as one object or, by default, as a stream of lines. A request
    without messages only loads or unloads the model.
    """
    return await _response(body, request, services, context, is_empty=not body.messages)


@router.post("/api/generate", responses=LINES)
async def generate_text(
    body: GenerateRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Generate the answer to a prompt, as one object or, by default, as a stream of lines. A request without prompt and
    images only loads or unloads the model.
    """
    return await _response(body, request, services, context, is_empty=not (body.prompt or body.images))


@unsupported.post("/api/create")
@unsupported.post("/api/copy")
@unsupported.post("/api/push")
@unsupported.delete("/api/delete")
@unsupported.get("/api/blobs/{digest}")
@unsupported.post("/api/blobs/{digest}")
async def refuse(request: Request) -> JSONResponse:
    """Refuse a request to an endpoint of Ollama that would create, copy, push or delete models. Always raises
    UnsupportedEndpoint, whose message names the commands to use instead.
    """
    raise UnsupportedEndpoint(
        f"{request.scope['route'].path} is not supported: this server does not create, copy, push or delete models; "
        "use genai-server export and genai-server models on the server instead"
    )


async def _response(
    body: OllamaChatRequest | GenerateRequest,
    request: Request,
    services: Services,
    context: RequestContext,
    *,
    is_empty: bool,
) -> Response:
    chosen = services.models.choose(body.model)
    build = AnswerBuilder(body.model or chosen.id, is_chat=isinstance(body, OllamaChatRequest))
    keep_seconds = await seconds_to_keep(body, request, context, is_all=is_empty and body.seconds_to_keep == 0)
    if is_empty:
        await load(services, context, chosen, keep_seconds)
        return JSONResponse(build.nothing("unload" if keep_seconds == 0 else "load"))
    is_streamed = body.stream is not False
    translation = await asyncio.to_thread(Translation, body, chosen.id)
    context.leniency.note(translation.overridden)
    # The translation has them, and drops the data of their images.
    if isinstance(body, OllamaChatRequest):
        body.messages = None
    else:
        body.images = None
    with context.leniency.with_names(translation.names):
        # Arguments of tool calls are objects in Ollama's format, so an incomplete call would look like a complete one.
        generation = await generate(
            services, translation.body, context, is_streamed=is_streamed, only_complete_calls=True
        )
    # Set this last: a model with a keep_alive of 0 would otherwise be unloaded before it has the request.
    await keep(services, chosen.about, keep_seconds)
    if is_streamed:
        return LineStream(generation, _lines(generation, build, context))
    (content,) = await context.run_while_connected(generation.whole())
    end = _ending(generation, context)
    return await built_response(lambda: build.complete(content, end), is_long=bool(body.logprobs))


async def _lines(generation: Generation, build: AnswerBuilder, context: RequestContext) -> AsyncGenerator[JsonObject]:
    (answer,) = generation.answers
    async for piece in answer.pieces():
        yield build.part(piece.parts, piece.tokens)
    yield build.last(_ending(generation, context))


def _ending(generation: Generation, context: RequestContext) -> JsonObject:
    (answer,) = generation.answers
    return ending(answer.ending.reason, answer.usage, context.record.arrival.elapsed, answer.timings().breakdown)


@embed_router.post("/api/embed")
async def embed_texts(
    body: EmbedRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Compute the embeddings of one or more texts: for each text, a vector that represents its meaning. A request
    without a text only loads the model, or unloads it if `keep_alive` is 0.
    """
    truncates, dimensions = body.truncate is not False, body.dimensions or None
    pooled = await _embeddings(body, body.texts, request, services, context, truncates=truncates, dimensions=dimensions)
    vectors = [] if pooled is None else pooled.vectors
    arrival = context.record.arrival
    total = arrival.elapsed
    return await built_response(
        lambda: {
            "model": body.model or context.record.model,
            "embeddings": [list(vector) for vector in vectors],
            "total_duration": nanoseconds(total),
            "load_duration": nanoseconds(arrival.load),
            "prompt_eval_count": 0 if pooled is None else pooled.num_tokens,
        },
        is_long=sum(map(len, vectors)) > FEW_NUMBERS,
    )


@embed_router.post("/api/embeddings")
async def embed_text(
    body: EmbeddingsRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Compute the embedding of one text, a vector that represents its meaning. This is Ollama's older version of
    /api/embed.
    """
    texts = [body.prompt] if body.prompt else []
    pooled = await _embeddings(body, texts, request, services, context)
    return await built_response(lambda: {"embedding": [] if pooled is None else list(pooled.vectors[0])}, is_long=False)


async def _embeddings(
    body: KeepAliveFields,
    texts: Sequence[str],
    request: Request,
    services: Services,
    context: RequestContext,
    *,
    truncates: bool = True,
    dimensions: int | None = None,
) -> Pooled | None:
    """Compute the embeddings of `texts` for one of Ollama's endpoints, and set how long the model stays loaded, as the
    body says. Without texts, only load or unload the model, and return None.

    Texts that are too long are truncated if `truncates` is set, and refused otherwise. `dimensions` is the length of
    the vectors; None for the model's own.
    """
    name = None if body.model is None else services.models.choose(body.model).id
    chosen = services.models.choose_for(name, Task.EMBED)
    keep_seconds = await seconds_to_keep(body, request, context, is_all=not texts and body.seconds_to_keep == 0)
    if not texts:
        await load(services, context, chosen, keep_seconds)
        return None
    fields = {"model": chosen.id, "truncate_prompt_tokens": _TO_MODEL_LIMIT if truncates else None}
    request_fields = PooledFields.model_validate(fields)
    pooled = await embed(services, context, texts, request_fields, dimensions=dimensions, remedy="truncate: true")
    await keep(services, chosen.about, keep_seconds)
    return pooled
