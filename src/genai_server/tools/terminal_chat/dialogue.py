"""The dialogue of a terminal chat (`Dialogue`): reads lines, runs commands or sends questions, and shows the answers,
as Markdown while they arrive (`MarkdownStream`).

An unfinished block of Markdown is redrawn by moving the cursor up by the number of lines drawn before. A terminal that
echoes typed keys meanwhile, such as `^C` or a new line, moves the cursor itself, and an interrupted drawing is
incomplete. In both cases lines of the answer would remain and be shown twice. So keys are not echoed, and interrupts
wait until a drawing is complete.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.theme import Theme

from genai_server.answer_parts import Content, Reasoning
from genai_server.cli.parser import path_of
from genai_server.cli.screen import print_note, print_to_stderr, screen, show
from genai_server.engine.model.files import GIVE_A_TEMPLATE, NO_CHAT_TEMPLATE
from genai_server.errors import ChatFailed, did_you_mean, escaped, quoted
from genai_server.tools.terminal_chat.chat_client import Answer, ChatClient, ChatPiece, ToolRun
from genai_server.tools.terminal_chat.chat_history import Conversation, Message, SavedChat, load, save
from genai_server.tools.terminal_chat.user_input import (
    PARAMETERS,
    Value,
    data_url,
    is_confirmed,
    parse,
    question_reader,
    require_known,
)


@contextmanager
def without_echo() -> Iterator[None]:
    """Within a `with` block, do not show typed keys in the terminal, so that they do not disturb its output; the keys
    can be read after the block. This has no effect on Windows or without a terminal.
    """
    if sys.platform == "win32":
        yield
    else:
        import termios

        before: list[Any] | None = None
        with suppress(termios.error, ValueError):  # the terminal is gone
            if sys.stdin is not None and sys.stdin.isatty():
                before = termios.tcgetattr(sys.stdin)
                silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
                termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
        try:
            yield
        finally:
            if before is not None:
                with suppress(termios.error, ValueError):
                    termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Let Ctrl-C within a `with` block take effect only at the end of the block, so that an output there is never cut
    in the middle.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


# Colours of the terminal's palette, which suits its background, light or dark.
_THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "none", "markdown.block_quote": "italic"})
_CODE = "ansi_light"
# Seconds between two drawings.
_PAUSE = 0.05
# Free lines of the screen below an unfinished block.
_MARGIN = 2


class MarkdownStream:
    """Shows a Markdown text that arrives in pieces in a terminal, formatted: prints each finished block (such as a
    paragraph or list) once, and redraws the unfinished last block while it grows.

    If the unfinished block is higher than the screen, only its last lines are shown until it is finished.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        # The source of the unfinished block.
        self._text = ""
        self._has_blocks = False
        # Drawn from this thread only: rich's own thread may draw between two parts of a print. Nothing else is printed
        # meanwhile that rich would have to redirect.
        self._live = Live(
            "", console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with deferring_interrupts():
            if not self._live.is_started:
                return
            self._live.update("")
            self._live.stop()
            self._print(self._text)
            self._console.pop_theme()

    def add(self, piece: str) -> None:
        """Append the next piece of the Markdown text, and show it."""
        self._text += piece
        done = finished(self._text) if "\n" in piece else 0
        if not done and time.monotonic() - self._drawn < _PAUSE:
            return
        with deferring_interrupts(), self._console:  # written at once
            if not self._live.is_started:
                self._console.push_theme(_THEME)
                self._live.start()
            if done:
                block, self._text = self._text[:done], self._text[done:]
                self._live.update("", refresh=True)
                self._print(block)
            self._live.update(_Block(self._text, is_last=True, is_below_others=self._has_blocks), refresh=True)
        self._drawn = time.monotonic()

    def _print(self, text: str) -> None:
        if text.strip():
            if self._has_blocks:
                self._console.print()
            self._has_blocks = True
            self._console.print(_Block(text))


def finished(text: str) -> int:
    """Return the length, in characters, of all blocks of a Markdown text except the last one, which may continue."""
    starts = [token.map[0] for token in Markdown(text).parsed if token.level == 0 and token.map and token.nesting >= 0]
    if len(starts) < 2:
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: starts[-1]])


