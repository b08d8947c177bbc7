"""Takes the pictures of the documentation: a terminal, a chat, and what Monitor and Prometheus show of a busy server.

Needs `./scripts/install dev`, and chromium, tmux and prometheus on the PATH. The server has the demo model. Clients
keep it busy for as long as the charts go back. Look at the pictures before you commit them.

usage: .venv/bin/python scripts/make_pictures.py [--only chat] [--to FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
from _load.server import DEMO, HOST, REPOSITORY, Server, run_server
from _pictures.dashboard import draw, prometheus
from _pictures.terminal import save, terminal
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_CLIENTS = 8
# How long the server is busy.
_SECONDS = 320.0
_QUESTIONS = (
    "What is the capital of France?",
    "Which city is the capital of Norway?",
    "Count from 1 to 12.",
    "Count from 1 to 40.",
    "What is 7 plus 5?",
    "Who are you?",
)


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=REPOSITORY / "docs" / "images", metavar="FOLDER")
    parser.add_argument("--only", choices=["terminal", "chat", "server"], help="only this one")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    arguments.to.mkdir(parents=True, exist_ok=True)
    with _browser() as browser:
        for name, picture in {"terminal": picture_terminal, "chat": picture_chat, "server": picture_server}.items():
            if arguments.only in (None, name):
                picture(browser, arguments.to)


@contextmanager
def _browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        executable = next(filter(None, map(shutil.which, _BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=executable)
        yield browser
        browser.close()


def picture_terminal(browser: Browser, folder: Path) -> None:
    """A server's start, and below it a chat with it."""
    with terminal(REPOSITORY, columns=100, rows=32) as above, terminal(REPOSITORY, columns=100, rows=15) as below:
        above.type("genai-server serve")
        above.wait_for("all endpoints")
        below.type("genai-server chat")
        below.wait_for("\n>")
        for number, question in enumerate(("What is the capital of France?", "And of Italy?"), 1):
            below.type(question)
            below.wait_for("in all]", number)
        save(browser, folder / "terminal.png", [above.screen(), below.screen()])
    _shrink(folder / "terminal.png")


def picture_chat(browser: Browser, folder: Path) -> None:
    """A chat of three turns in the page, with the figures and the tokens of answers."""
    settings = {"GENAI_MODEL_DIR": str(DEMO), "GENAI_LOG_LEVEL": "error"}
    with tempfile.TemporaryDirectory() as place, run_server(Path(place), settings) as server:
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(f"http://{HOST}:{server.port}/")
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Token probabilities").check()
        for number, question in enumerate(("What is the capital of France?", "And of Italy?", "What is 7 plus 5?"), 1):
            page.get_by_label("Message", exact=True).fill(question)
            page.get_by_label("Message", exact=True).press("Enter")
            page.get_by_role("article", name="Answer", exact=True).nth(number - 1).wait_for()
            page.get_by_role("button", name="Send", exact=True).wait_for()
        page.get_by_role("button", name="Figures").last.click()
        page.get_by_role("button", name="Inspect tokens").nth(1).click()
        page.locator(".tokens button").nth(3).click()
        page.screenshot(path=folder / "chat.png")
        page.close()


def picture_server(browser: Browser, folder: Path) -> None:
    """Monitor and the dashboard's first panels after minutes of requests."""
    settings = {"GENAI_MODEL_DIR": str(DEMO), "GENAI_LOG_LEVEL": "error"}
    over = Event()
    with (
        tempfile.TemporaryDirectory() as place,
        run_server(Path(place), settings) as server,
        prometheus(Path(place), f"{HOST}:{server.port}") as url,
        ThreadPoolExecutor(_CLIENTS) as pool,
    ):
        clients = [pool.submit(_ask, server, number, over) for number in range(_CLIENTS)]
        try:
            time.sleep(_SECONDS)
            _picture_monitor(browser, server, folder / "monitor.png")
            draw(url, folder / "dashboard.png")
            _shrink(folder / "dashboard.png")
        finally:
            over.set()
        for client in clients:
            client.result()


def _picture_monitor(browser: Browser, server: Server, file: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 960}, color_scheme="light")
    page.goto(f"http://{HOST}:{server.port}/#monitor")
    page.locator(".chart canvas").first.wait_for()
    page.wait_for_timeout(4000)  # for a list of requests
    page.screenshot(path=file)
    page.close()


def _shrink(file: Path) -> None:
    """Write a picture again with 256 colours, which are enough for text and charts and take a third of the bytes."""
    few = Image.open(file).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def _ask(server: Server, number: int, over: Event) -> None:
    """A client that asks, reads and thinks, sometimes more and sometimes less."""
    chance = random.Random(number)
    with httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=60) as client:
        while not over.is_set():
            turns: list[dict[str, str]] = []
            for _ in range(chance.randint(1, 8)):
                turns.append({"role": "user", "content": chance.choice(_QUESTIONS)})
                answer = client.post("/v1/chat", json={"messages": turns, "max_tokens": chance.choice([40, 400])})
                turns.append({"role": "assistant", "content": answer.json()["content"]})
                over.wait(chance.expovariate(4))
            over.wait(chance.expovariate(0.2))


if __name__ == "__main__":
    main()
