"""Answers are the same streamed and in one piece, on all APIs, and clients execute no call that is not complete."""

import json
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
from anthropic import Anthropic, beta_tool
from pydantic_core import from_json

from genai_server.text.tool_formats.all_formats import TOOL_FORMATS
from tests.apis.tool_answers import ANSWERS, CALLS, functions
from tests.running_server import RunningServer

# Answers that begin like calls and are none: nothing holds these formats to the form of calls.
INVALID = {
    "llama3_json": 'Hm.⏎{"name": "get_weather", "parameters": {"city": "Oslo", "days": oops}} and more text.⏎',
    "pythonic": 'Hm.⏎[get_weather(city="Oslo", days=oops)] and more text.⏎',
}


class Call(NamedTuple):
    """A call as a client sees it."""

    name: str
    # JSON, or the beginning of it.
    arguments: str


class Seen(NamedTuple):
    """An answer as a client sees it."""

    content: str
    reasoning: str
    calls: list[Call]
    # Why the answer ended, in the words of the API, with all that belongs to it.
    ended: tuple[Any, ...]
    # Whether a client executes the calls.
    is_calling: bool


class Case(NamedTuple):
    """What a request asks for."""

    answer: str
    max_tokens: int = 2000
    stop: str | None = None
    is_parallel: bool = True


def _cases(form: str) -> Iterable[Case]:
    """A complete answer, some that end early at a random place, and invalid ones."""
    draw = random.Random(form)
    yield Case(ANSWERS[form])
    yield Case(ANSWERS[form], is_parallel=False)
    text = ANSWERS[form].replace("⏎", "\n")
    first = text.index("I look.")
    size = len(text.encode())
    for _ in range(5):
        yield Case(ANSWERS[form], max_tokens=draw.randint(len(text[:first].encode()) + 1, size))
    for _ in range(4):
        place = draw.randint(first, len(text) - 4)
        yield Case(ANSWERS[form], stop=text[place : place + draw.randint(1, 4)])
    if form != "harmony":  # whose calls end the reasoning
        unclosed = ANSWERS[form].replace("</think>⏎⏎I look.", "", 1)
        for most in (2000, size - len("</think>\n\nI look.") - 20):
            yield Case(unclosed, max_tokens=most)
    if form in INVALID:
        for most in (2000, len(INVALID[form].encode()) - 5):
            yield Case(INVALID[form], most)
            yield Case(INVALID[form] + ANSWERS[form].partition("I look.⏎")[2], most, is_parallel=False)


def _events(server: RunningServer, path: str, sent: dict[str, Any]) -> list[dict[str, Any]]:
    with server.client.stream("POST", path, json=sent) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith(("data: ", "{"))]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _posted(server: RunningServer, path: str, sent: dict[str, Any]) -> dict[str, Any]:
    response = server.client.post(path, json=sent)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def _chat_fields(form: str, case: Case) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"say {case.answer}"}],
        "tools": [{"type": "function", "function": function} for function in functions(form)],
        "max_tokens": case.max_tokens,
        "parallel_tool_calls": case.is_parallel,
        **({"stop": case.stop} if case.stop else {}),
    }


class Completion(NamedTuple):
    """A chat completion, whole or put together from its chunks."""

    # The messages of the chunks, or the only one.
    messages: list[dict[str, Any]]
    content: str
    reasoning: str
    # `finish_reason` and `genai_finish_reason`.
    ended: tuple[str, str | None]


def _completed(server: RunningServer, sent: dict[str, Any], *, streamed: bool) -> Completion:
    path = "/v1/chat/completions"
    events = _events(server, path, {**sent, "stream": True}) if streamed else [_posted(server, path, sent)]
    choices = [choice for event in events for choice in event["choices"]]
    messages = [choice["delta" if streamed else "message"] for choice in choices]
    content, reasoning = (
        "".join(message.get(key) or "" for message in messages) for key in ("content", "reasoning_content")
    )
    ended = choices[-1]["finish_reason"], choices[-1].get("genai_finish_reason")
    return Completion(messages, content, reasoning, ended)


