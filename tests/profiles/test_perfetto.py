"""The merged trace in the real Perfetto, which imports all of it without errors."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genai_server.profiles.profile_files import read_profile
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


def _session(folder: Path) -> str:
    """A session in which each token is a track of its request."""
    write_session(folder, decodes=3)
    return _trace_of(folder)


def _several_threads(folder: Path) -> str:
    """Passes without a request, with times truncated to microseconds, and work of another thread."""
    events = [
        kernel("/a", "Mul", 10, 80),
        kernel("/b", "Mul", 40, 40, thread=2),
        event("SequentialExecutor::Execute", 5, 84),
        event("model_run", 0, 88),
    ]
    write(folder / "a.json", [*events, *run_events(start=5000)])
    return _trace_of(folder)


def _real(server: RunningServer) -> str:
    """A profile of the demo model."""
    begun = server.client.post("/v1/admin/profiles", json={"prefix": "perfetto", "first_tokens": 6}).json()
    assert server.chat("Count from 1 to 12.").status_code == 200
    server.client.delete(f"/v1/admin/profiles/{begun['id']}").raise_for_status()
    trace: str = server.client.get(f"/v1/admin/profiles/{begun['id']}/trace").text
    return trace


def _joined(*traces: str) -> dict[str, Any]:
    """One trace of all, because opening one takes seconds. Each has separate processes."""
    events = []
    for place, trace in enumerate(traces):
        for each in json.loads(trace)["traceEvents"]:
            events.append(each | {"pid": each["pid"] + 1000 * place})
    return {"traceEvents": events}


def test_perfetto_loads_tokens_threads_and_a_real_profile(
    perfetto: Perfetto, demo: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "session").mkdir()
    trace = _joined(_session(tmp_path / "session"), _several_threads(tmp_path / "threads"), _real(demo))
    perfetto.open(json.dumps(trace))
    assert perfetto.complaints() == {}
    found = perfetto.slices()
    lasting = [each for each in trace["traceEvents"] if each["ph"] == "X"]
    assert Counter(name for _, _, name, *_ in found) == Counter(each["name"] for each in lasting)
    threads = {process: Counter(thread for of, thread, *_ in found if of == process) for process, *_ in found}
    session, passes = threads.pop("request req-1"), threads.pop("profile")
    (real,) = threads.values()
    assert set(session) == {"prompt", "token 1", "token 2", "token 3"}
    assert passes == {"pass 0": 3, "pass 0, thread 2": 1, "pass 1": 5}
    assert set(real) == {"prompt", *(f"token {index}" for index in range(1, 6))}
    second = {
        name: (begin, duration, depth)
        for process, thread, name, begin, duration, depth in found
        if (process, thread) == ("request req-1", "token 2")
    }
    begin, duration, depth = second["token 2"]
    assert (duration, depth) == (700_000, 0)
    assert second[f"{DOWN}_kernel_time"] == (begin + 350_000, 300_000, 2)


def test_events_that_cross_are_what_it_complains_of(perfetto: Perfetto) -> None:
    crossing = [{"name": str(ts), "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 80} for ts in (0, 40)]
    perfetto.open(json.dumps({"traceEvents": crossing}))
    assert perfetto.complaints() != {}
