"""`genai-server chat`: the real command on a pseudo-terminal, with a running server and with one of its own."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_command import own_server
from tests.running_server import (
    DEMO,
    PATIENCE,
    RunningServer,
    clean_environment,
    free_port,
    run_command,
    start_command,
    wait_until,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals there")
CTRL_C, CTRL_D = "\x03", "\x04"
# The sequences that a terminal sends around pasted text.
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
# A terminal that redraws its screen, and is not asked for its cursor position.
DRAWN = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
# The sequence that makes such a terminal mark pasted text: a line is being read.
READS = "\x1b[?2004h"


class Terminal:
    """A program on a terminal, the text of its screen, and a simulated user."""

    def __init__(self, *arguments: str, **settings: str) -> None:
        import fcntl
        import pty
        import termios

        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = clean_environment(**{"TERM": "dumb", **settings})
        self.process = start_command("chat", *arguments, environment=environment, files=[slave] * 3)
        os.close(slave)
        self.text = ""
        self._seen = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux's way to report that the other side is closed
            while piece := os.read(self._master, 4096):
                self.text += piece.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def enter(self, line: str, *seen: str) -> None:
        """Type a line, and wait until these texts appear one after another."""
        self.type(f"{line}\r")
        for text in seen:
            self.see(text)

    def see(self, text: str) -> None:
        """Wait until this text appears after what was seen before; fails when all has been read without it."""
        try:
            wait_until(lambda: text in self.text[self._seen :] or not self._reader.is_alive())
        except AssertionError as error:
            raise AssertionError(f"no {text!r} after {self._seen} characters of {self.text!r}") from error
        found = self.text.find(text, self._seen)
        assert found >= 0, self.text
        self._seen = found + len(text)

    def quit(self) -> None:
        """End the program, which is reading a line."""
        self.enter("/quit")
        assert self.status() == 0

    def status(self) -> int:
        status = self.process.wait(PATIENCE)
        self._reader.join(90)
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(90)
        os.close(self._master)


@contextlib.contextmanager
def terminal(*arguments: str, **settings: str) -> Iterator[Terminal]:
    opened = Terminal(*arguments, **settings)
    try:
        yield opened
    finally:
        opened.close()


def test_a_question_is_answered_with_its_times_and_asked_again(scripted: RunningServer) -> None:
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.enter("say hello", "\nhello", "tokens, first after", "> ")  # what is typed earlier comes before it
        chat.enter("/retry", "\nhello", "s in all")
        chat.enter("/system be brief", "system prompt: be brief")
        chat.enter("/clear", "forgotten")
        chat.enter("/retry", "nothing was asked yet")
        chat.enter("/nonsense", "there is no /nonsense; /help lists the commands")
        chat.enter("/retri", "there is no /retri; did you mean /retry?")
        chat.enter("/?", "/model [NAME]")
        chat.enter("/bye")
        assert chat.status() == 0


def test_ctrl_c_ends_reasoning_and_then_stops_the_answer(scripted: RunningServer) -> None:
    thought = " ".join(map(str, range(100, 300)))
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.enter(f"delay 0.02; say <think>{thought}</think>Yes", "Yes", "100 101 102")  # the first Yes is the typed
        chat.type(CTRL_C)
        chat.see("\n\r\n")  # between reasoning and answer
        chat.see("1")
        chat.type(CTRL_C)
        chat.see("[stopped]")
        assert "Yes" not in chat.text[chat.text.index("Yes") + 3 :]


def test_a_budget_of_reasoning_is_set(scripted: RunningServer) -> None:
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.enter("/think 5", "thinking_token_budget = 5")
        chat.enter("say <think>I think on</think>Yes", "I thi", "tokens, first after")
        chat.enter("/think much", 'thinking_token_budget must be a whole number, not "much"')
        chat.enter("/think default", "thinking_token_budget = default")
        chat.enter("/think", "thinking_token_budget = default")
        chat.quit()


def test_ctrl_c_stops_the_answer_and_twice_ends_the_program(scripted: RunningServer) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        chat.enter("count 500; delay 0.05", "1, 2, 3")
        chat.type(CTRL_C)
        for text in ("[stopped]", "about ", READS):
            chat.see(text)
        wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))
        chat.enter("say still here", "\x1b[2Kstill here", READS)
        chat.type(CTRL_C)
        chat.see("(Ctrl-C again exits)")
        chat.see(READS)
        assert chat.process.poll() is None
        chat.type(CTRL_C)
        assert chat.status() == 0


def test_failed_answer_is_reported_and_the_chat_continues(scripted: RunningServer) -> None:
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.enter("count 9; fail at 4", "error: ", "> ")
        chat.enter("say on", "\non")
        chat.type(CTRL_D)
        assert chat.status() == 0


@pytest.mark.parametrize("is_pasted", [True, False], ids=["pasted", "in quotes"])
def test_a_text_of_several_lines_is_one_question(scripted: RunningServer, tmp_path: Path, is_pasted: bool) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        if is_pasted:
            chat.enter(f"{PASTE}say one\nsay two\r\nsay three{PASTED}", "s in all", READS)
        else:
            chat.enter('"""say one', "…")
            chat.enter("say two", "…")
            chat.enter('say three"""', "s in all", READS)
        chat.enter(f"/save {tmp_path}/chat.json", "saved in", READS)
        chat.quit()
    messages = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == ["say one\nsay two\nsay three"]


