"""The analysis: shares of the time, slow tokens and their causes, and findings for what stands out."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from genai_server.profiles.manifest import Session
from genai_server.profiles.profile_files import read_profile
from genai_server.profiles.report import OTHER, NodeExcess, PhaseTime, Report, SlowToken, analyse, find
from tests.profiles.files import DOWN, EMBEDDING, event, kernel, run_events, write, write_session


def report_on(folder: Path, **session: object) -> Report:
    write_session(folder, **session)  # type: ignore[arg-type]
    return analyse(read_profile(folder))


def test_time_is_shared_out_by_operator_node_layer_and_phase(tmp_path: Path) -> None:
    report = report_on(tmp_path, decodes=8)
    assert [(share.name, share.calls, share.total_us, share.by_phase) for share in report.operators] == [
        ("MatMulNBits", 9, 2700, {"prefill": 300, "decode": 2400}),
        ("GroupQueryAttention", 9, 1800, {"prefill": 200, "decode": 1600}),
        ("Gather", 9, 900, {"prefill": 100, "decode": 800}),
    ]
    assert [share.name for share in report.layers] == ["layer 1", "layer 0", "outside the layers"]
    assert [share.name for share in report.nodes_by_time][::2] == [DOWN, EMBEDDING]
    prefill, decode = report.phases
    assert (prefill.passes, prefill.tokens, prefill.total_us, prefill.other_us) == (1, 12, 700, 100)
    assert (decode.passes, decode.tokens, decode.total_us, decode.other_us) == (8, 8, 5600, 800)
    assert decode.median_us == report.median_decode_us == 700
    assert decode.cores == pytest.approx(1.5)
    report = report_on(tmp_path)
    for shares in (report.operators, report.layers, report.nodes_by_time):
        assert sum(share.total_us for share in shares) + report.other_us == report.total_us


def test_a_slow_token_is_found_with_the_node_that_made_it_slow(tmp_path: Path) -> None:
    report = report_on(tmp_path, decodes=20, slow={13: 4300})
    (slow,) = report.slow_tokens
    assert (slow.token, slow.request_id, slow.duration_us) == (13, "req-1", 4700)
    assert slow.ratio == pytest.approx(4700 / 700)
    (reason,) = slow.because
    assert (reason.name, reason.operator, reason.excess_us) == (DOWN, "MatMulNBits", 4000)
    assert report.passes[slow.index].token == 13


def test_time_outside_the_kernels_can_be_the_reason(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.json", run_events(other=5000 if number == 3 else 100))
    (slow,) = analyse(read_profile(tmp_path)).slow_tokens
    assert (slow.file, slow.token) == ("3.json", None)
    assert [(reason.name, reason.excess_us) for reason in slow.because] == [(OTHER, 4900)]


def test_slow_tokens_are_those_of_decoding_beyond_the_limit_slowest_first(tmp_path: Path) -> None:
    report = report_on(tmp_path, decodes=12, slow={0: 90_000, 2: 1300, 9: 2300})
    assert [token.token for token in report.slow_tokens] == [9, 2]
    write_session(tmp_path, slow={2: 600})
    profile = read_profile(tmp_path)
    assert [len(analyse(profile, limit).slow_tokens) for limit in (1.2, 1.5)] == [1, 0]
    report = report_on(tmp_path, decodes=0)
    assert (report.median_decode_us, report.slow_tokens) == (None, [])


def test_kernels_that_overlap_count_once_for_what_is_not_kernels(tmp_path: Path) -> None:
    events = [kernel("/a", "Mul", 0, 60), kernel("/b", "Mul", 40, 40, thread=2), event("model_run", 0, 100)]
    write(tmp_path / "a.json", events)
    (phase,) = analyse(read_profile(tmp_path)).phases
    assert (phase.phase, phase.other_us, phase.tokens, phase.cores) == ("unknown", 20, None, None)


def test_thread_use_is_reported_where_onnx_runtime_does(tmp_path: Path) -> None:
    main = {"Run": 30, "Wait": 12, "WaitRevoke": 0}
    shared = {"main_thread": main, "sub_threads": {"9": {"num_run": 2}}}
    events = [
        kernel("/a", "MatMulNBits", 0, 50, stats=shared),
        kernel("/b", "MatMulNBits", 50, 50, stats=shared),
        kernel("/c", "Mul", 100, 5),
        event("model_run", 0, 110),
    ]
    write(tmp_path / "a.json", events)
    (share,) = analyse(read_profile(tmp_path)).threads
    assert (share.name, share.calls, share.shared_calls, share.run_us, share.wait_us) == ("MatMulNBits", 2, 1, 60, 24)


def session(threads: int = 2, cores: int = 2, device: str = "cpu") -> Session:
    return Session("a", "a", 0.0, device=device, threads=threads, cores=cores)


def phase(name: str = "decode", total: int = 1000, other: int = 100, cores: float | None = 1.9) -> PhaseTime:
    return PhaseTime(name, 1, 400, total, total, other, cores)


SLOW = SlowToken(3, "req-1", 50, "a.json", 900, 4.2, [NodeExcess("/lm_head/MatMul", "MatMulNBits", 700, 600)])


@pytest.mark.parametrize(
    ("about", "phases", "slow", "found"),
    [
        (
            session(1),
            [phase(cores=1.0)],
            [],
            "operators run on 1 of 2 cores: GENAI_THREADS, or intra_op_num_threads, is 1",
        ),
        (
            session(),
            [phase(cores=1.1), phase("prefill", 500, 0, 1.5)],
            [],
            "only 1.23 cores were at work where 2 could be",
        ),
        (session(), [phase(other=400)], [], "40 % of the time is in no kernel"),
        (session(), [phase(), phase("prefill", 3000)], [], "75 % of the time is the prompt (400 tokens)"),
        (session(), [phase()], [SLOW], "token 50 of req-1, took 4.2 times the median, most in /lm_head/MatMul"),
    ],
)
def test_finding_is_reported_with_its_figures(
    about: Session, phases: list[PhaseTime], slow: list[SlowToken], found: str
) -> None:
    (finding,) = find(about, phases, slow)
    assert found in finding


def test_threads_without_spinning_support_no_finding() -> None:
    assert find(replace(session(), spins=False), [phase(cores=0.9)], []) == []
    assert len(find(session(), [phase(cores=0.9)], [])) == 1


@pytest.mark.parametrize("about", [session(), session(1, device="cuda"), None])
def test_normal_figures_give_no_finding(about: Session | None) -> None:
    cores = None if about is None else 0.5 if about.device == "cuda" else 1.9
    assert find(about, [phase(cores=cores), phase("prefill", 400, cores=cores)], []) == []
