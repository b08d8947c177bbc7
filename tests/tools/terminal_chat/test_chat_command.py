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

    def see(self, text: str) -> None:
        """Wait until this text appears after what was seen before; fails when all has been read without it."""
        wait_until(lambda: text in self.text[self._seen :] or not self._reader.is_alive())
        found = self.text.find(text, self._seen)
        assert found >= 0, self.text
        self._seen = found + len(text)

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
        chat.type("say hello\r")
        chat.see("\nhello")
        chat.see("tokens, first after")
        chat.type("/retry\r")
        chat.see("\nhello")
        chat.see("s in all")
        chat.type("/system be brief\r")
        chat.see("system prompt: be brief")
        chat.type("/clear\r")
        chat.see("forgotten")
        chat.type("/retry\r")
        chat.see("nothing was asked yet")
        chat.type("/nonsense\r")
        chat.see("there is no /nonsense; /help lists the commands")
        chat.type("/retri\r")
        chat.see("there is no /retri; did you mean /retry?")
        chat.type("/?\r")
        chat.see("/model [NAME]")
        chat.type("/bye\r")
        assert chat.status() == 0


def test_ctrl_c_ends_reasoning_and_then_stops_the_answer(scripted: RunningServer) -> None:
    thought = " ".join(map(str, range(100, 300)))
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.type(f"delay 0.02; say <think>{thought}</think>Yes\r")
        chat.see("Yes")  # as it is typed
        chat.see("100 101 102")
        chat.type(CTRL_C)
        chat.see("\n\r\n")  # between reasoning and answer
        chat.see("1")
        chat.type(CTRL_C)
        chat.see("[stopped]")
        assert "Yes" not in chat.text[chat.text.index("Yes") + 3 :]


def test_a_budget_of_reasoning_is_set(scripted: RunningServer) -> None:
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.type("/think 5\r")
        chat.see("thinking_token_budget = 5")
        chat.type("say <think>I think on</think>Yes\r")
        chat.see("I thi")
        chat.see("tokens, first after")
        chat.type("/think much\r")
        chat.see('thinking_token_budget must be a whole number, not "much"')
        chat.type("/think default\r")
        chat.see("thinking_token_budget = default")
        chat.type("/think\r")
        chat.see("thinking_token_budget = default")
        chat.type("/bye\r")


def test_ctrl_c_stops_the_answer_and_twice_ends_the_program(scripted: RunningServer) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        chat.type("count 500; delay 0.05\r")
        chat.see("1, 2, 3")
        chat.type(CTRL_C)
        chat.see("[stopped]")
        chat.see("about ")
        chat.see(READS)
        wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))
        chat.type("say still here\r")
        chat.see("\x1b[2Kstill here")
        chat.see(READS)
        chat.type(CTRL_C)
        chat.see("(Ctrl-C again exits)")
        chat.see(READS)
        assert chat.process.poll() is None
        chat.type(CTRL_C)
        assert chat.status() == 0


def test_failed_answer_is_reported_and_the_chat_continues(scripted: RunningServer) -> None:
    with terminal(scripted.url) as chat:
        chat.see("> ")
        chat.type("count 9; fail at 4\r")
        chat.see("error: ")
        chat.see("> ")
        chat.type("say on\r")
        chat.see("\non")
        chat.type(CTRL_D)
        assert chat.status() == 0


def test_a_pasted_text_of_several_lines_is_one_question(scripted: RunningServer, tmp_path: Path) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        chat.type(f"{PASTE}say one\nsay two\r\nsay three{PASTED}\r")
        chat.see("s in all")
        chat.see(READS)
        chat.type(f"/save {tmp_path}/chat.json\r")
        chat.see("saved in")
        chat.see(READS)
        chat.type("/quit\r")
        assert chat.status() == 0
    messages = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["messages"]
    assert [message["content"] for message in messages if message["role"] == "user"] == ["say one\nsay two\nsay three"]


def test_a_text_in_quotes_is_one_question(scripted: RunningServer, tmp_path: Path) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        chat.type('"""say one\r')
        chat.see("…")
        chat.type('say two"""\r')
        chat.see("s in all")
        chat.type(f"/save {tmp_path}/chat.json\r")
        chat.see("saved in")
        chat.type("/quit\r")
        assert chat.status() == 0
    messages = json.loads((tmp_path / "chat.json").read_text(encoding="utf-8"))["messages"]
    assert messages[0] == {"role": "user", "content": "say one\nsay two"}


