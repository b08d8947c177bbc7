"""Images of chats in the browser's database: read when their chat is opened, and moved there from older versions."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.running_server import RunningServer
from tests.web.browser import opened

URL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
# Replaces the database by one of version 1 with these chats.
MAKE_FIRST_VERSION = """async ([chats, stays]) => {
    const done = (request) => new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = request.onblocked = () => reject(request.error);
    });
    await done(indexedDB.deleteDatabase("genai-server /"));
    const asked = indexedDB.open("genai-server /", 1);
    asked.onupgradeneeded = () => {
        const store = asked.result.createObjectStore("chats", { keyPath: "id" });
        for (const chat of chats) store.put(chat);
    };
    const database = await done(asked);
    if (!stays) database.close();
}"""
# The number of images in the database, and whether one is in a record of a chat or in the page's memory.
STATE = """async () => {
    const { chats } = await import("./ui/chats.js");
    const asked = indexedDB.open("genai-server /");
    const database = await new Promise((resolve) => { asked.onsuccess = () => resolve(asked.result); });
    const all = (name) => new Promise((resolve) => {
        const request = database.transaction(name).objectStore(name).getAll();
        request.onsuccess = () => resolve(request.result);
    });
    const [images, records] = [await all("images"), await all("chats")];
    database.close();
    const has = (value) => JSON.stringify(value).includes("data:image");
    return [images.length, has(records), has(chats.found())];
}"""


def chat(name: str, *attachments: dict[str, str]) -> dict[str, Any]:
    """A chat as the first version of the database had it."""
    turn = {"id": "t1", "parent": "root", "role": "user", "content": name, "attachments": [*attachments]}
    return {"id": name[:3], "title": name, "created": 1, "updated": 1, "turns": {"t1": turn}, "chosen": {"root": "t1"}}


CAT = {"name": "cat.gif", "url": URL}
CHATS = [chat("Cat?", CAT, dict(CAT)), chat("Words?", {"name": "notes.txt", "text": "words"}), chat("Dog?", CAT)]


def have_chats(page: Page, chats: list[dict[str, Any]]) -> None:
    """Load the page with chats that an older version of it has kept."""
    root = page.url.partition("#")[0]
    page.goto(f"{root}healthz")
    page.evaluate(MAKE_FIRST_VERSION, [chats, False])
    page.goto(root)


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        have_chats(page, CHATS)
        yield page


def show(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.locator(".bubble")).to_have_text(name)


def test_images_are_in_memory_while_their_chat_is_open(page: Page) -> None:
    assert page.evaluate(STATE) == [3, False, False]
    show(page, "Cat?")
    images = page.get_by_role("article", name="You").get_by_role("img", name="cat.gif")
    expect(images).to_have_count(2)
    assert images.first.evaluate("image => image.naturalWidth") == 1
    assert page.evaluate(STATE) == [3, False, True]
    show(page, "Words?")
    expect(page.locator(".turns details")).to_have_count(1)
    assert page.evaluate(STATE) == [3, False, False]


def test_images_of_chats_that_are_not_open_are_exported(page: Page, tmp_path: Path) -> None:
    with page.expect_download() as found:
        page.get_by_role("button", name="Export all").click()
    found.value.save_as(tmp_path / "chats.json")
    exported = json.loads((tmp_path / "chats.json").read_text())["chats"]
    assert sorted(exported, key=lambda one: str(one["id"])) == sorted(CHATS, key=lambda one: str(one["id"]))
    page.get_by_label("Import").set_input_files(tmp_path / "chats.json")
    show(page, "Dog?")
    expect(page.get_by_role("article", name="You").get_by_role("img", name="cat.gif")).to_be_visible()
    assert page.evaluate(STATE) == [3, False, True]


def test_images_are_removed_with_their_chat(page: Page) -> None:
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_label("More about Cat?").click()
    page.locator(".menu[open]").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Cat?", exact=True)).to_have_count(0)
    assert page.evaluate(STATE) == [1, False, False]


def test_a_renamed_chat_that_is_not_open_keeps_its_images(page: Page) -> None:
    page.get_by_label("More about Dog?").click()
    page.locator(".menu[open]").get_by_role("button", name="Rename").click()
    page.get_by_label("Name of the chat").fill("Wolf?")
    page.get_by_label("Name of the chat").press("Enter")
    page.get_by_role("button", name="Wolf?", exact=True).click()
    expect(page.get_by_role("article", name="You").get_by_role("img", name="cat.gif")).to_be_visible()


def test_an_older_page_in_another_tab_is_named(page: Page, own_scripted: RunningServer) -> None:
    page.goto(f"{own_scripted.url}/healthz")
    older = page.context.new_page()
    older.goto(f"{own_scripted.url}/healthz")
    older.evaluate(MAKE_FIRST_VERSION, [CHATS, True])
    page.goto(own_scripted.url)
    expect(page.get_by_role("alert")).to_contain_text("an older version of this page is open in another tab")
    older.close()
    page.reload()
    show(page, "Dog?")
