"""Findings are reported for what stands out, and only for that."""

import pytest
from msgspec.structs import replace

from genai_server.profiles.findings import find
from genai_server.profiles.manifest import Session
from genai_server.profiles.report import NodeExcess, PhaseTime, SlowToken


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
