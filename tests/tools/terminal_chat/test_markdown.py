"""Markdown rendered while it arrives."""

import contextlib
import io
import re
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

from genai_server.tools.terminal_chat.dialogue import MarkdownStream, finished

TEXT = "# Title\n\nSome **bold** text.\n\n```python\nx = 1\n\ny = 2\n```\n\n1. one\n2. two\n\nEnd."


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("", ""),
        ("a", ""),
        ("a\n\nb", "a\n\n"),
        ("```\na\n\nb", ""),
        ("```\na\n```\n", ""),
        ("1. a\n\n2. b\n", ""),
        ("1. a\n\nb", "1. a\n\n"),
        ("a\u2028b\n\nc", "a\u2028b\n\n"),
    ],
)
def test_a_block_is_finished_when_another_follows(text: str, done: str) -> None:
    assert text[: finished(text)] == done


@pytest.mark.parametrize("length", [1, 7, 1000])
def test_all_blocks_are_shown_once_however_the_text_is_cut(length: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=60, height=20)
    with MarkdownStream(console) as stream:
        for start in range(0, len(TEXT), length):
            stream.add(TEXT[start : start + length])
    shown = out.getvalue().replace("\x1b[2K", "").replace("\x1b[1A", "")
    for word in ("Title", "\x1b[1mbold\x1b[0m", "one", "two", "End."):
        assert word in shown
    assert "**" not in shown
    assert "```" not in shown


def test_output_without_colours_has_none() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, no_color=True, width=60)
    with MarkdownStream(console) as stream:
        stream.add("`code` and\n\n```python\nx = 1\n```\n")
    assert "\x1b[3" not in out.getvalue().replace("\x1b[3m", "")


def seen(written: str) -> list[str]:
    """The lines on a terminal's screen, which is high enough, after it has received this."""
    lines, row, column = [""], 0, 0
    for piece in re.findall(r"\x1b\[\??([0-9;]*[A-Za-z])|([\r\n])|([^\x1b\r\n]+)", written):
        control, move, text = piece
        if control.endswith("A"):
            row -= int(control[:-1] or 1)
        elif control.endswith("K"):
            lines[row] = ""
        elif move == "\r":
            column = 0
        elif move == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = f"{lines[row][:column]:<{column}}{text}{lines[row][column + len(text) :]}"
            column += len(text)
    return [line.rstrip() for line in lines if line.strip()]


def interrupted_at(step: int, out: io.StringIO) -> tuple[int, int]:
    """Show an answer of six words, with Ctrl-C at a step of rich's. Returns the last word and the steps in all."""
    steps = said = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[[FrameType, str, Any], Any] | None:
        nonlocal steps
        if not frame.f_code.co_filename.endswith(("rich/live.py", "rich/live_render.py", "rich/console.py")):
            return None
        if event == "line":
            steps += 1
            if steps == step:
                signal.raise_signal(signal.SIGINT)
        return trace

    stream = MarkdownStream(Console(file=out, force_terminal=True, no_color=True, width=20, height=20))
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt), stream:
            for said in range(10, 16):
                stream.add(f"word{said} ")
    finally:
        sys.settrace(None)
    return said, steps


def test_an_interrupted_answer_is_shown_once_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.tools.terminal_chat.dialogue._PAUSE", 0.0)
    _, steps = interrupted_at(-1, io.StringIO())
    assert steps > 1000
    for step in range(1, steps, steps // 150):
        out = io.StringIO()
        said, _ = interrupted_at(step, out)
        assert " ".join(seen(out.getvalue())).split() == [f"word{word}" for word in range(10, said + 1)], step
