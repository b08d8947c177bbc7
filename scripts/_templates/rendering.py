"""Renders a body as the server does, from its API's schema to the prompt, with one chat template."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.types import Receive

from genai_server.apis import chat_completions
from genai_server.apis.messages import routes as messages
from genai_server.apis.messages.translate import Translation as MessagesTranslation
from genai_server.apis.responses import routes as responses
from genai_server.apis.responses.items import to_response_items
from genai_server.apis.responses.translate import field_names, to_chat
from genai_server.errors import RequestError
from genai_server.generation.dependencies import Deadline, RequestContext, Services
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.prompts import encode_chat
from genai_server.http.body_route import BodyRoute
from genai_server.http.error_responses import from_findings, named
from genai_server.http.error_wording import FieldNames
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, Leniency
from genai_server.http.telemetry.request_record import RequestRecord
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.chat_template import ChatTemplate
from genai_server.text.tokenizer import ByteTokenizer
from genai_server.text.tool_formats.all_formats import read_dialect
from genai_server.timing import Arrival

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
_ROUTES = {
    route.path: route
    for router in (chat_completions.router, responses.router, messages.router)
    for route in router.routes
    if isinstance(route, BodyRoute) and route.body_field is not None
}
_SERVICES = cast(
    Services,
    SimpleNamespace(
        settings=SimpleNamespace(strict=False, cap_max_tokens=True), models=SimpleNamespace(taking=lambda _: [])
    ),
)
_REQUEST = cast(Request, SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(services=_SERVICES))))


@dataclass(frozen=True)
class Rendered:
    """A prompt, and what the response's headers say of it; or why it is refused."""

    prompt: str = ""
    converted: str = ""
    ignored: str = ""
    refusal: str = ""


class RenderedBodies:
    """Renders bodies with one template."""

    def __init__(self, source: str) -> None:
        template = ChatTemplate(source, SPECIAL)
        dialect = read_dialect(source)
        self.codec = TextCodec({"default": template}, ByteTokenizer(), dialect)
        self._runner = asyncio.Runner()
        self.takes_tools = template.takes_tools and dialect.tool_format is not None

    def render(self, path: str, body: dict[str, Any]) -> Rendered:
        """Render a body of the API with this path. Raises what the server does not expect."""
        route, body = _ROUTES[path], copy.deepcopy(body)
        leniency = route.leniency(_REQUEST)
        try:
            leniency.apply(body)
            assert route.body_field is not None
            parsed = TypeAdapter(cast(Any, route.body_field.field_info.annotation)).validate_python(body)
            tokens = self._runner.run(self._encode(path, parsed, leniency))
        except ValidationError as error:
            found = [{**finding, "loc": ("body", *finding["loc"])} for finding in error.errors(include_url=False)]
            return Rendered(refusal=from_findings(found, body).message)
        except RequestError as error:
            return Rendered(refusal=named(error, leniency.names)[0])
        headers = leniency.report()
        prompt = bytes(tokens).decode()
        return Rendered(prompt, headers.get(CONVERTED_HEADER, ""), headers.get(IGNORED_HEADER, ""))

    async def _encode(self, path: str, body: Any, leniency: Leniency) -> list[int]:
        chat, names = _chat(path, body, leniency)
        with leniency.with_names(names):
            return (await encode_chat(_SERVICES, chat, self.codec, _context(leniency))).tokens

    def close(self) -> None:
        """Stop the threads."""
        self.codec.close()
        self._runner.close()


def _context(leniency: Leniency) -> RequestContext:
    """The context of a request that nothing but its leniency matters of."""
    record = RequestRecord({}, "", "", "", Arrival(time.monotonic), 0.0)
    return RequestContext(Deadline(600, time.monotonic), cast(Receive, None), record, leniency)


def _chat(path: str, body: Any, leniency: Leniency) -> tuple[ChatParameters, FieldNames]:
    """The chat that a body becomes, and the body's names for its fields."""
    if path == "/v1/responses":
        items = to_response_items(body.input, {})
        chat = to_chat(body, items)
        return chat, field_names(chat, items, items, "input")
    if path == "/v1/messages":
        translation = MessagesTranslation(body)
        translation.report(leniency)
        return translation.chat, translation.names
    return body, FieldNames()


def usable(folder: Path) -> Sequence[Path]:
    """The templates of a folder that render a question without tools."""
    found = []
    for path in sorted(folder.glob("*.jinja"), key=lambda path: path.name.lower()):
        question = {"messages": [{"role": "user", "content": "question"}], "tools": None, "add_generation_prompt": True}
        try:
            text = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL).render({"documents": None, **question})
        except RequestError:
            continue
        if "question" in text:
            found.append(path)
    return found
