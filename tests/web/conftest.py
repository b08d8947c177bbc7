"""One browser for all tests of the page, and one server that they may change."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.media.audio.sounds import encoded, sentence
from tests.profiles.browser import launched
from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here


# Its event loop runs as long as the browser, so no other test in the process could start one.
@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser whose microphone hears a sentence again and again; skips the test without one."""
    heard = tmp_path_factory.mktemp("microphone") / "sentence.wav"
    heard.write_bytes(encoded(sentence()))
    microphone = ("--use-fake-device-for-media-stream", f"--use-file-for-fake-audio-capture={heard}")
    with launched(*microphone, "--use-fake-ui-for-media-stream") as browser:
        yield browser


@pytest.fixture(scope="package")
def own_scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with two scripted devices, shared by the tests of the page, which leave it unchanged."""
    with run_here(tmp_path_factory.mktemp("own-scripted"), *SCRIPTED) as server:
        yield server
