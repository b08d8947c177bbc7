"""One browser for all tests of the page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.profiles.browser import launched


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    with launched() as browser:
        yield browser
