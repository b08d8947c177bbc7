"""Speech that is written down on the page, in a real browser whose microphone hears a sentence."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route

from tests.running_server import ROOT, RunningServer, wait_until
from tests.server_here import run_here
from tests.web.browser import expect, opened, violations

CHATS = {"id": "chats", "capabilities": ["completion"], "chat": True}
HEARS = {"id": "hears", "capabilities": ["transcription"], "chat": False}
# What a file of WebM begins with.
WEBM = b"\x1a\x45\xdf\xa3"


class Dictation:
    """The page, and the recordings that it sent; each is answered with `said`."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.sent: list[bytes] = []
        self.said: dict[str, Any] = {"json": {"text": " The quick brown fox. "}}
        page.route("**/v1/audio/transcriptions", self._answer)
        self.list(CHATS, HEARS)

    def list(self, *models: dict[str, Any]) -> None:
        """Make the page list these models."""
        common = {"object": "model", "created": 1, "owned_by": "genai-server", "state": "ready"}
        body = {"object": "list", "data": [{**common, "root": model["id"], **model} for model in models]}
        self.page.unroute("**/v1/models")
        self.page.route("**/v1/models", lambda route: route.fulfill(json=body))
        self.page.reload()
        expect(self.page.get_by_label("Model", exact=True)).to_have_value("chats")

    def _answer(self, route: Route) -> None:
        self.sent.append(route.request.post_data_buffer or b"")
        route.fulfill(**self.said)

    @property
    def button(self) -> Locator:
        return self.page.get_by_role("button", name="Dictate")

    @property
    def text(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    def dictate(self, seconds: float = 0.2) -> None:
        """Record for some time, and send it to be transcribed."""
        self.button.click()
        stop = self.page.get_by_role("button", name="Stop recording")
        expect(stop).to_be_visible()
        self.page.wait_for_timeout(1000 * seconds)
        stop.click()


@pytest.fixture
def dictation(browser: Browser, own_scripted: RunningServer) -> Iterator[Dictation]:
    with opened(browser, own_scripted) as page:
        yield Dictation(page)


def test_speech_is_inserted_at_the_cursor(dictation: Dictation) -> None:
    dictation.text.fill("Say: ok?")
    dictation.text.evaluate("area => area.setSelectionRange(4, 8)")
    dictation.dictate()
    expect(dictation.text).to_have_value("Say: The quick brown fox.")
    expect(dictation.text).to_be_focused()
    expect(dictation.button).to_be_enabled()
    (form,) = dictation.sent
    names = re.findall(rb'name="(\w+)"', form)
    assert (names, b"\r\nhears\r\n" in form) == ([b"file", b"model"], True)
    assert b'filename="recording.webm"' in form
    assert WEBM in form
    dictation.dictate()
    expect(dictation.text).to_have_value("Say: The quick brown fox. The quick brown fox.")


def test_the_server_reads_the_browsers_recordings(browser: Browser, tmp_path: Path) -> None:
    settings = {"GENAI_MODELS": f"hears={ROOT / 'tests' / 'built_models' / 'whisper'}"}
    with run_here(tmp_path, "--device", "cpu", settings=settings) as server, opened(browser, server) as page:
        dictation = Dictation(page)
        page.unroute_all()
        with page.expect_response("**/v1/audio/transcriptions") as response:
            dictation.dictate(seconds=1.5)
        transcript = response.value.json()
        assert transcript["usage"]["seconds"] >= 1
        expect(dictation.text).to_have_value(transcript["text"].strip())


def test_the_button_needs_a_model_that_transcribes_and_a_microphone(dictation: Dictation) -> None:
    expect(dictation.button).to_be_visible()
    assert violations(dictation.page) == []
    expect(dictation.page.locator("optgroup option")).to_have_text("hears (transcription)")
    dictation.list(CHATS)
    expect(dictation.button).to_have_count(0)
    dictation.list(CHATS, HEARS)
    expect(dictation.button).to_be_visible()
    dictation.page.add_init_script("Object.defineProperty(navigator, 'mediaDevices', {value: undefined})")
    dictation.list(CHATS, HEARS)
    expect(dictation.button).to_have_count(0)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"status": 400, "json": {"error": {"message": "no recording", "code": "invalid"}}}, "no recording"),
        ({"json": {"text": " "}}, "Nothing was said in the recording."),
    ],
    ids=["refused", "silent"],
)
def test_a_recording_without_a_transcript_is_an_error(dictation: Dictation, said: Any, sentence: str) -> None:
    heard, dictation.said = dictation.said, said
    dictation.dictate()
    expect(dictation.page.get_by_role("alert")).to_have_text(sentence)
    dictation.said = heard
    dictation.dictate()
    expect(dictation.text).to_have_value("The quick brown fox.")
    expect(dictation.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NotAllowedError", "The browser does not let this page use the microphone."),
        ("NotFoundError", "The microphone cannot be used: reason"),
    ],
)
def test_a_microphone_that_cannot_be_used_is_an_error(dictation: Dictation, name: str, sentence: str) -> None:
    replaced = "navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('reason', name); }"
    dictation.page.evaluate(f"(name) => {{ {replaced}; }}", name)
    dictation.button.click()
    expect(dictation.page.get_by_role("alert")).to_have_text(sentence)
    expect(dictation.button).to_be_enabled()
    assert dictation.sent == []


# Keeps the stream of the microphone.
KEEP_STREAM = """() => {
    const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (asked) => {
        window.stream = await ask(asked);
        return window.stream;
    };
}"""
HAS_ENDED = "window.stream.getTracks().every((track) => track.readyState === 'ended')"


def test_the_microphone_is_released_after_a_recording(dictation: Dictation) -> None:
    dictation.page.evaluate(KEEP_STREAM)
    dictation.button.click()
    expect(dictation.page.get_by_role("button", name="Stop recording")).to_be_visible()
    assert not dictation.page.evaluate(HAS_ENDED)
    dictation.page.get_by_role("link", name="Monitor").click()
    wait_until(lambda: dictation.page.evaluate(HAS_ENDED))
    assert dictation.sent == []
    dictation.page.get_by_role("link", name="Chat").click()
    dictation.dictate()
    expect(dictation.text).to_have_value("The quick brown fox.")
    assert dictation.page.evaluate(HAS_ENDED)


def test_a_recorder_that_does_not_start_releases_the_microphone(dictation: Dictation) -> None:
    dictation.page.evaluate(KEEP_STREAM)
    dictation.page.evaluate("() => { MediaRecorder.prototype.start = () => { throw new Error('reason'); }; }")
    dictation.button.click()
    expect(dictation.page.get_by_role("alert")).to_have_text("The microphone cannot be used: reason")
    assert dictation.page.evaluate(HAS_ENDED)
