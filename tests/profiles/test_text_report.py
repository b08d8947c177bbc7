"""The report as text."""

from pathlib import Path

from msgspec import structs

from genai_server.messages.admin import Profiled
from genai_server.profiles.manifest import End, encode_line
from genai_server.profiles.profile_files import read_profile
from genai_server.profiles.report import analyse
from genai_server.profiles.report_formats import as_text, for_terminal, short_names
from tests.profiles.files import BEGAN, DOWN, event, kernel, run_events, write, write_session


def test_report_has_session_operators_and_the_slow_token(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=20, slow={13: 4300})
    text = as_text(analyse(read_profile(tmp_path)))
    assert text.startswith("mine_1700000000\nmodel demo on cpu, 2 threads of an operator on 2 cores\nonnxruntime 1\n")
    assert "21 passes of 1 request, 18.70 ms, 89 % kernels" in text
    assert "1 of 20 decode tokens took more than 1.5 times the median of 0.70 ms." in text
    line = next(line for line in text.splitlines() if line.startswith("token 13 of req-1"))
    assert line.split() == ["token", "13", "of", "req-1", "4.70", "6.7", DOWN, "(MatMulNBits)", "4.30", "+4.00"]


def test_report_has_the_cost_of_profiling(tmp_path: Path) -> None:
    manifest = write_session(tmp_path, end=False)
    with manifest.open("ab") as file:
        file.write(encode_line(End(BEGAN + 9, None, Profiled(8, 0, step_ms=7.371, other_step_ms=0.754))))
    line = "a profiled decode step took 7.37 ms (median, with all costs of profiling), an unprofiled one 0.75 ms"
    assert line in as_text(analyse(read_profile(tmp_path))).splitlines()


def test_tables_have_as_many_lines_as_asked_for_and_slow_tokens_only_if_there_are_some(tmp_path: Path) -> None:
    write_session(tmp_path)
    report = analyse(read_profile(tmp_path))
    assert "Gather" not in as_text(report, 2)
    assert "Gather" in as_text(report, 3)
    assert as_text(analyse(read_profile(tmp_path))).endswith(
        "No decode token took more than 1.5 times the median of 0.70 ms."
    )


def test_unread_files_and_threads_are_reported(tmp_path: Path) -> None:
    stats = {"main_thread": {"Run": 30, "Wait": 12, "WaitRevoke": 0}, "sub_threads": {"9": {"num_run": 2}}}
    write(tmp_path / "a.json", [kernel("/a", "Mul", 0, 50, stats=stats), event("model_run", 0, 110)])
    write(tmp_path / "b.json", run_events())
    (tmp_path / "c.json").write_text("[", encoding="utf-8")
    text = as_text(analyse(read_profile(tmp_path)))
    assert "not read: c.json: not a profile" in text
    assert ["Mul", "1", "100.0", "%", "0.05", "0.03", "0.01"] in [line.split() for line in text.splitlines()]


def test_terminal_report_starts_with_slow_tokens_and_short_names(tmp_path: Path) -> None:
    write_session(tmp_path, decodes=20, slow={13: 4300})
    report = analyse(read_profile(tmp_path))
    wide, narrow = for_terminal(report, 200), for_terminal(report, 80)
    assert wide[2] == "1 of 20 decode tokens took more than 1.5 times the median of 0.70 ms."
    assert wide[3][1] == ["token 13", "4.70", "6.7", f"{DOWN} (MatMulNBits)", "4.30", "+4.00"]
    assert narrow[3][1][3] == DOWN
    assert wide[4][0][0] == "phase"
    names = ["req-0123456789abcdef01234567", "req-fedcba9876543210fedcba98"]
    passes = [structs.replace(one, request_id=names[index % 2]) for index, one in enumerate(report.passes)]
    slow = [structs.replace(one, request_id=names[0]) for one in report.slow_tokens]
    several = for_terminal(structs.replace(report, passes=passes, slow_tokens=slow), 80)
    assert several[3][1][0] == "token 13 of req-0123456789ab…"


def test_short_names_are_unique() -> None:
    ids = [f"chatcmpl-0000000000000000{last}ffffffff" for last in "ab"]
    assert list(short_names(ids).values()) == ["chatcmpl-0000000000000000a…", "chatcmpl-0000000000000000b…"]
    assert short_names(["a", "b"]) == {"a": "a", "b": "b"}
