"""The complete server with the demo model: real weights, real tokenizer, real runtime options."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.apis.admin.test_requests import listed
from tests.running_server import RunningServer, last_event, wait_until

# A seed prevents drafts, which would shorten its time.
LONG = "Count from 1 to 200."


@pytest.fixture
def server(demo: RunningServer) -> Iterator[RunningServer]:
    yield demo
    demo.recover()


def ask(server: RunningServer, *contents: str, system: str | None = None, **fields: Any) -> str:
    """The answer to the last of several user messages; the server itself answers the others."""
    messages = [{"role": "system", "content": system}] if system else []
    for content in contents:
        messages.append({"role": "user", "content": content})
        response = server.client.post("/v1/chat", json={"messages": messages, **fields})
        assert response.status_code == 200, response.text
        messages.append({"role": "assistant", "content": response.json()["content"]})
    return messages[-1]["content"]


def test_it_answers_a_question_that_follows(server: RunningServer) -> None:
    assert "Rome" in ask(server, "What is the capital of France?", "And of Italy?")


def test_it_counts(server: RunningServer) -> None:
    assert ask(server, "Count from 1 to 12.") == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"


def test_it_follows_a_system_prompt(server: RunningServer) -> None:
    answer = ask(server, "What is the capital of Spain?", system="Answer in upper case.")
    assert "MADRID" in answer
    assert answer == answer.upper()


def test_a_character_of_several_tokens_arrives_whole(server: RunningServer) -> None:
    with server.stream("Hello!") as events:
        *tokens, end = (json.loads(event) for event in events)
    emoji = [event["token"] for event in tokens if not event["token"].isascii()]
    assert emoji
    # More tokens than sent pieces: the emoji's first tokens complete no character.
    assert end["metrics"]["output_tokens"] > len(tokens)


def test_concurrent_answers_equal_lone_ones_despite_cache_resets(
    server: RunningServer,
) -> None:
    questions = [f"Count from 1 to {number}." for number in range(5, 29, 2)]
    alone = [ask(server, question) for question in questions]
    resets = 0
    with ThreadPoolExecutor(12) as pool:
        together = [pool.submit(ask, server, question) for question in questions]
        while not all(answer.done() for answer in together):
            reset = server.client.post("/v1/admin/reset_prefix_cache", json={})
            assert reset.status_code == 200
            resets += 1
    assert [answer.result() for answer in together] == alone
    assert resets > 1


def test_terminate_ends_an_answer_and_recovery_needs_no_reload(server: RunningServer) -> None:
    pid = server.device("cpu")["pid"]
    with server.begun(LONG, 5, ignore_eos=True, seed=1, max_tokens=1900) as reader:
        server.options(terminate_session="1")
        last = last_event(reader)
    assert last["finish_reason"] == "terminated"
    assert 5 <= last["metrics"]["output_tokens"] < 1900
    assert server.chat("Hello!").status_code == 503
    server.options(terminate_session="0")
    assert ask(server, "Count from 1 to 3.") == "1, 2, 3"
    assert server.device("cpu")["pid"] == pid


def test_profiling_mid_answer_writes_one_file_per_pass(
    server: RunningServer,
) -> None:
    folder = server.folder / "profiles" / "cpu"
    before = server.client.get("/v1/admin/runtime_options").json()["devices"]["cpu"]["profile_files"]
    thread = threading.Thread(target=lambda: server.chat(LONG, ignore_eos=True, seed=1, max_tokens=1900))
    thread.start()
    wait_until(lambda: any(entry["output_tokens"] > 0 for entry in listed(server).values()))
    on = server.options(enable_profiling="slice").json()["devices"]["cpu"]
    wait_until(lambda: len(list(folder.glob("slice_*.json"))) >= 10)
    off = server.options(enable_profiling="0").json()["devices"]["cpu"]
    # Terminated afterwards, so that only these passes can have written a file.
    server.options(terminate_session="1")
    thread.join(90)
    files = sorted(folder.glob("slice_*.json"))
    assert len(on["requests"]) == 1
    assert on["requests"][0]["from_token"] > 0
    assert len(files) == off["profile_files"] - before >= 10
    for file in files:
        events = json.loads(file.read_text(encoding="utf-8"))
        assert any(event.get("cat") == "Node" for event in events)
