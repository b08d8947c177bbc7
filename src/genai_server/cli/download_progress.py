"""Shows the progress of a download: one line in a terminal, otherwise a line for each file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from genai_server.cli.screen import say
from genai_server.errors import escaped
from genai_server.hub.download import Watch
from genai_server.hub.repository import RemoteFile, Selection

_MIB = 1024 * 1024


def size_in_words(num_bytes: int) -> str:
    """Return a size in MiB or bytes, with its unit."""
    return f"{num_bytes / _MIB:.1f} MiB" if num_bytes >= _MIB else f"{num_bytes:,} bytes"


class _Speed(ProgressColumn):
    """A column with the speed in binary units, which Rich's own column lacks."""

    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) / _MIB:.1f} MiB/s")


@contextmanager
def download_progress(selection: Selection, report: Callable[[str], None] = say) -> Iterator[Watch]:
    """Show the progress of a download on standard error during the block. Yields a function to pass to `download` as
    `watch`.

    If standard error is no terminal, `report` is called with a line for each file instead.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True),
        _Speed(),
        TimeRemainingColumn(compact=True),
    )
    shown = {file: (number, name) for number, (name, file) in enumerate(selection.files.items(), 1)}
    here: dict[RemoteFile, int] = {}
    with Progress(*columns, console=console, expand=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=0, visible=False)

        def watch(file: RemoteFile, size: int) -> None:
            number, name = shown[file]
            title = f"{number}/{len(shown)} {escaped(name)}"
            if file not in here:  # what was here before has no part in the speed
                progress.update(task, total=(progress.tasks[0].total or 0) + file.size - size)
                if size < file.size and not console.is_terminal:
                    report(f"{title}  {size_in_words(file.size)}")
            else:
                progress.update(task, advance=size - here[file], description=title, visible=True)
            here[file] = size

        yield watch
