"""Inputs of batches, and what became of them, for tests over HTTP."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from tests.running_server import wait_until

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, said: str = "say yes", *, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    """A chat request, with further fields of its body."""
    body = {"messages": [{"role": "user", "content": said}], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """A file with these lines."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def upload(client: httpx.Client, content: bytes, headers: Mapping[str, str] | None = None, **fields: str) -> Any:
    """Upload a file; returns it."""
    form = {"purpose": "batch", **fields}
    response = client.post("/v1/files", files={"file": ("input.jsonl", content)}, data=form, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def wanted(input_file_id: str, endpoint: str = CHAT, **fields: Any) -> dict[str, Any]:
    """The body of a request for a batch."""
    return {"input_file_id": input_file_id, "endpoint": endpoint, "completion_window": "24h", **fields}


def begin(
    client: httpx.Client,
    content: bytes | Iterable[Mapping[str, Any]],
    endpoint: str = CHAT,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> str:
    """Upload an input and create a batch of it; returns the batch's id."""
    given = upload(client, content if isinstance(content, bytes) else jsonl(content), headers)
    response = client.post("/v1/batches", json=wanted(given["id"], endpoint, **fields), headers=headers)
    assert response.status_code == 200, response.text
    id: str = response.json()["id"]
    return id


def get(client: httpx.Client, id: str, headers: Mapping[str, str] | None = None) -> Any:
    """The state of a batch."""
    return client.get(f"/v1/batches/{id}", headers=headers).json()


def ended(client: httpx.Client, id: str, headers: Mapping[str, str] | None = None) -> Any:
    """A batch once it has ended."""
    wait_until(lambda: get(client, id, headers)["status"] in ENDED, 60)
    return get(client, id, headers)


def ran(client: httpx.Client, content: bytes | Iterable[Mapping[str, Any]], endpoint: str = CHAT) -> Any:
    """A batch of this input once it has ended."""
    return ended(client, begin(client, content, endpoint))


def error_codes(batch: Mapping[str, Any]) -> list[str]:
    """Why a batch has failed."""
    return [error["code"] for error in batch["errors"]["data"]]


def num_running(client: httpx.Client, headers: Mapping[str, str] | None = None) -> int:
    """How many requests run or wait in the engines, also in the background. `headers` are those of an operator."""
    return len(client.get("/v1/requests", headers=headers).json()["data"])


def results(client: httpx.Client, id: str | None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The results in a file by their custom ids, each of which is there once; none without a file."""
    if id is None:
        return {}
    text = client.get(f"/v1/files/{id}/content", headers=headers).text
    found = [json.loads(entry) for entry in text.splitlines()]
    assert len({entry["custom_id"] for entry in found}) == len(found)
    return {entry["custom_id"]: entry for entry in found}
