"""A real browser for tests of pages: the system's Chromium or playwright's own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


class OpenPage:
    """A page, with its network requests and errors."""

    def __init__(self, browser: Browser, path: Path) -> None:
        self.page = page = browser.new_page(viewport={"width": 1280, "height": 1000})
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text))
        page.goto(path.as_uri())


@contextmanager
def launched(*options: str) -> Iterator[Browser]:
    """A browser with these options; skips the test without one (scripts/install dev installs it where possible)."""
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, _NAMES)), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("no browser: install chromium, or run `playwright install chromium`")
        # A GPU that is emulated takes more processor time than drawing without one.
        without_gpu = ["--disable-gpu", "--disable-software-rasterizer"]
        browser = playwright.chromium.launch(executable_path=found, args=[*without_gpu, *options])
        try:
            yield browser
        finally:
            browser.close()
