"""`genai-server chat [URL|DIR]`: a chat in the terminal, with a running server or one of its own.

With a URL it talks to that server. With a model directory, or the name of one in GENAI_MODELS_DIR, it starts a server
on a free port and ends it afterwards. With neither it takes the server at HOST and PORT if one runs, else the model of
GENAI_MODEL_DIR.

/system TEXT sets the system prompt, /clear forgets the conversation, /retry asks the last question again, /quit ends.
Ctrl-C stops an answer, Ctrl-C again ends.
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genai_server.api.middleware.keys import make_key
from genai_server.chat.client import Answer, ChatClient
from genai_server.chat.conversation import Conversation, Message
from genai_server.chat.own_server import own_server
from genai_server.cli.models import find
from genai_server.config import load_settings
from genai_server.engine.model.files import GIVE_A_TEMPLATE, NO_CHAT_TEMPLATE
from genai_server.errors import ChatFailed
from genai_server.quoted_values import quoted

_PROMPT = "> "
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_HELP = "/system [TEXT]  /clear  /retry  /quit   Ctrl-C stops an answer, Ctrl-C again ends"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The subcommand and its options."""
    parser = subparsers.add_parser(
        "chat", help="chat in the terminal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="?", metavar="URL|DIR", help="a server, or a model directory to start one on")
    parser.add_argument("--model", metavar="NAME", help="model of the requests (default: the server's first)")
    parser.add_argument("--system", default="", metavar="TEXT", help="the system prompt")
    parser.add_argument("--api-key", metavar="KEY", help="an API key of the server")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Chat until the user ends it; returns the exit status. Raises ConfigurationError and ChatFailed."""
    _end_well_when_told_to()
    try:
        with _client(arguments.target, arguments.api_key) as client:
            models = client.models()
            model = arguments.model or client.first_model()
            if model not in models:
                raise ChatFailed(f"{client.url} has no model {quoted(model)}; it has: {', '.join(models) or 'none'}")
            if endpoint := client.endpoint(model):
                raise ChatFailed(f"{model} does not chat; it serves {client.url.rstrip('/')}{endpoint}")
            if not client.takes_messages(model):
                raise ChatFailed(f"{model} {NO_CHAT_TEMPLATE}; {GIVE_A_TEMPLATE}, for the server")
            print(f"{model} at {client.url}; /help lists the commands")
            Terminal(client, model, Conversation(arguments.system)).run()
    except KeyboardInterrupt:  # while the server starts, or ends
        print()
    return 0


class Terminal:
    """The dialogue: reads lines, runs commands or sends questions, and shows the answers."""

    def __init__(self, client: ChatClient, model: str, conversation: Conversation) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        self._has_colours = sys.stdout.isatty()

    def run(self) -> None:
        """Read lines until the user ends the chat."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  arrows and history in input()
        was_interrupted = False
        while True:
            try:
                line = input(_PROMPT if sys.stdin.isatty() else "").strip()
                was_interrupted = False
                if not self._obey(line):
                    return
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                if was_interrupted:
                    print()
                    return
                was_interrupted = True
                print("\n(Ctrl-C again ends)")
            except ChatFailed as error:
                print(f"error: {error}", file=sys.stderr)

    def _obey(self, line: str) -> bool:
        """Run a command or ask a question; returns False to end."""
        command, _, text = line.partition(" ")
        if command == "/quit":
            return False
        if command == "/system":
            self._conversation.system = text or self._conversation.system
            print(f"system prompt: {self._conversation.system or 'none'}")
        elif command == "/clear":
            self._conversation.clear()
            print("forgotten")
        elif command == "/retry":
            messages = self._conversation.ask_again()
            if messages is None:
                print("nothing was asked yet")
            else:
                self._ask(messages)
        elif command.startswith("/"):
            print(_HELP if command == "/help" else f"there is no {command}: {_HELP}")
        elif line:
            self._ask(self._conversation.ask(line))
        return True

    def _ask(self, messages: list[Message]) -> None:
        answer = Answer()
        is_thinking = False
        try:
            with contextlib.closing(self._client.answer(self._model, messages, answer)) as pieces:
                for piece in pieces:
                    if is_thinking and not piece.is_reasoning:
                        print("\n")
                    is_thinking = piece.is_reasoning
                    print(self._dim(piece.text) if is_thinking else piece.text, end="", flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="")
            raise
        finally:
            self._conversation.answered(answer.text)
            if answer.first is not None:
                print("\n" + self._dim(f"[{answer.took()}]"), flush=True)

    def _dim(self, text: str) -> str:
        return f"{_DIM}{text}{_PLAIN}" if self._has_colours else text


@contextmanager
def _client(target: str | None, api_key: str | None) -> Iterator[ChatClient]:
    """A client of the given server, or of one that is started for this chat."""
    settings = load_settings()
    if target and "://" in target:
        yield ChatClient(target, api_key)
        return
    if target is None:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        running = ChatClient(f"{'https' if settings.tls_cert else 'http'}://{host}:{settings.port}", api_key)
        if running.is_there():
            yield running
            return
    directory = find(target) if target else Path(settings.model_dir)
    print(f"starting a server for {directory} …", flush=True)
    key = make_key()
    with own_server(directory, f"chat:{key}") as url:
        yield ChatClient(url, key)


def _end_well_when_told_to() -> None:
    """Turn SIGHUP and SIGTERM into an orderly end, so that the chat's own server ends, too."""

    def end(*_: object) -> None:
        raise SystemExit(0)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end)
