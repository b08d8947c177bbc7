"""`genai-server transcribe`: the real command, with a running server and with one of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server.cli import main
from genai_server.generation.engine_requests import EngineAnswer, EngineRequests
from genai_server.messages.generation_request import GenerationRequest
from tests.apis.transcriptions.doubles import DIRECTORY, MODEL, answer, at, load_codec
from tests.media.audio.sounds import encoded, sentence
from tests.running_server import DEMO, RunningServer, clean_environment, run_command
from tests.server_here import run_here

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_here(tmp_path_factory.mktemp("speech"), "--model-dir", str(DIRECTORY), "--api-keys", f"k:{KEY}") as found:
        found.client.headers["authorization"] = f"Bearer {KEY}"
        yield found


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "recording.wav"
    path.write_bytes(encoded(sentence()))
    return path


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """The engine requests; the transcript is `The fox` in two windows."""
    found: list[GenerationRequest] = []
    codec = load_codec()

    async def run(_: EngineRequests, request: GenerationRequest) -> EngineAnswer:
        found.append(request)
        tokens = [at(0), *codec.tokenizer.encode(" fox" if len(found) % 2 == 0 else " The"), at(2)]
        return answer(tokens if len(found) % 2 == 0 else [*tokens, at(2)])

    monkeypatch.setattr(EngineRequests, "run", run)
    monkeypatch.setattr("genai_server.tools.terminal_chat.transcribe_command.exit_cleanly_on_signals", lambda: None)
    return found


def transcribe(server: RunningServer, *arguments: str) -> int:
    return main(["transcribe", *arguments, "--url", server.url, "--api-key", KEY, "--language", "de"])


def test_text_is_written_to_standard_output(
    server: RunningServer, recording: Path, capsys: pytest.CaptureFixture[str], asked: list[GenerationRequest]
) -> None:
    assert transcribe(server, str(recording), "--prompt", "Names") == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("The fox\n", "")
    assert asked[0].prompt[0] == MODEL.start_of_previous
    assert asked[0].prompt[-2:] == [MODEL.languages["de"], MODEL.transcribe]


def test_text_is_shown_while_it_is_written(
    server: RunningServer, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[str] = []
    command = "genai_server.tools.terminal_chat.transcribe_command.print"
    monkeypatch.setattr(command, lambda piece, **_: pieces.append(piece), raising=False)
    assert transcribe(server, str(recording)) == 0
    assert pieces == ["The", " fox", "", "\n"]


def test_other_formats_are_written_to_a_file(
    server: RunningServer, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form, beginning in (("srt", "1\n00:00:00,000 --> "), ("vtt", "WEBVTT\n"), ("text", "The fox\n")):
        output = tmp_path / "out"
        assert transcribe(server, str(recording), "--format", form, "-o", str(output)) == 0
        assert output.read_text(encoding="utf-8").startswith(beginning)
    assert transcribe(server, str(recording), "--format", "verbose_json") == 0
    assert json.loads(capsys.readouterr().out)["language"] == "german"


def test_translate_asks_for_english(server: RunningServer, recording: Path, asked: list[GenerationRequest]) -> None:
    assert transcribe(server, str(recording), "--translate") == 0
    assert asked[0].prompt[-1] == MODEL.translate


def test_errors_are_one_line(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound")
    for arguments, words in (
        ([str(tmp_path / "none.wav")], "there is no file"),
        ([str(tmp_path / "a.wav")], "400: file cannot be used: the recording is not a flac"),
        ([str(tmp_path / "a.wav"), "--model", "other"], "404: model"),
        ([str(tmp_path / "a.wav"), "-o", str(tmp_path / "none" / "out")], "cannot be written: No such file"),
    ):
        assert transcribe(server, *arguments) != 0
        printed = capsys.readouterr()
        assert printed.out == ""
        assert words in printed.err
        assert printed.err.count("\n") == 1


def test_a_large_file_that_is_refused_shows_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own_folder: Path
) -> None:
    (tmp_path / "a.wav").write_bytes(bytes(9_000_000))
    settings = {"GENAI_MAX_AUDIO_BODY_BYTES": "1000"}
    with run_here(own_folder / "server", "--device", "scripted", settings=settings) as server:
        assert transcribe(server, str(tmp_path / "a.wav")) != 0
    assert "GENAI_MAX_AUDIO_BODY_BYTES" in capsys.readouterr().err


@pytest.mark.slow
def test_a_directory_gets_a_server_for_the_command(recording: Path) -> None:
    done = run_command("transcribe", str(recording), "--model", str(DIRECTORY), environment=clean_environment())
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert "starting a server for" in done.stderr
    done = run_command("transcribe", str(recording), "--model", str(DEMO), environment=clean_environment())
    assert done.returncode != 0
    assert 'model "demo" does not transcribe recordings' in done.stderr
