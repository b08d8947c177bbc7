"""The main views: accessible, usable on a phone, light and dark, each with a picture."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.running_server import RunningServer
from tests.web.browser import WIDTHS, answer, answered, ask, charted, expect, opened, picture, violations

VIEWS = ["chat", "settings", "tokens", "monitor", "profiles", "models", "runtime-options"]
# Elements that appear once a view is complete.
SHOWN = {
    "monitor": ".chart canvas",
    "profiles": "section[aria-label=Sessions] :is(.soft, tbody)",
    "models": "section[aria-label=Models] tbody tr",
    "runtime-options": "section[aria-label='Runtime options'] .card",
}


@pytest.fixture(scope="module", params=["light", "dark"])
def page(browser: Browser, demo: RunningServer, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The page with a chat whose answer has scores."""
    with opened(browser, demo, color_scheme=request.param) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Token probabilities").check()
        page.get_by_label("Temperature").fill("0.9")
        page.get_by_label("Seed").fill("3")
        page.get_by_label("Max tokens").first.fill("90")
        page.get_by_role("button", name="Settings").click()
        for question in ("What is the capital of France?", "And of Italy?", "Write a long poem."):
            ask(page, question)
        page.clock.install()
        page.evaluate("scheme => { window.scheme = scheme; }", request.param)
        yield page


def show(page: Page, view: str) -> None:
    """Go to a view and wait until it is complete."""
    if view in ("chat", "settings", "tokens"):
        page.get_by_role("link", name="Chat").click()
        page.locator(".chat-list .open").first.click()
        expect(answer(page)).to_have_count(3)
    if view == "settings":
        page.get_by_role("button", name="Settings").click()
    elif view == "tokens":
        page.get_by_role("button", name="Inspect tokens").last.click()
        expect(page.locator(".tokens")).to_be_visible()
    elif view != "chat":
        page.get_by_role("link", name="Monitor").click()
        name = {"monitor": "Overview", "runtime-options": "Runtime"}.get(view, view.capitalize())
        page.get_by_role("navigation", name="Monitor").get_by_role("link", name=name).click()
        if view == "monitor":
            charted(page)
        expect(page.locator(SHOWN[view]).first).to_be_visible()


@contextmanager
def streams(server: RunningServer, number: int) -> Iterator[None]:
    """Answers that are being written until the context is full."""
    poem: dict[str, Any] = {"ignore_eos": True, "temperature": 1, "max_tokens": 1900}
    begun = []  # an unreferenced iterator ends its answer
    with ExitStack() as open_ones:
        for seed in range(number):
            events = iter(open_ones.enter_context(server.stream("Write a long poem.", seed=seed, **poem)))
            next(events)
            begun.append(events)
        yield


@pytest.mark.parametrize("view", VIEWS)
def test_views_have_no_accessibility_violations(page: Page, demo: RunningServer, view: str, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 1280, "height": 960 if view == "monitor" else 800})
    with streams(demo, 1 if view == "monitor" else 0):
        show(page, view)
        picture(page, f"{view}-{page.evaluate('window.scheme')}", tmp_path)
    assert violations(page) == []


@pytest.mark.parametrize("width", [360, *WIDTHS])
@pytest.mark.parametrize("view", VIEWS)
def test_each_view_fits_the_window(page: Page, view: str, width: int, tmp_path: Path) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    if view in ("chat", "settings", "tokens"):
        page.get_by_role("link", name="Chat").click()
        if (panel := page.locator(".panel")).count():
            panel.get_by_role("button", name="Close").click()
        if width < 760:
            page.get_by_role("button", name="Chats").click()
    show(page, view)
    picture(page, f"{view}-{page.evaluate('window.scheme')}-{width}", tmp_path)
    if view in ("chat", "settings", "tokens"):
        assert page.locator(".picker select").evaluate("each => each.clientWidth") > 60
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.smoke
def test_the_keyboard_alone_is_enough_to_ask(browser: Browser, demo: RunningServer) -> None:
    with opened(browser, demo) as page:
        expect(page.get_by_label("Message", exact=True)).to_be_focused()
        page.keyboard.type("What is the capital of France?")
        page.keyboard.press("Enter")
        answered(page)
        for _ in range(30):
            page.keyboard.press("Shift+Tab")
            if page.evaluate("document.activeElement.ariaLabel") == "Regenerate":
                break
        page.keyboard.press("Enter")
        expect(page.get_by_label("Version 2 of 2")).to_be_visible()
        answered(page)


def test_the_colours_that_were_chosen_stay(browser: Browser, scripted: RunningServer) -> None:
    with opened(browser, scripted, color_scheme="light") as page:
        for _ in range(2):
            page.get_by_role("button", name="Colours").click()
        page.reload()
        expect(page.get_by_role("button", name="Colours: dark")).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 29)"
