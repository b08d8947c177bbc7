"""Settings of chats on the page: each chat has its own, which are seen, exported, and started from presets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.running_server import RunningServer
from tests.web.browser import answer, ask, expect, opened, picture

PIRATE = "You are a pirate."
CHUNK = {"choices": [{"index": 0, "delta": {"content": "Arr"}, "finish_reason": "stop"}]}


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        expect(page.locator(".picker")).to_be_visible()
        yield page


@pytest.fixture
def bodies(page: Page) -> list[dict[str, Any]]:
    """The bodies of the chats that the page requested."""
    found: list[dict[str, Any]] = []

    def respond(route: Route) -> None:
        found.append(json.loads(route.request.post_data or ""))
        route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n")

    page.route("**/v1/chat/completions", respond)
    return found


def settings(page: Page, **values: str) -> None:
    """Type into fields of the settings, which are open afterwards. An underscore stands for a space."""
    panel = page.get_by_role("complementary", name="Chat settings")
    if not panel.count():
        page.get_by_role("button", name="Settings").click()
    for label, value in values.items():
        panel.get_by_label(label.replace("_", " ")).first.fill(value)


@pytest.mark.smoke
def test_settings_belong_to_a_chat_and_are_seen(page: Page, bodies: list[dict[str, Any]]) -> None:
    settings(page, System_prompt=PIRATE, Max_tokens="3")
    ask(page, "First")
    assert bodies[0]["max_tokens"] == 3
    assert "thinking_token_budget" not in bodies[0]
    assert bodies[0]["messages"][0] == {"role": "system", "content": PIRATE}
    for _ in range(2):
        expect(page.locator(".badge")).to_have_text("2 set")
        expect(page.locator(".chip")).to_contain_text(PIRATE)
        page.reload()
    page.get_by_role("button", name="New chat").click()
    expect(answer(page)).to_have_count(0)
    expect(page.locator(".badge, .chip")).to_have_count(0)
    ask(page, "Second")
    assert "max_tokens" not in bodies[1]
    assert [message["role"] for message in bodies[1]["messages"]] == ["user"]
    page.get_by_role("button", name="First", exact=True).click()
    page.locator(".chip").click()
    expect(page.get_by_label("Max tokens").first).to_have_value("3")


def test_new_chats_begin_with_the_chosen_settings(page: Page, bodies: list[dict[str, Any]], tmp_path: Path) -> None:
    settings(page, System_prompt=PIRATE)
    page.get_by_role("button", name="Use for new chats").click()
    expect(page.get_by_text("New chats begin with these settings.")).to_be_visible()
    picture(page, "settings-for-new-chats", tmp_path)
    page.reload()
    expect(page.locator(".badge")).to_have_text("1 set")
    ask(page, "First")
    assert bodies[0]["messages"][0] == {"role": "system", "content": PIRATE}
    settings(page, System_prompt="Be brief.")
    page.get_by_role("button", name="New chat", exact=True).click()
    expect(page.locator(".chip")).to_contain_text(PIRATE)
    settings(page)
    page.get_by_role("button", name="Begin them without settings").click()
    page.reload()
    expect(page.locator(".picker")).to_be_visible()
    expect(page.locator(".badge, .chip")).to_have_count(0)


def test_settings_are_exported_with_their_chat(page: Page, bodies: list[dict[str, Any]], tmp_path: Path) -> None:
    settings(page, System_prompt=PIRATE)
    ask(page, "First")
    with page.expect_download() as found:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "chats.json"
    found.value.save_as(file)
    exported = json.loads(file.read_text())
    assert exported["chats"][0]["settings"] == {"system": PIRATE}
    settings(page, System_prompt="")
    expect(page.locator(".chip")).to_have_count(0)
    page.get_by_label("Import").set_input_files(file)
    expect(page.locator(".chip")).to_contain_text(PIRATE)
    exported["chats"][0]["settings"] = {"system": 3}
    file.write_text(json.dumps(exported))
    page.get_by_label("Import").set_input_files(file)
    expect(page.get_by_role("alert")).to_contain_text("the file has no chats of genai-server")


def test_settings_start_from_presets(page: Page, bodies: list[dict[str, Any]]) -> None:
    settings(page)
    page.get_by_label("Preset").select_option("Precise")
    expect(page.get_by_label("Temperature")).to_have_value("0")
    settings(page, System_prompt=PIRATE)
    expect(page.get_by_label("Preset")).to_have_value("")
    page.get_by_role("button", name="Save as preset").click()
    page.get_by_label("Name of the preset").fill("Pirate")
    page.get_by_label("Name of the preset").press("Enter")
    expect(page.get_by_label("Preset")).to_have_value("Pirate")
    page.reload()
    settings(page)
    expect(page.locator(".badge")).to_have_count(0)
    page.get_by_label("Preset").select_option("Pirate")
    ask(page, "First")
    assert bodies[0]["temperature"] == 0
    assert bodies[0]["messages"][0]["content"] == PIRATE
    page.get_by_role("button", name="Delete preset").click()
    expect(page.get_by_label("Preset").locator("option")).to_have_text(["None (own settings)", "Precise", "Creative"])
    expect(page.locator(".chip")).to_contain_text(PIRATE)


def test_options_of_earlier_versions_become_a_preset(page: Page) -> None:
    page.evaluate("localStorage.setItem('request-options', JSON.stringify({max_tokens: '3', logprobs: true}))")
    page.reload()
    expect(page.locator(".badge")).to_have_count(0)
    settings(page)
    page.get_by_label("Preset").select_option("Earlier options")
    expect(page.get_by_label("Max tokens").first).to_have_value("3")
    expect(page.locator(".badge")).to_have_text("2 set")


def test_asking_again_with_probabilities_applies_once(page: Page, bodies: list[dict[str, Any]]) -> None:
    ask(page, "First")
    page.get_by_role("button", name="Inspect tokens").click()
    page.get_by_label("probability").check()
    page.get_by_role("button", name="Ask again with them").click()
    expect(answer(page).get_by_label("Version 2 of 2")).to_be_visible()
    ask(page, "Second")
    assert [body.get("logprobs") for body in bodies] == [None, True, None]
    expect(page.locator(".badge")).to_have_count(0)


def test_a_budget_of_reasoning_is_sent(page: Page, bodies: list[dict[str, Any]]) -> None:
    settings(page, Reasoning_budget="0")
    ask(page, "First")
    settings(page, Reasoning_budget="200")
    ask(page, "Second")
    assert [body["thinking_token_budget"] for body in bodies] == [0, 200]
