"""LangChain, with `langchain-openai`."""

from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from _clients.programs import checks
from _clients.programs.checks import City, call, equal, get_weather, recipe, run

model = recipe()["model"]


def check_chat() -> None:
    equal(model.invoke("say hello").content, "hello")


def check_stream() -> None:
    equal("".join(chunk.content for chunk in model.stream("count 5")), "1, 2, 3, 4, 5")


def check_with_structured_output() -> None:
    equal(model.with_structured_output(City).invoke(checks.ANSWER), checks.PARIS)


def check_with_structured_output_by_a_call() -> None:
    structured = model.with_structured_output(City, method="function_calling")
    equal(structured.invoke(call("City", **checks.PARIS.model_dump())), checks.PARIS)


def check_bind_tools_and_tool_loop() -> None:
    tool = StructuredTool.from_function(get_weather)
    bound = model.bind_tools([tool])
    messages: list[Any] = [HumanMessage(checks.ASK_FOR_WEATHER)]
    messages.append(bound.invoke(messages))
    messages += [tool.invoke(each) for each in messages[-1].tool_calls]
    equal(len(messages), 3)
    equal(checks.WEATHER in bound.invoke(messages).content, True)


def check_an_image() -> None:
    pictured = ChatOpenAI(model=checks.IMAGES_MODEL, base_url=f"{checks.MODELS_URL}/v1", api_key="none", max_tokens=4)

    def tokens(*images: Any) -> int:
        message = HumanMessage([*images, {"type": "text", "text": checks.WHAT}])
        return int(pictured.invoke([message]).usage_metadata["input_tokens"])

    image = {"type": "image", "base64": checks.PICTURE, "mime_type": "image/png"}
    equal(tokens(image) - tokens(), checks.PICTURE_TOKENS)


run(globals())
