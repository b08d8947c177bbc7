"""What a soak does before it looks at memory."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from _load import soaking
from _load.asked import full_length
from _load.clients import Books, Clients
from _load.http import Response
from _load.pulse import Pulse
from _load.server import Server
from _load.soaking import CLIENTS, Plan, Soak


@pytest.mark.parametrize("seconds", [6.0, 1800.0])
def test_each_warm_up_fills_all_slots(seconds: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    async def answer(port: int, path: str, body: Any) -> Response:
        asked.append(body)
        return Response(200, {}, bytearray(json.dumps({"content": "", "finish_reason": "length"}), "ascii"))

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(soaking, "ask_json", answer)
    monkeypatch.setattr(Clients, "visit", nothing)
    monkeypatch.setattr(Soak, "_part", nothing)
    clients = Clients(1, {}, Books(), random.Random(0))
    soak = Soak(Server(1, 1), tmp_path, Plan.of(seconds, seconds), 0, Pulse())
    asyncio.run(soak._warm_up(clients))
    assert asked == [full_length(index) for index in range(CLIENTS)]
