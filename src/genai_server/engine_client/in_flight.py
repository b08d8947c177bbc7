"""The requests of one API process that an engine has, or that wait for its next one."""

from collections.abc import Callable
from functools import partial
from itertools import count

from genai_server.engine_client.retry import Retries
from genai_server.engine_client.stream import PromptProgress, TokenStream
from genai_server.errors import GenerationFailed, ModelUnloaded
from genai_server.generation import GenerationRequest
from genai_server.messages.frames import ToEngine
from genai_server.messages.generation import (
    Accepted,
    Cancel,
    Event,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Refused,
    Stop,
    Submit,
    Tokens,
)


class InFlight:
    """Their streams, by the key under which the engine knows them; owned by the event loop.

    `send` raises NoEngineReady if the engine is not there.
    """

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._streams: dict[int, TokenStream] = {}
        self._retries = Retries()
        self._keys = count()

    def __len__(self) -> int:
        return len(self._streams) + len(self._retries)

    async def submit(self, *requests: GenerationRequest) -> list[TokenStream]:
        """Hand over requests, all at once; returns once the engine has taken them all.

        Raises Unavailable with the engine's reason if it does not; none of them is left there then.
        """
        keys = [next(self._keys) for _ in requests]
        for key, request in zip(keys, requests, strict=True):
            self._send(Submit(key, request, more=key != keys[-1]))
            self._streams[key] = TokenStream(partial(self._leave, key), partial(self._stop, key), request)
        streams = [self._streams[key] for key in keys]
        try:
            for stream in streams:
                await stream.accepted()
        except BaseException:
            for stream in streams:
                stream.close()
            raise
        return streams

    def receive(self, message: Event) -> None:
        """Take an event of a request, whose reader may have left."""
        stream = self._streams.get(message.key)
        if stream is None:
            return
        match message:
            case Accepted():
                stream.accept()
                return
            case Tokens():
                stream.deliver(message.tokens, message.logprobs)
                return
            case PromptLogprobs():
                stream.deliver_prompt(message.logprobs)
                return
            case Progress():
                stream.deliver_progress(PromptProgress(message.num_read, message.num_cached))
                return
            case Finished():
                stream.finish(message.reason, message.phases, message.num_cached, message.num_profiled)
            case Refused() | Failed():
                stream.fail(message.error.to_error())
        del self._streams[message.key]

    def resume(self) -> None:
        """The next engine is there: send it the requests that have waited."""
        for key, retry in self._retries.take().items():
            self._streams[key] = retry.stream
            self._send(Submit(key, retry.request))

    def lose(self, death: GenerationFailed) -> None:
        """The engine has gone: requests with a token fail; the others wait for the next engine, if there is one."""
        streams, self._streams = self._streams, {}
        for key, stream in streams.items():
            if isinstance(death, ModelUnloaded) or not self._retries.keep(key, stream):
                stream.fail(death)

    def give_up(self, death: GenerationFailed, *, all: bool) -> None:
        """Fail those that have waited too long for the next engine, or all of them."""
        self._retries.fail(death, all=all)

    def _stop(self, key: int) -> None:
        self._send(Stop(key))

    def _leave(self, key: int) -> None:
        """A reader has left: end its request."""
        self._retries.forget(key)
        if self._streams.pop(key, None) is not None:
            self._send(Cancel(key))