def test_an_answer_is_shown_as_markdown_where_the_terminal_can(scripted: RunningServer) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        chat.enter("say a **strong** word", "\x1b[1mstrong\x1b[0m", "s in all", READS)
        chat.quit()


def test_output_without_a_terminal_is_the_plain_answer(scripted: RunningServer) -> None:
    asked = 'say a **strong** word\n/clear\n"""say x\ny"""\n'
    done = run_command("chat", scripted.url, environment=clean_environment(TERM="xterm"), said=asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "a **strong** word\nforgotten\ny\n"
    headline, *figures = done.stderr.splitlines()
    assert f"at {scripted.url}; /help lists the commands" in headline
    assert [figure.startswith("[") for figure in figures] == [True, True]


def test_fields_models_and_chats_are_set_by_commands(scripted: RunningServer, tmp_path: Path) -> None:
    model = scripted.client.get("/v1/models").json()["data"][0]["id"]
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.enter("/set max_tokens 2", "max_tokens = 2")
        chat.enter("count 9", "[2 tokens")
        chat.enter("/set max_tokens", "max_tokens = 2")
        chat.enter("/set temprature 1", "did you mean temperature?")
        chat.enter("/set min_q default", "did you mean min_p?")
        chat.enter("/set seed x", 'seed must be a whole number, not "x"')
        chat.enter("/model", f"* {model}")
        chat.enter("/model nonsense", 'has no model "nonsense"')
        chat.enter(f"/model {model}", f"model: {model}")
        chat.enter(f"/save {tmp_path}/chat.json", "saved in")
        chat.enter("/set max_tokens default", "max_tokens = default")
        chat.enter("/clear", "forgotten")
        chat.enter(f"/load {tmp_path}/chat.json", f"1 question loaded; model: {model}")
        chat.enter("/retry", "[2 tokens")
        chat.enter("/load", "/load needs a FILE")
        chat.quit()


@pytest.mark.parametrize("ends_by", ["/quit", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_directory_gets_a_server_that_ends_with_the_chat(tmp_path: Path, ends_by: str) -> None:
    with terminal(str(DEMO), "--system", "Be brief.", GENAI_CACHE_DIR=str(tmp_path)) as chat:
        chat.see("demo at http://127.0.0.1:")
        chat.see("> ")
        family = psutil.Process(chat.process.pid).children(recursive=True)
        assert len(family) >= 2
        if ends_by == "/quit":
            chat.enter("What is the capital of France?", "Paris", "> ")
            chat.enter(ends_by)
        else:
            chat.process.terminate()
        assert chat.status() == 0
        wait_until(lambda: not any(process.is_running() for process in family))


def test_default_target_is_the_configured_host_and_port(scripted: RunningServer) -> None:
    with terminal(PORT=scripted.url.rpartition(":")[2]) as chat:
        chat.see(f"at {scripted.url};")


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("{folder}", 1, "genai_config.json is missing"),
        ("localhost:{port}", 1, "no server at http://localhost:"),
        ("no-such-model", 2, 'no model "no-such-model" here or in '),
        ("{url} --model missing", 1, 'has no model "missing"; it has: demo'),
    ],
)
def test_missing_target_ends_the_chat(
    scripted: RunningServer, tmp_path: Path, target: str, status: int, message: str
) -> None:
    with terminal(*target.format(folder=tmp_path, port=free_port(), url=scripted.url).split()) as chat:
        chat.see(message)
        assert chat.status() == status


def test_one_question_prints_the_answer_alone(scripted: RunningServer) -> None:
    done = run_command("chat", scripted.url, "say one", environment=clean_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n", "")
    with terminal(scripted.url, "say **two**", **DRAWN) as chat:
        chat.see("\x1b[1mtwo\x1b[0m")
        assert chat.status() == 0


@pytest.mark.slow
def test_piped_text_follows_the_question() -> None:
    said = "What is the capital of France?\n"
    done = run_command("chat", str(DEMO), "Answer this:", environment=clean_environment(), said=said)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"
    assert done.stderr == f"starting a server for {DEMO} …\n"


def test_one_question_needs_no_standard_input_and_ends_with_status_1_if_it_fails(scripted: RunningServer) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "genai_server", "chat", scripted.url, "say one"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr
    done = run_command("chat", scripted.url, "count 9; fail at 4", environment=clean_environment())
    assert (done.returncode, done.stdout) == (1, "1, 2\n")
    assert done.stderr.startswith("genai-server: ")


def test_ctrl_c_ends_one_question_with_status_130(scripted: RunningServer) -> None:
    with terminal(scripted.url, "delay 0.02; count 1000") as chat:
        chat.see("1, 2, 3")
        chat.type(CTRL_C)
        assert chat.status() == 130


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failed_load_is_reported_with_its_reason(log_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_DEVICE", "openvino")
    monkeypatch.setenv("GENAI_LOG_FORMAT", log_format)
    with pytest.raises(ChatFailed) as raised, own_server(DEMO, "chat:key-of-this-test"):
        pass
    said = str(raised.value)
    assert said.count("model demo on device openvino cannot be loaded: ") == 1
    assert "Shutting down" not in said


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(ChatFailed, match=str(tmp_path / "none")),
        own_server(tmp_path / "none", "chat:key-of-this-test"),
    ):
        pass
