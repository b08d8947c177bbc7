"""The requests of one API process that an engine has, or that wait for its next one."""

from collections.abc import Callable
from itertools import count

from genai_server.engines.retry import Retries
from genai_server.engines.stream import PromptProgress, TokenStream
from genai_server.errors import GenerationFailed, ModelUnloaded, from_code
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
    """Their streams, by the key under which the engine knows them; belongs to the event loop.

    `send` raises NoEngineReady if the engine is not there.
    """

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._streams: dict[int, TokenStream] = {}
        self._retries = Retries()
        self._keys = count()

    def __len__(self) -> int:
        return len(self._streams) + len(self._retries)

    async def submit(self, request: GenerationRequest) -> TokenStream:
        """Hand over a request; returns once the engine has taken it.

        Raises Unavailable with the engine's reason if it does not.
        """
        key = next(self._keys)
        stream = TokenStream(lambda: self._leave(key), lambda: self._send(Stop(key)), request)
        self._send(Submit(key, request))
        self._streams[key] = stream
        try:
            await stream.accepted()
        except BaseException:
            stream.close()
            raise
        return stream

    def receive(self, message: Event) -> None:
        """The engine tells something of a request, which its reader may have left."""
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
            case Refused():
                stream.fail(from_code(message.code, message.message, message.param, message.retry_after))
            case Failed():
                stream.fail(from_code(message.code, message.message, message.param))
        del self._streams[message.key]

    def resume(self) -> None:
        """The next engine is there: give it what has waited for it."""
        for key, retry in self._retries.take().items():
            self._streams[key] = retry.stream
            self._send(Submit(key, retry.request))

    def lose(self, death: GenerationFailed) -> None:
        """The engine has gone: who has a token fails, and the others wait for the next one if there shall be one."""
        streams, self._streams = self._streams, {}
        for key, stream in streams.items():
            if isinstance(death, ModelUnloaded) or not self._retries.keep(key, stream):
                stream.fail(death)

    def give_up(self, death: GenerationFailed, *, all: bool) -> None:
        """Fail those that have waited too long for the next engine, or all of them."""
        self._retries.fail(death, all=all)

    def _leave(self, key: int) -> None:
        """A reader has left: what is still running for it shall end."""
        self._retries.forget(key)
        if self._streams.pop(key, None) is not None:
            self._send(Cancel(key))
