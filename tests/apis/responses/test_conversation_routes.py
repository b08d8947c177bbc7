"""The Conversations API, through OpenAI's client."""

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.running_server import RunningServer
from tests.server_here import run_here

MODEL = "demo"
ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"


def _texts(client: OpenAI, id: str) -> list[str]:
    found = [item.to_dict() for item in client.conversations.items.list(id, order="asc", limit=2)]
    return [item["content"][0]["text"] for item in found]


def test_responses_continue_a_conversation_and_are_added(client: OpenAI) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "say zero"}], metadata={"a": "b"}
    )
    assert (conversation.object, conversation.metadata) == ("conversation", {"a": "b"})
    first = client.responses.create(model=MODEL, input="say one", conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    with client.responses.stream(model=MODEL, input="say two", conversation={"id": conversation.id}) as stream:
        second = stream.get_final_response()
    assert second.usage.input_tokens == len("say zero\nsay one\none\nsay two\n") + 1
    assert _texts(client, conversation.id) == ["say zero", "say one", "one", "say two", "two"]


def test_unstored_and_background_responses_join_conversations(client: OpenAI) -> None:
    conversation = client.conversations.create()
    client.responses.create(model=MODEL, input="say one", conversation=conversation.id, store=False)
    begun = client.responses.create(model=MODEL, input="say two", conversation=conversation.id, background=True)
    while client.responses.retrieve(begun.id).status != "completed":
        pass
    assert _texts(client, conversation.id) == ["say one", "one", "say two", "two"]


def test_a_response_that_fails_adds_nothing(client: OpenAI, scripted: RunningServer) -> None:
    conversation = client.conversations.create()
    body = {"input": "fail at 2; say hello", "conversation": conversation.id}
    assert scripted.client.post("/v1/responses", json=body).status_code == 500
    assert "response.failed" in scripted.client.post("/v1/responses", json={**body, "stream": True}).text
    assert _texts(client, conversation.id) == []


def test_items_are_added_read_and_removed(client: OpenAI) -> None:
    conversation = client.conversations.create()
    added = client.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    one, two = added.data
    assert client.conversations.items.retrieve(one.id, conversation_id=conversation.id).to_dict() == one.to_dict()
    assert client.conversations.items.delete(one.id, conversation_id=conversation.id).id == conversation.id
    left = client.conversations.items.list(conversation.id, include=["message.output_text.logprobs"])
    assert [item.id for item in left] == [two.id]
    with pytest.raises(openai.NotFoundError) as missing:
        client.conversations.items.retrieve(one.id, conversation_id=conversation.id)
    assert missing.value.code == "conversation_not_found"


def test_a_conversation_is_changed_and_removed(client: OpenAI) -> None:
    conversation = client.conversations.create(metadata={"a": "b"})
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.retrieve(conversation.id).metadata == {"c": "d"}
    deleted = client.conversations.delete(conversation.id)
    assert (deleted.object, deleted.deleted) == ("conversation.deleted", True)
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model=MODEL, input="x", conversation=conversation.id)
    assert missing.value.param == "conversation"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/{id}", {}, "metadata"),
        ("/{id}/items", {"items": []}, "items"),
    ],
)
def test_invalid_field_is_named(
    client: OpenAI, scripted: RunningServer, path: str, body: dict[str, Any], param: str
) -> None:
    place = path.replace("{id}", client.conversations.create().id)
    response = scripted.client.post(f"/v1/conversations{place}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("is_stored", [False, True])
def test_another_keys_conversations_and_responses_are_not_found(own_folder: Path, is_stored: bool) -> None:
    settings = {"GENAI_API_KEYS": f"alice:{ALICE},bob:{BOB}"}
    options = ("--response-store-file", str(own_folder / "responses.sqlite")) if is_stored else ()
    with run_here(own_folder, "--device", "scripted", *options, settings=settings) as server:
        alice, bob = ({"authorization": f"Bearer {key}"} for key in (ALICE, BOB))
        ask = server.client.request
        given = {"items": [{"role": "user", "content": "a"}]}
        conversation = ask("POST", "/v1/conversations", json=given, headers=alice).json()["id"]
        items = f"/v1/conversations/{conversation}/items"
        item = ask("GET", items, headers=alice).json()["first_id"]
        asked = {"input": "say x", "background": True}
        response = ask("POST", "/v1/responses", json=asked, headers=alice).json()["id"]
        for method, path, body in (
            ("GET", f"/v1/conversations/{conversation}", None),
            ("POST", f"/v1/conversations/{conversation}", {"metadata": {}}),
            ("DELETE", f"/v1/conversations/{conversation}", None),
            ("GET", items, None),
            ("POST", items, given),
            ("GET", f"{items}/{item}", None),
            ("DELETE", f"{items}/{item}", None),
            ("POST", "/v1/responses", {"input": "x", "conversation": conversation}),
            ("GET", f"/v1/responses/{response}", None),
            ("GET", f"/v1/responses/{response}?stream=true", None),
            ("POST", f"/v1/responses/{response}/cancel", None),
            ("DELETE", f"/v1/responses/{response}", None),
            ("GET", f"/v1/responses/{response}/input_items", None),
        ):
            assert ask(method, path, json=body, headers=bob).status_code == 404, (method, path)
        for fields in ({"previous_response_id": response}, {"input": [{"type": "item_reference", "id": item}]}):
            refused = ask("POST", "/v1/responses", json={"input": "x", **fields}, headers=bob)
            assert refused.status_code == 400
        assert len(ask("GET", items, headers=alice).json()["data"]) == 1
        assert ask("GET", f"/v1/responses/{response}", headers=alice).json()["id"] == response


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