def test_an_answer_is_shown_as_markdown_where_the_terminal_can(scripted: RunningServer) -> None:
    with terminal(scripted.url, **DRAWN) as chat:
        chat.see(READS)
        chat.type("say a **strong** word\r")
        chat.see("\x1b[1mstrong\x1b[0m")
        chat.see("s in all")
        chat.see(READS)
        chat.type("/quit\r")
        assert chat.status() == 0


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
        chat.type("/set max_tokens 2\r")
        chat.see("max_tokens = 2")
        chat.type("count 9\r")
        chat.see("[2 tokens")
        chat.type("/set max_tokens\r")
        chat.see("max_tokens = 2")
        chat.type("/set temprature 1\r")
        chat.see("did you mean temperature?")
        chat.type("/set min_q default\r")
        chat.see("did you mean min_p?")
        chat.type("/set seed x\r")
        chat.see('seed must be a whole number, not "x"')
        chat.type("/model\r")
        chat.see(f"* {model}")
        chat.type("/model nonsense\r")
        chat.see('has no model "nonsense"')
        chat.type(f"/model {model}\r")
        chat.see(f"model: {model}")
        chat.type(f"/save {tmp_path}/chat.json\r")
        chat.see("saved in")
        chat.type("/set max_tokens default\r")
        chat.see("max_tokens = default")
        chat.type("/clear\r")
        chat.see("forgotten")
        chat.type(f"/load {tmp_path}/chat.json\r")
        chat.see(f"1 question loaded; model: {model}")
        chat.type("/retry\r")
        chat.see("[2 tokens")
        chat.type("/load\r")
        chat.see("/load needs a FILE")
        chat.type("/quit\r")
        assert chat.status() == 0


def test_directory_gets_its_own_server_for_the_chat(tmp_path: Path) -> None:
    with terminal(str(DEMO), "--system", "Be brief.", GENAI_CACHE_DIR=str(tmp_path)) as chat:
        chat.see("demo at http://127.0.0.1:")
        chat.see("> ")
        family = psutil.Process(chat.process.pid).children(recursive=True)
        assert len(family) >= 2
        chat.type("What is the capital of France?\r")
        chat.see("Paris")
        chat.see("> ")
        chat.type("/quit\r")
        assert chat.status() == 0
        wait_until(lambda: not any(process.is_running() for process in family))


@pytest.mark.slow
def test_terminated_chat_ends_its_server(tmp_path: Path) -> None:
    with terminal(str(DEMO), GENAI_CACHE_DIR=str(tmp_path)) as chat:
        chat.see("> ")
        family = psutil.Process(chat.process.pid).children(recursive=True)
        assert family
        chat.process.terminate()
        assert chat.status() == 0
        wait_until(lambda: not any(process.is_running() for process in family))


def test_default_target_is_the_configured_host_and_port(scripted: RunningServer) -> None:
    with terminal(PORT=scripted.url.rpartition(":")[2]) as chat:
        chat.see(f"at {scripted.url};")


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with terminal(str(tmp_path)) as chat:
        chat.see("genai_config.json is missing")
        assert chat.status() == 1


@pytest.mark.parametrize(
    ("target", "status", "message"),
    [
        ("localhost:{port}", 1, "no server at http://localhost:"),
        ("no-such-model", 2, 'no model "no-such-model" here or in '),
    ],
)
def test_missing_target_ends_the_chat(target: str, status: int, message: str) -> None:
    with terminal(target.format(port=free_port())) as chat:
        chat.see(message)
        assert chat.status() == status


def test_unknown_model_is_refused_with_the_known_ones(scripted: RunningServer) -> None:
    with terminal(scripted.url, "--model", "missing") as chat:
        chat.see('has no model "missing"; it has: demo')
        assert chat.status() == 1


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


def test_one_question_needs_no_standard_input(scripted: RunningServer) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "genai_server", "chat", scripted.url, "say one"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr


def test_one_question_that_fails_has_status_1(scripted: RunningServer) -> None:
    done = run_command("chat", scripted.url, "count 9; fail at 4", environment=clean_environment())
    assert (done.returncode, done.stdout) == (1, "1, 2\n")
    assert done.stderr.startswith("genai-server: ")


def test_ctrl_c_ends_one_question_with_status_130(scripted: RunningServer) -> None:
    with terminal(scripted.url, "delay 0.02; count 1000") as chat:
        chat.see("1, 2, 3")
        chat.type(CTRL_C)
        assert chat.status() == 130
