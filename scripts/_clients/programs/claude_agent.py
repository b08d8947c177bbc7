"""Claude's Agent SDK: answers, a tool of the program that a search finds, ten turns, and an answer's schema."""

import asyncio
import tempfile
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    TextBlock,
    create_sdk_mcp_server,
    tool,
)

from _clients.programs.checks import MODEL, PARIS, PARIS_JSON, URL, call, check, equal, get_weather, run

_TOOL = "mcp__weather__get_weather"
_ENVIRONMENT = {
    "ANTHROPIC_BASE_URL": URL,
    "ANTHROPIC_AUTH_TOKEN": "none",
    "ANTHROPIC_MODEL": MODEL,
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "131072",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}


@tool("get_weather", "Get the weather of a city.", {"city": str})  # type: ignore[untyped-decorator]  # not installed
async def _weather(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": get_weather(arguments["city"])}]}


def _said(questions: list[str], **options: Any) -> list[tuple[str, Any]]:
    """The texts and the structured outputs of a session's answers."""

    async def talk() -> list[tuple[str, Any]]:
        found = []
        with tempfile.TemporaryDirectory() as folder:
            server = create_sdk_mcp_server("weather", tools=[_weather])
            settings = ClaudeAgentOptions(
                cwd=folder,
                env=_ENVIRONMENT,
                max_turns=8,
                mcp_servers={"weather": server},
                allowed_tools=[_TOOL],
                **options,
            )
            async with ClaudeSDKClient(settings) as client:
                for question in questions:
                    await client.query(question)
                    texts, output = [], None
                    async for message in client.receive_response():
                        if isinstance(message, AssistantMessage):
                            texts += [block.text for block in message.content if isinstance(block, TextBlock)]
                        elif isinstance(message, ResultMessage):
                            if message.is_error:
                                raise ValueError(message.result)
                            output = message.structured_output
                    found.append(("".join(texts), output))
        return found

    return asyncio.run(talk())


def _script(first: str, *later: tuple[str, str]) -> str:
    return "\n".join([f"script: {first}", *(f"script after {word}: {command}" for word, command in later)])


@check("answer")
def _answer() -> None:
    equal(_said([_script("say hello")])[0][0], "hello")


@check("a tool of the program")
def _own_tool() -> None:
    script = _script(
        call("ToolSearch", query=f"select:{_TOOL}"), ("<function>", call(_TOOL, city="Paris")), ("degrees", "say warm")
    )
    equal(_said([script])[0][0], "warm")


@check("ten turns")
def _turns() -> None:
    questions = [_script(f"say {number}") for number in range(10)]
    equal([text for text, _ in _said(questions)], [str(number) for number in range(10)])


@check("thinking and partial messages")
def _thinking() -> None:
    script = _script("say <think>so</think>hello")
    equal(_said([script], include_partial_messages=True, max_thinking_tokens=2000)[0][0], "hello")


@check("an answer's schema")
def _schema() -> None:
    form = {"type": "json_schema", "schema": type(PARIS).model_json_schema()}
    script = _script(call("StructuredOutput", **PARIS.model_dump()), ("provided", f"say {PARIS_JSON}"))
    equal(_said([script], output_format=form)[0][1], PARIS.model_dump())


run()
