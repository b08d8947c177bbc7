"""Measure what the web page costs and how smoothly it draws, in a Chromium over a server with the demo model.

- What a watcher costs: the processor time of the API process and of the engine while pages show “Monitor”, less the
  time while none does. A hidden page, or one that shows “Chat”, asks nothing.
- How smooth a long answer is: the frames that are drawn while 2,000 tokens arrive, and while it is scrolled through.

usage: .venv/bin/python scripts/measure_page.py [--quick]      Linux and macOS; needs the extra `dev` and a Chromium
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from _load.server import DEMO, HOST, Server, run_server
from _models.table import table
from playwright.sync_api import Browser, Page, sync_playwright

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Counts frames from now on, and returns what tells of them. A frame at 60 Hz takes 16.7 ms.
_COUNT = """() => {
    const gaps = [];
    let last = performance.now(), isOver = false;
    const frame = (now) => { gaps.push(now - last); last = now; if (!isOver) requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
    window.framesOver = () => {
        isOver = true;
        const sorted = gaps.slice(1).sort((one, other) => one - other);
        return {frames: sorted.length, seconds: sorted.reduce((sum, gap) => sum + gap, 0) / 1000,
            usual: sorted[Math.floor(sorted.length / 2)], longest: sorted.at(-1),
            late: sorted.filter((gap) => gap > 50).length};
    };
}"""
_SCROLL = """async () => {
    const list = document.querySelector(".turns");
    for (list.scrollTop = 0; list.scrollTop + list.clientHeight < list.scrollHeight - 1; list.scrollTop += 40)
        await new Promise(requestAnimationFrame);
}"""
_TOKENS = 2000


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few seconds each")
    parser.add_argument("--markdown", action="store_true", help="print the tables as a document has them")
    arguments = parser.parse_args()
    seconds = 6.0 if arguments.quick else 60.0
    settings = {"GENAI_MODEL_DIR": str(DEMO), "GENAI_LOG_LEVEL": "error"}
    executable = next(filter(None, map(shutil.which, _BROWSERS)), None)
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(Path(folder), settings) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=executable)
        print(table(costs(browser, server, seconds), markdown=arguments.markdown), end="\n\n")
        print(table(frames(browser, server), markdown=arguments.markdown))
        browser.close()


def costs(browser: Browser, server: Server, seconds: float) -> list[list[str]]:
    """The rows of the first table: cores for each watcher."""
    rows = [["watchers", "API process", "engine", "each watcher, both"]]
    idle = _cores(server, seconds)
    rows.append(["0", f"{idle[0]:.2%}", f"{idle[1]:.2%}", ""])
    pages: list[Page] = []
    for wanted in (1, 4):
        while len(pages) < wanted:
            pages.append(_opened(browser, server, "#monitor"))
        time.sleep(3.0)
        found = _cores(server, seconds)
        each = (sum(found) - sum(idle)) / wanted
        rows.append([f"{wanted}", f"{found[0]:.2%}", f"{found[1]:.2%}", f"{each:.2%}"])
    for page in pages:
        page.close()
    return rows


def frames(browser: Browser, server: Server) -> list[list[str]]:
    """The rows of the second table: frames while an answer arrives, and while it is scrolled through."""
    page = _opened(browser, server)
    page.get_by_role("button", name="Settings").click()
    for label, value in (("Max tokens", str(_TOKENS)), ("Temperature", "1"), ("Seed", "1")):
        page.get_by_label(label).first.fill(value)
    page.get_by_label("Ignore the end-of-answer token").check()
    page.get_by_role("button", name="Settings").click()
    page.evaluate(_COUNT)
    page.get_by_label("Message", exact=True).fill("Write a long poem.")
    page.get_by_label("Message", exact=True).press("Enter")
    page.get_by_role("button", name="Stop", exact=True).wait_for()
    page.get_by_role("button", name="Send", exact=True).wait_for(timeout=120_000)
    written: dict[str, Any] = page.evaluate("framesOver()")
    page.get_by_role("button", name="Figures").click()
    tokens = re.search(r"([\d,]+) tokens(?!/)", page.locator(".facts").inner_text())
    page.evaluate(_COUNT)
    page.evaluate(_SCROLL)
    scrolled: dict[str, Any] = page.evaluate("framesOver()")
    page.close()
    head = ["", "seconds", "frames", "usual frame", "longest", "over 50 ms"]
    return [
        head,
        *(
            [
                name,
                f"{found['seconds']:.1f}",
                f"{found['frames']}",
                f"{found['usual']:.1f} ms",
                f"{found['longest']:.1f} ms",
                f"{found['late']}",
            ]
            for name, found in (
                (f"{tokens and tokens[1]} tokens arrive", written),
                ("they are scrolled", scrolled),
            )
        ),
    ]


def _opened(browser: Browser, server: Server, at: str = "") -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"http://{HOST}:{server.port}/{at}")
    page.locator("header").wait_for()
    return page


def _cores(server: Server, seconds: float) -> tuple[float, float]:
    """Cores that the API process and the engine have used since then."""
    engine = server.engine_pid()
    assert engine is not None
    processes = psutil.Process(server.pid), psutil.Process(engine)
    before = [_used(process) for process in processes]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    api, model = ((_used(process) - used) / took for process, used in zip(processes, before, strict=True))
    return api, model


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
