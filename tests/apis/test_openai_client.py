"""OpenAI's client beyond single calls: asynchronous use, retries, helpers and errors."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.running_server import RunningServer


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    big: bool


@pytest.fixture
def client(demo: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _ask(content: str) -> Any:
    return {"model": "demo", "messages": [{"role": "user", "content": content}]}


def test_the_asynchronous_client_gets_answers_side_by_side(scripted: RunningServer) -> None:
    async def run() -> list[str]:
        async with AsyncOpenAI(base_url=f"{scripted.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(**_ask("say one"))
            stream = await client.chat.completions.create(**_ask("say two"), stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return [(await whole).choices[0].message.content or "", streamed]

    assert asyncio.run(run()) == ["one", "two"]


def test_client_retries_a_503(own_scripted: RunningServer) -> None:
    statuses: list[tuple[int, str | None]] = []

    def recover(response: Any) -> None:
        statuses.append((response.status_code, response.headers.get("retry-after")))
        own_scripted.options(terminate_session="0")

    own_scripted.options(terminate_session="1")
    http = openai.DefaultHttpxClient(event_hooks={"response": [recover]})
    with OpenAI(base_url=f"{own_scripted.url}/v1", api_key="none", max_retries=1, http_client=http) as client:
        completion = client.chat.completions.create(**_ask("say hi"))
    assert completion.choices[0].message.content == "hi"
    # How long an operator stops a device for is unknown.
    assert statuses == [(503, None), (200, None)]


def test_each_error_is_of_the_clients_own_class(scripted: RunningServer) -> None:
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**_ask("x"), temperature=9)
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**_ask("x") | {"model": "gpt-9"})
        with pytest.raises(openai.InternalServerError, match="scripted failure"):
            client.chat.completions.create(**_ask("fail at 0; say x"))


# openai's own classes warn when they write the object of the caller's class into a request.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_streaming_helper_returns_the_object_of_the_plain_call(client: OpenAI) -> None:
    plain = client.chat.completions.parse(**_ask("Tell me of a city."), response_format=City, max_tokens=200)
    with client.chat.completions.stream(**_ask("Tell me of a city."), response_format=City, max_tokens=200) as stream:
        assert any(event.type == "content.delta" for event in stream)
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == plain.choices[0].message.parsed
    for answer in (plain, final):
        again: Any = [*_ask("Tell me of a city.")["messages"], answer.choices[0].message, *_ask("Hello!")["messages"]]
        assert client.chat.completions.create(model="demo", messages=again, max_tokens=20).choices[0].message.content


def test_a_forced_call_parses_and_fits_its_schema(client: OpenAI) -> None:
    tools: Any = [openai.pydantic_function_tool(City, name="look_up")]
    asked: Any = {**_ask("Hello!"), "tools": tools, "tool_choice": "required", "max_tokens": 200}
    parsed: Any = client.chat.completions.parse(**asked)
    with client.chat.completions.stream(**asked) as stream:
        streamed: Any = stream.get_final_completion()
    # The messages of parse() and of stream() have fields that the server's answer did not have.
    for (choice,) in (parsed.choices, streamed.choices):
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "look_up")
        assert isinstance(call.function.parsed_arguments, City)
        result = {"role": "tool", "tool_call_id": call.id, "content": "Paris"}
        again: Any = [*_ask("Hello!")["messages"], choice.message, result]
        assert client.chat.completions.create(model="demo", messages=again, tools=tools).choices[0].message.content
