"""Watching a server on the page, in a real browser over a real server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.running_server import RunningServer
from tests.web.browser import opened


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted, "#watch") as page:
        yield page


@contextmanager
def streaming(server: RunningServer, text: str) -> Iterator[None]:
    """A request that is being answered, by a client that reads on."""
    began = threading.Event()

    def read() -> None:
        with server.stream(text) as events:
            for _ in events:
                began.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert began.wait(20)
    yield
    thread.join()


def test_devices_are_shown_with_their_state(page: Page) -> None:
    cards = page.locator("section[aria-label=Devices]").locator(".card")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("scripted:0")
    expect(cards.first).to_contain_text("ready")
    expect(cards.first).to_contain_text("waiting")


def test_a_running_request_is_shown_and_cancelled(page: Page, own_scripted: RunningServer) -> None:
    with streaming(own_scripted, "count 900; delay 0.05"):
        row = page.locator("section[aria-label=Requests]").locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("decode")
        row.get_by_role("button", name="Cancel").click()
        expect(row).to_have_count(0)


def test_charts_follow_the_metrics(page: Page, own_scripted: RunningServer) -> None:
    with streaming(own_scripted, "count 90; delay 0.02"):
        charts = page.locator(".chart")
        expect(charts).to_have_count(5, timeout=15_000)
        expect(charts.first.locator("canvas")).to_be_visible()
        expect(charts.first).not_to_contain_text("answers 0.0", timeout=10_000)


def test_the_effect_of_an_option_is_told_before_it_is_set(page: Page, own_scripted: RunningServer) -> None:
    page.get_by_role("link", name="Runtime options").click()
    page.get_by_role("button", name="Terminate the session").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("The 0 running and 0 waiting answers of scripted:0 end now")
    page.get_by_role("button", name="Leave it").click()
    assert own_scripted.device("scripted:0")["terminated"] is False
    page.get_by_role("button", name="Terminate the session").first.click()
    page.get_by_role("button", name="Set it").click()
    expect(page.get_by_role("button", name="Take requests again")).to_be_visible()
    assert own_scripted.device("scripted:0")["terminated"] is True
    own_scripted.recover()


def test_a_model_is_given_another_name_which_is_removed_again(page: Page, own_scripted: RunningServer) -> None:
    page.get_by_role("link", name="Models").click()
    form = page.get_by_role("form", name="Give a model one more name")
    form.get_by_label("New name").fill("gpt-4o")
    form.get_by_label("Model").select_option("onnx-genai")
    form.get_by_role("button", name="Give").click()
    expect(page.locator(".tag")).to_contain_text("gpt-4o")
    page.get_by_role("button", name="Remove the name gpt-4o").click()
    expect(page.locator(".tag")).to_have_count(0)
    load = page.get_by_role("form", name="Load a model")
    load.get_by_label("Name").fill("more")
    load.get_by_label("Directory").fill("/nowhere")
    load.get_by_label("Devices").fill("cpu")
    load.get_by_role("button", name="Load").click()
    expect(load.get_by_role("alert")).to_contain_text("/nowhere")


def test_a_profile_session_leads_from_a_click_to_its_report(browser: Browser, demo: RunningServer) -> None:
    with opened(browser, demo, "#watch/profiles") as page:
        page.get_by_role("combobox", name="Tokens", exact=True).select_option("first_tokens")
        page.get_by_role("spinbutton", name="First tokens").fill("3")
        page.get_by_role("spinbutton", name="Ends after tokens").fill("3")
        page.get_by_label("Name begins with").fill("page")
        page.get_by_role("button", name="Begin").click()
        expect(page.get_by_text("has begun")).to_be_visible()
        demo.chat("What is the capital of France?")
        row = page.locator("section[aria-label=Sessions]").locator("tbody tr").filter(has_text="page")
        expect(row).to_contain_text("ended", timeout=15_000)
        row.get_by_role("button", name="Report").click()
        report = page.frame_locator("iframe.report")
        expect(report.locator("#passes rect")).not_to_have_count(0)
        expect(report.locator("#name")).to_contain_text("page")
        page.get_by_role("button", name="Close").click()
        with page.expect_download() as trace:
            row.get_by_role("button", name="Trace").click()
        assert trace.value.suggested_filename.endswith(".trace.json")
        page.on("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)


def test_nothing_is_asked_while_another_view_is_shown(page: Page) -> None:
    asked: list[str] = []
    expect(page.locator("section[aria-label=Devices]").locator(".card")).to_have_count(2)
    page.get_by_role("link", name="Talk").click()
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(3000)
    assert asked == []


def test_the_description_of_the_api_needs_no_other_host(browser: Browser, scripted: RunningServer) -> None:
    with_docs = browser.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    with_docs.on("request", lambda request: asked.append(request.url))
    with_docs.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    with_docs.goto(f"{scripted.url}/docs")
    expect(with_docs.get_by_text("/v1/chat/completions", exact=True)).to_be_visible(timeout=15_000)
    assert all(url.startswith((scripted.url, "data:")) for url in asked)
    assert wrong == []
    with_docs.close()
