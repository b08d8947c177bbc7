"""What can be done with the messages of a chat on the page: continue, edit and delete."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route

from tests.running_server import RunningServer
from tests.web.browser import agree, answer, answered, ask, expect, opened, picture, say

PARIS = "The capital of France is Paris."


@pytest.fixture
def page(browser: Browser, demo: RunningServer) -> Iterator[Page]:
    with opened(browser, demo) as page:
        yield page


@pytest.fixture
def scripted_page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        yield page


def own(page: Page) -> Locator:
    """The messages of the reader that are shown."""
    return page.get_by_role("article", name="You", exact=True)


def delete(page: Page, turn: Locator, sentence: str) -> None:
    turn.get_by_role("button", name="Delete message").click()
    expect(page.get_by_role("dialog")).to_contain_text(sentence)
    agree(page, "Delete")


@pytest.mark.smoke
def test_an_answer_cut_at_max_tokens_is_continued(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Max tokens").first.fill("5")
    ask(page, "What is the capital of France?")
    expect(answer(page).locator(".end")).to_have_text("stopped at max tokens")
    for _ in range(2):
        answer(page).get_by_role("button", name="Continue", exact=True).click()
        answered(page)
    expect(answer(page).locator(".markdown")).to_have_text(PARIS + "\n")
    expect(answer(page).locator(".end")).to_have_count(0)
    expect(page.locator(".branches")).to_have_count(0)
    answer(page).get_by_role("button", name="Figures").click()
    expect(page.locator(".facts")).to_contain_text("12 tokens")
    page.reload()
    expect(answer(page).locator(".markdown")).to_have_text(PARIS + "\n")


def test_an_edited_answer_is_a_branch_that_the_model_reads(page: Page) -> None:
    ask(page, "What is the capital of France?")
    answer(page).get_by_role("button", name="Edit answer").click()
    page.get_by_label("Edit your message").fill("The capital of Italy is Rome.")
    page.get_by_label("Edit your message").press("Control+Enter")
    expect(answer(page)).to_contain_text("Rome")
    expect(answer(page).get_by_label("Version 2 of 2")).to_be_visible()
    expect(answer(page)).to_contain_text("edited by you")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "And of Spain?")
    assert [each["content"] for each in sent.value.post_data_json["messages"]] == [
        "What is the capital of France?",
        "The capital of Italy is Rome.",
        "And of Spain?",
    ]


def test_a_deleted_question_goes_with_its_answers_only(scripted_page: Page) -> None:
    page = scripted_page
    for word in ("one", "two", "three"):
        ask(page, f"say {word}")
    delete(page, own(page).nth(1), "It and the message that belongs to it cannot be brought back.")
    for _ in range(2):
        expect(own(page)).to_have_text(["say one", "say three"])
        expect(answer(page).locator(".markdown")).to_have_text(["one\n", "three\n"])
        page.reload()
    delete(page, answer(page).first, "It and 2 messages that belong to it")
    for _ in range(2):
        expect(own(page)).to_have_text(["say one"])
        expect(answer(page)).to_have_count(0)
        page.reload()


def test_a_deleted_branch_leaves_the_others(scripted_page: Page) -> None:
    page = scripted_page
    ask(page, "say one")
    page.get_by_role("button", name="Regenerate").click()
    expect(answer(page).get_by_label("Version 2 of 2")).to_be_visible()
    answered(page)
    delete(page, answer(page), "It cannot be brought back.")
    expect(page.locator(".branches")).to_have_count(0)
    expect(answer(page)).to_contain_text("one")


def test_escape_ends_an_edit_without_a_change(scripted_page: Page) -> None:
    page = scripted_page
    ask(page, "say one")
    own(page).get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Edit your message").fill("say two")
    page.get_by_label("Edit your message").press("Escape")
    expect(own(page)).to_have_text("say one")
    expect(page.locator(".branches")).to_have_count(0)


def test_the_menu_of_a_chat_closes_by_escape_and_elsewhere(scripted_page: Page) -> None:
    page = scripted_page
    ask(page, "say one")
    menu = page.locator(".menu-items")
    page.get_by_label("More about").click()
    expect(menu).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu).to_be_hidden()
    expect(page.get_by_label("More about")).to_be_focused()
    page.get_by_label("More about").click()
    expect(menu).to_be_visible()
    page.get_by_label("Message", exact=True).click()
    expect(menu).to_be_hidden()


def test_title_of_a_chat_has_two_whole_lines(scripted_page: Page, tmp_path: Path) -> None:
    page = scripted_page
    ask(page, "say one " + "and another long word " * 8)
    title = page.locator(".chat-list .open")
    picture(page, "long-title", tmp_path)
    lines = title.locator("span").evaluate("each => each.clientHeight / parseFloat(getComputedStyle(each).lineHeight)")
    assert round(lines, 1) == 2
    assert title.evaluate("each => each.clientHeight") >= title.locator("span").evaluate("each => each.clientHeight")


def test_chats_are_listed_under_their_dates(scripted_page: Page) -> None:
    page = scripted_page
    ask(page, "say one")
    page.evaluate("""async () => {
        const {chats} = await import("./ui/chats.js");
        for (const days of [1, 3, 90]) {
            const time = Date.now() - days * 86400000;
            const name = `${days} days old`;
            const times = {created: time, updated: time};
            chats.save(chats.add({id: name, title: name, ...times, settings: {}, turns: {}, chosen: {}}));
        }
    }""")
    headings = page.locator(".periods h3")
    expect(headings).to_have_count(4)
    assert headings.all_inner_texts()[:3] == ["Today", "Yesterday", "Previous 7 days"]
    expect(page.get_by_role("region", name="Yesterday").get_by_role("button")).to_have_text("1 days old")


def test_messages_after_an_earlier_turn_are_counted_and_shown_again(scripted_page: Page) -> None:
    page = scripted_page
    for word in ("one", "two", "three"):
        ask(page, f"say {word}")
    page.get_by_role("button", name="Continue from here").first.click()
    expect(own(page)).to_have_text(["say one"])
    expect(page.locator(".later")).to_contain_text("4 later messages · Show")
    page.reload()
    page.locator(".later").get_by_role("button", name="Show").click()
    for _ in range(2):
        expect(own(page)).to_have_text(["say one", "say two", "say three"])
        expect(page.locator(".later")).to_have_count(0)
        page.reload()


@pytest.mark.parametrize(
    ("status", "message", "sent"),
    [(400, "messages is too long", ["say two"]), (503, "no engine is ready", ["say one", "say two"])],
)
def test_question_without_an_answer_is_part_of_the_next_request_unless_it_is_refused(
    scripted_page: Page, status: int, message: str, sent: list[str]
) -> None:
    bodies: list[dict[str, Any]] = []

    def fail_first(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        if len(bodies) == 1:
            route.fulfill(status=status, json={"error": {"message": message, "code": "x"}})
        else:
            route.continue_()

    scripted_page.route("**/v1/chat/completions", fail_first)
    say(scripted_page, "say one")
    expect(scripted_page.get_by_role("alert")).to_have_text(message)
    said = scripted_page.get_by_text("The messages that follow are sent without the refused one.")
    expect(said).to_have_count(2 - len(sent))
    ask(scripted_page, "say two")
    expect(answer(scripted_page).last).to_contain_text("two")
    assert [each["content"] for each in bodies[1]["messages"]] == sent