class _Block:
    """One block of a Markdown text as Rich prints it, without empty lines around it.

    If `is_last`, the block is unfinished, and only as many of its last lines as fit on the screen are shown.
    """

    def __init__(self, text: str, *, is_last: bool = False, is_below_others: bool = False) -> None:
        self._text = text
        self._is_last = is_last
        self._is_below_others = is_below_others

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        markdown = Markdown(self._text, code_theme=_CODE, inline_code_theme=_CODE)
        lines = _trimmed(console.render_lines(markdown, options.update(height=None), pad=False))
        if self._is_last:
            if lines and self._is_below_others:
                lines.insert(0, [])
            lines = lines[-max(1, options.max_height - _MARGIN) :]
        for line in lines:
            yield from line
            yield Segment.line()


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Return rendered lines without the blank ones at the beginning and at the end."""
    filled = [number for number, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []


_DEFAULT = "default"
_BUDGET = "thinking_token_budget"
_WITH_FILE = ("/image", "/save", "/load")
# Characters of a tool's arguments or result that are shown.
_MAX_SHOWN = 300
_ENDS = ("/quit", "/bye", "/exit")
_HELP = """\
/image FILE         attach an image to the next question
/system [TEXT]      show the system prompt, or set it
/set [NAME VALUE]   show the fields of requests, or set one: /set temperature 0
/think [N]          show the limit of tokens of reasoning, or set it: 0 for none, default
/model [NAME]       list the models that chat, or continue with another one
/retry              ask the last question again
/clear              forget the questions and answers so far
/save, /load FILE   save the chat, or continue a saved one
/help, /?           this list
/quit, /bye, /exit  end
Ctrl-C ends reasoning, so that the model answers, and stops an answer; pressed again, it ends the chat.
Two \""" begin and end a question of several lines."""


def choose_model(client: ChatClient, name: str | None) -> str:
    """Return the id of the model to chat with: `name` or, if that is None, the server's first model that generates
    text.

    Raises ChatFailed if the model does not exist or cannot chat.
    """
    models = client.models()
    generating = (id for id, entry in models.items() if not entry.endpoint)
    model = name or next(generating, next(iter(models), ""))
    if model not in models:
        raise ChatFailed(f"{client.url} has no model {quoted(model)}; it has: {', '.join(models) or 'none'}")
    if endpoint := models[model].endpoint:
        raise ChatFailed(f"{model} does not chat; it serves {client.url.rstrip('/')}{endpoint}")
    if not models[model].takes_messages:
        raise ChatFailed(f"{model} {NO_CHAT_TEMPLATE}; {GIVE_A_TEMPLATE}, for the server")
    return model


def require_images(client: ChatClient, model: str) -> None:
    """Raise ChatFailed, with the names of suitable models, if the server's list says that the model accepts
    text only.
    """
    models = client.models()
    if model in models and not models[model].takes_images:
        names = [id for id, entry in models.items() if entry.takes_images and not entry.endpoint]
        raise ChatFailed(f"{model} reads text only" + (f"; models for images: {', '.join(names)}" if names else ""))


