"""What the routes work with, passed in when the app is made; and starting one answer, which all of them do."""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from genai_server.api.answer import Answer
from genai_server.config import Settings
from genai_server.engines.router import Router
from genai_server.errors import ModelNotFound
from genai_server.openai_api.schemas import ChatParameters
from genai_server.openai_api.translate import Policy, to_generation_request
from genai_server.text.codec import TextCodec
from genai_server.timing import Clock, Stopwatch


@dataclass(frozen=True)
class Services:
    """Everything that a route needs; `codecs` has the text side of each device's model."""

    settings: Settings
    router: Router
    codecs: Mapping[str, TextCodec]
    clock: Clock
    started: int
    on_loopback: bool

    async def start_answer(self, body: ChatParameters, request_id: str) -> Answer:
        """Check the request, choose a device, and hand it over; every refusal is raised here, before any headers.

        Raises RequestError and Unavailable.
        """
        stopwatch = Stopwatch(self.clock)
        if body.model not in (None, self.settings.model_name):
            raise ModelNotFound(f"model {body.model!r} is not served; {self.settings.model_name!r} is", param="model")
        engine, model = self.router.pick(body.device)
        codec = self.codecs[engine.device]
        prompt = await codec.encode_chat([message.model_dump() for message in body.messages])
        policy = Policy(self.settings.max_length, self.settings.exact)
        request = to_generation_request(body, prompt, model, request_id=request_id, policy=policy)
        stopwatch.input_tokens = len(prompt)
        stream = await engine.submit(request)
        return Answer(stream, codec.decoder(), stopwatch, request_id=request_id, model=self.settings.model_name)


def services(request: Request) -> Services:
    """The app's services, for routes to depend on."""
    found: Services = request.app.state.services
    return found


def request_id(request: Request) -> str:
    """The request's name, for routes to depend on."""
    name: str = request.state.request_id
    return name
