"""One chat in several tabs of a browser: nothing that one of them writes is lost, and the others show it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.running_server import RunningServer
from tests.web.browser import agree, answer, answered, ask, expect, opened, say


@pytest.fixture
def first(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        yield page


@pytest.fixture
def second(first: Page) -> Page:
    """Another tab with the first one's only chat, which both show."""
    ask(first, "say France")
    page = first.context.new_page()
    page.goto(first.url)
    expect(answer(page)).to_contain_text("France")
    return page


def hide(page: Page, *, is_hidden: bool = True) -> None:
    """Let a tab be one that nobody sees, or the contrary."""
    page.evaluate(
        "isHidden => { Object.defineProperty(document, 'hidden', {value: isHidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange', {bubbles: true})); }",
        is_hidden,
    )


def test_turns_of_two_tabs_at_the_same_time_are_branches(first: Page, second: Page) -> None:
    hide(second)
    ask(first, "say Italy")
    ask(second, "say Spain")
    for page, own, other in ((second, "Spain", "Italy"), (first, "Italy", "Spain")):
        hide(page, is_hidden=False)
        asked = page.get_by_role("article", name="You").last
        expect(asked).to_contain_text(own)
        expect(asked.get_by_label(f"Version {1 if own == 'Italy' else 2} of 2")).to_be_visible()
        asked.get_by_role("button", name="Later version" if own == "Italy" else "Earlier version").click()
        expect(answer(page).last).to_contain_text(other)
    first.reload()
    expect(first.get_by_label("Version 1 of 2").or_(first.get_by_label("Version 2 of 2"))).to_be_visible()


@pytest.mark.smoke
def test_tabs_show_the_chats_and_turns_of_each_other(first: Page, second: Page) -> None:
    ask(first, "say Italy")
    expect(answer(second).last).to_contain_text("Italy")
    ask(second, "say Spain")
    expect(answer(first)).to_have_count(3)
    second.get_by_role("button", name="New chat").click()
    expect(answer(second)).to_have_count(0)
    ask(second, "say Portugal")
    expect(first.locator(".chat-list .open")).to_have_count(2)
    first.get_by_role("button", name="say Portugal").click()
    expect(answer(first)).to_have_count(1)
    expect(answer(first)).to_contain_text("Portugal")


def test_a_chat_renamed_in_one_tab_keeps_its_name_in_both(first: Page, second: Page) -> None:
    hide(second)
    first.locator(".chat-list summary").click()
    first.get_by_role("button", name="Rename").click()
    first.get_by_label("Name of the chat").fill("Countries")
    first.get_by_label("Name of the chat").press("Enter")
    ask(second, "say Italy")
    hide(second, is_hidden=False)
    for page in (second, first):
        expect(page.locator(".chat-list .open")).to_have_text("Countries")
        page.reload()
        expect(page.locator(".chat-list .open")).to_have_text("Countries")
        expect(answer(page)).to_have_count(2)


def test_a_chat_deleted_in_one_tab_stays_deleted(first: Page, second: Page, own_scripted: RunningServer) -> None:
    say(first, "count 900; delay 0.02")
    expect(answer(first).last).to_contain_text("1, 2, 3")
    second.locator(".chat-list summary").click()
    second.get_by_role("button", name="Delete", exact=True).click()
    agree(second, "Delete")
    for page in (first, second):
        expect(page.get_by_text("No chats yet.")).to_be_visible()
    answered(first)
    for page in (first, second):
        page.reload()
        expect(page.get_by_text("No chats yet.")).to_be_visible()


def test_a_tab_waits_for_the_answer_of_another(first: Page, second: Page) -> None:
    say(first, "count 900; delay 0.02")
    growing = answer(second).last
    expect(growing).to_contain_text("1, 2, 3")
    expect(growing).to_have_attribute("aria-busy", "true")
    area = second.get_by_label("Message", exact=True)
    area.fill("say Spain")
    area.press("Enter")
    expect(second.get_by_role("alert")).to_have_text("Another tab is receiving an answer in this chat.")
    first.get_by_role("button", name="Stop", exact=True).click()
    expect(growing).to_have_attribute("aria-busy", "false")
    area.press("Enter")
    expect(answer(second).last).to_contain_text("Spain")
    expect(answer(first).last).to_contain_text("Spain")