def _chat_completion(server: RunningServer, form: str, case: Case, *, streamed: bool) -> Seen:
    found = _completed(server, _chat_fields(form, case), streamed=streamed)
    made = [call for message in found.messages for call in message.get("tool_calls", ())]
    calls = _joined(made) if streamed else [Call(**call["function"]) for call in made]
    return Seen(found.content, found.reasoning, calls, found.ended, found.ended[0] == "tool_calls")


def _joined(pieces: Iterable[dict[str, Any]]) -> list[Call]:
    """The calls of chunks with an `index`."""
    calls: list[Call] = []
    for piece in pieces:
        function = piece.get("function", piece)
        if piece["index"] == len(calls):
            calls.append(Call(function["name"], ""))
        name, arguments = calls[piece["index"]]
        calls[piece["index"]] = Call(name, arguments + function.get("arguments", ""))
    return calls


def _function_call(server: RunningServer, form: str, case: Case, *, streamed: bool) -> Seen:
    sent = _chat_fields(form, case)
    sent["functions"] = [tool["function"] for tool in sent.pop("tools")]
    del sent["parallel_tool_calls"]
    found = _completed(server, sent, streamed=streamed)
    pieces = [message["function_call"] for message in found.messages if "function_call" in message]
    arguments = "".join(piece.get("arguments", "") for piece in pieces)
    calls = [Call(pieces[0]["name"], arguments)] if pieces else []
    return Seen(found.content, found.reasoning, calls, found.ended, found.ended[0] == "function_call")


def _own_chat(server: RunningServer, form: str, case: Case, *, streamed: bool) -> Seen:
    sent = _chat_fields(form, case)
    if not streamed:
        last = _posted(server, "/v1/chat", sent)
        calls = [Call(**call["function"]) for call in last.get("tool_calls") or ()]
        content, reasoning = last["content"], last.get("reasoning_content") or ""
    else:
        *events, last = _events(server, "/v1/chat/stream", sent)
        content = "".join(event["token"] for event in events)
        reasoning = "".join(event.get("reasoning", "") for event in events)
        calls = _joined(call for event in events for call in event.get("tool_calls", ()))
    return Seen(content, reasoning, calls, (last["finish_reason"],), last["finish_reason"] == "tool_calls")


def _response(server: RunningServer, form: str, case: Case, *, streamed: bool) -> Seen:
    sent = {
        "input": f"say {case.answer}",
        "tools": [{"type": "function", **function, "strict": False} for function in functions(form)],
        "max_output_tokens": case.max_tokens,
        "parallel_tool_calls": case.is_parallel,
        **({"stop": case.stop} if case.stop else {}),
    }
    done: set[str] = set()
    if not streamed:
        response = _posted(server, "/v1/responses", sent)
        output = response["output"]
    else:
        events = _events(server, "/v1/responses", {**sent, "stream": True})
        response = events[-1]["response"]
        output = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert response["output"] == output
        deltas = dict.fromkeys((item["id"] for item in output), "")
        for event in events:
            if event["type"].endswith(".delta"):
                deltas[event["item_id"]] += event["delta"]
        assert deltas == {item["id"]: _text(item) for item in output}
        done = {event["item_id"] for event in events if event["type"] == "response.function_call_arguments.done"}
    made = [item for item in output if item["type"] == "function_call"]
    assert not streamed or done == {item["id"] for item in made if item["status"] == "completed"}
    content, reasoning = (
        "".join(_text(item) for item in output if item["type"] == kind) for kind in ("message", "reasoning")
    )
    calls = [Call(item["name"], item["arguments"]) for item in made]
    assert all(_object(item["arguments"]) is not None for item in made if item["status"] == "completed")
    ended = (response["status"], response["incomplete_details"], [(item["type"], item["status"]) for item in output])
    return Seen(content, reasoning, calls, ended, response["status"] == "completed")


