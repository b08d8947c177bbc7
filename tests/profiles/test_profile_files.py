"""ONNX Runtime's files: their runs and kernels, and errors for other files."""

from pathlib import Path

import pytest

from genai_server.errors import ProfileNotFound
from genai_server.profiles.profile_files import ThreadUse, events_of_runs, read_profile, read_runs
from tests.profiles.files import DOWN, EMBEDDING, event, kernel, run_events, write, write_session


def test_a_run_has_its_kernels_with_times_from_its_begin(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path / "a.json", run_events(12, start=1000)))
    assert (run.start, run.duration, run.num_tokens) == (1000, 700, 12)
    assert [(kernel.node, kernel.operator, kernel.start, kernel.duration) for kernel in run.kernels] == [
        (EMBEDDING, "Gather", 50, 100),
        ("/model/layers.0/attn/GroupQueryAttention", "GroupQueryAttention", 150, 200),
        (DOWN, "MatMulNBits", 350, 300),
    ]
    assert [kernel.layer for kernel in run.kernels] == [None, 0, 1]
    assert {kernel.provider for kernel in run.kernels} == {"CPUExecutionProvider"}


def test_session_file_has_its_runs_in_order_without_startup(tmp_path: Path) -> None:
    events = [event("session_initialization", 0, 900), *run_events(start=5000), *run_events(4, start=1000)]
    runs = read_runs(write(tmp_path / "a.json", events))
    assert [(run.start, run.num_tokens, len(run.kernels)) for run in runs] == [(1000, 4, 3), (5000, 1, 3)]


def test_own_time_of_a_kernel_excludes_nodes_of_its_subgraph_and_not_other_threads(tmp_path: Path) -> None:
    events = [
        kernel("/if", "If", 10, 80),
        kernel("/if/inner", "Gather", 20, 30),
        kernel("/after", "Mul", 90, 5),
        event("model_run", 0, 100),
    ]
    (run,) = read_runs(write(tmp_path / "a.json", events))
    assert [(kernel.node, kernel.depth, kernel.self_time) for kernel in run.kernels] == [
        ("/if", 0, 50),
        ("/if/inner", 1, 30),
        ("/after", 0, 5),
    ]
    events = [kernel("/a", "Mul", 10, 80), kernel("/b", "Mul", 20, 30, thread=2), event("model_run", 0, 100)]
    (run,) = read_runs(write(tmp_path / "a.json", events))
    assert [(kernel.depth, kernel.self_time) for kernel in run.kernels] == [(0, 80), (0, 30)]


def stats(run: int, wait: int, *num_runs: int) -> dict[str, object]:
    main = {"thread_pool_name": "intra", "Run": run, "Wait": wait, "WaitRevoke": 1, "Distribution": 2}
    return {"main_thread": main, "sub_threads": {str(number): {"num_run": n} for number, n in enumerate(num_runs)}}


def test_work_of_other_threads_is_counted_for_each_kernel(tmp_path: Path) -> None:
    events = [
        kernel("/a", "Mul", 10, 10, stats=stats(5, 3, 2, 1)),
        kernel("/b", "Mul", 20, 10, stats=stats(9, 0, 2, 1)),
        event("model_run", 0, 40),
        kernel("/c", "Mul", 50, 10, stats=stats(4, 4, 3, 3)),
        event("model_run", 45, 40),
    ]
    one, other = read_runs(write(tmp_path / "a.json", events))
    found = [kernel.threads for kernel in (*one.kernels, *other.kernels)]
    assert found == [ThreadUse(5, 4, 3), ThreadUse(9, 1, 0), ThreadUse(4, 5, 3)]


def test_a_run_lasts_as_long_as_its_last_kernel_and_has_the_events_in_it(tmp_path: Path) -> None:
    (found,) = read_runs(write(tmp_path / "a.json", [kernel("/a", "Mul", 10, 91), event("model_run", 0, 100)]))
    assert found.duration == 101
    ((run, events),) = events_of_runs(write(tmp_path / "a.json", [event("before", 0, 5), *run_events(start=10)]))
    assert (run.name, len(events)) == ("model_run", 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a profile"),
        ('[{"name":"model_run","ts":1,"dur', "not a profile"),
        ('{"a": 1}', "not a profile"),
        ("[1]", "not a profile"),
        ("[]", "no run of a model"),
        ('[{"name":"a_kernel_time","cat":"Node","args":{"op_name":1}},{"name":"model_run"}]', "arguments"),
    ],
)
def test_invalid_profile_is_an_error(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=reason):
        read_runs(path)


def test_the_last_session_is_read_unless_another_is_named(tmp_path: Path) -> None:
    write_session(tmp_path / "cpu", began=1.0)
    write_session(tmp_path / "cpu", began=200.0)
    assert read_profile(tmp_path).name == "mine_200"
    profile = read_profile(tmp_path, "mine_1")
    assert (profile.name, profile.folder) == ("mine_1", tmp_path / "cpu")
    assert [one.start for one in profile.passes] == [1_000_000 * token for token in range(9)]
    write_session(tmp_path)
    with pytest.raises(ProfileNotFound, match='no session "other".*mine_1700000000'):
        read_profile(tmp_path, "other")


def test_files_without_a_manifest_are_sorted_by_time_in_name(tmp_path: Path) -> None:
    write(tmp_path / "x_2026-11-21_11-52-36_001.json", run_events(1))
    write(tmp_path / "x_2026-11-21_11-52-35_900.json", run_events(12))
    profile = read_profile(tmp_path)
    assert [(one.phase, one.num_tokens, one.start) for one in profile.passes] == [
        ("prefill", 12, 0),
        ("decode", 1, 101_000),
    ]


def test_files_without_times_follow_one_another(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / f"{name}.json", run_events())
    assert [one.start for one in read_profile(tmp_path).passes] == [0, 700]


def test_a_file_alone_is_a_profile_too(tmp_path: Path) -> None:
    path = write(tmp_path / "session.json", [*run_events(4, start=100), *run_events(start=2000)])
    profile = read_profile(path)
    assert (profile.name, [one.phase for one in profile.passes]) == ("session.json", ["prefill", "decode"])


def test_unreadable_file_is_reported_and_the_others_count(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=3)
    (tmp_path / "mine_1700000000_1.json").write_text("[", encoding="utf-8")
    (tmp_path / "mine_1700000000_2.json").unlink()
    profile = read_profile(tmp_path)
    assert len(profile.passes) == 2
    assert set(profile.unread) == {"mine_1700000000_1.json", "mine_1700000000_2.json"}


def test_folder_without_profiles_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ProfileNotFound, match="no profile of a forward pass"):
        read_profile(tmp_path)
    (tmp_path / "mine.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ProfileNotFound, match="mine.json: not a profile"):
        read_profile(tmp_path)
    with pytest.raises(ProfileNotFound, match="there is no folder .*nowhere; it is made when"):
        read_profile(tmp_path / "nowhere")
