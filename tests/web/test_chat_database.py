"""Chats in the browser's database: moved there from older versions, with images that are read when they are opened."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.running_server import RunningServer, wait_until
from tests.web.browser import agree, expect, opened

URL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
# Replaces the database by one of an older version with these chats and images.
MAKE_OLDER_VERSION = """async ([version, chats, images, stays]) => {
    const done = (request) => new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = request.onblocked = () => reject(request.error);
    });
    await done(indexedDB.deleteDatabase("genai-server /"));
    const asked = indexedDB.open("genai-server /", version);
    asked.onupgradeneeded = () => {
        const store = asked.result.createObjectStore("chats", { keyPath: "id" });
        for (const chat of chats) store.put(chat);
        if (version === 1) return;
        const others = asked.result.createObjectStore("images", { keyPath: ["chat", "id"] });
        for (const image of images) others.put(image);
    };
    const database = await done(asked);
    if (!stays) database.close();
}"""
# The number of images in the database, and whether one is in a turn's record or in the page's memory.
STATE = """async () => {
    const { chats } = await import("./ui/chats.js");
    const asked = indexedDB.open("genai-server /");
    const database = await new Promise((resolve) => { asked.onsuccess = () => resolve(asked.result); });
    const all = (name) => new Promise((resolve) => {
        const request = database.transaction(name).objectStore(name).getAll();
        request.onsuccess = () => resolve(request.result);
    });
    const [images, turns, heads] = [await all("images"), await all("turns"), await all("chats")];
    database.close();
    const has = (value) => JSON.stringify(value).includes("data:image");
    return [images.length, has(turns) || heads.some((head) => head.turns), has(chats.found())];
}"""


def chat(name: str, *attachments: dict[str, str]) -> dict[str, Any]:
    """A chat as older versions of the database had it."""
    turn = {"id": "t1", "parent": "root", "role": "user", "content": name, "attachments": [*attachments]}
    return {"id": name[:3], "title": name, "created": 1, "updated": 1, "turns": {"t1": turn}, "chosen": {"root": "t1"}}


CAT = {"name": "cat.gif", "url": URL}
CHATS = [chat("Cat?", CAT, dict(CAT)), chat("Words?", {"name": "notes.txt", "text": "words"}), chat("Dog?", CAT)]


def have_chats(page: Page, version: int, chats: list[dict[str, Any]], *images: dict[str, str]) -> None:
    """Load the page with chats that an older version of it has kept."""
    root = page.url.partition("#")[0]
    page.goto(f"{root}healthz")
    page.evaluate(MAKE_OLDER_VERSION, [version, chats, [*images], False])
    page.goto(root)


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        have_chats(page, 1, CHATS)
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
    wait_until(lambda: page.evaluate(STATE) == [3, False, False])


def test_images_of_chats_that_are_not_open_are_exported(page: Page, tmp_path: Path) -> None:
    with page.expect_download() as found:
        page.get_by_role("button", name="Export all").click()
    found.value.save_as(tmp_path / "chats.json")
    exported = json.loads((tmp_path / "chats.json").read_text())["chats"]
    for each in exported:
        # What chats of older versions get.
        assert each["turns"]["t1"].pop("made") == each["created"]
        assert each.pop("settings") == {}
    assert sorted(exported, key=lambda one: str(one["id"])) == sorted(CHATS, key=lambda one: str(one["id"]))
    page.get_by_label("Import").set_input_files(tmp_path / "chats.json")
    show(page, "Dog?")
    expect(page.get_by_role("article", name="You").get_by_role("img", name="cat.gif")).to_be_visible()
    assert page.evaluate(STATE) == [3, False, True]


def test_images_are_removed_with_their_chat(page: Page) -> None:
    page.get_by_label("More about Cat?").click()
    page.locator(".menu[open]").get_by_role("button", name="Delete", exact=True).click()
    agree(page, "Delete")
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
    older.evaluate(MAKE_OLDER_VERSION, [2, CHATS, [], True])
    page.goto(own_scripted.url)
    expect(page.get_by_role("alert")).to_contain_text("an older version of this page is open in another tab")
    older.close()
    page.reload()
    show(page, "Dog?")


def test_branches_and_images_of_the_second_version_are_kept(page: Page) -> None:
    second = chat("Cat?", {"name": "cat.gif", "image": "one"})
    of_model: dict[str, Any] = {"parent": "t1", "role": "assistant", "calls": [], "pieces": []}
    for place in range(2, 13):
        second["turns"][f"t{place}"] = of_model | {"id": f"t{place}", "content": f"Answer {place}"}
    second["chosen"]["t1"] = "t3"
    have_chats(page, 2, [second], {"chat": "Cat", "id": "one", "url": URL})
    show(page, "Cat?")
    expect(page.get_by_role("article", name="You").get_by_role("img", name="cat.gif")).to_be_visible()
    expect(page.get_by_role("article", name="Answer").get_by_label("Version 2 of 11")).to_be_visible()
    page.get_by_role("button", name="Later version").click()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("Answer 4")
    assert page.evaluate(STATE) == [1, False, True]
