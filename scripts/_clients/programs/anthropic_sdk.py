"""Anthropic's Python SDK."""

from typing import Any

import anthropic

from _clients.programs.checks import (
    ANSWER,
    ASK_FOR_WEATHER,
    IMAGES_MODEL,
    IMAGES_URL,
    MODEL,
    PARIS,
    PICTURE,
    PICTURE_TOKENS,
    URL,
    WEATHER,
    WHAT,
    City,
    check,
    equal,
    get_weather,
    run,
)

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)


def _ask(content: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": content}]}


@check("messages")
def _messages() -> None:
    equal(client.messages.create(**_ask("say hello")).content[0].text, "hello")


@check("stream")
def _stream() -> None:
    with client.messages.stream(**_ask("count 5")) as stream:
        equal("".join(stream.text_stream), "1, 2, 3, 4, 5")
        equal(stream.get_final_message().stop_reason, "end_turn")


@check("parse")
def _parse() -> None:
    equal(client.messages.parse(output_format=City, **_ask(ANSWER)).parsed_output, PARIS)


@check("tool loop")
def _tools() -> None:
    tool = anthropic.beta_tool(get_weather)
    last = client.beta.messages.tool_runner(tools=[tool], **_ask(ASK_FOR_WEATHER)).until_done()
    equal(WEATHER in last.content[0].text, True)


@check("count tokens")
def _count() -> None:
    fields = {name: value for name, value in _ask("say hello").items() if name != "max_tokens"}
    equal(client.messages.count_tokens(**fields).input_tokens > 0, True)


@check("an image")
def _image() -> None:
    pictured = anthropic.Anthropic(base_url=IMAGES_URL, api_key="none", max_retries=0)

    def tokens(*images: Any) -> int:
        messages: Any = [{"role": "user", "content": [*images, {"type": "text", "text": WHAT}]}]
        usage = pictured.messages.create(model=IMAGES_MODEL, max_tokens=4, messages=messages).usage
        return int(usage.input_tokens + (usage.cache_read_input_tokens or 0))

    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    equal(tokens({"type": "image", "source": source}) - tokens(), PICTURE_TOKENS)


@check("errors")
def _errors() -> None:
    try:
        client.messages.create(**_ask("x") | {"model": "gpt-9"})
    except anthropic.NotFoundError as error:
        equal(error.body["error"]["type"], "not_found_error")
    else:
        raise AssertionError("an unknown model was served")


run()
