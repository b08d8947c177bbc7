"""Shows an answer as Markdown while it arrives."""

from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.theme import Theme

# Colours of the terminal's own palette, which is made for its background, be that light or dark.
_THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "none", "markdown.block_quote": "italic"})
_CODE = "ansi_light"
_PER_SECOND = 12
# Lines of the screen that stay free below an unfinished block.
_MARGIN = 2


class MarkdownStream:
    """Finished blocks are printed for good. The unfinished one is drawn again while it grows, its last lines only if it
    is higher than the screen.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        # The source of the unfinished block.
        self._text = ""
        self._has_blocks = False
        self._live = Live(console=console, get_renderable=self._tail, refresh_per_second=_PER_SECOND, transient=True)

    def __enter__(self) -> Self:
        self._console.push_theme(_THEME)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rest, self._text = self._text, ""
        self._live.stop()
        self._print(rest)
        self._console.pop_theme()

    def add(self, piece: str) -> None:
        """Show a further piece of the answer."""
        self._text += piece
        if "\n" in piece:
            done = finished(self._text)
            if done:
                block, self._text = self._text[:done], self._text[done:]
                self._print(block)

    def _print(self, text: str) -> None:
        if text.strip():
            if self._has_blocks:
                self._console.print()
            self._has_blocks = True
            self._console.print(_markdown(text))

    def _tail(self) -> "_Tail":
        return _Tail(self._text, self._has_blocks)


def finished(text: str) -> int:
    """The length of the text's blocks without the last, which may go on."""
    starts = [token.map[0] for token in Markdown(text).parsed if token.level == 0 and token.map and token.nesting >= 0]
    if len(starts) < 2:
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: starts[-1]])


class _Tail:
    """The last lines of an unfinished text, as many as the screen has."""

    def __init__(self, text: str, is_below_others: bool) -> None:
        self._text = text
        self._is_below_others = is_below_others

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._text.strip():
            return
        lines = console.render_lines(_markdown(self._text), options.update(height=None), pad=False)
        if self._is_below_others:
            lines.insert(0, [])
        for line in lines[-max(1, options.max_height - _MARGIN) :]:
            yield from line
            yield Segment.line()


def _markdown(text: str) -> Markdown:
    return Markdown(text, code_theme=_CODE, inline_code_theme=_CODE)
