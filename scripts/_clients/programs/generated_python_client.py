"""What openapi-python-client has generated: a call, a stream, a union of requests, and an error."""

from generated_client import Client
from generated_client.api.openai import create_chat_completion as chat_completions
from generated_client.api.openai import create_response as responses
from generated_client.api.tokens import tokenize
from generated_client.models import (
    ChatCompletionRequest,
    ChatMessage,
    ChatMessageRole,
    ErrorResponse,
    FunctionTool,
    InputText,
    MessageItem,
    MessageItemRole,
    ResponsesRequest,
    TokenizeRequest,
    TokenizeResponse,
)

from _clients.programs.checks import URL, check, equal, run

client = Client(base_url=URL, raise_on_unexpected_status=True)


def _asked(content: str, **fields: bool | float) -> ChatCompletionRequest:
    message = ChatMessage(role=ChatMessageRole.USER, content=content)
    return ChatCompletionRequest(messages=[message], **fields)


@check("/v1/chat/completions")
def _chat() -> None:
    answer = chat_completions.sync(client=client, body=_asked("say hello"))
    equal(answer["choices"][0]["message"]["content"], "hello")


@check("a stream of it")
def _stream() -> None:
    # The generated functions read answers in one piece.
    asked = chat_completions._get_kwargs(body=_asked("say hello", stream=True))
    with client.get_httpx_client().stream(**asked) as response:
        chunks = [line for line in response.iter_lines() if "chat.completion.chunk" in line]
    equal(len(chunks) > 5, True)


@check("items and tools, which are unions, of /v1/responses")
def _responses() -> None:
    item = MessageItem(
        type_="message", role=MessageItemRole.USER, content=[InputText(type_="input_text", text="say hello")]
    )
    body = ResponsesRequest(input_=[item], tools=[FunctionTool(type_="function", name="add")])
    answer = responses.sync(client=client, body=body)
    equal(answer["output"][0]["content"][0]["text"], "hello")


@check("a typed answer")
def _tokens() -> None:
    answer = tokenize.sync(client=client, body=TokenizeRequest(prompt="abc"))
    equal((type(answer), answer.count), (TokenizeResponse, 3))


@check("a typed error")
def _error() -> None:
    answer = chat_completions.sync(client=client, body=_asked("x", temperature=9.0))
    equal((type(answer), answer.error.param), (ErrorResponse, "temperature"))


run()
