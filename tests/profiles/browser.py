"""A real browser for the tests that look at a page: Chromium, of the system's or playwright's own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class OpenPage:
    """A page, with what it asked of the network and what went wrong in it."""

    def __init__(self, browser: Browser, path: Path) -> None:
        self.page = page = browser.new_page(viewport={"width": 1280, "height": 1000})
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text))
        page.goto(path.as_uri())


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser; skips the test where there is none (scripts/install dev installs one where it can)."""
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, _NAMES)), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no browser: install chromium, or run `playwright install chromium`")
        browser = playwright.chromium.launch(executable_path=found)
        try:
            yield browser
        finally:
            browser.close()
