"""GET /metrics/history over real sockets."""

import time
from pathlib import Path

import pytest

from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here


def test_samples_of_each_device_have_load_and_counters(scripted: RunningServer) -> None:
    before = time.time()
    scripted.chat("count 20", device="scripted:0")

    def is_counted() -> bool:
        body = scripted.client.get("/metrics/history", params={"since": before}).json()
        found = {each["device"]: each["samples"] for each in body["data"]}
        samples = found.get("scripted:0", [])
        return len(found) == 2 and bool(samples) and samples[-1]["output_tokens"] >= 20

    wait_until(is_counted)
    body = scripted.client.get("/metrics/history").json()
    assert body["interval"] == 2
    (samples,) = [each["samples"] for each in body["data"] if each["device"] == "scripted:0"]
    last = samples[-1]
    assert [each["time"] for each in samples] == sorted(each["time"] for each in samples)
    assert last["prompt_tokens"] > 0
    assert last["first_tokens"] > 0
    assert last["first_token_seconds"] > 0
    assert last["slots"] > 0
    assert len(last["token_gaps"]) == len(last["gap_bounds"]) + 1
    assert sum(last["token_gaps"]) > 0
    later = scripted.client.get("/metrics/history", params={"since": time.time() + 9}).json()["data"]
    assert [each["samples"] for each in later] == [[], []]


@pytest.mark.parametrize(("who", "status"), [("key", 200), ("off", 404)])
def test_a_server_without_metrics_has_no_history(tmp_path: Path, who: str, status: int) -> None:
    with run_here(tmp_path, "--device", "scripted", settings={"GENAI_METRICS": who}) as server:
        assert server.client.get("/metrics/history").status_code == status
