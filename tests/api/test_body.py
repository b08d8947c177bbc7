"""The limits of a request's body: size, time and depth."""

import httpx
import pytest

from tests.running_server import RunningServer


def test_a_body_over_the_limit_is_refused_with_limit_and_size(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content=b" " * 1_100_000, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "body_too_large"
    assert "at most 1048576 bytes (GENAI_MAX_BODY_BYTES), given 1100000" in error["message"]
    assert response.headers["x-request-id"]


def test_a_body_of_unknown_length_is_refused_too(scripted: RunningServer) -> None:
    chunks = (b" " * 65536 for _ in range(64))
    response = scripted.client.post("/v1/chat", content=chunks, headers={"content-type": "application/json"})
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_body_without_end_is_not_read_for_ever(scripted: RunningServer) -> None:
    chunks = (b" " * 65536 for _ in range(100_000))
    try:
        response = scripted.client.post("/v1/chat", content=chunks, headers={"content-type": "application/json"})
    except httpx.TransportError:  # the server has hung up in the middle of the body
        return
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_body_that_is_not_json_is_a_400(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content='{"messages": [', headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_json_that_is_not_declared_as_such_says_so(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content='{"messages": []}')
    assert response.status_code == 400
    assert "content-type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize("content", ["[1, 2]", '"x"', "7", "null", "", "\x00", "[" * 100_000, '{"messages": NaN}'])
def test_a_body_that_is_no_object_is_a_400(scripted: RunningServer, content: str) -> None:
    response = scripted.client.post("/v1/chat", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
