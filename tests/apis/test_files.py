"""OpenAI's /v1/files over HTTP."""

import json
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from genai_server.store import files as store
from tests.apis.batches.inputs import upload
from tests.running_server import RunningServer, refusal
from tests.server_here import run_here

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
LIMIT = 40_000
# A folder of somebody else in GENAI_FILES_DIR.
FOREIGN = "uploads-99999999"
OF_ALICE, OF_BOB = ({"authorization": f"Bearer {key}"} for key in (ALICE, BOB))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("files")
    settings = {
        "GENAI_DEVICE": "scripted",
        "GENAI_FILES_DIR": str(folder / "files"),
        "GENAI_API_KEYS": f"alice:{ALICE},bob:{BOB}",
        "GENAI_FILES_BYTES_PER_KEY": str(LIMIT),
        "GENAI_FILES_BYTES": str(LIMIT + 20_000),
        "GENAI_MAX_FILE_BYTES": "30000",
    }
    for name in ("", FOREIGN):
        (folder / "files" / name).mkdir(mode=0o700)
    with run_here(folder, settings=settings) as running:
        running.client.headers.update(OF_ALICE)
        yield running


@pytest.fixture(autouse=True)
def empty(server: RunningServer) -> Iterator[None]:
    yield
    for headers in (OF_ALICE, OF_BOB):
        for file in server.client.get("/v1/files", headers=headers).json()["data"]:
            server.client.delete(f"/v1/files/{file['id']}", headers=headers)


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=ALICE, max_retries=0) as client:
        yield client


