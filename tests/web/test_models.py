"""Models and adapters on the page, in a real browser with a real server."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route

from tests.running_server import DEMO, RunningServer, wait_until
from tests.web.browser import SCHEMES, WIDTHS, agree, answer, ask, expect, opened, picture, violations


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted, "#monitor/models") as page:
        yield page


def submit(page: Page, title: str, button: str, **values: str) -> Locator:
    """Fill in a form and send it; returns the form. An underscore stands for a space."""
    form = page.get_by_role("form", name=title)
    for label, value in values.items():
        field = form.get_by_label(label.replace("_", " "))
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    form.get_by_role("button", name=button).click()
    return form


def row(page: Page, name: str) -> Locator:
    """A model's row of the table."""
    return page.locator("section[aria-label=Models] tbody tr").filter(
        has=page.get_by_role("cell", name=name, exact=True)
    )


def watch_models(page: Page) -> None:
    page.get_by_role("link", name="Monitor").click()
    page.get_by_role("link", name="Models").click()


def talk(page: Page, model: str, text: str) -> None:
    """Start a new chat with a model."""
    page.get_by_role("link", name="Chat").click()
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Model", exact=True).select_option(model)
    ask(page, text)


@pytest.mark.smoke
def test_a_model_is_loaded_talked_to_and_unloaded(page: Page, tmp_path: Path) -> None:
    submit(page, "Load another directory", "Load", Name="more", Directory="/more", Devices="scripted:7")
    expect(row(page, "more")).to_contain_text("ready")
    picture(page, "models-loaded", tmp_path)
    talk(page, "more", "say hello")
    expect(answer(page)).to_contain_text("hello")
    watch_models(page)
    row(page, "more").get_by_role("button", name="Unload").click()
    agree(page, "Unload")
    expect(row(page, "more")).to_have_count(0)
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("demo")


def test_a_model_can_be_unloaded_on_a_phone(browser: Browser, own_scripted: RunningServer, tmp_path: Path) -> None:
    with opened(browser, own_scripted, "#monitor/models", viewport={"width": 390, "height": 844}) as page:
        button = row(page, "demo").get_by_role("button", name="Unload")
        expect(button).to_be_in_viewport(ratio=1)
        picture(page, "models-phone", tmp_path)


@pytest.mark.smoke
def test_failed_load_is_shown_with_the_reason(page: Page) -> None:
    form = submit(page, "Load another directory", "Load", Name="more", Directory="/nowhere", Devices="cpu")
    expect(form.get_by_role("alert")).to_contain_text("/nowhere")
    expect(row(page, "demo")).to_have_count(1)
    expect(row(page, "more")).to_have_count(0)


def test_a_failed_model_is_shown_with_its_reason_and_not_offered(page: Page, tmp_path: Path) -> None:
    broken = shutil.copytree(DEMO, tmp_path / "broken")
    (broken / "model.onnx").write_bytes(b"no graph")
    submit(page, "Load another directory", "Load", Name="more", Directory=str(broken), Devices="cpu")
    expect(row(page, "more")).to_contain_text("failed")
    expect(row(page, "more").locator(".error")).to_contain_text("model.onnx")
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("demo")
    expect(page.get_by_label("Model", exact=True).locator("option[value=more]")).to_have_count(0)
    watch_models(page)
    row(page, "more").get_by_role("button", name="Unload").click()
    agree(page, "Unload")
    expect(row(page, "more")).to_have_count(0)


def test_a_model_is_given_another_name_which_is_removed_again(page: Page) -> None:
    submit(page, "Add an alias", "Add", New_name="gpt-4o", Model="demo")
    expect(row(page, "demo").locator(".tag")).to_contain_text("gpt-4o")
    page.get_by_role("button", name="Remove the name gpt-4o").click()
    expect(page.locator(".tag")).to_have_count(0)


