"""More requests than a server can accept, and answers beyond their deadlines, over real sockets."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.apis.admin.test_requests import ENDLESS, listed
from tests.running_server import RunningServer, body, refusal, wait_until
from tests.server_here import module_server, run_here

OPTIONS = ("--device", "scripted", "--max-batch-size", "1")


# One request runs at once, another one may wait.
server = module_server(*OPTIONS, "--max-queue", "1", "--request-timeout", "60")


@pytest.fixture
def busy(server: RunningServer) -> Iterator[RunningServer]:
    """The same server during an endless answer, some tokens of which have arrived."""
    with server.begun("delay 0.05; count 1000", 4):
        yield server
    wait_until(lambda: server.idle("scripted"))


@pytest.fixture
def full(busy: RunningServer) -> Iterator[RunningServer]:
    """The same server with a queued request that every API process knows of."""
    with busy.stream(ENDLESS) as waiting:
        wait_until(lambda: busy.device("scripted")["waiting"] == 1)
        yield busy
        assert waiting.response.status_code == 200


# a full queue


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat", {}),
        ("/v1/chat/stream", {}),
        ("/v1/chat/completions", {"stream": True}),
        ("/v1/messages", {"max_tokens": 5}),
    ],
)
def test_full_queue_is_a_503_with_retry_after_seconds(full: RunningServer, path: str, fields: dict[str, Any]) -> None:
    response = full.client.post(path, json=body("say x", **fields))
    assert response.status_code == 503
    assert "queue_full" in response.text
    assert "GENAI_MAX_QUEUE" in response.text
    # About 2,000 tokens remain of an answer that takes 0.05 s per token; no other has ended.
    assert 30 <= int(response.headers["retry-after"]) <= 600


def test_concurrent_n2_requests_are_accepted_whole_or_refused(server: RunningServer) -> None:
    wait_until(lambda: server.idle("scripted"))
    # The accepted request runs until it is cancelled, so that the others find no capacity.
    asked = body(ENDLESS, n=2)
    with ThreadPoolExecutor(6) as threads:
        asking = [threads.submit(server.client.post, "/v1/chat/completions", json=asked) for _ in range(6)]
        wait_until(lambda: sum(one.done() for one in asking) == 5)
        (running,) = listed(server)
        assert server.client.post(f"/v1/requests/{running}/cancel", json={}).status_code == 200
        answers = [one.result() for one in asking]
    assert sorted(answer.status_code for answer in answers) == [200, 503, 503, 503, 503, 503]
    (served,) = [answer.json() for answer in answers if answer.status_code == 200]
    assert len(served["choices"]) == 2
    assert listed(server) == {}


def test_more_answers_than_capacity_are_a_400(full: RunningServer) -> None:
    three = [("/v1/chat/completions", body("say x", n=3)), ("/v1/completions", {"prompt": ["a", "b", "c"]})]
    for path, asked in three:
        response = full.client.post(path, json=asked)
        assert response.status_code == 400, path
        assert "retry-after" not in response.headers
        assert "GENAI_MAX_QUEUE" in response.json()["error"]["message"]


def test_health_and_operators_are_served_while_the_queue_is_full(full: RunningServer) -> None:
    for path in ("/healthz", "/readyz", "/v1/requests", "/v1/admin/runtime_options", "/v1/models"):
        assert full.client.get(path).status_code == 200, path
    assert len(listed(full)) == 2
    assert full.client.post("/v1/admin/reset_prefix_cache", json={}).status_code == 200
    assert full.options(enable_profiling="0").status_code == 200
    (waiting,) = [name for name, entry in listed(full).items() if entry["phase"] == "queued"]
    assert full.client.post(f"/v1/requests/{waiting}/cancel", json={}).status_code == 200
    assert len(listed(full)) == 1


# One request runs at once, nine more may wait, whose prompts have at most 100 tokens together.
narrow = module_server(*OPTIONS, "--max-queue", "9", "--max-queue-tokens", "100")


def test_queued_prompts_have_a_token_limit_together(narrow: RunningServer) -> None:
    with narrow.begun(ENDLESS):
        response = narrow.chat("say " + "x" * 200)
        assert response.status_code == 503
        assert "GENAI_MAX_QUEUE_TOKENS" in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) >= 1
        with narrow.stream("say x") as short:
            wait_until(lambda: narrow.device("scripted")["waiting"] == 1)
            assert short.response.status_code == 200
    wait_until(lambda: narrow.idle("scripted"))


def test_prompts_that_can_never_wait_are_a_400(narrow: RunningServer) -> None:
    long, short = "say " + "x" * 60, "say x"
    for path, asked, field in (
        ("/v1/chat/completions", body(long, n=3), "n"),
        ("/v1/completions", {"prompt": [long] * 3}, "prompt"),
        ("/v1/completions", {"prompt": [long] * 2, "n": 2, "stream": True}, "n"),
    ):
        response = narrow.client.post(path, json=asked)
        assert response.status_code == 400, response.text
        assert "retry-after" not in response.headers
        error = response.json()["error"]
        assert error["param"] == field
        assert "at most 100 tokens together (GENAI_MAX_QUEUE_TOKENS)" in error["message"]
        assert listed(narrow) == {}
    # One runs at once, however long it is.
    assert narrow.client.post("/v1/chat/completions", json=body(long, n=2)).status_code == 200
    assert narrow.client.post("/v1/chat/completions", json=body(short, n=9)).status_code == 200


# deadlines: a busy machine has generated some tokens after this many seconds

SOON = 1.5


def test_an_answer_ends_at_its_timeout_with_what_there_is(server: RunningServer) -> None:
    answer = server.chat(ENDLESS, timeout=SOON).json()
    assert (answer["finish_reason"], answer["content"][:4]) == ("timeout", "1, 2")
    assert answer["metrics"]["output_tokens"] == len(answer["content"])
    with server.stream(ENDLESS, timeout=SOON) as events:
        found = [json.loads(event) for event in events]
    assert [event["finish_reason"] for event in found if "finish_reason" in event] == ["timeout"]
    assert (found[-1]["done"], len(found) > 2) == (True, True)


def test_queued_request_times_out_with_an_empty_answer(busy: RunningServer) -> None:
    answer = busy.chat("say x", timeout=0.3).json()
    assert (answer["content"], answer["finish_reason"]) == ("", "timeout")
    assert answer["metrics"]["output_tokens"] == 0


def test_openais_client_reads_the_partial_answer(scripted: RunningServer) -> None:
    more = {"timeout": SOON}
    messages: Any = [{"role": "user", "content": ENDLESS}]
    prompts = [f"{ENDLESS}\n\4"] * 2
    with (
        openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        chats = threads.submit(client.chat.completions.create, model="demo", messages=messages, n=2, extra_body=more)
        create = client.completions.create
        completions = threads.submit(create, model="demo", prompt=prompts, max_tokens=1000, extra_body=more)
        responses = threads.submit(client.responses.create, model="demo", input=ENDLESS, extra_body=more)
        chat, texts, response = chats.result(), completions.result(), responses.result()
    cut = {"genai_finish_reason": "timeout"}
    for choice in chat.choices:
        assert (choice.finish_reason, choice.model_extra) == ("length", cut)
        assert (choice.message.content or "").startswith("1, 2")
    assert [choice.model_extra for choice in (*chat.choices, *texts.choices)] == [cut] * 4
    assert (response.status, response.output_text[:4]) == ("incomplete", "1, 2")
    assert response.incomplete_details is not None
    assert response.incomplete_details.to_dict() == {"reason": "max_output_tokens", **cut}


def test_anthropics_client_reads_the_partial_answer(server: RunningServer) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="demo", max_tokens=1000, messages=[{"role": "user", "content": ENDLESS}], extra_body={"timeout": 0.5}
        )
    assert message.stop_reason == "max_tokens"
    assert message.model_extra == {"genai_finish_reason": "timeout"}


@pytest.mark.parametrize("given", ["soon", "-1", "61", "nan", ""])
def test_invalid_timeout_is_refused_by_name(server: RunningServer, given: str) -> None:
    response = server.client.post("/v1/chat", json=body("say x"), headers={"x-request-timeout": given})
    assert refusal(response)[::2] == (400, "X-Request-Timeout")
    response = server.chat("say x", timeout=60.5)
    assert (response.status_code, "at most 60 seconds (GENAI_REQUEST_TIMEOUT); given 60" in response.text) == (
        400,
        True,
    )


def test_configured_timeout_is_the_default(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--request-timeout", "1") as server:
        assert server.chat(ENDLESS).json()["finish_reason"] == "timeout"
