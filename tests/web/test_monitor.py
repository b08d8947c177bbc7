"""Monitoring a server on the page, in a real browser with a real server."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, Route

from tests.apis.admin.test_requests import cancel, listed
from tests.running_server import PATIENCE, RunningServer, body, wait_until
from tests.web.browser import agree, charted, expect, opened, picture, violations


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted, "#monitor") as page:
        yield page


@contextmanager
def streaming(server: RunningServer) -> Iterator[None]:
    """A request whose answer a client keeps reading; cancelled at the end."""
    began = threading.Event()

    def read() -> None:
        with server.stream("count 900; delay 0.05") as events:
            for _ in events:
                began.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert began.wait(90)
    try:
        yield
    finally:
        for name in listed(server):
            cancel(server, name)
        thread.join()


def test_devices_are_shown_with_their_state_and_charts_follow_the_server(
    browser: Browser, own_scripted: RunningServer
) -> None:
    with opened(browser, own_scripted) as page, streaming(own_scripted):
        page.clock.install()
        page.get_by_role("link", name="Monitor").click()
        charted(page)
        charts = page.locator(".chart")
        expect(charts).to_have_count(5)
        expect(charts.first.locator("canvas")).to_be_visible()
        expect(charts.first).not_to_contain_text("answers 0.0")
        cards = page.locator("section[aria-label=Devices]").locator(".card")
        expect(cards).to_have_count(2)
        for text in ("scripted:0", "ready", "waiting"):
            expect(cards.first).to_contain_text(text)


@pytest.mark.smoke
def test_a_running_request_is_shown_and_cancelled(page: Page, own_scripted: RunningServer) -> None:
    with streaming(own_scripted):
        row = page.locator("section[aria-label=Requests]").locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("decode")
        row.get_by_role("button", name="Cancel").click()
        expect(row).to_have_count(0)


def test_effect_of_an_option_is_shown_before_it_is_set(page: Page, own_scripted: RunningServer) -> None:
    page.get_by_role("link", name="Runtime").click()
    page.get_by_role("button", name="Terminate the session").first.click()
    dialog = page.get_by_role("dialog", name="Terminate the session of demo on scripted:0?")
    expect(dialog).to_contain_text("Stops 0 running and 0 waiting answers")
    expect(dialog.locator(".destructive")).to_have_text("Terminate")
    assert violations(page) == []
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert own_scripted.device("scripted:0")["terminated"] is False
    page.get_by_role("button", name="Terminate the session").first.click()
    agree(page, "Terminate")
    expect(page.get_by_role("button", name="Take requests again")).to_be_visible()
    assert own_scripted.device("scripted:0")["terminated"] is True
    own_scripted.recover()


def test_ended_requests_are_listed_with_errors_and_totals(browser: Browser, own_scripted: RunningServer) -> None:
    own_scripted.client.post("/v1/chat", json={"messages": [], "temperature": 9})
    own_scripted.client.post("/v1/chat", json=body("count 10"), headers={"x-request-id": "counting"})
    with opened(browser, own_scripted, "#monitor") as page:
        ended = page.get_by_role("region", name="Ended requests", exact=True)
        row = ended.locator("tbody tr").filter(has_text="counting")
        expect(row).to_contain_text("/v1/chat")
        expect(row).to_contain_text("stop")
        failed = ended.locator("tbody tr").filter(has_text="400")
        expect(failed.first).to_be_visible()
        ended.get_by_label("Failed only").check()
        expect(row).to_have_count(0)
        expect(failed.first).to_be_visible()
        own_scripted.client.post("/v1/chat", json=body("say x"), headers={"x-request-id": "later"})
        ended.get_by_label("Failed only").uncheck()
        expect(ended.locator("tbody tr").first).to_contain_text("later")


HEALTH = {
    "models": {
        name: {"state": "ready", "aliases": [], "devices": {"cpu": {"state": "ready", "running": 0, "waiting": 0}}}
        for name in ("small", "large")
    }
}


def sample(seconds: float, output: int) -> dict[str, Any]:
    counters = ("prompt_tokens", "cache_queries", "cache_hits", "token_gap_seconds", "first_tokens")
    load = {"running": 1, "waiting": 0, "slots": 4, "kv_usage": 0.25}
    gaps = {"gap_bounds": [0.1], "token_gaps": [0, 0]}
    return {
        "time": time.time() - 300 + seconds,
        **dict.fromkeys((*counters, "first_token_seconds"), 0),
        **load,
        **gaps,
        "output_tokens": output,
    }


def test_charts_are_full_and_follow_the_chosen_model(
    browser: Browser, own_scripted: RunningServer, tmp_path: Path
) -> None:
    rates = {"small": 10, "large": 5}
    data = [
        {"model": name, "device": "cpu", "samples": [sample(2 * place, 2 * rate * place) for place in range(150)]}
        for name, rate in rates.items()
    ]
    with opened(browser, own_scripted) as page:
        page.route("**/healthz", lambda route: route.fulfill(json=HEALTH))
        history = {"object": "list", "interval": 2, "data": data}
        page.route("**/metrics/history?*", lambda route: route.fulfill(json=history))
        page.get_by_role("link", name="Monitor").click()
        cards = page.locator("section[aria-label=Devices] .card")
        expect(cards.locator("h3")).to_have_text(["small cpu", "large cpu"])
        expect(cards.first).to_contain_text("25 %")
        tokens = page.locator(".chart").first
        expect(tokens).to_contain_text("answers 15.0 /s")
        picture(page, "charts", tmp_path)
        page.get_by_role("combobox", name="Model").select_option("large")
        expect(tokens).to_contain_text("answers 5.0 /s")
        expect(cards).to_have_count(1)
        page.get_by_role("link", name="Profiles").click()
        model = page.get_by_role("combobox", name="Model")
        expect(model.locator("option")).to_have_text(["small", "large"])
        page.get_by_label("Only this request").fill("mine")
        expect(model.locator("option")).to_have_text(["any", "small", "large"])


# Receives a trace like Perfetto's page: it answers PING once it is ready, and is then sent the file.
PERFETTO = """<h1>no trace</h1><script>
addEventListener("message", ({data, source, origin}) => {
    if (data === "PING") return source.postMessage("PONG", origin);
    window.trace = new TextDecoder().decode(data.perfetto.buffer);
    document.querySelector("h1").textContent = data.perfetto.title;
});
</script>"""


@pytest.mark.smoke
def test_a_profile_session_leads_from_a_click_to_its_report(browser: Browser, demo: RunningServer) -> None:
    with opened(browser, demo, "#monitor/profiles", other="ui.perfetto.dev") as page:
        page.get_by_role("combobox", name="Tokens", exact=True).select_option("first_tokens")
        page.get_by_role("spinbutton", name="First tokens").fill("3")
        page.get_by_role("spinbutton", name="Ends after tokens").fill("3")
        page.get_by_label("Name begins with").fill("page")
        page.get_by_role("button", name="Begin").click()
        expect(page.get_by_text("has begun")).to_be_visible()
        demo.chat("What is the capital of France?")
        row = page.locator("section[aria-label=Sessions]").locator("tbody tr").filter(has_text="page")
        expect(row).to_contain_text("ended")
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


# The lightness of a report's background and of its text, from 0 to 1.
LIGHTNESS = """() => [
    getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.body).color,
].map((color) => color.match(/\\d+/g).slice(0, 3).reduce((all, each) => all + each / 765, 0))"""


def test_report_has_the_colours_of_the_page(browser: Browser, demo: RunningServer, tmp_path: Path) -> None:
    session = demo.client.post("/v1/admin/profiles", json={"prefix": "colours", "max_tokens": 2}).json()["id"]
    demo.chat("What is the capital of France?")
    for system, chosen in (("dark", "auto"), ("dark", "light"), ("light", "auto"), ("light", "dark")):
        with opened(browser, demo, "#monitor/profiles", color_scheme=system) as page:
            page.evaluate("name => { localStorage.setItem('theme', name); window.theme.apply(); }", chosen)
            row = page.locator("section[aria-label=Sessions]").locator("tbody tr").filter(has_text="colours")
            row.get_by_role("button", name="Report").click()
            report = page.frame_locator("iframe.report")
            expect(report.locator("#passes rect")).not_to_have_count(0)
            picture(page, f"report-{system}-{chosen}", tmp_path)
            back, text = report.locator("html").evaluate(LIGHTNESS)
            is_dark = "dark" in (chosen, system if chosen == "auto" else chosen)
            assert (back < 0.2 < 0.8 < text) if is_dark else (text < 0.2 < 0.8 < back)
    demo.client.delete(f"/v1/admin/profiles/{session}")


def test_session_started_from_a_slow_token_records_the_next(browser: Browser, demo: RunningServer) -> None:
    """With the address of a slow token's button, and a threshold that every token exceeds."""
    with opened(browser, demo, "#monitor/profiles?slow_token_ratio=3.0") as page:
        expect(page.get_by_label("Times the median")).to_have_value("3.0")
        page.get_by_role("combobox", name="Begin").select_option("slow_token_ms")
        page.get_by_label("Milliseconds").fill("0.001")
        page.get_by_role("spinbutton", name="Ends after tokens").fill("3")
        page.get_by_label("Name begins with").fill("slow")
        page.get_by_role("button", name="Begin", exact=True).click()
        row = page.locator("section[aria-label=Sessions] tbody tr").filter(has_text="slow")
        expect(row).to_contain_text("waiting")
        # Drafts, which may give an expected answer in one pass, are wrong about a random one.
        assert demo.chat("something", temperature=2, seed=1, max_tokens=40).json()["metrics"]["output_tokens"] > 10
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
        """A round that was started is finished, whatever is shown; the history is its last request."""
        page.evaluate("1")
        rounds = [url for url in asked if "/healthz" in url or "/v1/requests" in url or "/metrics/history" in url]
        return "/metrics/history" in rounds[-1] and not unanswered

    def asked_within(page: Page, seconds: int) -> list[str]:
        before = len(asked)
        page.clock.run_for(1000 * seconds)
        page.evaluate("1")
        return asked[before:]

    with opened(browser, own_scripted) as page:
        page.clock.install()
        page.on("request", ask)
        page.on("requestfinished", answer)
        page.get_by_role("link", name="Monitor").click()
        expect(page.locator("section[aria-label=Devices]").locator(".card")).to_have_count(2)
        wait_until(lambda: goes_on_asking(page))
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.isHidden, configurable: true})")
        page.evaluate("window.isHidden = true")
        wait_until(lambda: is_between_rounds(page))
        assert asked_within(page, 60) == []
        page.evaluate("window.isHidden = false")
        wait_until(lambda: goes_on_asking(page))
        page.get_by_role("link", name="Chat").click()
        expect(page.locator(".examples")).to_be_visible()
        wait_until(lambda: is_between_rounds(page))
        assert asked_within(page, 60) == []


def test_the_description_of_the_api_needs_no_other_host(browser: Browser, scripted: RunningServer) -> None:
    with_docs = browser.new_page()
    with_docs.set_default_timeout(1000 * PATIENCE)
    asked: list[str] = []
    wrong: list[str] = []
    with_docs.on("request", lambda request: asked.append(request.url))
    with_docs.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    held: list[Route] = []
    with_docs.route("**/openapi.json", lambda route: held.append(route))
    with_docs.goto(f"{scripted.url}/docs")
    expect(with_docs.get_by_role("status")).to_have_text("Loading the description of the API …")
    wait_until(lambda: with_docs.evaluate("1") == 1 and bool(held))
    held[0].continue_()
    expect(with_docs.get_by_text("/v1/chat/completions", exact=True)).to_be_visible()
    assert all(url.startswith((scripted.url, "data:")) for url in asked)
    assert wrong == []
    with_docs.close()
