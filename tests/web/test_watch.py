"""Watching a server on the page, in a real browser with a real server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.running_server import RunningServer, wait_until
from tests.web.browser import agree, charted, opened


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted, "#watch") as page:
        yield page


@contextmanager
def streaming(server: RunningServer, text: str) -> Iterator[None]:
    """A request whose answer a client keeps reading."""
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


def test_charts_follow_the_metrics(browser: Browser, own_scripted: RunningServer) -> None:
    with opened(browser, own_scripted) as page, streaming(own_scripted, "count 90; delay 0.01"):
        page.clock.install()
        page.get_by_role("link", name="Watch").click()
        charted(page)
        charts = page.locator(".chart")
        expect(charts).to_have_count(5)
        expect(charts.first.locator("canvas")).to_be_visible()
        expect(charts.first).not_to_contain_text("answers 0.0")


def test_effect_of_an_option_is_shown_before_it_is_set(page: Page, own_scripted: RunningServer) -> None:
    page.get_by_role("link", name="Runtime").click()
    page.get_by_role("button", name="Terminate the session").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("The 0 running and 0 waiting answers of scripted:0 end now")
    page.get_by_role("button", name="Leave it").click()
    assert own_scripted.device("scripted:0")["terminated"] is False
    page.get_by_role("button", name="Terminate the session").first.click()
    page.get_by_role("button", name="Set it").click()
    expect(page.get_by_role("button", name="Take requests again")).to_be_visible()
    assert own_scripted.device("scripted:0")["terminated"] is True
    own_scripted.recover()


# Receives a trace like Perfetto's page: it answers PING once it is ready, and is then sent the file.
PERFETTO = """<h1>no trace</h1><script>
addEventListener("message", ({data, source, origin}) => {
    if (data === "PING") return source.postMessage("PONG", origin);
    window.trace = new TextDecoder().decode(data.perfetto.buffer);
    document.querySelector("h1").textContent = data.perfetto.title;
});
</script>"""


def test_a_profile_session_leads_from_a_click_to_its_report(browser: Browser, demo: RunningServer) -> None:
    with opened(browser, demo, "#watch/profiles", other="ui.perfetto.dev") as page:
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
        page.context.route(
            "https://ui.perfetto.dev/**", lambda route: route.fulfill(content_type="text/html", body=PERFETTO)
        )
        with page.context.expect_page() as tab:
            row.get_by_role("button", name="Perfetto").click()
        expect(tab.value.locator("h1")).to_contain_text("page")
        assert json.loads(tab.value.evaluate("window.trace"))["traceEvents"]
        row.get_by_role("button", name="Delete", exact=True).click()
        agree(page, "Delete")
        expect(row).to_have_count(0)


def test_session_started_from_a_slow_token_records_the_next(browser: Browser, demo: RunningServer) -> None:
    """With the address of a slow token's button, and a threshold that every token exceeds."""
    with opened(browser, demo, "#watch/profiles?slow_token_ratio=3.0") as page:
        expect(page.get_by_label("Times the median")).to_have_value("3.0")
        page.get_by_role("combobox", name="Begin").select_option("slow_token_ms")
        page.get_by_label("Milliseconds").fill("0.001")
        page.get_by_role("spinbutton", name="Ends after tokens").fill("3")
        page.get_by_label("Name begins with").fill("slow")
        page.get_by_role("button", name="Begin", exact=True).click()
        row = page.locator("section[aria-label=Sessions] tbody tr").filter(has_text="slow")
        expect(row).to_contain_text("waiting")
        demo.chat("What is the capital of France?")
        expect(row).to_contain_text("ended")
        row.get_by_role("button", name="Report").click()
        expect(page.frame_locator("iframe.report").locator("#passes rect")).not_to_have_count(0)
        page.get_by_role("button", name="Close").click()
        row.get_by_role("button", name="Delete", exact=True).click()
        agree(page, "Delete")
        expect(row).to_have_count(0)


def test_hidden_view_and_hidden_tab_poll_nothing(browser: Browser, own_scripted: RunningServer) -> None:
    """The page's clock runs ahead of the real one, in which the server answers."""
    asked: list[str] = []
    unanswered: list[str] = []

    def ask(request: Request) -> None:
        asked.append(request.url)
        unanswered.append(request.url)

    def answer(request: Request) -> None:
        if request.url in unanswered:
            unanswered.remove(request.url)

    def goes_on_asking(page: Page) -> bool:
        before = len(asked)
        page.clock.run_for(2_000)
        page.evaluate("1")  # deliver pending requests
        return len(asked) > before

    def is_between_rounds(page: Page) -> bool:
        """A round that was started is finished, whatever is shown; the metrics are its last request."""
        page.evaluate("1")
        rounds = [url for url in asked if url.endswith(("/healthz", "/v1/requests", "/metrics"))]
        return rounds[-1].endswith("/metrics") and not unanswered

    def asked_within(page: Page, seconds: int) -> list[str]:
        before = len(asked)
        page.clock.run_for(1000 * seconds)
        page.evaluate("1")
        return asked[before:]

    with opened(browser, own_scripted) as page:
        page.clock.install()
        page.on("request", ask)
        page.on("requestfinished", answer)
        page.get_by_role("link", name="Watch").click()
        expect(page.locator("section[aria-label=Devices]").locator(".card")).to_have_count(2)
        wait_until(lambda: goes_on_asking(page))
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.isHidden, configurable: true})")
        page.evaluate("window.isHidden = true")
        wait_until(lambda: is_between_rounds(page))
        assert asked_within(page, 60) == []
        page.evaluate("window.isHidden = false")
        wait_until(lambda: goes_on_asking(page))
        page.get_by_role("link", name="Talk").click()
        expect(page.get_by_label("Message", exact=True)).to_be_visible()
        wait_until(lambda: is_between_rounds(page))
        assert asked_within(page, 60) == []


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
