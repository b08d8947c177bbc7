"""Markdown rendered while it arrives."""

import io

import pytest
from rich.console import Console

from genai_server.tools.terminal_chat.markdown import MarkdownStream, finished

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
