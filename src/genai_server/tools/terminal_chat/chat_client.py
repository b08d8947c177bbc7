"""The HTTP client of the terminal commands: `ChatClient` sends chat requests to an OpenAI-style server and yields the
answer piece by piece, and `Answer` collects text, tool calls and times.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlsplit

from genai_server.answer_parts import Content, Reasoning
from genai_server.errors import ChatFailed
from genai_server.model_files.pooling_model import ENDPOINTS
from genai_server.tools.server_answers import authorization, checked_url, error_message, unanswered
from genai_server.tools.terminal_chat.chat_history import Message
from genai_server.tools.terminal_chat.user_input import Value

# Seconds to connect or list models, and to wait for the next piece of an answer.
_SHORT, _LONG = 10.0, 600.0
# Minimum seconds between the first and the last piece for a rate: short answers often arrive in one read.
_MIN_RATE_SECONDS = 0.02


@dataclass(frozen=True)
class ToolRun:
    """A tool call that the server executes itself, as a piece of a streamed answer: once when the call starts, with
    `output` None, and once when it has ended, with what the tool has returned.
    """

    # The tool server and its tool.
    server: str
    name: str
    arguments: str
    # What it has returned; None while it runs.
    output: str | None = None
    is_error: bool = False


ChatPiece = Content | Reasoning | ToolRun


@dataclass
class Answer:
    """What has arrived of one answer: text, tool calls, number of tokens, and when the request was sent and the first
    and last piece arrived, in seconds of `time.monotonic`.

    The caller of `ChatClient.answer` creates it empty, and that method fills it while the answer arrives.
    """

    sent: float = field(default_factory=time.monotonic)
    # What follows the last call of a tool.
    text: str = ""
    # The calls that the server has run with their results, as messages of the conversation.
    rounds: list[Message] = field(default_factory=list)
    # The calls that the user has to approve, by their positions.
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    # Ids of the calls that the user has approved: the conversation has them already.
    approved: frozenset[str] = frozenset()
    # The tools that have begun, by the ids of their calls.
    running: dict[str, ToolRun] = field(default_factory=dict)
    # The server's count. For a stopped answer without a count, the number of pieces.
    tokens: int = 0
    first: float | None = None
    last: float | None = None
    # Whether the server has counted the tokens.
    is_counted: bool = False
    # Fields of the request that had no effect; "" for none.
    ignored: str = ""
    # The server's id of the answer, and whether its last piece was reasoning.
    id: str = ""
    is_reasoning: bool = False

    def took(self) -> str:
        """Return a phrase for the user that says how many tokens the answer has and how long it took."""
        if self.first is None or self.last is None:
            return "no output"
        count = f"{self.tokens} tokens" if self.is_counted else f"about {self.tokens} tokens"
        words = [count, f"first after {self.first - self.sent:.2f} s"]
        if self.tokens > 1 and self.last - self.first >= _MIN_RATE_SECONDS:
            words.append(f"then {(self.tokens - 1) / (self.last - self.first):.1f} a second")
        return ", ".join([*words, f"{self.last - self.sent:.2f} s in all"])


@dataclass(frozen=True)
class ListedModel:
    """A model in a server's list of models (/v1/models), with what a chat needs to know about it: whether it takes
    messages and images, or has an endpoint of another kind, such as embeddings.
    """

    # The endpoint of a model that does not generate text; empty for one that does.
    endpoint: str
    # Models without a chat template take no messages.
    takes_messages: bool
    # True also where it is not known, as of other servers.
    takes_images: bool


class ChatClient:
    """A client of one OpenAI-style server for the commands of the terminal. The server's URL may end in `/v1`.

    In chats, the server runs the tools of the tool servers whose names are in `tool_servers`. The constructor raises
    ServerUnusable for invalid URLs and API keys.
    """

    def __init__(self, url: str, api_key: str | None = None, tool_servers: Sequence[str] = ()) -> None:
        self.tool_servers = tool_servers
        self.url = checked_url(url)
        self._parts = urlsplit(self.url)
        self._path = self._parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"} | authorization(api_key)

    def require_listening(self) -> None:
        """Raise ChatFailed if no server accepts connections at the address."""
        with closing(self.connect(_SHORT)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise ChatFailed(unanswered(self.url, error)) from None

    def models(self) -> dict[str, ListedModel]:
        """Ask the server for its list of models, and return the models by id. Raises ChatFailed if the list cannot be
        read.
        """
        with closing(self.connect(_SHORT)) as connection:
            body = self.response(connection, "GET", "/v1/models", None).read()
        try:
            return {str(model["id"]): _listed(model) for model in json.loads(body)["data"]}
        except (ValueError, LookupError, TypeError):
            raise ChatFailed(f"{self.url}/v1/models is not a list of models") from None

    def answer(
        self, model: str, messages: Sequence[Message], answer: Answer, parameters: Mapping[str, Value] | None = None
    ) -> Generator[ChatPiece, None, None]:
        """Send a chat request with `messages` to the model named `model`, and yield the pieces of the streamed answer
        as they arrive. `answer` is filled with the same pieces, the number of tokens and the times.

        `parameters` are further fields of the request. Closing the iterator closes the connection, and the server then
        stops generating. Raises ChatFailed if the request fails or the stream breaks off.
        """
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": model, "messages": messages, **streamed, **(parameters or {})}
        with closing(self.connect(_LONG)) as connection:
            tools = {"x-genai-run-tools": ",".join(self.tool_servers)} if self.tool_servers else None
            response = self.response(connection, "POST", "/v1/chat/completions", json.dumps(body).encode(), tools)
            answer.ignored = response.getheader("x-genai-ignored", "")
            for event in self.events(response):
                answer.id = str(event.get("id") or "")
                if usage := event.get("usage"):
                    answer.tokens, answer.is_counted = int(usage["completion_tokens"]), True
                for choice in event.get("choices") or ():
                    yield from _apply_delta(choice.get("delta") or {}, answer)

    def end_reasoning(self, answer: Answer) -> bool:
        """Ask the server to end the reasoning of `answer`, which is being streamed, so that the model writes its final
        text. Returns whether the server was asked; False if the model is not reasoning now.

        This does not wait for a response, because servers of other kinds do not support such a request.
        """
        if not (answer.is_reasoning and answer.id):
            return False

        path = f"/v1/requests/{quote(answer.id, safe='')}/end_reasoning"

        def ask() -> None:
            with closing(self.connect(_SHORT)) as connection, suppress(OSError, http.client.HTTPException):
                self.exchange(connection, "POST", path, b"{}").read()

        threading.Thread(target=ask, daemon=True).start()
        return True

    def connect(self, patience: float) -> http.client.HTTPConnection:
        """Return a new connection to the server, on which connecting and each wait for data take at most `patience`
        seconds. The caller has to close it.
        """
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=patience, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=patience)

    def response(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request on `connection` and return the response if its status is 200. Raises ChatFailed, with the
        server's error message, otherwise.

        `headers` override the usual headers (content type and API key).
        """
        try:
            response = self.exchange(connection, method, path, body, headers)
            if response.status == 200:
                return response
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ChatFailed(unanswered(self.url, error)) from None
        raise ChatFailed(error_message(response.status, response.reason, text))

    def exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str] | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request on `connection` and return the response, whatever its status. `headers` override the usual
        headers (content type and API key). Raises OSError and HTTPException if the connection fails.
        """
        with suppress(BrokenPipeError, ConnectionResetError):  # a server may refuse a body before its end
            connection.request(method, self._path + path, body, {**self._headers, **(headers or {})})
        return connection.getresponse()

    def events(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        """Yield the server-sent events of a streamed response, parsed from JSON. Raises ChatFailed if the stream breaks
        off or ends with an error.
        """
        try:
            for line in response:
                data = line.removeprefix(b"data:").strip()
                if line.startswith(b"data:") and data != b"[DONE]":
                    event = json.loads(data)
                    if "error" in event:
                        raise ChatFailed(_message(event))
                    yield event
        except (OSError, http.client.HTTPException, ValueError):
            raise ChatFailed("the answer broke off: the connection was closed before its end") from None


def _listed(entry: Mapping[str, Any]) -> ListedModel:
    abilities = entry.get("capabilities") or ()
    takes_images = not abilities or "vision" in abilities
    endpoint = next((paths[0] for task, paths in ENDPOINTS.items() if task in abilities), "")
    return ListedModel(endpoint, entry.get("chat") is not False, takes_images)


def _apply_delta(delta: dict[str, Any], answer: Answer) -> Iterator[ChatPiece]:
    for run in delta.get("genai_tool_runs") or ():
        yield _apply_tool_run(run, answer)
    for part in delta.get("tool_calls") or ():
        call = answer.calls.setdefault(part["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = part.get("id") or call.get("id")
        for name in ("name", "arguments"):
            call["function"][name] += part["function"].get(name) or ""
    for name, kind in (("reasoning_content", Reasoning), ("content", Content)):
        if text := delta.get(name):
            answer.last = time.monotonic()
            answer.first = answer.first or answer.last
            answer.tokens += 1
            answer.is_reasoning = kind is Reasoning
            if kind is Content:
                if answer.rounds and not answer.text:  # the server puts a blank line between the texts of rounds
                    text = text.lstrip("\n")
                answer.text += text
            yield kind(text)


def _apply_tool_run(item: Mapping[str, Any], answer: Answer) -> ToolRun:
    id, rounds = str(item["id"]), answer.rounds
    started = answer.running.get(id)
    if started is None:
        run = answer.running[id] = ToolRun(item["server"], item["name"], item["arguments"])
        if id not in answer.approved and item.get("status") != "incomplete":
            if answer.text or not rounds or rounds[-1]["role"] == "tool":
                rounds.append(Message(role="assistant", content=answer.text or None, tool_calls=[]))
                answer.text = ""
            function = {"name": f"{run.server}__{run.name}", "arguments": run.arguments}
            rounds[-1]["tool_calls"].append({"id": id, "type": "function", "function": function})
        return run
    is_error = item.get("status") == "failed"
    ended = replace(started, output=str(item.get("output", "")), is_error=is_error)
    text = f"Error: {ended.output}" if is_error else ended.output
    rounds.append(Message(role="tool", content=text, tool_call_id=id))
    return ended


def _message(event: Any) -> str:
    try:
        return str(event["error"]["message"])
    except (LookupError, TypeError):
        return "the server failed"
