"""`/docs`: the API's description in a browser, from this server alone."""

import hashlib
import json
from importlib.resources import files

import pytest

from tests.profiles.browser import launched
from tests.running_server import RunningServer

FOLDER = files("genai_server.api").joinpath("swagger_ui")


def test_the_vendored_files_are_those_that_were_published() -> None:
    origin = json.loads(FOLDER.joinpath("ORIGIN.json").read_text(encoding="utf-8"))
    assert (origin["package"], origin["license"]) == ("swagger-ui-dist", "Apache-2.0")
    assert {"LICENSE", "NOTICE"} <= origin["sha256"].keys()
    for name, digest in origin["sha256"].items():
        assert hashlib.sha256(FOLDER.joinpath(name).read_bytes()).hexdigest() == digest, name


def test_its_policy_allows_nothing_from_elsewhere_and_no_code_in_the_page(scripted: RunningServer) -> None:
    for path in ("/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/start.js"):
        response = scripted.client.get(path)
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
    assert "://" not in scripted.client.get("/docs").text


@pytest.mark.parametrize("path", ["/docs/ORIGIN.json", "/docs/..%2Fapp.py", "/redoc"])
def test_other_files_are_not_served(scripted: RunningServer, path: str) -> None:
    assert 400 <= scripted.client.get(path).status_code < 500


def test_a_browser_shows_it_and_asks_no_other_host(scripted: RunningServer) -> None:
    with launched() as browser:
        page = browser.new_page()
        asked: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{scripted.url}/docs")
        page.locator(".opblock-summary-path").first.wait_for()
        assert "/v1/chat/completions" in page.locator("#swagger-ui").inner_text()
        assert errors == []
        assert all(url.startswith((f"{scripted.url}/", "data:")) for url in asked)
