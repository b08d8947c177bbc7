"""The merged trace in the real Perfetto: it takes all of it, and complains of nothing."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from genai_server.profiles.folder import read_profile
from genai_server.profiles.trace import write_trace
from tests.profiles.browser import launched
from tests.profiles.files import DOWN, event, kernel, run_events, write, write_session
from tests.profiles.perfetto import Perfetto, opened
from tests.running_server import RunningServer


@pytest.fixture(scope="module")
def perfetto() -> Iterator[Perfetto]:
    with launched() as browser, opened(browser) as perfetto:
        yield perfetto


def _trace_of(folder: Path) -> str:
    out = io.BytesIO()
    write_trace(read_profile(folder), out)
    return out.getvalue().decode()


def test_each_token_is_a_track_of_its_request_with_its_kernels_within(perfetto: Perfetto, tmp_path: Path) -> None:
    write_session(tmp_path, decodes=3)
    perfetto.open(_trace_of(tmp_path))
    assert perfetto.complaints() == {}
    found = perfetto.slices()
    assert {(process, thread) for process, thread, *_ in found} == {
        ("request req-1", name) for name in ("prompt", "token 1", "token 2", "token 3")
    }
    second = {
        name: (begin, duration, depth) for _, thread, name, begin, duration, depth in found if thread == "token 2"
    }
    begin, duration, depth = second["token 2"]
    assert (duration, depth) == (700_000, 0)
    assert second[f"{DOWN}_kernel_time"] == (begin + 350_000, 300_000, 2)


def test_what_is_cut_to_microseconds_and_what_other_threads_do_is_taken(perfetto: Perfetto, tmp_path: Path) -> None:
    events = [
        kernel("/a", "Mul", 10, 80),
        kernel("/b", "Mul", 40, 40, thread=2),
        event("SequentialExecutor::Execute", 5, 84),
        event("model_run", 0, 88),
    ]
    write(tmp_path / "a.json", [*events, *run_events(start=5000)])
    perfetto.open(_trace_of(tmp_path))
    assert perfetto.complaints() == {}
    assert Counter(thread for _, thread, *_ in perfetto.slices()) == {"pass 0": 3, "pass 0, thread 2": 1, "pass 1": 5}


def test_a_real_profile_is_taken_whole(perfetto: Perfetto, demo: RunningServer) -> None:
    begun = demo.client.post("/v1/admin/profiles", json={"prefix": "perfetto", "first_tokens": 6}).json()
    assert demo.chat("Count from 1 to 12.").status_code == 200
    demo.client.delete(f"/v1/admin/profiles/{begun['id']}").raise_for_status()
    trace = demo.client.get(f"/v1/admin/profiles/{begun['id']}/trace").text
    perfetto.open(trace)
    assert perfetto.complaints() == {}
    lasting = [each for each in json.loads(trace)["traceEvents"] if each["ph"] == "X"]
    found = perfetto.slices()
    assert Counter(name for _, _, name, *_ in found) == Counter(each["name"] for each in lasting)
    assert {thread for _, thread, *_ in found} == {"prompt", *(f"token {index}" for index in range(1, 6))}


def test_events_that_cross_are_what_it_complains_of(perfetto: Perfetto) -> None:
    crossing = [{"name": str(ts), "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 80} for ts in (0, 40)]
    perfetto.open(json.dumps({"traceEvents": crossing}))
    assert perfetto.complaints() != {}
