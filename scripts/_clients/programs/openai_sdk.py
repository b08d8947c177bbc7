"""OpenAI's Python SDK."""

import json
import time
from typing import Any

import openai

from _clients.programs.checks import (
    ANSWER,
    ASK_FOR_WEATHER,
    IMAGES_MODEL,
    IMAGES_URL,
    MODEL,
    PARAMETERS,
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

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


def _user(content: str) -> Any:
    return {"role": "user", "content": content}


@check("chat")
def _chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[_user("say hello")])
    equal(answer.choices[0].message.content, "hello")


@check("stream")
def _stream() -> None:
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=[_user("count 5")], stream=True, stream_options=options)
    )
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), "1, 2, 3, 4, 5")
    equal(chunks[-1].usage.completion_tokens > 0, True)


@check("parse")
def _parse() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=[_user(ANSWER)], response_format=City)
    equal(answer.choices[0].message.parsed, PARIS)


@check("tool loop")
def _tools() -> None:
    messages = [_user(ASK_FOR_WEATHER)]
    message = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL]).choices[0].message
    (made,) = message.tool_calls
    result = get_weather(**json.loads(made.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": made.id, "content": result}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    equal(WEATHER in answer.choices[0].message.content, True)


@check("completions")
def _completions() -> None:
    equal(client.completions.create(model=MODEL, prompt="say hello\n\x04").choices[0].text, "hello")


@check("responses")
def _responses() -> None:
    first = client.responses.create(model=MODEL, input="say hello")
    equal(first.output_text, "hello")
    with client.responses.stream(model=MODEL, input="say more", previous_response_id=first.id) as stream:
        equal(stream.get_final_response().output_text, "more")


@check("parse of responses")
def _responses_parse() -> None:
    equal(client.responses.parse(model=MODEL, input=ANSWER, text_format=City).output_parsed, PARIS)


@check("tool loop over responses")
def _responses_tools() -> None:
    tool: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": False}
    first = client.responses.create(model=MODEL, input=ASK_FOR_WEATHER, tools=[tool])
    (made,) = (item for item in first.output if item.type == "function_call")
    result: Any = {
        "type": "function_call_output",
        "call_id": made.call_id,
        "output": get_weather(**json.loads(made.arguments)),
    }
    second = client.responses.create(model=MODEL, input=[result], previous_response_id=first.id, tools=[tool])
    equal(WEATHER in second.output_text, True)


def _pictured() -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{IMAGES_URL}/v1", api_key="none", max_retries=0)


@check("an image")
def _image() -> None:
    def tokens(*images: Any) -> int:
        messages: Any = [{"role": "user", "content": [*images, {"type": "text", "text": WHAT}]}]
        answer = _pictured().chat.completions.create(model=IMAGES_MODEL, messages=messages, max_tokens=4)
        return int(answer.usage.prompt_tokens)

    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    equal(tokens(image) - tokens(), PICTURE_TOKENS)


@check("an image over responses")
def _responses_image() -> None:
    def tokens(*images: Any) -> int:
        items: Any = [{"role": "user", "content": [*images, {"type": "input_text", "text": WHAT}]}]
        answer = _pictured().responses.create(model=IMAGES_MODEL, input=items, max_output_tokens=16)
        return int(answer.usage.input_tokens)

    image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PICTURE}"}
    equal(tokens(image) - tokens(), PICTURE_TOKENS)


@check("a batch")
def _batch() -> None:
    bodies = ({"model": MODEL, "messages": [_user(said)]} for said in ("say hello", "say more"))
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("input.jsonl", content), purpose="batch")
    equal(client.files.content(file.id).read(), content)
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"of": "a check"}
    )
    while batch.status not in ("completed", "failed"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    equal(batch.request_counts.completed, 2)
    results = map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
    texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in results}
    equal(texts, {"0": "hello", "1": "more"})
    equal(batch.id in [listed.id for listed in client.batches.list()], True)
    equal(file.id in [listed.id for listed in client.files.list(purpose="batch")], True)
    equal(client.files.delete(file.id).deleted, True)
    try:
        client.batches.cancel(batch.id)
    except openai.BadRequestError as error:
        equal(error.param, "batch_id")
    else:
        raise AssertionError("a completed batch was cancelled")


@check("errors")
def _errors() -> None:
    try:
        client.chat.completions.create(model="gpt-9", messages=[_user("x")])
    except openai.NotFoundError as error:
        equal(error.code, "model_not_found")
    else:
        raise AssertionError("an unknown model was served")


run()
