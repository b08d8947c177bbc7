"""The Conversations API, through OpenAI's client."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here

MODEL = "demo"
ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"


def _texts(client: OpenAI, id: str) -> list[str]:
    found = [item.to_dict() for item in client.conversations.items.list(id, order="asc", limit=2)]
    return [item["content"][0]["text"] for item in found]


def test_responses_continue_a_conversation_and_are_added(client: OpenAI) -> None:
    items: Any = [{"type": "message", "role": "user", "content": "say zero"}]
    conversation = client.conversations.create(items=items, metadata={"a": "b"})
    assert (conversation.object, conversation.metadata) == ("conversation", {"a": "b"})
    first: Any = client.responses.create(model=MODEL, input="say one", conversation=conversation.id)
    assert first.conversation.id == conversation.id
    with client.responses.stream(model=MODEL, input="say two", conversation={"id": conversation.id}) as stream:
        second = stream.get_final_response()
    assert second.usage.input_tokens == len("say zero\nsay one\none\nsay two\n") + 1
    assert _texts(client, conversation.id) == ["say zero", "say one", "one", "say two", "two"]
    # So are responses that are not stored, and those in the background.
    client.responses.create(model=MODEL, input="say three", conversation=conversation.id, store=False)
    begun = client.responses.create(model=MODEL, input="say four", conversation=conversation.id, background=True)
    wait_until(lambda: client.responses.retrieve(begun.id).status == "completed")
    assert _texts(client, conversation.id)[5:] == ["say three", "three", "say four", "four"]


def test_a_response_that_fails_adds_nothing(client: OpenAI, scripted: RunningServer) -> None:
    conversation = client.conversations.create()
    body = {"input": "fail at 2; say hello", "conversation": conversation.id}
    assert scripted.client.post("/v1/responses", json=body).status_code == 500
    assert "response.failed" in scripted.client.post("/v1/responses", json={**body, "stream": True}).text
    assert _texts(client, conversation.id) == []


def test_items_are_added_read_and_removed(client: OpenAI) -> None:
    id, items = client.conversations.create().id, client.conversations.items
    one, two = items.create(id, items=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]).data
    assert items.retrieve(one.id, conversation_id=id).to_dict() == one.to_dict()
    assert items.delete(one.id, conversation_id=id).id == id
    assert [item.id for item in items.list(id, include=["message.output_text.logprobs"])] == [two.id]
    with pytest.raises(openai.NotFoundError) as missing:
        items.retrieve(one.id, conversation_id=id)
    assert missing.value.code == "conversation_not_found"


def test_a_conversation_is_changed_and_removed(client: OpenAI) -> None:
    id = client.conversations.create(metadata={"a": "b"}).id
    assert client.conversations.update(id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.retrieve(id).metadata == {"c": "d"}
    deleted = client.conversations.delete(id)
    assert (deleted.object, deleted.deleted) == ("conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model=MODEL, input="x", conversation=id)
    assert missing.value.param == "conversation"


@pytest.mark.parametrize(("path", "body", "param"), [("", {}, "metadata"), ("/items", {"items": []}, "items")])
def test_invalid_field_is_named(
    client: OpenAI, scripted: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    response = scripted.client.post(f"/v1/conversations/{client.conversations.create().id}{path}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("is_stored", [False, True])
def test_another_keys_conversations_and_responses_are_not_found(own_folder: Path, is_stored: bool) -> None:
    settings = {"GENAI_API_KEYS": f"alice:{ALICE},bob:{BOB}"}
    options = ("--response-store-file", str(own_folder / "responses.sqlite")) if is_stored else ()
    with run_here(own_folder, "--device", "scripted", *options, settings=settings) as server:

        def ask(key: str, method: str, path: str, body: Any = None) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return server.client.request(method, f"/v1{path}", json=body, headers=headers)

        given = {"items": [{"role": "user", "content": "a"}]}
        conversation = f"/conversations/{ask(ALICE, 'POST', '/conversations', given).json()['id']}"
        items = f"{conversation}/items"
        item = ask(ALICE, "GET", items).json()["first_id"]
        id = ask(ALICE, "POST", "/responses", {"input": "say x", "background": True}).json()["id"]
        for method, path, body in (
            ("GET", conversation, None),
            ("POST", conversation, {"metadata": {}}),
            ("DELETE", conversation, None),
            ("GET", items, None),
            ("POST", items, given),
            ("GET", f"{items}/{item}", None),
            ("DELETE", f"{items}/{item}", None),
            ("POST", "/responses", {"input": "x", "conversation": conversation.rpartition("/")[2]}),
            ("GET", f"/responses/{id}", None),
            ("GET", f"/responses/{id}?stream=true", None),
            ("POST", f"/responses/{id}/cancel", None),
            ("DELETE", f"/responses/{id}", None),
            ("GET", f"/responses/{id}/input_items", None),
        ):
            assert ask(BOB, method, path, body).status_code == 404, (method, path)
        for fields in ({"input": "x", "previous_response_id": id}, {"input": [{"type": "item_reference", "id": item}]}):
            assert ask(BOB, "POST", "/responses", fields).status_code == 400
        assert len(ask(ALICE, "GET", items).json()["data"]) == 1
        assert ask(ALICE, "GET", f"/responses/{id}").json()["id"] == id


def test_full_conversation_is_kept_and_reported_in_the_header(own_folder: Path) -> None:
    limits = ("--response-store-bytes", "4000", "--max-length", "2048")
    with run_here(own_folder, "--device", "scripted", *limits) as server:
        id = server.client.post("/v1/conversations", json={}).json()["id"]
        path = f"/v1/conversations/{id}/items"
        items = [{"role": "user", "content": "x" * 3000}]
        assert server.client.post(path, json={"items": items}).status_code == 200
        refused = server.client.post(path, json={"items": items})
        assert refused.status_code == 400
        assert "GENAI_RESPONSE_STORE_BYTES" in refused.json()["error"]["message"]
        body = {"input": f"say {'y' * 1000}", "conversation": id, "store": False, "truncation": "auto"}
        answer = server.client.post("/v1/responses", json=body)
        assert (answer.status_code, answer.json()["status"]) == (200, "completed")
        assert "GENAI_RESPONSE_STORE_BYTES" in answer.headers["x-genai-not-stored"]
        assert len(server.client.get(path).json()["data"]) == 1