def test_openais_client_keeps_a_file(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "Anfragen ä.jsonl"
    path.write_bytes(b"{}\n" * 1000)
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    with path.open("rb") as file:
        created: Any = client.files.create(file=file, purpose="batch", expires_after=expiry)
    assert (created.bytes, created.filename, created.purpose, created.status) == (3000, path.name, "batch", "processed")
    assert abs(created.expires_at - time.time() - 3600) < 60
    assert client.files.retrieve(created.id) == created
    assert client.files.content(created.id).read() == path.read_bytes()
    assert [file.id for file in client.files.list()] == [created.id]
    assert client.files.delete(created.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(created.id)


def test_files_are_listed_page_by_page(server: RunningServer) -> None:
    ids = [upload(server.client, b"{}")["id"] for _ in range(3)]

    def page(**query: str | int) -> tuple[list[str], bool]:
        found = server.client.get("/v1/files", params=query).json()
        listed = [file["id"] for file in found["data"]]
        assert (found["first_id"], found["last_id"]) == ((listed[0], listed[-1]) if listed else (None, None))
        return listed, found["has_more"]

    assert page() == (ids[::-1], False)
    assert page(limit=2) == ([ids[2], ids[1]], True)
    assert page(limit=2, after=ids[1]) == ([ids[0]], False)
    assert page(order="asc", after=ids[0], limit=1) == ([ids[1]], True)
    assert page(purpose="batch_output") == ([], False)
    assert refusal(server.client.get("/v1/files", params={"after": "file-0"})) == (400, "invalid_value", "after")


def test_files_of_other_keys_do_not_exist(server: RunningServer) -> None:
    id = upload(server.client, b"{}")["id"]
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        response = server.client.request(method, f"/v1/files/{id}{path}", headers=OF_BOB)
        assert refusal(response) == (404, "file_not_found", "file_id")
    assert server.client.get("/v1/files", headers=OF_BOB).json()["data"] == []
    assert server.client.get(f"/files/{id}").status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "59"}, "expires_after.seconds"),
        ({"expires_after": "3600"}, "expires_after"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(server: RunningServer, fields: dict[str, str], param: str) -> None:
    response = server.client.post("/v1/files", files={"file": b"{}"}, data={"purpose": "batch", **fields})
    assert refusal(response)[::2] == (400, param)


def test_a_body_that_is_no_form_names_no_file_of_the_server(server: RunningServer, tmp_path: Path) -> None:
    """The route, but not what receives forms, takes a path with a line feed at its end for its own."""
    (tmp_path / "private").write_text("{}")
    for path in ("/v1/files", "/v1/files%0A"):
        response = server.client.post(path, json={"file": str(tmp_path / "private"), "purpose": "batch"})
        assert response.status_code == 400
    assert (tmp_path / "private").exists()


def test_a_file_is_kept_for_as_long_as_is_asked(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_move(source: Path, target: Path) -> int:
        time.sleep(1)
        return move(source, target)

    move = store._move
    monkeypatch.setattr(store, "_move", slow_move)
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = upload(server.client, b"{}", None, **fields)
    assert file["expires_at"] == file["created_at"] + 3600


def test_a_file_over_the_size_limit_is_refused(server: RunningServer) -> None:
    response = server.client.post("/v1/files", files={"file": b"x" * 30_000}, data={"purpose": "batch"})
    assert refusal(response)[:2] == (400, "body_too_large")
    assert "GENAI_MAX_FILE_BYTES" in response.json()["error"]["message"]


def test_files_of_a_key_have_a_limit(server: RunningServer) -> None:
    for _ in range(2):
        upload(server.client, b"x" * 20_000)
    refused = server.client.post("/v1/files", files={"file": b""}, data={"purpose": "batch"})
    assert refusal(refused) == (400, "invalid_value", "file")
    assert "GENAI_FILES_BYTES_PER_KEY" in refused.json()["error"]["message"]
    # All files have one, too.
    upload(server.client, b"x" * 10_000, OF_BOB)
    full = server.client.post("/v1/files", files={"file": b"x" * 10_001}, data={"purpose": "batch"}, headers=OF_BOB)
    assert refusal(full) == (503, "upload_unavailable", None)
    assert "GENAI_FILES_BYTES)" in full.json()["error"]["message"]
    contents = server.folder / "files" / "contents"
    assert sum(path.stat().st_size for path in contents.iterdir()) == 50_000


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_the_servers_user_can_read_files(server: RunningServer) -> None:
    upload(server.client, b"{}")
    folder = server.folder / "files"
    assert (folder / FOREIGN).is_dir()
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [folder, *folder.rglob("*")]}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_ranges_of_a_content_can_be_read(server: RunningServer) -> None:
    id = upload(server.client, b"0123456789")["id"]
    response = server.client.get(f"/v1/files/{id}/content", headers={"range": "bytes=2-4"})
    assert (response.status_code, response.content) == (206, b"234")


@pytest.mark.parametrize("path", ["/v1/files", "/files", "/v1/batches"])
def test_without_a_folder_requests_name_the_setting(scripted: RunningServer, path: str) -> None:
    form = {"files": {"file": b"{}"}, "data": {"purpose": "batch"}}
    body = {"json": {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "24h"}}
    responses = [
        scripted.client.post(path, **(body if path == "/v1/batches" else form)),
        scripted.client.get(path),
        scripted.client.get(f"{path}/any"),
    ]
    for response in responses:
        assert (response.status_code, response.json()["error"]["code"]) == (400, "unsupported_endpoint")
        assert "GENAI_FILES_DIR" in json.dumps(response.json())


def test_errors_have_the_form_of_the_clients_api(server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=server.url, auth_token=ALICE, api_key=None, max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.beta.files.retrieve_metadata("file-0")
        with pytest.raises(anthropic.BadRequestError) as refused:
            client.beta.files.upload(file=("a.txt", b"a", "text/plain"))
    assert (missing.value.type, refused.value.type) == ("not_found_error", "invalid_request_error")
    assert missing.value.request_id is not None
    assert "purpose" in (refused.value.api_message or "")
    assert server.client.get("/v1/files/file-0").json()["error"]["type"] == "invalid_request_error"
