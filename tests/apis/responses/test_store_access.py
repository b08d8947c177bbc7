"""Pages of items in OpenAI's form."""

import json
import threading
from typing import Any

import msgspec
import pytest

from genai_server.apis.responses.store_access import page_response
from genai_server.store.records import Page

pytestmark = pytest.mark.anyio


async def test_a_page_names_its_first_and_last_item() -> None:
    page = Page([("a", {"id": "a"}), ("b", msgspec.Raw(b'{"id": "b"}'))], has_more=True)
    assert json.loads(bytes((await page_response(page)).body)) == {
        "object": "list",
        "data": [{"id": "a"}, {"id": "b"}],
        "first_id": "a",
        "last_id": "b",
        "has_more": True,
    }


async def test_an_empty_page_names_none() -> None:
    body = json.loads(bytes((await page_response(Page([], has_more=False))).body))
    assert (body["data"], body["first_id"], body["last_id"], body["has_more"]) == ([], None, None, False)


async def test_a_page_is_encoded_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, threads = msgspec.json.encode, set()

    def noted(part: Any) -> bytes:
        threads.add(threading.current_thread())
        return encode(part)

    monkeypatch.setattr(msgspec.json, "encode", noted)
    await page_response(Page([("a", {"id": "a"})], has_more=False))
    assert threads
    assert threading.main_thread() not in threads
