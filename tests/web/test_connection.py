"""A server that goes away and comes back while the page is open; the test stands in the network's place."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.running_server import RunningServer
from tests.web.browser import answer, answered, ask, expect, opened

BANNER = "Server not reachable. Retrying …"


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        expect(page.locator(".picker .dot.ready")).to_be_visible()
        yield page


def is_away(route: Route) -> None:
    route.abort("connectionrefused")


def is_behind_a_proxy(route: Route) -> None:
    route.fulfill(status=502, content_type="text/html", body="<h1>Bad Gateway</h1>")


def leave(page: Page, how: object = is_away) -> None:
    """Let the server be away for what the page asks for from now on."""
    page.route("**/*", how)


def come_back(page: Page) -> None:
    page.unroute("**/*")
    expect(page.get_by_text(BANNER)).to_have_count(0)


@pytest.mark.parametrize("how", [is_away, is_behind_a_proxy])
def test_a_question_that_was_not_sent_is_a_draft(page: Page, how: object) -> None:
    leave(page, how)
    area = page.get_by_label("Message", exact=True)
    area.fill("say hello")
    area.press("Enter")
    expect(page.get_by_text(BANNER)).to_be_visible()
    expect(page.locator(".picker .dot.ready")).to_have_count(0)
    expect(area).to_have_value("say hello")
    expect(page.get_by_text("No chats yet.")).to_be_visible()
    area.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The server is not reachable.")
    come_back(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".picker .dot.ready")).to_be_visible()
    area.press("Enter")
    expect(answer(page)).to_contain_text("hello")
    expect(area).to_have_value("")
    answered(page)


def test_earlier_turns_stay_when_a_question_is_not_sent(page: Page) -> None:
    ask(page, "say one")
    leave(page)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_text(BANNER)).to_be_visible()
    expect(answer(page)).to_contain_text("one")
    expect(page.locator(".branches")).to_have_count(0)
    come_back(page)
    leave(page)
    area = page.get_by_label("Message", exact=True)
    area.fill("say two")
    area.press("Enter")
    expect(area).to_have_value("say two")
    expect(answer(page)).to_have_count(1)
    come_back(page)
    page.reload()
    expect(answer(page)).to_have_count(1)
    expect(answer(page)).to_contain_text("one")


def test_an_answer_that_breaks_off_keeps_its_text(page: Page) -> None:
    """A stream can only be cut by a server; the page's own reader fails here."""
    page.evaluate("""() => {
        const read = ReadableStreamDefaultReader.prototype.read;
        let reads = 0;
        ReadableStreamDefaultReader.prototype.read = function () {
            reads += 1;
            return reads > 20 ? Promise.reject(new TypeError("network error")) : read.call(this);
        };
    }""")
    ask(page, "count 400; delay 0.02")
    expect(answer(page).get_by_role("alert")).to_have_text("The connection to the server was lost.")
    expect(answer(page)).to_contain_text("1, 2")


def test_monitoring_recovers_without_a_reload(page: Page) -> None:
    leave(page)
    page.get_by_role("link", name="Monitor").click()
    expect(page.get_by_text(BANNER)).to_be_visible()
    expect(page.get_by_role("button", name="Enter the admin key")).to_have_count(0)
    come_back(page)
    tabs = page.get_by_role("navigation", name="Monitor").get_by_role("link")
    expect(tabs).to_have_text(["Overview", "Profiles", "Models", "Runtime"])
    cards = page.locator("section[aria-label=Devices] .card")
    expect(cards.first).to_contain_text("ready")
    leave(page)
    expect(cards.first).to_contain_text("unknown")
    expect(cards.locator(".dot.ready")).to_have_count(0)
    expect(tabs).to_have_count(4)
    come_back(page)
    expect(cards.first).to_contain_text("ready")


def test_a_failed_answer_without_a_word_is_not_sent_back(page: Page) -> None:
    bodies = []

    def fail(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        error = {"error": {"message": "the engine died", "code": "engine_died"}}
        route.fulfill(status=500, content_type="application/json", body=json.dumps(error))

    page.route("**/v1/chat/completions", fail)
    for question in ("First?", "Second?"):
        ask(page, question)
    expect(page.get_by_role("alert")).to_have_text(["the engine died", "the engine died"])
    assert [message["role"] for message in bodies[-1]["messages"]] == ["user", "user"]
