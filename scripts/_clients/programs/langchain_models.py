"""LangChain, with `langchain-openai`."""

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from _clients.programs.checks import (
    ANSWER,
    ASK_FOR_WEATHER,
    IMAGES_MODEL,
    IMAGES_URL,
    PARIS,
    PICTURE,
    PICTURE_TOKENS,
    WEATHER,
    WHAT,
    City,
    call,
    check,
    equal,
    get_weather,
    recipe,
    run,
)

model = recipe()["model"]


@check("chat")
def _chat() -> None:
    equal(model.invoke("say hello").content, "hello")


@check("stream")
def _stream() -> None:
    equal("".join(chunk.content for chunk in model.stream("count 5")), "1, 2, 3, 4, 5")


@check("with_structured_output")
def _structured() -> None:
    equal(model.with_structured_output(City).invoke(ANSWER), PARIS)


@check("with_structured_output by a call")
def _structured_by_a_call() -> None:
    structured = model.with_structured_output(City, method="function_calling")
    equal(structured.invoke(call("City", **PARIS.model_dump())), PARIS)


@check("bind_tools and tool loop")
def _tools() -> None:
    tool = StructuredTool.from_function(get_weather)
    bound = model.bind_tools([tool])
    messages: list[Any] = [HumanMessage(ASK_FOR_WEATHER)]
    messages.append(bound.invoke(messages))
    messages += [tool.invoke(each) for each in messages[-1].tool_calls]
    equal(len(messages), 3)
    equal(WEATHER in bound.invoke(messages).content, True)


@check("an image")
def _image() -> None:
    pictured = ChatOpenAI(model=IMAGES_MODEL, base_url=f"{IMAGES_URL}/v1", api_key="none", max_tokens=4)

    def tokens(*images: Any) -> int:
        message = HumanMessage([*images, {"type": "text", "text": WHAT}])
        return int(pictured.invoke([message]).usage_metadata["input_tokens"])

    image = {"type": "image", "base64": PICTURE, "mime_type": "image/png"}
    equal(tokens(image) - tokens(), PICTURE_TOKENS)


run()
