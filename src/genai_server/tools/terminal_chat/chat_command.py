"""`genai-server chat [URL|DIR [QUESTION]]`: a chat in the terminal, with a running server or one of its own.

With a URL it uses that server. With a model directory, or the name of one in GENAI_MODELS_DIR, it starts a server on a
free port and stops it afterwards. With neither it uses the server at HOST and PORT if one is running, else the model in
GENAI_MODEL_DIR.

A pasted text of several lines is one question, and so is a text between two \"\"\". Images given with --image go with
the first question. In the chat, /help lists the commands. Ctrl-C stops an answer, Ctrl-C again exits.

With QUESTION there is no chat: the answer is printed, and the command ends. A terminal also shows the reasoning, a file
or pipe does not. Text that is piped into the command is appended to the question.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from genai_server.cli.model_argument import find
from genai_server.cli.parser import path_of
from genai_server.cli.screen import print_note, print_to_stderr
from genai_server.cli.serve.welcome import url_of
from genai_server.cli.standard_streams import piped_text, typed_text
from genai_server.config.settings import name_of_directory
from genai_server.config.sources import load_settings
from genai_server.errors import ChatFailed
from genai_server.http.api_keys import make_key
from genai_server.tools.server_answers import is_address
from genai_server.tools.terminal_chat.chat_client import Answer, ChatClient
from genai_server.tools.terminal_chat.chat_history import Conversation, Message
from genai_server.tools.terminal_chat.dialogue import Dialogue, choose_model, continued, require_images, show_answer
from genai_server.tools.terminal_chat.user_input import data_url, is_confirmed

_ADDRESS = re.compile(r"listening on (https?://\S+)")
_POLL = 0.05
# Seconds for an answer whether it is ready.
_PATIENCE = 5.0
# Seconds to exit; no request is running any more.
_TIMEOUT = 10.0
_LAST_LINES = 5
_ERROR = re.compile(r"\S+ \S+ (ERROR|CRITICAL) ")


@contextmanager
def own_server(directory: Path, key_entry: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Run a server for the model in `directory` on a free port of this machine during a `with` block. Yields its URL as
    soon as it is ready.

    `key_entry` is an entry of GENAI_API_KEYS (`NAME:KEY`), and `options` are further options of `genai-server serve`.
    The server accepts any model name. Ctrl-C does not reach it. Raises ChatFailed if the server does not start, with
    the errors in its log or else the log's last lines.
    """
    command = [sys.executable, "-m", "genai_server", "serve", "--model-dir", str(directory)]
    name = name_of_directory(str(directory))
    command += ["--model-name", name, "--model-aliases", f"*={name}", "--log-level", "info"]
    command += ["--log-format", "text"]
    command += ["--host", "127.0.0.1", "--port", "0", "--workers", "1", "--reload", "false", "--api-keys", key_entry]
    command += options
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as out:
            process = _start(command, out.fileno())
        try:
            yield _ready(process, log)
        finally:
            _end(process)


def _start(command: list[str], out: int) -> "subprocess.Popen[bytes]":
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, creationflags=flags)
    else:  # noqa: RET505  mypy takes what follows a return for unreachable on Windows
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the server in `process` is ready, as its log file `log` says, and return its URL. Raises ChatFailed if
    it ends before.
    """
    while process.poll() is None:
        match = _ADDRESS.search(log.read_text(encoding="utf-8", errors="replace"))
        if match and _is_ready(match[1]):
            return match[1]
        time.sleep(_POLL)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    why = [line for line in lines if _ERROR.match(line)] or lines[-_LAST_LINES:]
    raise ChatFailed("\n".join(["the chat's server did not start:", *why]))


def _is_ready(url: str) -> bool:
    client = ChatClient(url)
    with suppress(ChatFailed), closing(client.connect(_PATIENCE)) as connection:
        client.response(connection, "GET", "/readyz", None)
        return True
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server chat` to `parser`, and set `run` as the function that executes the
    command.
    """
    parser.add_argument("target", nargs="?", metavar="URL|DIR", help="a server, or a model directory to start one on")
    parser.add_argument("--model", metavar="NAME", help="model of the requests (default: the server's first)")
    add_dialogue_options(parser)
    parser.add_argument("--api-key", metavar="KEY", help="an API key of the server")
    parser.set_defaults(run=run)