def test_an_adapter_is_loaded_chosen_and_unloaded(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "sir.txt"
    file.write_text("Sir, ")
    form = submit(page, "Load an adapter", "Load", Name="sir", File="/nowhere", Model="demo")
    expect(form.get_by_role("alert")).to_contain_text("/nowhere")
    submit(page, "Load an adapter", "Load", Name="sir", File=str(file), Model="demo")
    expect(row(page, "demo").locator(".tag")).to_contain_text("sir")
    picture(page, "models-adapter", tmp_path)
    talk(page, "demo:sir", "say hello")
    expect(answer(page)).to_contain_text("Sir, hello")
    watch_models(page)
    page.get_by_role("button", name="Unload the adapter demo:sir").click()
    expect(page.locator(".tag")).to_have_count(0)


def listed(page: Page, *models: dict[str, Any]) -> None:
    """Make the page list these models, given by the fields that differ from a model that is ready for chats."""
    common = {"object": "model", "created": 1, "owned_by": "genai-server", "state": "ready", "chat": True}
    body = {"object": "list", "data": [{**common, "root": model["id"], **model} for model in models]}
    page.unroute("**/v1/models")
    page.route("**/v1/models", lambda route: route.fulfill(json=body))
    page.evaluate("import('./ui/models.js').then(({models}) => models.load())")


EMBEDS = {"id": "bert", "chat": False, "capabilities": ["embedding"]}
RANKS = {"id": "judge", "chat": False, "capabilities": ["rerank"], "state": "unloaded"}
BASE = {"id": "base", "chat": False, "capabilities": ["completion"]}


def test_a_model_that_is_loading_can_be_chosen_and_says_so(page: Page, tmp_path: Path) -> None:
    page.get_by_role("link", name="Chat").click()
    listed(page, {"id": "big", "state": "loading", "chat": None, "loading_seconds": 12.4})
    expect(page.locator(".picker")).to_contain_text("loading for 12 s")
    picture(page, "picker-loading", tmp_path)
    listed(page, {"id": "big"})
    expect(page.locator(".picker [role=status]")).to_have_count(0)


def test_an_older_list_that_comes_late_replaces_no_newer_one(page: Page) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.fulfill(json={"object": "list", "data": [{"id": "newer", "chat": True}]})
        else:
            held.append(route)

    page.route("**/v1/models", hold_the_first)
    page.evaluate("import('./ui/models.js').then(({models}) => { models.load(); })")
    page.evaluate("import('./ui/models.js').then(({models}) => models.load())")
    wait_until(lambda: page.evaluate("1") == len(held))
    with page.expect_response("**/v1/models"):
        held[0].fulfill(json={"object": "list", "data": [{"id": "older", "chat": True}]})
    page.get_by_role("link", name="Chat").click()
    page.wait_for_timeout(100)
    expect(page.get_by_label("Model", exact=True)).to_have_value("newer")


LONG = (
    "microsoft/Phi-3-mini-4k-instruct-onnx:cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4-of-a-repository-with-names"
)


def test_other_names_are_not_offered_and_stand_for_the_model(page: Page) -> None:
    listed(page, {"id": "small"}, {"id": "large"}, {"id": LONG, "root": "large"})
    page.evaluate("name => localStorage.setItem('model', name)", LONG)
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("large")
    expect(page.locator(".picker option")).to_have_text(["small", "large"])


# How far the last cell of any row covers another cell, in pixels, once the table is scrolled to its end.
COVERED = """(table) => {
    table.parentElement.scrollLeft = table.parentElement.scrollWidth;
    const cells = [...table.rows].map((row) => [...row.cells].slice(-2).map((cell) => cell.getBoundingClientRect()));
    return Math.max(...cells.map(([before, last]) => before.right - last.left));
}"""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_buttons_cover_no_columns_where_names_are_long(
    browser: Browser, own_scripted: RunningServer, tmp_path: Path, scheme: Any, width: int
) -> None:
    size = {"width": width, "height": 800}
    stored = {"id": "long", "path": "/m/long", "size": 3_000_000_000, "source": LONG, "served": LONG}
    with opened(browser, own_scripted, color_scheme=scheme, viewport=size) as page:
        known = {"object": "list", "directory": "/m", "memory": None, "data": [stored]}
        page.route("**/v1/admin/models/stored", lambda route: route.fulfill(json=known))
        listed(page, {"id": LONG}, {"id": f"{LONG}-2", "root": LONG, "max_model_len": 4096})
        watch_models(page)
        tables = page.locator(".monitor .table table")
        expect(tables).to_have_count(2)
        expect(page.get_by_role("region", name="On this server", exact=True)).to_contain_text("2.8 GB")
        picture(page, f"long-names-{scheme}-{width}", tmp_path)
        for place in range(2):
            assert tables.nth(place).evaluate(COVERED) <= 1
            if width == 1440:
                assert tables.nth(place).evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
        assert violations(page) == []


def test_state_follows_a_load_that_a_request_begins(page: Page) -> None:
    health: Any = {"devices": {}, "models": {"big": {"aliases": [], "devices": {}, "state": "unloaded"}}}
    page.route("**/healthz", lambda route: route.fulfill(json=health))
    listed(page, {"id": "big", "state": "unloaded"})
    expect(row(page, "big")).to_contain_text("unloaded")
    page.unroute("**/v1/models")
    model = {"id": "big", "root": "big", "chat": True, "state": "loading"}
    page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": [model]}))
    health["models"]["big"]["state"] = "loading"
    expect(row(page, "big").get_by_text("loading")).to_be_visible()


def test_only_chat_models_are_offered_and_others_show_their_use(page: Page, tmp_path: Path) -> None:
    listed(page, EMBEDS, RANKS, BASE, {"id": "small"})
    expect(row(page, "bert")).to_contain_text("embeddings")
    expect(row(page, "judge")).to_contain_text("reranking")
    expect(row(page, "base")).to_contain_text("raw prompts")
    expect(row(page, "small")).to_contain_text("chats")
    picture(page, "models-for", tmp_path)
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("small")
    others = page.locator(".picker option:disabled")
    expect(others).to_have_text(["bert (embeddings)", "judge (reranking)", "base (raw prompts)"])


def test_nothing_is_sent_without_a_chat_model(page: Page, tmp_path: Path) -> None:
    page.get_by_role("link", name="Chat").click()
    listed(page, EMBEDS)
    expect(page.locator(".conversation .bar")).to_contain_text("No model for chats, bert (embeddings)")
    page.get_by_label("Message", exact=True).fill("Hello!")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This server has no model for chats.")
    picture(page, "no-chats", tmp_path)