class Dialogue:
    """The dialogue with the user of `genai-server chat`: reads lines, executes commands such as /save, sends questions
    to the model and shows its answers.

    `conversation` grows with each question and answer. `images` are data URLs that are sent with the first question.
    """

    def __init__(self, client: ChatClient, model: str, conversation: Conversation, images: Sequence[str] = ()) -> None:
        self._client = client
        self._model = model
        self._conversation = conversation
        # Sent with the next question.
        self._images = list(images)
        self._parameters: dict[str, Value] = {}
        # Each gets the text after its name.
        self._commands: dict[str, Callable[[str], None]] = {
            "/image": self._attach,
            "/system": self._system,
            "/clear": self._clear,
            "/retry": self._retry,
            "/set": self._set,
            "/think": lambda budget: self._set(f"{_BUDGET} {budget}"),
            "/model": self._switch,
            "/save": self._save,
            "/load": self._load,
            "/help": lambda _: print(_HELP),
            "/?": lambda _: print(_HELP),
        }
        self._known = [*self._commands, *_ENDS]
        self._read = question_reader(self._known)

    def run(self) -> None:
        """Read lines and execute or answer them until the user ends the chat, by a command, the end of the input, or
        pressing Ctrl-C twice. Errors of requests are printed.
        """
        was_interrupted = False
        while True:
            try:
                line = self._read()
                was_interrupted = False
                if not self._execute(line):
                    return
            except EOFError:
                if sys.stdout.isatty():
                    print()
                return
            except KeyboardInterrupt:
                if was_interrupted:
                    print()
                    return
                was_interrupted = True
                print_note("\n(Ctrl-C again exits)")
            except ChatFailed as error:
                print(f"error: {error}", file=sys.stderr)

    def _execute(self, line: str) -> bool:
        """Execute a line of the user: a command such as /help, or a question to the model. Returns False if the command
        ends the chat.
        """
        name, _, text = line.partition(" ")
        if name in _ENDS:
            return False
        command = self._commands.get(name)
        if command is not None:
            if name in _WITH_FILE and not text:
                raise ChatFailed(f"{name} needs a FILE")
            command(text.strip())
        elif name.startswith("/") and "\n" not in line:
            print(f"there is no {name}{did_you_mean(name, self._known) or '; /help lists the commands'}")
        elif line:
            images, self._images = self._images, []
            self._ask(self._conversation.ask(line, images))
        return True

    def _attach(self, text: str) -> None:
        path = path_of(text)
        url = data_url(path)
        require_images(self._client, self._model)
        self._images.append(url)
        print(f"{path.name} goes with the next question")

    def _system(self, text: str) -> None:
        self._conversation.system = text or self._conversation.system
        print(f"system prompt: {self._conversation.system or 'none'}")

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        self._images.clear()
        print("forgotten")

    def _retry(self, _: str) -> None:
        messages = self._conversation.ask_again()
        if messages is None:
            print("nothing was asked yet")
        else:
            self._ask(messages)

    def _set(self, text: str) -> None:
        """Execute the command `/set`: `NAME VALUE` sets the field NAME of later requests, such as temperature, `NAME
        default` resets it, and `NAME` or "" shows one or all fields.
        """
        name, _, value = text.partition(" ")
        if name:
            require_known(name)
        if value.strip() == _DEFAULT:
            self._parameters.pop(name, None)
        elif value:
            self._parameters[name] = parse(name, value.strip())
        for key in (name,) if name else PARAMETERS:
            print(f"{key} = {self._parameters.get(key, _DEFAULT)}")

    def _switch(self, name: str) -> None:
        if not name:
            for model, info in self._client.models().items():
                if info.endpoint or not info.takes_messages:
                    continue
                print(f"{'*' if model == self._model else ' '} {model}")
            return
        self._model = choose_model(self._client, name)
        print(f"model: {self._model}")

    def _save(self, text: str) -> None:
        path = path_of(text)
        save(path, SavedChat(self._model, self._conversation, self._parameters))
        print(f"saved in {path}")

    def _load(self, text: str) -> None:
        saved = load(path_of(text))
        self._conversation, self._parameters = saved.conversation, dict(saved.parameters)
        if saved.model != self._model and saved.model in self._client.models():
            self._model = saved.model
        turns = sum(message["role"] == "user" for message in saved.conversation.messages())
        print(f"{turns} question{'s' * (turns != 1)} loaded; model: {self._model}")

    def _ask(self, messages: list[Message]) -> None:
        rounds: list[Message] = []
        answer: Answer | None = Answer()
        while answer is not None:
            try:
                with _interrupting_reasoning(partial(self._client.end_reasoning, answer)):
                    show_answer(self._client.answer(self._model, [*messages, *rounds], answer, self._parameters))
            except KeyboardInterrupt:
                if sys.stdout.isatty():
                    print(" [stopped]", end="")
                raise
            finally:
                rounds += answer.rounds
                if not answer.calls:
                    self._conversation.answered(answer.text, rounds)
                if answer.first is not None:
                    print()
                    _note(f"[{answer.took()}]")
                if answer.ignored:
                    _note(f"[had no effect: {answer.ignored}]")
            answer = continued(answer, rounds, is_confirmed)


