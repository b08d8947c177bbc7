"""A batch as its users see it: whoever comes, leaves or is profiled meanwhile, each answer is what it is alone."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import pytest

from tests.running_server import DEMO, RunningServer, run_server, wait_until

FATES = ("answered", "answered", "answered", "cancelled", "terminated")


@dataclass(frozen=True)
class Asked:
    """One request: when it comes, and after how many events it is cancelled or terminated, if it is."""

    content: str
    fields: dict[str, Any]
    delay: float
    fate: str
    patience: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = ("--max-batch-size", "8", "--prefill-chunk", "16", "--profile-max-rows", "2")
    with run_server(tmp_path_factory.mktemp("batching"), "--model-dir", str(DEMO), *options) as server:
        assert server.device("cpu")["batching"]["scheduler"] == "batched"
        yield server


def _requests(number: int) -> list[Asked]:
    chance = random.Random(20)
    asked = []
    for index in range(number):
        fields: dict[str, Any] = {"max_tokens": chance.randint(1, 50)}
        content = f"Count from 1 to {chance.randint(20, 190)}."
        if index % 2:
            # Sampled from what the model is not sure of: exact, so that not even profiling may change it by rounding.
            content = " ".join(chance.choices(("why", "Rome", "seven", "count", "blue"), k=chance.randint(1, 60)))
            fields |= {"temperature": 1.5, "seed": index, "ignore_eos": True, "exact": True}
        fate = FATES[index % len(FATES)]
        if fate != "answered":
            fields |= {"max_tokens": 200, "ignore_eos": True}
        asked.append(Asked(content, fields, chance.uniform(0, 1.5), fate, chance.randint(0, 12)))
    return asked


def _alone(server: RunningServer, asked: Asked) -> str:
    fields = asked.fields if asked.fate == "answered" else asked.fields | {"max_tokens": 40}
    answer: str = server.chat(asked.content, **fields).json()["content"]
    return answer


def _ask(server: RunningServer, asked: Asked) -> tuple[str, str]:
    """What became of a request that comes in its time: how it ended, and what it was answered until then."""
    time.sleep(asked.delay)
    said = ""
    with server.stream(asked.content, **asked.fields) as events:
        assert events.response.status_code == 200, events.response.text
        for number, event in enumerate(events):
            found = json.loads(event)
            if "finish_reason" in found:
                return found["finish_reason"], said
            said += found["token"]
            if number == asked.patience and asked.fate == "cancelled":
                return "cancelled", said
            if number == asked.patience and asked.fate == "terminated":
                name = events.response.headers["x-request-id"]
                assert server.options(terminate_session="1", request_id=name).status_code == 200
    return "nothing", said


def _disturb(server: RunningServer, done: threading.Event) -> int:
    """Switch profiling on and off, and forget the past, until all are done; returns how many were profiled."""
    profiled: set[str] = set()
    for number, value in enumerate(cycle(("1", "other", "0", "1", "0"))):
        if done.wait(0.05):
            break
        device = server.options(enable_profiling=value).json()["devices"]["cpu"]
        profiled |= {request["request_id"] for request in device["requests"]}
        if number % 4 == 3:
            assert server.client.post("/v1/admin/reset_prefix_cache", json={}).status_code == 200
    server.options(enable_profiling="0")
    return len(profiled)


def test_every_answer_is_what_it_is_alone_whoever_comes_leaves_is_ended_or_profiled(server: RunningServer) -> None:
    requests = _requests(40)
    alone = [_alone(server, asked) for asked in requests]
    done = threading.Event()
    with ThreadPoolExecutor(len(requests) + 1) as pool:
        disturbing = pool.submit(_disturb, server, done)
        try:
            together = list(pool.map(lambda asked: _ask(server, asked), requests))
        finally:
            done.set()
    ends = Counter(end for end, _ in together)
    assert ends["cancelled"] == ends["terminated"] == 8
    assert ends["stop"] + ends["length"] == 24
    for asked, (end, said), expected in zip(requests, together, alone, strict=True):
        if end in ("cancelled", "terminated"):
            shorter = min(len(said), len(expected))
            assert said[:shorter] == expected[:shorter], asked
            assert said
        else:
            assert said == expected, asked
    assert disturbing.result() > 3
    wait_until(lambda: server.idle("cpu"))
    state = server.client.get("/v1/admin/runtime_options").json()["devices"]["cpu"]
    assert (state["terminate_session"], state["enable_profiling"], state["requests"]) == ("0", "0", [])
    assert [_alone(server, asked) for asked in requests[:3]] == alone[:3]
    assert server.device("cpu")["restarts"] == 0
