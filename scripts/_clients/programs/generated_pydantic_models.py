"""What datamodel-code-generator has generated: requests are made and answers read by its models."""

import json
import urllib.request
from typing import Any

from generated_models import (
    ApplyPatchTool,
    ChatCompletionRequest,
    ChatMessage,
    FunctionTool,
    ResponsesRequest,
    TokenizeRequest,
    TokenizeResponse,
)
from pydantic import BaseModel

from _clients.programs.checks import URL, check, equal, run


def _post(path: str, body: BaseModel) -> Any:
    data = body.model_dump_json(exclude_none=True, by_alias=True).encode()
    request = urllib.request.Request(f"{URL}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@check("/v1/chat/completions")
def _chat() -> None:
    body = ChatCompletionRequest(messages=[ChatMessage(role="user", content="say hello")])
    equal(_post("/v1/chat/completions", body)["choices"][0]["message"]["content"], "hello")


@check("tools, which are a union, of /v1/responses")
def _responses() -> None:
    given = {"input": "say hello", "tools": [{"type": "function", "name": "add"}, {"type": "apply_patch"}]}
    body = ResponsesRequest.model_validate(given)
    equal([type(tool) for tool in body.tools or []], [FunctionTool, ApplyPatchTool])
    equal(_post("/v1/responses", body)["output"][0]["content"][0]["text"], "hello")


@check("a typed answer")
def _tokens() -> None:
    equal(TokenizeResponse.model_validate(_post("/tokenize", TokenizeRequest(prompt="abc"))).count, 3)


run()
