"""Redirects between a path and the same one with a slash at its end, also as a proxy's clients see them."""

from urllib.parse import urljoin

import pytest

from tests.running_server import RunningServer

# A proxy that ends TLS and removes the prefix.
PROXY = "https://proxy.example/models/"


@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("GET", "ui", "ui/"),
        ("GET", "api/tags/?x=1", "api/tags?x=1"),
        ("POST", "v1/chat/completions/?x=%20y", "v1/chat/completions?x=%20y"),
        ("GET", "healthz/", "healthz"),
    ],
)
def test_redirect_leads_to_the_other_form_behind_a_proxy(
    scripted: RunningServer, method: str, path: str, wanted: str
) -> None:
    response = scripted.client.request(method, f"/{path}", headers={"host": "127.0.0.1:1"})
    assert response.status_code == 307
    assert urljoin(PROXY + path, response.headers["location"]) == PROXY + wanted


def test_redirect_is_followed_to_the_same_answer(scripted: RunningServer) -> None:
    plain = scripted.client.get("/api/tags").json()
    assert scripted.client.get("/api/tags/", follow_redirects=True).json() == plain


@pytest.mark.parametrize("path", ["/none", "/none/", "/api/tags//", "/v1/a:b", "/v1/models\\"])
def test_path_without_another_form_is_not_found(scripted: RunningServer, path: str) -> None:
    assert scripted.client.get(path).status_code == 404
