"""Chats on the page, in a real browser with a real server."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route

from tests.running_server import PATIENCE, RunningServer, body, wait_until
from tests.server_here import module_server
from tests.web.browser import agree, answer, answered, ask, expect, opened, say, violations

KEY, ADMIN_KEY = "alices-key-0123456789", "admins-key-0123456789"
PARIS = "The capital of France is Paris."
WEATHER = {"name": "get_weather", "description": "Get the weather of a city"}


@pytest.fixture
def page(browser: Browser, demo: RunningServer) -> Iterator[Page]:
    with opened(browser, demo) as page:
        yield page


@pytest.fixture
def scripted_page(browser: Browser, scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, scripted) as page:
        yield page


def set_option(page: Page, label: str, value: str) -> None:
    """Type into a field of the options, which are open afterwards."""
    if page.get_by_role("complementary", name="Chat settings").count() == 0:
        page.get_by_role("button", name="Settings").click()
    page.get_by_label(label).first.fill(value)


@pytest.mark.smoke
def test_answer_is_restored_after_a_reload(page: Page) -> None:
    say(page, "What is the capital of France?")
    expect(answer(page)).to_contain_text(PARIS)
    answered(page)
    page.get_by_role("button", name="Figures").click()
    expect(page.locator(".facts")).to_contain_text("12 tokens")
    expect(page.locator(".facts")).to_contain_text("tokens/s")
    expect(page.locator(".gauge")).to_contain_text("/ 2,048")
    page.reload()
    expect(answer(page)).to_contain_text(PARIS)
    page.goto(page.url.partition("#")[0])
    page.get_by_label("Search chats").fill("paris")
    page.locator(".chat-list").get_by_role("button", name="What is the capital of France?", exact=True).click()
    expect(answer(page)).to_contain_text(PARIS)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.get_by_label("Search chats").fill("lisbon")
    expect(page.get_by_text("No chat has this text.")).to_be_visible()


# Records the display of prompt progress, however soon it is over.
KEEP_PROGRESS = """() => {
    window.progressSeen = [];
    new MutationObserver(() => {
        const bar = document.querySelector(".waiting progress");
        if (bar) window.progressSeen.push([bar.value, bar.max, bar.parentElement.textContent]);
    }).observe(document.body, {childList: true, subtree: true, characterData: true, attributes: true});
}"""


def test_progress_of_a_long_prompt_is_shown(page: Page) -> None:
    page.evaluate(KEEP_PROGRESS)
    ask(page, "The capital of France is Paris. " * 115)
    seen = page.evaluate("window.progressSeen")
    done = [value for value, _, _ in seen]
    assert done == sorted(done)
    assert len(set(done)) > 1
    assert all("Reading the prompt: " in words and whole > 1400 for _, whole, words in seen)
    expect(page.locator(".waiting")).to_have_count(0)


@pytest.mark.smoke
def test_escape_stops_an_answer_which_keeps_its_text(scripted_page: Page, scripted: RunningServer) -> None:
    say(scripted_page, "count 400; delay 0.02")
    expect(answer(scripted_page)).to_contain_text("1, 2, 3")
    scripted_page.keyboard.press("Escape")
    answered(scripted_page)
    expect(scripted_page.locator(".turn-tools .end")).to_have_text("stopped")
    expect(answer(scripted_page)).not_to_contain_text("400")
    scripted_page.reload()
    expect(answer(scripted_page)).to_contain_text("1, 2, 3")


def test_a_chat_that_is_deleted_ends_its_answer(scripted_page: Page, scripted: RunningServer) -> None:
    say(scripted_page, "delay 0.02; count 500")
    scripted_page.get_by_label("More about").click()
    scripted_page.get_by_role("button", name="Delete", exact=True).click()
    agree(scripted_page, "Delete")
    expect(scripted_page.get_by_text("No chats yet.")).to_be_visible()
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


@pytest.mark.smoke
def test_edited_message_makes_a_branch_and_keeps_the_first(page: Page) -> None:
    ask(page, "What is the capital of France?")
    page.get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Edit your message").fill("What is the capital of Italy?")
    page.locator(".edit").get_by_role("button", name="Send").click()
    expect(answer(page)).to_contain_text("Rome")
    answered(page)
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    page.get_by_role("button", name="Earlier version").click()
    expect(answer(page)).to_contain_text(PARIS)
    page.get_by_role("button", name="Regenerate").click()
    expect(answer(page).get_by_label("Version 2 of 2")).to_be_visible()
    answered(page)


def test_conversation_continues_from_an_earlier_turn(page: Page) -> None:
    for question in ("What is the capital of France?", "And of Italy?"):
        ask(page, question)
    expect(answer(page).last).to_contain_text("Rome")
    page.get_by_role("button", name="Continue from here").click()
    expect(page.get_by_text("And of Italy?")).to_have_count(0)
    say(page, "And of Spain?")
    expect(answer(page).last).to_contain_text("Madrid")
    answered(page)
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()


def test_slow_tokens_are_found_by_steps_which_may_have_several_tokens(scripted_page: Page) -> None:
    tokens = scripted_page.evaluate("""async () => {
        const { tokensOf } = await import("./ui/token_panel.js");
        const pieces = [];
        for (let step = 0; step < 20; step += 1) {
            for (const inner of [0, 0.2, 0.4]) pieces.push({at: 50 * step + (step > 9 ? 200 : 0) + inner, text: "a"});
        }
        return tokensOf({pieces});
    }""")
    assert [place for place, token in enumerate(tokens) if token["isSlow"]] == [30]
    assert tokens[31]["gap"] is None
    assert 0.9 < tokens[3]["ratio"] < 1.1


def test_reasoning_is_folded_and_a_stream_error_is_shown(scripted_page: Page) -> None:
    chunks: list[dict[str, object]] = [
        {"choices": [{"delta": {"reasoning_content": "Let me think."}}]},
        {"choices": [{"delta": {"content": "It is "}}]},
        {"error": {"message": "the engine died"}},
    ]
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    scripted_page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=events)
    )
    say(scripted_page, "Hello!")
    expect(answer(scripted_page)).to_contain_text("It is")
    expect(scripted_page.get_by_role("alert")).to_have_text("the engine died")
    expect(scripted_page.get_by_text("Let me think.")).to_be_hidden()
    scripted_page.get_by_text("Reasoning", exact=True).click()
    expect(scripted_page.get_by_text("Let me think.")).to_be_visible()


def test_the_reader_asks_for_the_answer_now(scripted_page: Page) -> None:
    say(scripted_page, f"delay 0.02; say <think>{''.join(map(str, range(300)))}</think>Yes")
    scripted_page.get_by_role("button", name="Answer now").click()
    expect(scripted_page.locator(".answer, .markdown").last).to_contain_text("Yes")
    expect(scripted_page.get_by_role("button", name="Answer now")).to_have_count(0)


@pytest.mark.smoke
def test_a_tool_is_called_and_its_result_goes_back(page: Page) -> None:
    set_option(page, "Tools", json.dumps([{"type": "function", "function": WEATHER}]))
    say(page, "What is the weather in Paris?")
    expect(page.locator(".call")).to_contain_text("get_weather")
    answered(page)
    page.get_by_label("Result of get_weather").fill('{"temperature": 21}')
    page.get_by_role("button", name="Send result").click()
    expect(answer(page).last).to_contain_text("temperature 21")
    answered(page)


def test_an_answer_that_a_stop_text_ends_within_a_tool_call_says_so(page: Page) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = WEATHER | {"parameters": parameters}
    set_option(page, "Tools", json.dumps([{"type": "function", "function": function}]))
    set_option(page, "Stop texts", "Par")
    ask(page, "What is the weather in Paris?")
    expect(page.locator(".call")).to_contain_text("get_weather")
    expect(page.locator(".turn-tools .end")).to_have_text("ended within a tool call")
    expect(page.get_by_role("button", name="Send result")).to_have_count(0)


def test_answer_fits_the_schema_and_an_invalid_one_is_not_sent(page: Page) -> None:
    set_option(page, "JSON schema", '{"type": "object"')
    page.get_by_label("Message", exact=True).fill("How are you?")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The schema must be JSON")
    good = {"type": "object", "properties": {"mood": {"enum": ["good"]}}, "required": ["mood"]}
    set_option(page, "JSON schema", json.dumps(good | {"additionalProperties": False}))
    ask(page, "How are you?")
    assert json.loads(page.locator(".assistant .markdown").inner_text()) == {"mood": "good"}


def test_a_wrong_option_gives_the_servers_message(page: Page) -> None:
    set_option(page, "Temperature", "9")
    say(page, "Hello!")
    expect(page.get_by_role("alert")).to_contain_text("temperature must be at most 2.0; given 9")


def test_the_shown_programs_do_what_the_page_did(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    set_option(page, "Stop texts", "is")
    set_option(page, "Top k", "1")
    ask(page, "What is the capital of France?")
    page.get_by_role("button", name="Code").click()
    curl, python = page.locator(".panel pre").all_inner_texts()
    done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=90, check=True)
    exec(compile(python, "shown", "exec"), {})
    for said in (done.stdout, capsys.readouterr().out):
        assert "The capital of France" in said
        assert "Paris" not in said


def test_chats_are_renamed_exported_imported_and_deleted(page: Page, tmp_path: Path) -> None:
    ask(page, "What is the capital of France?")
    page.locator(".chat-list summary").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Name of the chat").fill("Geography")
    page.get_by_label("Name of the chat").press("Enter")
    expect(page.get_by_role("button", name="Geography", exact=True)).to_be_visible()
    with page.expect_download() as found:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "chats.json"
    found.value.save_as(file)
    assert json.loads(file.read_text())["chats"][0]["title"] == "Geography"
    page.locator(".chat-list summary").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    agree(page, "Delete")
    expect(page.get_by_text("No chats yet.")).to_be_visible()
    page.get_by_label("Import").set_input_files(file)
    page.get_by_role("button", name="Geography", exact=True).click()
    expect(answer(page)).to_contain_text(PARIS)
    file.write_text("{}")
    page.get_by_label("Import").set_input_files(file)
    expect(page.get_by_role("alert")).to_contain_text("the file has no chats of genai-server")


def test_tokens_show_how_likely_they_were_and_what_else_was(page: Page) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Token probabilities").check()
    ask(page, "What is the capital of France?")
    page.get_by_role("button", name="Inspect tokens").click()
    tokens = page.locator(".tokens button")
    expect(tokens.first).to_have_text("The")
    assert "".join(tokens.all_inner_texts()).startswith(PARIS)
    tokens.nth(2).click()
    rows = page.locator(".token tbody tr")
    expect(rows).to_have_count(5)
    expect(page.locator(".token tr.chosen")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token h3")).to_contain_text("Token 4")


def test_slow_token_leads_to_a_session_for_the_next_one(scripted_page: Page) -> None:
    ask(scripted_page, "count 12; delay 0.02; hold 0.5 at 20")
    scripted_page.get_by_role("button", name="Inspect tokens").click()
    expect(scripted_page.locator(".tokens .slow")).not_to_have_count(0)
    expect(scripted_page.locator(".token")).to_contain_text("times the usual gap")
    scripted_page.get_by_role("button", name="Profile the next slow token").click()
    expect(scripted_page.get_by_label("Times the median")).to_have_value(re.compile(r"[123]\.\d"))
    scripted_page.get_by_role("combobox", name="Device").select_option("scripted:0")
    scripted_page.get_by_role("button", name="Begin", exact=True).click()
    row = scripted_page.locator("section[aria-label=Sessions] tbody tr").filter(has_text="waiting")
    row.get_by_role("button", name="End").click()
    expect(scripted_page.locator("section[aria-label=Sessions] tbody tr").first).to_contain_text("ended")


locked = module_server("--device", "scripted", GENAI_API_KEYS=f"alice:{KEY}", GENAI_ADMIN_API_KEY=ADMIN_KEY)


def use_key(page: Page, key: str, label: str = "API key") -> None:
    page.get_by_label(label).last.fill(key)
    page.get_by_role("button", name="Use this key").click()


@pytest.mark.smoke
def test_a_key_is_asked_for_once_and_kept_in_the_tab_only(browser: Browser, locked: RunningServer) -> None:
    with opened(browser, locked) as page:
        expect(page.get_by_role("dialog")).to_contain_text("This server requires an API key.")
        use_key(page, "wrong-key-0123456789")
        expect(page.get_by_role("dialog")).to_contain_text("This server does not know that key.")
        use_key(page, KEY)
        # Nothing can be sent before the models are known.
        expect(page.get_by_label("Model", exact=True)).to_have_value("demo")
        say(page, "say hello")
        expect(answer(page)).to_contain_text("hello")
        answered(page)
        assert KEY in page.evaluate("JSON.stringify(sessionStorage)")
        assert KEY not in page.evaluate("JSON.stringify(localStorage) + location.href + document.body.innerHTML")
        page.reload()
        expect(answer(page)).to_contain_text("hello")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("link", name="API").click()
        expect(page.get_by_text("/v1/chat/completions", exact=True)).to_be_visible()
        page.get_by_role("link", name="genai-server").click()
        page.get_by_role("button", name="Forget keys").click()
        expect(page.get_by_role("dialog")).to_contain_text("This server requires an API key.")
        page.get_by_role("button", name="Close").click()
        expect(page.locator(".bar")).not_to_contain_text("No model for chats")
        page.get_by_role("button", name="Enter the API key").click()
        use_key(page, KEY)
        expect(page.get_by_label("Model", exact=True)).to_have_value("demo")
        page.get_by_role("button", name="Forget keys").click()
        page.get_by_role("button", name="Close").click()
        page.get_by_role("link", name="API").click()
        expect(page.get_by_text("The description cannot be shown: an API key is required")).to_be_visible()


def test_key_is_remembered_only_if_the_reader_wants_it(browser: Browser, locked: RunningServer) -> None:
    with opened(browser, locked) as page:
        page.get_by_label("API key").last.fill(KEY)
        assert violations(page) == []
        page.get_by_label("Remember it on this device").check()
        page.get_by_role("button", name="Use this key").click()
        expect(page.get_by_label("Model", exact=True)).to_have_value("demo")
        other = page.context.new_page()
        other.goto(page.url)
        expect(other.get_by_label("Model", exact=True)).to_have_value("demo")
        other.goto(f"{locked.url}/docs")
        expect(other.get_by_text("/v1/chat/completions", exact=True)).to_be_visible()
        page.get_by_role("button", name="Forget keys").click()
        expect(page.get_by_role("dialog")).to_contain_text("This server requires an API key.")
        assert KEY not in page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")


def test_chat_is_exported_as_markdown(scripted_page: Page) -> None:
    page = scripted_page
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Files", exact=True).set_input_files(
        [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"```\ncode\n```\n"}]
    )
    ask(page, "say a/b: **one**")
    page.get_by_label("More about").click()
    with page.expect_download() as file:
        page.get_by_role("button", name="Export as Markdown").click()
    assert file.value.suggested_filename == "say a b one.md"
    assert file.value.path().read_text(encoding="utf-8") == (
        "# say a/b: **one**\n\n## System prompt\n\nBe brief.\n\n"
        "## You\n\nnotes.txt:\n\n````\n```\ncode\n```\n````\n\nsay a/b: **one**\n\n"
        "## Answer of demo\n\na/b: **one**\n"
    )


def test_admin_views_are_offered_with_the_admin_key_only(browser: Browser, locked: RunningServer) -> None:
    with opened(browser, locked, "#monitor") as page:
        use_key(page, KEY)
        expect(page.get_by_text("are not shown")).to_be_visible()
        tabs = page.get_by_role("navigation", name="Monitor").get_by_role("link")
        expect(tabs).to_have_text(["Overview"])
        page.get_by_role("button", name="Enter the admin key").click()
        use_key(page, "wrong-key-0123456789", "Admin key")
        expect(page.get_by_role("alert")).to_contain_text("not the admin key")
        expect(tabs).to_have_text(["Overview"])
        page.get_by_role("button", name="Enter the admin key").click()
        use_key(page, ADMIN_KEY, "Admin key")
        expect(tabs).to_have_text(["Overview", "Profiles", "Models", "Runtime"])
        expect(page.get_by_text("are not shown")).to_have_count(0)


def test_monitor_names_the_keys_of_requests(browser: Browser, locked: RunningServer) -> None:
    assert locked.client.post("/v1/chat", json=body("say hi"), headers={"x-api-key": KEY}).status_code == 200
    with opened(browser, locked, "#monitor") as page:
        use_key(page, ADMIN_KEY)
        ended = page.locator("section[aria-label='Ended requests']")
        expect(ended.locator("th").nth(2)).to_have_text("key")
        expect(ended.locator("tbody tr").first.locator("td").nth(2)).to_have_text("alice")


def test_a_part_of_an_answer_that_is_written_stays_as_it_is(scripted_page: Page) -> None:
    """Otherwise a long answer would not scroll smoothly."""
    scripted_page.evaluate("""() => {
        window.framesSeen = 0;
        const count = () => { window.framesSeen += 1; requestAnimationFrame(count); };
        count();
    }""")
    say(scripted_page, f"say # First⏎⏎{'many words ' * 75}⏎⏎last; delay 0.001")
    heading = scripted_page.locator(".assistant h1")
    expect(heading).to_have_text("First")
    heading.evaluate("element => { element.mark = true; }")
    before = scripted_page.evaluate("window.framesSeen")
    answered(scripted_page)
    expect(answer(scripted_page)).to_contain_text("last")
    assert heading.evaluate("element => element.mark")
    assert scripted_page.evaluate("window.framesSeen") > before
    turns = scripted_page.locator(".turns")
    assert turns.evaluate("list => list.scrollHeight - list.scrollTop - list.clientHeight") < 80


def test_a_server_behind_a_path_prefix_is_used_there(browser: Browser, demo: RunningServer) -> None:
    prefix = "/llm/small"
    context = browser.new_context()
    context.set_default_timeout(1000 * PATIENCE)
    asked: list[str] = []

    def forward(route: Route) -> None:
        request = route.request
        path = request.url.removeprefix(demo.url)
        asked.append(path)
        assert path.startswith(prefix)
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        url, content = demo.url + path.removeprefix(prefix), request.post_data_buffer
        found = httpx.request(request.method, url, headers=headers, content=content, timeout=PATIENCE)
        route.fulfill(status=found.status_code, headers=dict(found.headers), body=found.content)

    context.route("**/*", forward)
    page = context.new_page()
    page.goto(f"{demo.url}{prefix}/")
    say(page, "What is the capital of France?")
    expect(answer(page)).to_contain_text(PARIS)
    assert f"{prefix}/v1/chat/completions" in asked
    context.close()
