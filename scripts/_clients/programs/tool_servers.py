"""The reference servers of MCP, whose tools the server runs: by the SDKs of OpenAI and Anthropic, chat and the page."""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import anthropic
import openai
from playwright.sync_api import expect, sync_playwright

from _clients.programs.checks import MODEL, URL, call, check, equal, run

_SECONDS = 60
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=_SECONDS)
claude = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=_SECONDS)
_BETAS = ["mcp-client-2025-11-20"]
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
KEY = os.environ["CHECKED_KEY"]


def _script(asked: str, word: str) -> str:
    """A prompt whose answer is a call, and a text once this word of its result stands in the prompt."""
    return f"script: {asked}\nscript after {word}: say It said {word}"


_TIMES = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "UTC"}
# The word of a result that the call itself does not have.
ASKED = {
    "time": (_script(call("time__convert_time", **_TIMES), "time_difference"), "time_difference"),
    "everything": (_script(call("everything__echo", message="heron"), "Echo:"), "Echo:"),
    "files": (_script(call("files__read_text_file", path=os.environ["CHECKED_FILE"]), KEY), KEY),
}


def _name(asked: str) -> str:
    """The name of the tool that a prompt has called."""
    written = asked.partition("<tool_call>⏎")[2].partition("⏎</tool_call>")[0]
    return str(json.loads(written)["name"]).partition("__")[2]


def _tool(server: str, approval: str = "never") -> Any:
    return {"type": "mcp", "server_label": server, "require_approval": approval}


def _ran(response: Any, word: str) -> None:
    """Fail unless a response has listed tools, run one, and gone on with its result."""
    kinds = [item.type for item in response.output]
    equal(kinds, ["mcp_list_tools", "mcp_call", "message"])
    called = response.output[1]
    equal((called.status, called.error, word in (called.output or "")), ("completed", None, True))
    equal(response.output_text, f"It said {word}")


@check("responses, stored and continued")
def _responses() -> None:
    for server, (asked, word) in ASKED.items():
        response = client.responses.create(model=MODEL, input=asked, tools=[_tool(server)])
        _ran(response, word)
        equal(client.responses.retrieve(response.id).output, response.output)
        more = client.responses.create(
            model=MODEL, input="script: say more", previous_response_id=response.id, tools=[_tool(server)]
        )
        equal(([item.type for item in more.output], more.output_text), (["message"], "more"))


@check("responses, streamed and in the background")
def _streamed_responses() -> None:
    for server, (asked, word) in ASKED.items():
        with client.responses.stream(model=MODEL, input=asked, tools=[_tool(server)]) as stream:
            kinds = [event.type for event in stream]
            _ran(stream.get_final_response(), word)
        for kind in ("mcp_list_tools.completed", "mcp_call_arguments.done", "mcp_call.completed"):
            equal(f"response.{kind}" in kinds, True)
        events = list(
            client.responses.create(model=MODEL, input=asked, tools=[_tool(server)], background=True, stream=True)
        )
        _ran(events[-1].response, word)
        _ran(client.responses.retrieve(events[-1].response.id), word)


@check("approvals")
def _approvals() -> None:
    for server, (asked, word) in ASKED.items():
        tools = [_tool(server, "always")]
        for streams in (False, True):
            first = client.responses.create(model=MODEL, input=asked, tools=tools)
            request = first.output[-1]
            equal(request.type, "mcp_approval_request")
            approval: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
            fields: Any = {"model": MODEL, "input": [approval], "tools": tools, "previous_response_id": first.id}
            if streams:
                response = list(client.responses.create(**fields, stream=True))[-1].response
            else:
                response = client.responses.create(**fields)
            equal([item.type for item in response.output], ["mcp_call", "message"])
            equal((response.output[0].approval_request_id, word in response.output[0].output), (request.id, True))
            equal(response.output_text, f"It said {word}")


@check("chat completions")
def _chat() -> None:
    for server, (asked, word) in ASKED.items():
        fields: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": asked}],
            "extra_headers": {"x-genai-run-tools": server},
        }
        message = client.chat.completions.create(**fields).choices[0].message
        equal(message.content, f"It said {word}")
        (made,) = message.genai_tool_runs
        equal((made["server"], made["status"], word in made["output"]), (server, "completed", True))
        chunks = list(client.chat.completions.create(**fields, stream=True))
        equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), f"It said {word}")


@check("messages, plain and streamed")
def _messages() -> None:
    for server, (asked, word) in ASKED.items():
        fields: Any = {
            "model": MODEL,
            "max_tokens": 2000,
            "betas": _BETAS,
            "messages": [{"role": "user", "content": asked}],
            "mcp_servers": [{"type": "url", "name": server, "url": "https://example.com/mcp"}],
            "tools": [{"type": "mcp_toolset", "mcp_server_name": server}],
        }
        with claude.beta.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
        for answer in (claude.beta.messages.create(**fields), streamed):
            use, result, last = answer.content
            equal((use.type, use.server_name, result.type), ("mcp_tool_use", server, "mcp_tool_result"))
            equal((result.is_error, word in result.content[0].text), (False, True))
            equal((last.text, answer.stop_reason), (f"It said {word}", "end_turn"))
        history = [*fields["messages"], {"role": "assistant", "content": [part.to_dict() for part in streamed.content]}]
        more = [*history, {"role": "user", "content": "script: say more"}]
        equal(claude.beta.messages.create(**{**fields, "messages": more}).content[0].text, "more")


@check("the terminal")
def _terminal() -> None:
    for server, (asked, word) in ASKED.items():
        command = [sys.executable, "-m", "genai_server", "chat", URL, "--mcp", server]
        typed = f'"""\n{asked}\n"""\nscript: say more\n'
        done = subprocess.run(command, input=typed, capture_output=True, text=True, check=True, timeout=_SECONDS)
        for shown in (f"[{server}: {_name(asked)} ", f"It said {word}", "more"):
            equal((shown, shown in done.stdout), (shown, True))


@check("the page")
def _page() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(filter(None, map(shutil.which, _BROWSERS)), None))
        page = browser.new_page()
        page.goto(URL)
        page.get_by_role("button", name="Settings").click()
        for server in ASKED:
            page.get_by_role("group", name="Tool servers").get_by_label(server).check()
        for number, (server, (asked, word)) in enumerate(ASKED.items(), 1):
            page.get_by_label("Message", exact=True).fill(asked)
            page.get_by_label("Message", exact=True).press("Enter")
            answer = page.get_by_role("article", name="Answer", exact=True)
            expect(answer).to_have_count(number, timeout=_SECONDS * 1000)
            last = answer.last
            expect(last).to_contain_text(f"It said {word}", timeout=_SECONDS * 1000)
            expect(last.locator(".run summary")).to_have_text(f"{server}: {_name(asked)}")
            last.locator(".run summary").click()
            expect(last.get_by_label("Result")).to_contain_text(word)
        browser.close()


run()
