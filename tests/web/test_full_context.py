"""A chat that fills the model's context: what the page says, and how it continues. The tests answer for a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route

from tests.running_server import RunningServer
from tests.web.browser import SCHEMES, WIDTHS, answer, ask, expect, opened, picture, say, violations

CONTEXT = 2048
REFUSAL = {
    "message": f"This model's maximum context length is {CONTEXT} tokens. However, your messages resulted in "
    "2100 tokens, and the answer needs at least one. Please reduce the length (GENAI_MAX_LENGTH).",
    "code": "context_length_exceeded",
}


class Server:
    """The page, the bodies of the chats that it requested, and how the next ones are answered."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.bodies: list[dict[str, Any]] = []
        # More messages than these are too long.
        self.most_messages = 100
        self.finish, self.total = "stop", 1000
        model = {"id": "small", "root": "small", "state": "ready", "chat": True, "max_model_len": CONTEXT}
        page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": [model]}))
        page.route("**/v1/chat/completions", self._answer)
        page.reload()

    def _answer(self, route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        self.bodies.append(body)
        if len(body["messages"]) > self.most_messages:
            route.fulfill(status=400, json={"error": REFUSAL})
            return
        usage = {"prompt_tokens": self.total - 10, "completion_tokens": 10, "total_tokens": self.total}
        said = f"Answer {len(self.bodies)}."
        chunk = {"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": self.finish}], "usage": usage}
        route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n")

    def sent(self) -> list[str]:
        """The texts of the last request."""
        return [message["content"] for message in self.bodies[-1]["messages"]]

    def notice(self) -> Locator:
        return self.page.get_by_role("group", name="The context is full")


@pytest.fixture
def server(browser: Browser, own_scripted: RunningServer) -> Iterator[Server]:
    with opened(browser, own_scripted) as page:
        yield Server(page)


def test_answer_that_fills_the_context_is_named_with_its_tokens(server: Server) -> None:
    server.finish, server.total = "length", CONTEXT
    ask(server.page, "One")
    expect(server.notice()).to_contain_text("The answer ends at 2,048 of 2,048 tokens.")
    expect(answer(server.page).locator(".end")).to_have_text("the context is full")
    expect(server.page.get_by_text("max tokens")).to_have_count(0)
    expect(server.notice().get_by_role("button")).to_have_text("New chat with a summary")
    server.page.reload()
    expect(server.notice()).to_contain_text("2,048 of 2,048 tokens")


def test_answer_that_the_server_limits_is_not_stopped_at_max_tokens(server: Server) -> None:
    server.finish = "length"
    ask(server.page, "One")
    expect(answer(server.page).locator(".end")).to_have_text("stopped at the server's limit")
    expect(server.notice()).to_have_count(0)


def test_first_message_that_is_too_long_has_to_be_shortened(server: Server) -> None:
    server.most_messages = 0
    ask(server.page, "One")
    expect(server.notice()).to_contain_text("The messages have 2,100 tokens. The model reads at most 2,048, with its")
    expect(server.notice()).to_contain_text("Shorten the message")
    expect(server.notice().get_by_role("button")).to_have_count(0)


def test_oldest_messages_are_left_out_until_the_server_takes_the_rest(server: Server) -> None:
    for word in ("One", "Two", "Three"):
        ask(server.page, word)
    server.most_messages = 3
    ask(server.page, "Four")
    server.notice().get_by_role("button", name="Leave out the oldest messages").click()
    expect(answer(server.page).last).to_contain_text("Answer 7.")
    assert server.sent() == ["Three", "Answer 3.", "Four"]
    expect(answer(server.page).last).to_contain_text("Without the oldest 2 questions and their answers.")
    expect(server.notice()).to_have_count(0)
    expect(server.page.locator(".branches")).to_have_count(0)
    ask(server.page, "Five")
    assert server.sent()[-1] == "Five"
    assert "One" not in server.sent()
    expect(answer(server.page)).to_have_count(5)


def test_as_much_is_left_out_as_leaves_room_for_an_answer(server: Server) -> None:
    ask(server.page, 120 * "One ")
    for word in ("Two ", "Six "):
        ask(server.page, 100 * word)
    server.finish, server.total = "length", CONTEXT
    ask(server.page, 100 * "Ten ")
    server.finish, server.total = "stop", 1500
    server.notice().get_by_role("button", name="Leave out the oldest messages").click()
    expect(answer(server.page).last).to_contain_text("Answer 4.Answer 5.")
    # Four questions took 2,048 tokens, so that three take three quarters of the context.
    assert [text[:3] for text in server.sent()] == ["Two", "Ans", "Six", "Ans", "Ten", "Ans"]


def test_new_chat_begins_with_a_summary_and_has_the_unanswered_question(server: Server) -> None:
    for word in ("One", "Two"):
        ask(server.page, word)
    server.most_messages = 4
    ask(server.page, "Three")
    server.most_messages = 100
    server.notice().get_by_role("button", name="New chat with a summary").click()
    expect(answer(server.page)).to_have_count(1)
    expect(answer(server.page)).to_contain_text("Answer 4.")
    *earlier, question = server.sent()
    assert earlier == ["One", "Answer 1.", "Two", "Answer 2."]
    assert question.startswith("Summarize our conversation so far")
    expect(server.page.locator(".chat-list .current")).to_contain_text("One (continued)")
    message = server.page.get_by_label("Message", exact=True)
    expect(message).to_have_value("Three")
    message.press("Enter")
    expect(answer(server.page).last).to_contain_text("Answer 5.")
    assert server.sent() == [question, "Answer 4.", "Three"]
    # The summary is still one of the other chat.
    server.page.get_by_role("button", name="Regenerate").first.click()
    expect(answer(server.page)).to_have_count(1)
    expect(answer(server.page)).to_contain_text("Answer 6.")
    assert server.sent() == [*earlier, question]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_notice_fits_and_is_accessible(
    browser: Browser, own_scripted: RunningServer, tmp_path: Path, scheme: Any, width: int
) -> None:
    size = {"width": width, "height": 800}
    with opened(browser, own_scripted, color_scheme=scheme, viewport=size) as page:
        server = Server(page)
        for word in ("One", "Two"):
            ask(page, word)
        server.most_messages = 2
        say(page, "Three")
        expect(server.notice()).to_be_visible()
        picture(page, f"full-context-{scheme}-{width}", tmp_path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []
