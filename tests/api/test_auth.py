"""Who may use the admin endpoints."""

from collections.abc import Iterator

import pytest

from tests.running_server import RunningServer, run_server

PATH = "/v1/admin/runtime_options"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("guarded")
    settings = {"GENAI_DEVICE": "scripted", "GENAI_ADMIN_API_KEY": "s3cret"}
    with run_server(folder, settings=settings) as server:
        yield server


def test_the_key_as_a_bearer_token_opens(guarded: RunningServer) -> None:
    headers = {"authorization": "Bearer s3cret", "x-forwarded-for": "10.0.0.1"}
    assert guarded.client.get(PATH, headers=headers).status_code == 200


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "s3cret", "Basic s3cret", "Bearer s3crét"])
def test_no_or_a_wrong_key_is_refused_with_the_remedy(guarded: RunningServer, authorization: str) -> None:
    headers = {b"authorization": authorization.encode()}
    response = guarded.client.get(PATH, headers=headers)
    assert response.status_code == 403
    assert "GENAI_ADMIN_API_KEY" in response.json()["error"]["message"]
    assert "s3cret" not in response.text


def test_without_a_key_a_local_program_may(scripted: RunningServer) -> None:
    assert scripted.client.get(PATH).status_code == 200
    assert scripted.client.get(PATH, headers={"origin": scripted.url}).status_code == 200


@pytest.mark.parametrize(
    ("header", "value", "says"),
    [
        ("x-forwarded-for", "10.0.0.1", "forwarded"),
        ("forwarded", "for=10.0.0.1", "forwarded"),
        ("x-real-ip", "10.0.0.1", "forwarded"),
        ("host", "evil.example", "Host"),
        ("host", "127.0.0.1.evil.example", "Host"),
        ("origin", "https://evil.example", "Origin"),
        ("origin", "null", "Origin"),
        ("origin", "http://localhost:1", "Origin"),
        ("origin", "http://[", "Origin"),
        ("host", "[", "Host"),
        ("x-forwarded-server", "proxy", "forwarded"),
        ("cf-connecting-ip", "10.0.0.1", "forwarded"),
    ],
)
def test_without_a_key_proxies_and_web_pages_may_not(
    scripted: RunningServer, header: str, value: str, says: str
) -> None:
    response = scripted.client.get(PATH, headers={header: value})
    assert response.status_code == 403
    assert says in response.json()["error"]["message"]
    assert "GENAI_ADMIN_API_KEY" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_without_a_key_the_body_must_be_declared_as_json(scripted: RunningServer, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    response = scripted.client.post(PATH, content='{"terminate_session": "1"}', headers=headers)
    assert response.status_code == 403
    assert scripted.chat("say x").status_code == 200


def test_without_a_key_a_server_that_others_reach_refuses(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("open")
    with run_server(folder, "--device", "scripted", "--host", "0.0.0.0") as server:
        response = server.client.get(PATH)
        assert response.status_code == 403
        assert "loopback" in response.json()["error"]["message"]
