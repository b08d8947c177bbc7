"""Pages of items in OpenAI's form."""

import threading
from typing import Any

import msgspec
import pytest

from genai_server.apis.responses.store import page_response
from genai_server.store.records import Page

pytestmark = pytest.mark.anyio


async def test_a_page_is_encoded_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, threads = msgspec.json.encode, set()

    def noted(part: Any) -> bytes:
        threads.add(threading.current_thread())
        return encode(part)

    monkeypatch.setattr(msgspec.json, "encode", noted)
    await page_response(Page([("a", {"id": "a"})], has_more=False))
    assert threads
    assert threading.main_thread() not in threads
