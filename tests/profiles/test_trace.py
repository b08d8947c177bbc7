"""The merged trace: Chrome's event format, with a track for each token."""

import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from genai_server.profiles.profile_files import read_profile
from genai_server.profiles.trace import write_trace
from tests.profiles.files import DOWN, event, kernel, run_events, write, write_session


def trace_of(folder: Path) -> dict[str, Any]:
    out = io.BytesIO()
    count = write_trace(read_profile(folder), out)
    trace: dict[str, Any] = json.loads(out.getvalue())
    assert len(trace["traceEvents"]) == count
    return trace


def tracks(trace: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The events with a duration, by the names of their process and thread; fails if two of a track cross."""
    names: dict[tuple[str, int, int], str] = {}
    found = defaultdict(list)
    for each in trace["traceEvents"]:
        if each["ph"] == "M":
            tid = 0 if each["name"] == "process_name" else each["tid"]
            names[each["name"], each["pid"], tid] = each["args"].get("name")
        else:
            assert each["ph"] == "X"
            assert each["ts"] >= 0
            assert each["dur"] >= 0
            pid, tid = each["pid"], each["tid"]
            found[names["process_name", pid, 0], names["thread_name", pid, tid]].append(each)
    for events in found.values():
        assert_nested(events)
    return dict(found)


def assert_nested(events: list[dict[str, Any]]) -> None:
    open_ones: list[int] = []
    for each in events:
        while open_ones and open_ones[-1] <= each["ts"]:
            open_ones.pop()
        assert not open_ones or each["ts"] + each["dur"] <= open_ones[-1]
        open_ones.append(each["ts"] + each["dur"])


def test_each_token_is_on_a_track_of_its_own_in_its_request(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=3)
    found = tracks(trace_of(tmp_path))
    assert list(found) == [("request req-1", name) for name in ("prompt", "token 1", "token 2", "token 3")]
    token = found["request req-1", "token 2"]
    assert (token[0]["name"], token[0]["ts"], token[0]["dur"]) == ("token 2", 2_000_000, 700)
    (down,) = [each for each in token if each["name"] == f"{DOWN}_kernel_time"]
    assert (down["ts"], down["dur"]) == (2_000_350, 300)


def test_a_trace_keeps_kernel_details_and_describes_the_session(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=1)
    prompt = tracks(trace_of(tmp_path))["request req-1", "prompt"]
    args = next(each for each in prompt if "Gather" in each["name"])["args"]
    assert args["input_type_shape"] == [{"float": [8, 4]}, {"int64": [1, 12]}]
    assert prompt[0]["args"]["tokens read"] == 12
    trace = trace_of(tmp_path)
    assert trace["otherData"]["model"] == "demo"
    assert trace["displayTimeUnit"] == "ms"


def test_each_pass_without_a_manifest_has_a_track(tmp_path: Path) -> None:
    write(tmp_path / "all.json", [*run_events(4), *run_events(start=5000)])
    assert list(tracks(trace_of(tmp_path))) == [("profile", "pass 0"), ("profile", "pass 1")]


def test_kernels_of_other_threads_have_tracks_next_to_the_pass(tmp_path: Path) -> None:
    events = [kernel("/a", "Mul", 0, 60), kernel("/b", "Mul", 40, 40, thread=2), event("model_run", 0, 100)]
    write(tmp_path / "a.json", events)
    found = tracks(trace_of(tmp_path))
    assert [name for _, name in found] == ["pass 0", "pass 0, thread 2"]


def test_events_that_seem_to_outlast_what_they_are_in_do_not(tmp_path: Path) -> None:
    events = [
        kernel("/a", "Mul", 10, 80),
        event("SequentialExecutor::Execute", 5, 84),
        event("model_run", 0, 88),
        event("unknown", 50, 1000),
    ]
    write(tmp_path / "a.json", events)
    (found,) = tracks(trace_of(tmp_path)).values()
    assert len(found) == 4
