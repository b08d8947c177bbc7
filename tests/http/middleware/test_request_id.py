"""Headers of every response: the request id, and restrictions for browsers."""

import pytest

from tests.running_server import RunningServer, body


def test_a_plain_request_id_of_the_client_is_kept(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", json=body("say x"), headers={"x-request-id": "my-id.1_x"})
    assert response.headers["x-request-id"] == "my-id.1_x"
    assert response.json()["id"] == "my-id.1_x"


@pytest.mark.parametrize("given", ["a" * 65, "a b", "../x", "é".encode().decode("latin-1"), ""])
def test_any_other_request_id_is_replaced(scripted: RunningServer, given: str) -> None:
    response = scripted.client.get("/healthz", headers={b"x-request-id": given.encode("latin-1")})
    assert response.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/nowhere"])
def test_every_response_has_a_request_id(scripted: RunningServer, path: str) -> None:
    assert scripted.client.get(path).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("path", ["/healthz", "/openapi.json", "/nowhere"])
def test_every_response_restricts_browsers(scripted: RunningServer, path: str) -> None:
    headers = scripted.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"


def test_foreign_web_page_may_not_read_answers(scripted: RunningServer) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in scripted.client.options("/v1/chat", headers=asked).headers
    assert "access-control-allow-origin" not in scripted.client.get("/healthz", headers=asked).headers