def _text(item: dict[str, Any]) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


def _message(server: RunningServer, form: str, case: Case, *, streamed: bool) -> Seen:
    sent = {
        "messages": [{"role": "user", "content": f"say {case.answer}"}],
        "tools": [
            {"name": one["name"], "description": form, "input_schema": one["parameters"]} for one in functions(form)
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": not case.is_parallel},
        "max_tokens": case.max_tokens,
        **({"stop_sequences": [case.stop]} if case.stop else {}),
    }
    if not streamed:
        end = _posted(server, "/v1/messages", sent)
        blocks = end["content"]
    else:
        blocks, end = _blocks(_events(server, "/v1/messages", {**sent, "stream": True}))
    content, reasoning = ("".join(block.get(key, "") for block in blocks) for key in ("text", "thinking"))
    calls = [Call(block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
    reason = (end["stop_reason"], end["stop_sequence"], end.get("genai_finish_reason"))
    return Seen(content, reasoning, calls, (reason, [block["type"] for block in blocks]), reason[0] == "tool_use")


def _blocks(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The content blocks that Anthropic's client makes of a stream, and how the message ends."""
    blocks: list[dict[str, Any]] = []
    written = ""
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            written = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            for key in ("text", "thinking"):
                if key in delta:
                    blocks[-1][key] += delta[key]
            written += delta.get("partial_json", "")
        elif event["type"] == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = from_json(written, allow_partial=True)
    return blocks, events[-2]["delta"]


def _ollama(server: RunningServer, form: str, case: Case, *, streamed: bool) -> Seen:
    sent = {
        "messages": [{"role": "user", "content": f"say {case.answer}"}],
        "tools": [{"type": "function", "function": function} for function in functions(form)],
        "options": {"num_predict": case.max_tokens, **({"stop": [case.stop]} if case.stop else {})},
        "stream": streamed,
    }
    lines = _events(server, "/api/chat", sent) if streamed else [_posted(server, "/api/chat", sent)]
    messages = [line["message"] for line in lines]
    content, reasoning = ("".join(message.get(key, "") for message in messages) for key in ("content", "thinking"))
    made = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    assert [call["index"] for call in made] == list(range(len(made)))
    calls = [Call(call["name"], json.dumps(call["arguments"])) for call in made]
    return Seen(content, reasoning, calls, (lines[-1]["done_reason"],), True)


APIS: dict[str, Callable[..., Seen]] = {
    "chat completions": _chat_completion,
    "functions": _function_call,
    "own chat": _own_chat,
    "responses": _response,
    "messages": _message,
    "ollama": _ollama,
}


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS))
def test_streamed_and_whole_answers_are_the_same(server_of: Callable[[str], RunningServer], form: str) -> None:
    """All APIs give each form's complete answer and all of one form's answers; of the others, each API gives some."""
    server = server_of(form)
    apis = list(APIS)
    for number, case in enumerate(_cases(form), sorted(TOOL_FORMATS).index(form)):
        is_for_all = form == "hermes" or case == Case(ANSWERS[form])
        for api in apis if is_for_all else [apis[number % len(apis)]]:
            ask = APIS[api]
            streamed, whole = (ask(server, form, case, streamed=streamed) for streamed in (True, False))
            assert streamed == whole, (api, case)
            _check_calls(whole, api, case)


def _check_calls(seen: Seen, api: str, case: Case) -> None:
    """Check that a client executes only calls that the model completed."""
    made = [(call.name, _object(call.arguments)) for call in seen.calls]
    if seen.is_calling or api != "messages":  # the input of Anthropic's calls is an object
        complete = [call for call in made if call[1] is not None]
        assert complete == CALLS[: len(complete)], (api, case)
        assert complete == made or not seen.is_calling, (api, case)
    if case.stop is None and case.max_tokens == 2000 and "oops" not in case.answer:
        most = 1 if api == "functions" or not case.is_parallel and api != "ollama" else 2
        assert made == CALLS[:most], (api, case)
        if "I look." in case.answer:
            assert (seen.content.strip(), seen.reasoning.strip()) == ("I look.", "Hm."), (api, case)


def _object(arguments: str) -> dict[str, Any] | None:
    """The arguments; None if they are no JSON."""
    assert arguments
    try:
        found: dict[str, Any] = json.loads(arguments)
    except ValueError:
        return None
    return found


@pytest.mark.parametrize("form", sorted(TOOL_FORMATS))
def test_answer_without_tools_has_only_reasoning_parsed(server_of: Callable[[str], RunningServer], form: str) -> None:
    sent = {"messages": [{"role": "user", "content": f"say {ANSWERS[form]}"}]}
    found = _completed(server_of(form), sent, streamed=False)
    assert (found.reasoning.strip(), "get_weather" in found.content) == ("Hm.", True)
    assert not found.messages[0].get("tool_calls")


def test_calls_have_the_ids_that_the_model_writes(server_of: Callable[[str], RunningServer]) -> None:
    (message,) = _completed(server_of("kimi"), _chat_fields("kimi", Case(ANSWERS["kimi"])), streamed=False).messages
    assert [call["id"] for call in message["tool_calls"]] == ["functions.get_weather:0", "functions.now:1"]


CUSTOM = '<tool_call>⏎{"name": "run", "arguments": {"input": "rm -r \\"/tmp/é\\"\\n"}}⏎</tool_call>'
COMMAND = 'rm -r "/tmp/é"\n'


@pytest.mark.parametrize("max_tokens", range(20, len(CUSTOM.encode()) + 2, 3))
def test_texts_of_custom_calls_are_the_same_and_complete(
    server_of: Callable[[str], RunningServer], max_tokens: int
) -> None:
    server = server_of("hermes")
    chat = {"messages": [{"role": "user", "content": f"say {CUSTOM}"}], "max_tokens": max_tokens}
    chat["tools"] = [{"type": "custom", "custom": {"name": "run"}}]
    plain, streamed = (_completed(server, chat, streamed=streamed) for streamed in (False, True))
    calls, same = (
        [call["custom"] for message in found.messages for call in message.get("tool_calls", ())]
        for found in (plain, streamed)
    )
    assert calls == same
    assert calls in ([], [{"name": "run", "input": COMMAND}])
    assert plain.ended == streamed.ended
    sent = {"input": f"say {CUSTOM}", "max_output_tokens": max_tokens, "tools": [{"type": "custom", "name": "run"}]}
    whole = _posted(server, "/v1/responses", sent)
    *events, last = _events(server, "/v1/responses", {**sent, "stream": True})
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    for output in (whole["output"], done):
        texts = [item["input"] for item in output if item["type"] == "custom_tool_call"]
        assert texts == [call["input"] for call in calls]
    assert whole["status"] == last["response"]["status"]


@pytest.mark.parametrize("fields", [{"max_tokens": 75}, {"max_tokens": 2000, "stop_sequences": ["sl"]}])
@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_runner_executes_no_call_that_is_cut(
    server_of: Callable[[str], RunningServer], fields: dict[str, Any], stream: bool
) -> None:
    executed: list[str] = []

    def get_weather(city: str = "") -> str:
        """Get the weather."""
        executed.append(city)
        return "say sunny"

    said = 'say <tool_call>⏎{"name": "get_weather", "arguments": {"city": "Oslo"}}⏎</tool_call>'
    with Anthropic(base_url=server_of("hermes").url, api_key="none", max_retries=0) as client:
        for more, cities in ((fields, []), ({"max_tokens": 2000}, ["Oslo"])):
            asked: Any = {"model": "demo", "messages": [{"role": "user", "content": said}], **more}
            runner: Any = client.beta.messages.tool_runner(tools=[beta_tool(get_weather)], stream=stream, **asked)
            for turn in runner:
                turn.get_final_message() if stream else turn
            assert executed == cities
