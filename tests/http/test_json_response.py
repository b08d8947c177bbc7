"""JSON responses that are encoded in a thread."""

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from genai_server.http.json_response import built_response

BODY: dict[str, Any] = {"data": [{"embedding": [0.5] * 1000}, {"embedding": "ü"}], "vectors": [[1], []], "usage": {}}


@pytest.mark.parametrize("is_long", [True, False])
def test_the_body_is_the_same_wherever_it_is_encoded(is_long: bool) -> None:
    response = asyncio.run(built_response(lambda: BODY, is_long=is_long))
    assert json.loads(bytes(response.body)) == BODY


def test_long_body_is_encoded_in_small_parts_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, threads = [], set()
    encode = msgspec.json.encode

    def noted(part: Any) -> bytes:
        threads.add(threading.current_thread())
        encoded.append(len(str(part)))
        return encode(part)

    monkeypatch.setattr(msgspec.json, "encode", noted)
    asyncio.run(built_response(lambda: {"data": [[0.5] * 1000] * 50}, is_long=True))
    assert max(encoded[:-1]) < 6000
    assert threading.main_thread() not in threads
