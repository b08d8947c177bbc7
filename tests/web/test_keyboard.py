"""The page without a pointer, and with a finger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.running_server import RunningServer
from tests.web.browser import answer, answered, ask, expect, opened, picture, violations


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        yield page


def test_the_focus_returns_to_the_message(page: Page) -> None:
    area = page.get_by_label("Message", exact=True)
    ask(page, "say one")
    page.get_by_role("button", name="Regenerate").click()
    expect(answer(page).get_by_label("Version 2 of 2")).to_be_visible()
    answered(page)
    expect(area).to_be_focused()
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Edit your message").fill("say two")
    page.get_by_label("Edit your message").press("Control+Enter")
    expect(answer(page)).to_contain_text("two")
    expect(area).to_be_focused()


def test_the_way_back_from_the_monitor_is_the_chat(page: Page) -> None:
    ask(page, "say one")
    views = page.get_by_role("navigation", name="Views")
    views.get_by_role("link", name="Monitor").click()
    expect(page.get_by_role("heading", name="Devices")).to_be_visible()
    views.get_by_role("link", name="Chat").click()
    expect(answer(page)).to_contain_text("one")


def test_the_last_message_is_edited_with_arrow_up(page: Page) -> None:
    ask(page, "say one")
    area = page.get_by_label("Message", exact=True)
    area.fill("text")
    area.press("ArrowUp")
    expect(page.get_by_label("Edit your message")).to_have_count(0)
    area.fill("")
    area.press("ArrowUp")
    expect(page.get_by_label("Edit your message")).to_be_focused()
    expect(page.get_by_label("Edit your message")).to_have_value("say one")
    page.keyboard.press("Escape")
    expect(area).to_be_focused()


def test_shortcuts_search_and_begin_chats_and_are_listed(page: Page) -> None:
    ask(page, "say one")
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Search chats")).to_be_focused()
    page.keyboard.press("Alt+n")
    expect(answer(page)).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_label("Message", exact=True)).to_have_value("?")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("Search chats")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Settings").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary", name="Chat settings")).to_have_count(0)


@pytest.fixture
def phone(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    device: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with opened(browser, own_scripted, **device) as page:
        yield page


# The controls that are seen and smaller than a finger.
SMALL = """() => [...document.querySelectorAll("button, select, summary, nav a, input[type=search]")]
    .map((element) => [element.ariaLabel || element.textContent, element.getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.height < 40 || box.width < 40))
    .map(([name, box]) => [name, box.width, box.height])"""


def test_targets_are_large_enough_for_a_finger(phone: Page, tmp_path: Path) -> None:
    ask(phone, "say one")
    phone.get_by_role("button", name="Regenerate").click()
    expect(answer(phone).get_by_label("Version 2 of 2")).to_be_visible()
    answered(phone)
    phone.get_by_role("button", name="Settings").click()
    phone.get_by_label("Seed").fill("1")
    phone.get_by_role("button", name="Close").click()
    bar = phone.locator(".bar").bounding_box()
    assert bar is not None
    assert bar["height"] < 56
    picture(phone, "phone", tmp_path)
    assert phone.evaluate(SMALL) == []
    phone.get_by_role("button", name="Chats").click()
    assert phone.evaluate(SMALL) == []
    assert violations(phone) == []
    phone.get_by_role("link", name="Monitor").click()
    expect(phone.locator(".card").first).to_be_visible()
    assert phone.evaluate(SMALL) == []
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