def _note(text: str) -> None:
    """Print a line about an answer, such as its number of tokens, dimmed in a terminal. If the standard output goes
    into a file or pipe, the line goes to standard error instead.
    """
    if sys.stdout.isatty():
        show((text, "dim"))
    else:
        print_to_stderr(text)


def continued(answer: Answer, rounds: list[Message], confirm: Callable[[str], bool]) -> Answer | None:
    """Ask the user about each tool call of `answer` that the server runs only with approval. Returns an empty answer
    with the ids of the approved calls, which the next request fills; None if no calls wait for approval.

    `confirm` asks a yes-or-no question and returns the reply. A message with the calls, and one with an error for each
    declined call, are appended to `rounds`, the messages that the next request sends after the conversation.
    """
    if not answer.calls:
        return None
    calls = list(answer.calls.values())
    rounds.append(Message(role="assistant", content=answer.text or None, tool_calls=calls))
    approved = set()
    for call in calls:
        server, _, tool = call["function"]["name"].partition("__")
        if confirm(f"Run {tool} of {server} with {_shown(call['function']['arguments'])}? [y/N] "):
            approved.add(call["id"])
        else:
            rounds.append(
                Message(role="tool", content="Error: the user has declined this call", tool_call_id=call["id"])
            )
    return Answer(approved=frozenset(approved))


def show_answer(pieces: Generator[ChatPiece, None, None], *, shows_reasoning: bool = True) -> None:
    """Print the pieces of an answer as they arrive; without `shows_reasoning` only the content, not the reasoning or
    tool calls. Raises ChatFailed if the request behind `pieces` fails.
    """
    with contextlib.closing(pieces), without_echo(), _display() as display:
        for piece in pieces:
            if shows_reasoning or isinstance(piece, Content):
                display(piece)


def _shown(text: str) -> str:
    """Return the beginning of an untrusted text from a tool server or model for the terminal: on one line, with control
    characters escaped.
    """
    return escaped(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def _line_of(run: ToolRun) -> str:
    """Return a line for the user about a tool call that has started or ended: the tool with its arguments, or with its
    result.
    """
    if run.output is None:
        return f"[{run.server}: {run.name} {_shown(run.arguments)}]"
    return f"[{run.server}: {run.name} {'failed: ' if run.is_error else '→ '}{_shown(run.output)}]"


@contextmanager
def _interrupting_reasoning(end: Callable[[], bool]) -> Iterator[None]:
    """Within a `with` block, let the first Ctrl-C call `end`, which asks the server to end the reasoning, and raise
    KeyboardInterrupt only if `end` returns False. Each later Ctrl-C interrupts as usual.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        if not end():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _display() -> Iterator[Callable[[ChatPiece], None]]:
    """Within a `with` block, yield a function that shows the pieces of one answer, which it is called with as they
    arrive.

    Reasoning is dim, tool calls have lines of their own, and content is shown as Markdown in a terminal.
    """
    console = screen()
    is_thinking = False
    with contextlib.ExitStack() as stack:
        add: Callable[[str], None] | None = None

        def plain(text: str) -> None:
            print(text, end="", flush=True)

        def display(piece: ChatPiece) -> None:
            nonlocal add, is_thinking
            if isinstance(piece, ToolRun):
                if add is None:
                    print()
                    show((_line_of(piece), "dim"))
                else:  # as a quotation of Markdown
                    add(f"\n\n> `{_line_of(piece).replace('`', chr(39))}`\n\n")
                return
            if is_thinking and isinstance(piece, Content):
                print("\n")
            is_thinking = isinstance(piece, Reasoning)
            if is_thinking and console is not None:
                console.print(piece.text, style="dim", end="", soft_wrap=True, markup=False, emoji=False)
            elif is_thinking or console is None or console.is_dumb_terminal:
                plain(piece.text)
            else:
                if add is None:
                    add = stack.enter_context(MarkdownStream(console)).add
                add(piece.text)

        yield display
