"""The root: the page for browsers, name and version for programs, and the API description."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server import __version__
from genai_server.web.files import PAGE, names
from tests.running_server import RunningServer, refusal
from tests.server_here import run_here

# The header of Chromium and Firefox.
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
KEY = "alices-key-0123456789"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("locked-page")
    with run_here(folder, "--device", "scripted", settings={"GENAI_API_KEYS": f"alice:{KEY}"}) as server:
        yield server


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
def test_programs_get_name_version_and_links_at_the_root(scripted: RunningServer, accept: str | None) -> None:
    response = scripted.client.get("/", headers={} if accept is None else {"accept": accept})
    assert (response.headers["content-type"], response.headers["vary"]) == ("application/json", "accept")
    about = response.json()
    assert (about.pop("name"), about.pop("version")) == ("genai-server", __version__)
    assert {"docs", "openapi", "health", "models"} <= set(about)
    assert about["models"] == "/v1/models"
    assert {scripted.client.get(link).status_code for link in about.values()} == {200}


def test_browsers_get_the_page_with_a_strict_content_policy(scripted: RunningServer) -> None:
    headers = scripted.client.get("/", headers=BROWSER).headers
    assert (headers["content-type"].startswith("text/html"), headers["vary"]) == (True, "accept")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; script-src 'self' 'sha256-")
    assert ("unsafe" in policy, "frame-ancestors 'none'" in policy) == (False, True)


def test_page_files_have_a_type_and_are_revalidated_by_etag(scripted: RunningServer) -> None:
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    for name in names(PAGE):
        response = scripted.client.get(f"/ui/{name}")
        headers = response.headers
        assert response.status_code == 200
        assert headers["content-type"].startswith(types.get(Path(name).suffix, ""))
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-cache")
        kept = scripted.client.get(f"/ui/{name}", headers={"if-none-match": headers["etag"]})
        assert (kept.status_code, kept.content) == (304, b"")


@pytest.mark.parametrize("path", ["/ui/", "/ui/none.js", "/ui/../files.py", "/ui/%2e%2e/files.py", "/ui/vendor"])
def test_unknown_page_file_is_not_found(scripted: RunningServer, path: str) -> None:
    assert refusal(scripted.client.get(path))[:2] == (404, "not_found")


def test_page_needs_no_key_but_opens_nothing_else(locked: RunningServer) -> None:
    assert locked.client.get("/", headers=BROWSER).text.startswith("<!doctype html>")
    assert locked.client.get("/ui/app.js").status_code == 200
    assert locked.client.get("/docs").text.startswith("<!doctype html>")
    assert locked.client.get("/docs/assets/start.js").status_code == 200
    for path in ("/ui/none.js", "/ui/../../v1/models", "/docs/assets/none.js", "/openapi.json", "/v1/models"):
        assert locked.client.get(path).status_code == 401, path


def test_the_page_can_be_left_out(tmp_path: Path) -> None:
    with run_here(tmp_path, "--device", "scripted", settings={"GENAI_UI": "false"}) as server:
        response = server.client.get("/", headers=BROWSER)
        assert response.json()["name"] == "genai-server"
        assert "vary" not in response.headers
        assert server.client.get("/ui/app.js").status_code == 404
        assert server.client.get("/docs").status_code == 200


def test_the_description_of_the_api_has_its_files_here(scripted: RunningServer) -> None:
    page = scripted.client.get("/docs")
    assert "//" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'self'; script-src 'self'; style-src 'self'")
    for name in ("swagger-ui-bundle.js", "swagger-ui.css", "start.js"):
        assert f"docs/assets/{name}" in page.text
        assert scripted.client.get(f"/docs/assets/{name}").status_code == 200
