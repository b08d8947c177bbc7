"""Models on disk and on a hub, fetched and loaded on the page; a hub on this machine answers like Hugging Face's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route

from genai_server.hub.client import Hub
from tests.local_hub import HubRepository, run_hub
from tests.running_server import DEMO, RunningServer
from tests.server_here import run_here
from tests.web.browser import SCHEMES, WIDTHS, agree, answer, ask, expect, opened, picture, violations

GIB = 1024**3
FILES = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("model-store")
    settings = {"GENAI_MODELS_DIR": str(folder / "models"), "GENAI_DEVICE": "cpu"}
    with run_hub() as hub, pytest.MonkeyPatch.context() as patch:
        files = {f"{kind}/{name}": content for kind in ("cpu", "gpu") for name, content in FILES.items()}
        hub.repositories["org/two"] = HubRepository(files)
        patch.setattr("genai_server.cli.serve.loaders.Hub", lambda: Hub(endpoint=hub.url))
        patch.delenv("HF_TOKEN", raising=False)
        with run_here(folder, "--model-dir", str(DEMO), settings=settings) as server:
            yield server


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Page]:
    with opened(browser, server, "#monitor/models") as page:
        yield page


def look_up(page: Page, repository: str) -> None:
    page.get_by_label("Repository").fill(repository)
    page.get_by_role("button", name="Look it up").click()


def test_a_model_is_fetched_talked_to_and_loaded_again(page: Page, tmp_path: Path) -> None:
    stored = page.get_by_role("region", name="On this server", exact=True)
    expect(stored).to_contain_text("none yet")
    look_up(page, "org/two")
    variants = page.get_by_role("list", name="Models of org/two").get_by_role("listitem")
    expect(variants).to_have_count(2)
    expect(variants.first).to_contain_text("org/two:cpu 6.9 MB")
    expect(variants.locator(".badge")).to_have_text("for this server")
    expect(variants.first.locator(".badge")).to_be_visible()
    expect(variants.last).to_contain_text("for other devices, or not the best for this one")
    page.get_by_role("button", name="Fetch org/two:cpu").click()
    expect(variants.first.get_by_role("status")).to_have_text("Fetched and served.")
    row = stored.locator("tbody tr")
    expect(row.get_by_role("cell", name="org/two", exact=True)).to_be_visible()
    picture(page, "model-store", tmp_path)
    assert violations(page) == []
    row.get_by_role("button", name="Chat with it").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("org/two")
    ask(page, "What is the capital of France?")
    expect(answer(page)).to_contain_text("Paris")
    page.goto(f"{page.url.partition('#')[0]}#monitor/models")
    served = page.locator("section[aria-label=Models] tbody tr").filter(has_text="org/two")
    served.get_by_role("button", name="Unload").click()
    agree(page, "Unload")
    expect(served).to_have_count(0)
    page.get_by_role("button", name="Load two").click()
    expect(served).to_contain_text("ready")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_variants_that_fit_come_first_and_others_say_why_not(
    browser: Browser, server: RunningServer, tmp_path: Path, scheme: Any, width: int
) -> None:
    def variant(folder: str, size: int, for_device: bool | None) -> dict[str, Any]:
        memory, name = int(1.2 * size), f"org/many:{folder}"
        about = {"for_device": for_device, "memory": memory, "fits": memory < 8 * GIB}
        return {"name": name, "folder": folder, "size": size, **about}

    found = [
        variant("cpu_and_mobile/cpu-fp32-of-a-long-name", 15 * GIB, True),
        variant("cuda/cuda-int4", 2 * GIB, False),
        variant("cpu_and_mobile/cpu-int4", 2 * GIB, True),
    ]
    size = {"width": width, "height": 900}
    with opened(browser, server, color_scheme=scheme, viewport=size) as page:
        listed = {"object": "list", "repository": "org/many", "data": found}
        page.route("**/variants?*", lambda route: route.fulfill(json=listed))
        stored = {"object": "list", "directory": "/m", "memory": 8 * GIB, "data": []}
        page.route("**/v1/admin/models/stored", lambda route: route.fulfill(json=stored))
        page.get_by_role("link", name="Monitor").click()
        page.get_by_role("link", name="Models").click()
        look_up(page, "org/many")
        variants = page.get_by_role("list", name="Models of org/many").get_by_role("listitem")
        expect(variants).to_have_count(3)
        expect(variants.first).to_contain_text("cpu-int4 2.0 GB")
        expect(variants.first.locator(".badge")).to_have_text("for this server")
        expect(variants.last).to_contain_text("needs 18.0 GB of memory, and this machine has 8.0 GB")
        expect(page.locator(".suggested li").last).to_contain_text("more than this machine's 8.0 GB")
        picture(page, f"variants-{scheme}-{width}", tmp_path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []


def test_a_download_shows_progress_and_can_be_stopped(page: Page) -> None:
    """The server's answer is never finished: the page is what is tested."""
    page.evaluate("""() => {
        const fetched = window.fetch;
        window.fetch = (path, init) => {
            if (path !== "api/pull") return fetched(path, init);
            const file = {status: "pulling x", digest: "a", total: 6e6, completed: 3e6};
            const lines = [{status: "pulling manifest"}, file];
            const body = new ReadableStream({start(controller) {
                const text = lines.map((line) => JSON.stringify(line) + "\\n").join("");
                controller.enqueue(new TextEncoder().encode(text));
                init.signal.addEventListener("abort", () => controller.error(new DOMException("", "AbortError")));
            }});
            return Promise.resolve(new Response(body));
        };
    }""")
    look_up(page, "org/two")
    page.get_by_role("button", name="Fetch org/two:gpu").click()
    progress = page.get_by_role("progressbar", name="Download")
    expect(progress).to_be_visible()
    expect(page.get_by_text("2.9 MB of 6.9 MB")).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    page.get_by_role("link", name="Models").click()
    expect(page.get_by_role("list", name="Downloads")).to_contain_text("2.9 MB of 6.9 MB")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert")).to_have_text("Stopped. The next download continues here.")


def test_a_repository_without_a_model_is_refused_with_the_reason(page: Page) -> None:
    look_up(page, "org/none")
    expect(page.get_by_role("alert")).to_contain_text("there is no org/none")
    suggested = page.locator(".suggested li")
    if not suggested.first.is_visible():  # open on a server without stored models
        page.get_by_text("Models to begin with").click()
    expect(suggested.first).to_contain_text("8 GB")
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=400, json={"error": {"message": "no network", "code": "pull_failed"}})

    page.route("**/variants?*", refuse)
    suggested.first.get_by_role("button").click()
    expect(page.get_by_role("alert")).to_have_text("no network")
    assert asked[0].endswith("repository=microsoft%2FPhi-3-mini-4k-instruct-onnx")