def add_dialogue_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that the commands `chat` and `run` share, such as QUESTION and --system, to `parser`."""
    parser.add_argument(
        "question", nargs="?", type=typed_text, metavar="QUESTION", help="print the answer to this and end"
    )
    parser.add_argument(
        "--mcp",
        action="append",
        default=[],
        metavar="NAME",
        help="let the server run the tools of this tool server of its configuration; may be repeated",
    )
    parser.add_argument("--system", default="", type=typed_text, metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--image",
        type=_image,
        action="append",
        default=[],
        metavar="FILE",
        help="an image for the first question; may be repeated",
    )


def _image(text: str) -> str:
    """Return the data URL of the image file whose path `text` is the value of the option --image. Raises
    ArgumentTypeError if the file is not an image that can be read.
    """
    try:
        return data_url(path_of(text))
    except ChatFailed as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server chat`: chat until the user ends it, or answer one question. `arguments` are the parsed
    command line. Returns the exit status.

    Raises ConfigurationError for wrong settings or an unknown model directory, and ChatFailed if the server or the
    model cannot be used.
    """
    exit_cleanly_on_signals()
    conversation = Conversation(arguments.system)
    question = _with_piped(arguments.question) if arguments.question else ""
    try:
        with connected(arguments.target, arguments.api_key, print_to_stderr if question else print_note) as client:
            model = choose_model(client, arguments.model)
            client.tool_servers = arguments.mcp
            if arguments.image:
                require_images(client, model)
            if question:
                _answer_one(client, model, conversation.ask(question, arguments.image))
            else:
                print_note(f"{model} at {client.url}; /help lists the commands")
                Dialogue(client, model, conversation, arguments.image).run()
    except KeyboardInterrupt:  # while the server starts, or ends
        if question:
            raise
        print()
    return 0


def _answer_one(client: ChatClient, model: str, messages: list[Message]) -> None:
    rounds: list[Message] = []
    answer: Answer | None = Answer()
    while answer is not None:
        try:
            show_answer(client.answer(model, [*messages, *rounds], answer), shows_reasoning=sys.stdout.isatty())
        finally:
            if answer.first is not None:  # what follows, such as an error, has a line of its own
                print()
        rounds += answer.rounds
        answer = continued(answer, rounds, _is_confirmed)


def _is_confirmed(question: str) -> bool:
    """Ask the user the yes-or-no question whether to run a tool call, and return the answer. If standard input is no
    terminal, the call is declined.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        return is_confirmed(question)
    print_to_stderr(f"{question}no: there is no terminal")
    return False


def _with_piped(question: str) -> str:
    """Return the question, followed by the text that is piped into the command if there is any. Raises ChatFailed if
    that is not text.
    """
    if sys.stdin is None or sys.stdin.isatty():  # None if it is closed
        return question
    return f"{question}\n\n{piped_text()}".strip()


@contextmanager
def connected(
    target: str | None,
    api_key: str | None,
    report: Callable[[str], None] = print_to_stderr,
    options: Sequence[str] = (),
) -> Iterator[ChatClient]:
    """Find or start a server, and yield a client of it during a `with` block; a server that was started here is stopped
    at the end of the block.

    `target` is the server's address, or a model directory (or its name) for which a server is started. None stands for
    the server that runs at the configured address or, if none does, one that is started for the configured model.
    `api_key` is for a server that runs already. `report` is called with a line when a server is started, and `options`
    are further options of `genai-server serve` for it.
    """
    settings = load_settings()
    if target and is_address(target):
        yield ChatClient(target, api_key)
        return
    if target is None:
        is_running = False
        running = ChatClient(url_of(settings.host, settings.port, is_https=bool(settings.tls_cert)), api_key)
        with suppress(ChatFailed):
            running.require_listening()
            is_running = True
        if is_running:
            yield running
            return
    directory = find(target) if target else Path(settings.model_dir)
    report(f"starting a server for {directory} …")
    key = make_key()
    with own_server(directory, f"chat:{key}", options) as url:
        yield ChatClient(url, key)


def exit_cleanly_on_signals() -> None:
    """Let SIGHUP and SIGTERM raise SystemExit in this process, so that a server that the command has started is
    stopped, too.
    """

    def end(*_: object) -> None:
        raise SystemExit(0)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end)
