"""One browser for all tests of the page, and one server that they may change."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.profiles.browser import launched
from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here

# A busy machine takes longer than the 5 seconds of the library.
expect.set_options(timeout=15_000)


# Its event loop runs as long as it does, so that no other test in the process could start one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    with launched() as browser:
        yield browser


@pytest.fixture(scope="package")
def own_scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server over two scripted devices, which the tests of the page share; each leaves it as it found it."""
    with run_here(tmp_path_factory.mktemp("own-scripted"), *SCRIPTED) as server:
        yield server
