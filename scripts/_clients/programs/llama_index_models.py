"""LlamaIndex, with `llama-index-llms-openai-like`."""

import base64

from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from _clients.programs.checks import (
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


@check("complete")
def _complete() -> None:
    equal(model.complete("say hello").text, "hello")


@check("stream_chat")
def _stream() -> None:
    pieces = list(model.stream_chat([ChatMessage(role="user", content="count 5")]))
    equal(pieces[-1].message.content, "1, 2, 3, 4, 5")
    equal("".join(piece.delta or "" for piece in pieces), "1, 2, 3, 4, 5")


@check("structured_predict")
def _structured() -> None:
    prompt = PromptTemplate("{script}")
    equal(model.structured_predict(City, prompt, script=call("City", **PARIS.model_dump())), PARIS)


@check("predict_and_call")
def _tools() -> None:
    response = model.predict_and_call([FunctionTool.from_defaults(get_weather)], user_msg=ASK_FOR_WEATHER)
    equal(WEATHER in str(response), True)


@check("tool loop")
def _loop() -> None:
    tool = FunctionTool.from_defaults(get_weather)
    history = [ChatMessage(role="user", content=ASK_FOR_WEATHER)]
    first = model.chat_with_tools([tool], chat_history=history)
    (made,) = model.get_tool_calls_from_response(first)
    result = str(tool(**made.tool_kwargs))
    history += [
        first.message,
        ChatMessage(role="tool", content=result, additional_kwargs={"tool_call_id": made.tool_id}),
    ]
    equal(WEATHER in (model.chat_with_tools([tool], chat_history=history).message.content or ""), True)


@check("an image")
def _image() -> None:
    pictured = OpenAILike(
        model=IMAGES_MODEL, api_base=f"{IMAGES_URL}/v1", api_key="none", is_chat_model=True, max_tokens=4
    )

    def tokens(*images: ImageBlock) -> int:
        message = ChatMessage(role="user", blocks=[*images, TextBlock(text=WHAT)])
        return int(pictured.chat([message]).raw.usage.prompt_tokens)

    image = ImageBlock(image=base64.b64decode(PICTURE), image_mimetype="image/png")
    equal(tokens(image) - tokens(), PICTURE_TOKENS)


run()
