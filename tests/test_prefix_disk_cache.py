"""A server with a prefix cache on disk, over sockets: what it has read outlives it."""

from pathlib import Path

import pytest

from tests.running_server import RunningServer, run_server, wait_until
from tests.scraped import scrape

TEXT = "The quick brown fox jumps over the lazy dog, and what it sees is new. " * 55


def ask(server: RunningServer) -> tuple[str, int]:
    """An answer, and how many tokens of its prompt were cached."""
    body = {"prompt": TEXT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = server.client.post("/v1/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.slow
def test_a_killed_servers_prompts_need_no_reading(own_folder: Path) -> None:
    on_disk = {"GENAI_PREFIX_CACHE_BYTES": "auto", "GENAI_PREFIX_CACHE_DIR": str(own_folder / "prefixes")}
    with run_server(own_folder, settings=on_disk) as server:
        before, num_cached = ask(server)
        assert num_cached == 0
        wait_until(lambda: scrape(server).value("prefix_disk_cache_stored_tokens_total") > 1000)
        server.process.kill()
    with run_server(own_folder, settings=on_disk) as server:
        after, num_cached = ask(server)
        assert num_cached > 1000
        assert after == before
        wait_until(lambda: scrape(server).value("prefix_disk_cache_loads_total") == 1)
        about = server.device("cpu")["prefix_disk_cache"]
        assert about["loaded_tokens"] == num_cached
        assert about["max_bytes"] > about["num_bytes"] > 1_000_000
        server.client.post("/reset_prefix_cache").raise_for_status()
        assert ask(server)[1] == 0
