"""Tool servers on the page: chosen for a chat, calls shown with their results, approvals by a click."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.running_server import RunningServer
from tests.server_here import run_here
from tests.web.browser import answer, answered, expect, opened, say, violations

PROGRAM = Path(__file__).parents[1] / "tool_server.py"


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>⏎{json.dumps({'name': name, 'arguments': arguments})}⏎</tool_call>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tools")
    program = json.dumps([sys.executable, str(PROGRAM)])
    text = f"""
        [mcp.free]
        command = {program}
        description = "Runs at once"
        [mcp.guarded]
        command = {program}
        approval = "always"
        """
    (folder / "server.toml").write_text(text, encoding="utf-8")
    options = ["--config", str(folder / "server.toml"), "--device", "scripted", "--max-length", "20000"]
    with run_here(folder, *options) as server:
        yield server


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Page]:
    with opened(browser, server) as page:
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_role("group", name="Tool servers")).to_contain_text("Runs at once")
        page.get_by_label("free").check()
        page.get_by_label("guarded").check()
        yield page


def test_calls_are_shown_with_arguments_and_result_and_stay_in_the_history(page: Page) -> None:
    say(page, f"script: say I look. {call('free__echo', text='heron')}\nscript after heron: say It said so.")
    run = answer(page).locator(".run")
    expect(run).to_have_count(1)
    answered(page)
    expect(run.locator("summary")).to_have_text("free: echo")
    run.locator("summary").click()
    expect(run.get_by_label("Arguments")).to_have_text('{\n  "text": "heron"\n}')
    expect(run.get_by_label("Result")).to_have_text("heron")
    expect(answer(page)).to_contain_text("I look.")
    expect(answer(page)).to_contain_text("It said so.")
    assert violations(page) == []
    page.reload()
    expect(run.locator("summary")).to_have_text("free: echo")
    page.get_by_role("button", name="Code").click()
    python = page.get_by_label("Python", exact=True)
    expect(python).to_contain_text('extra_headers={"x-genai-run-tools": "free,guarded"}')
    say(page, "script: say And then.")
    expect(answer(page).last).to_contain_text("And then.")
    expect(python).to_contain_text('"role": "tool"')


@pytest.mark.parametrize(("button", "said"), [("Run echo of guarded", "It ran."), ("Decline", "As you like.")])
def test_a_call_waits_for_the_readers_click(page: Page, button: str, said: str) -> None:
    after = "declined" if button == "Decline" else "heron"
    say(page, f"script: say {call('guarded__echo', text='heron')}\nscript after {after}: say {said}")
    page.get_by_role("button", name=button).click()
    expect(answer(page).last).to_contain_text(said)
    answered(page)
    expect(answer(page).locator(".run")).to_have_count(0 if button == "Decline" else 1)


def test_stop_ends_a_tool(page: Page) -> None:
    say(page, f"script: say {call('free__hang')}")
    expect(answer(page).locator(".run")).to_contain_text("is running")
    page.get_by_role("button", name="Stop").click()
    answered(page)
    expect(answer(page).locator(".run")).to_contain_text("was not completed")
