"""A server with two engines: the turns of a conversation find their prefix, as with one engine."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.running_server import DEMO, run_server, wait_until
from tests.scraped import scrape

pytestmark = pytest.mark.timeout(300)
CLIENTS, TURNS = 4, 20


def converse(client: httpx.Client, number: int) -> tuple[int, int]:
    """Have a conversation; returns the tokens of all prompts, and how many of them were cached."""
    prompt_tokens = cached_tokens = 0
    messages = [{"role": "system", "content": f"You are helper {number}. You answer in one short sentence."}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: what is {number} plus {turn}?"})
        body = {"messages": messages, "max_tokens": 8, "temperature": 0}
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "…"})
        prompt_tokens += answer["usage"]["prompt_tokens"]
        cached_tokens += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return prompt_tokens, cached_tokens


def cached_share(folder: Path, *devices: str) -> float:
    """The cached tokens of all prompts of several clients, as a share of their tokens. Each device takes some."""
    folder.mkdir()
    options = ("--model-dir", str(DEMO), "--device", ",".join(devices), "--threads", "1")
    with run_server(folder, *options) as server, ThreadPoolExecutor(CLIENTS) as threads:
        found = list(threads.map(lambda number: converse(server.client, number), range(CLIENTS)))
        wait_until(
            lambda: all(scrape(server).value("prefix_cache_queries_total", device=device) > 0 for device in devices)
        )
    return sum(cached for _, cached in found) / sum(prompt for prompt, _ in found)


def test_two_engines_find_as_many_cached_tokens_as_one(tmp_path: Path) -> None:
    one, two = cached_share(tmp_path / "one", "cpu"), cached_share(tmp_path / "two", "cpu:0", "cpu:1")
    assert two >= 0.95 * one > 0
