"""The page in a real browser: opened on a running server, with checks for forbidden requests and errors."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Error, Locator, Page
from playwright.sync_api import expect as playwright_expect

from tests.running_server import RunningServer

# Milliseconds: a busy machine takes longer than Playwright's 5 seconds for an assertion and 30 for an action.
_PATIENCE = 90_000
playwright_expect.set_options(timeout=_PATIENCE)

# A folder for pictures of the main views; without it they are discarded.
PICTURES = os.environ.get("PICTURES", "")
# Where layout matters it is looked at in these: a phone, a small window and a large one.
SCHEMES = ("light", "dark")
WIDTHS = (390, 900, 1440)
_VIOLATIONS = "async () => (await axe.run()).violations"


class Expectation:
    """Playwright's assertions about a locator, which also wait while it has several matches for a moment.

    Playwright fails at once then, for example while the answers of the last chat are still shown.
    """

    def __init__(self, locator: Locator) -> None:
        self._locator = locator
        self._assertions = playwright_expect(locator)

    def __getattr__(self, name: str) -> Callable[..., None]:
        holds = getattr(self._assertions, name)

        def wait(*expected: object, **options: object) -> None:
            ends = time.monotonic() + _PATIENCE / 1000
            while True:
                try:
                    holds(*expected, **options)
                    return
                except (Error, AssertionError) as error:
                    if "strict mode violation" not in str(error) or time.monotonic() > ends:
                        raise
                self._locator.page.wait_for_timeout(50)

        return wait


def expect(locator: Locator) -> Expectation:
    """Assertions about a locator, which wait."""
    return Expectation(locator)


@contextmanager
def opened(browser: Browser, server: RunningServer, at: str = "", *, other: str = "", **context: Any) -> Iterator[Page]:
    """The page in a browser without a history. Fails afterwards if it contacted another host or had an error.

    `other` is a host that it may contact.
    """
    made = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context})
    made.set_default_timeout(_PATIENCE)
    with_page = made.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    made.on("request", lambda request: asked.append(request.url))
    with_page.on("pageerror", lambda error: wrong.append(str(error)))
    with_page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    try:
        with_page.goto(f"{server.url}/{at}")
        expect(with_page.locator("header")).to_be_visible()
        yield with_page
        own = {urlsplit(server.url).netloc, other, ""}  # blob: and data: have no host
        strange = [url for url in asked if urlsplit(url).netloc not in own]
        assert not strange, strange
        # The browser itself reports a refused key, and a server that is away, on the console.
        reports = ("the server responded with a status of", "net::ERR_CONNECTION_REFUSED")
        wrong = [text for text in wrong if not any(report in text for report in reports)]
        assert not wrong, wrong
    finally:
        made.close()


def picture(page: Page, name: str, folder: Path) -> None:
    """Save a screenshot to the folder of pictures, or else to this one."""
    page.screenshot(path=Path(PICTURES or folder) / f"{name}.png")


def charted(page: Page) -> None:
    """Let the charts of “Monitor” start with the server's samples. The page has its own clock."""
    for _ in range(200):
        if page.locator(".chart").count():
            return
        page.clock.run_for(1000)
        page.wait_for_timeout(50)  # for the answers


def say(page: Page, text: str) -> None:
    """Send a message; returns once it is in the conversation and its answer is requested."""
    sent = page.get_by_role("article", name="You", exact=True)
    before = sent.count()
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")
    expect(sent).to_have_count(before + 1)


def answered(page: Page) -> None:
    """Wait until no answer is being written."""
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def ask(page: Page, text: str) -> None:
    """Send a message and wait for the end of its answer."""
    say(page, text)
    answered(page)


def agree(page: Page, action: str) -> None:
    """Confirm what the page asks before it does something that cannot be undone."""
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


def answer(page: Page) -> Locator:
    """The answers shown."""
    return page.get_by_role("article", name="Answer", exact=True)


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """The violations of accessibility rules, each with its elements.

    Skips the test without axe-core, which a Python package includes.
    """
    spec = find_spec("axe_playwright_python")
    if spec is None or spec.origin is None:
        pytest.skip("no axe-core: install axe-playwright-python")
    page.evaluate((Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in page.evaluate(_VIOLATIONS)]
