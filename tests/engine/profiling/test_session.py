"""The passes that a profile session covers, slow tokens, and the end of a session, without engine and clock."""

import pytest

from genai_server.engine.profiling.session import ProfileSession
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.messages.profile_plan import Profiled, ProfilePlan, SlowTokens


def begin(now: float = 0.0, **fields: object) -> ProfileSession:
    return ProfileSession("slow_1", ProfilePlan("slow", **fields), now)  # type: ignore[arg-type]


def wanted(session: ProfileSession, tokens: range, sequence: int = 1, name: str = "r1") -> list[int]:
    return [token for token in tokens if session.selects(sequence, name, token)]


@pytest.mark.parametrize(
    ("window", "tokens"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"last_token": 0}, [0]),
        ({"first_token": 1}, [1, 2, 3, 4, 5]),
        ({"first_token": 2, "last_token": 4}, [2, 3, 4]),
        ({"first_token": 5, "last_token": 5}, [5]),
    ],
)
def test_only_tokens_of_the_window_are_profiled(window: dict[str, int], tokens: list[int]) -> None:
    assert wanted(begin(**window), range(6)) == tokens


def test_first_token_is_awaited_as_far_as_drafts_reach() -> None:
    session = begin(first_token=100, last_token=102, request_id="r1")
    assert [token for token in range(104) if session.awaits("r1", token)] == list(range(100 - MAX_DRAFTED, 100))
    assert not session.awaits("r2", 99)
    assert not begin().awaits("r1", 0)


def test_session_of_a_named_request_covers_only_its_tokens() -> None:
    session = begin(request_id="r2")
    assert wanted(session, range(3), name="r1") == []
    assert wanted(session, range(3), name="r2") == [0, 1, 2]


def decode(session: ProfileSession, *milliseconds: float, now: float = 0.0, token: int = 1, sequence: int = 1) -> None:
    for each in milliseconds:
        session.decoded({sequence: token}, each / 1000, now, profiled=False)


def test_trigger_profiles_n_tokens_after_a_slow_one() -> None:
    session = begin(slow=SlowTokens(over_ms=50, num_tokens=3))
    decode(session, 10, 50)
    assert wanted(session, range(20)) == []
    decode(session, 51, token=7)
    assert wanted(session, range(7, 20)) == [7, 8, 9]
    assert wanted(session, range(20), sequence=2) == []


def test_slow_token_ratio_needs_enough_other_tokens() -> None:
    session = begin(slow=SlowTokens(ratio=3.0, num_tokens=1))
    decode(session, 100, *[10] * 14, 90)
    assert session.num_triggers == 0
    decode(session, 30)
    assert session.num_triggers == 0
    decode(session, 31)
    assert session.num_triggers == 1


def test_the_median_follows_when_all_tokens_become_slower() -> None:
    session = begin(slow=SlowTokens(ratio=3.0, num_tokens=1, max_per_hour=1000))
    decode(session, *[10] * 256)
    decode(session, *[40] * 256)
    before = session.num_triggers
    decode(session, *[40] * 100)
    assert session.num_triggers == before
    decode(session, 121)
    assert session.num_triggers == before + 1


def test_trigger_has_an_hourly_limit() -> None:
    session = begin(slow=SlowTokens(over_ms=50, max_per_hour=2))
    for now in (0.0, 600.0, 1200.0, 3599.9):
        decode(session, 60, now=now)
    assert session.num_triggers == 2
    decode(session, 60, now=3600.0)  # the first one was an hour ago
    decode(session, 60, now=4199.0)
    assert session.num_triggers == 3
    decode(session, 60, now=4200.0)
    assert session.num_triggers == 4


def test_a_profiled_step_triggers_nothing_and_counts_apart() -> None:
    session = begin(slow=SlowTokens(over_ms=50))
    decode(session, 10, 12, 14)
    session.decoded({1: 5}, 0.08, 0.0, profiled=True)
    assert session.profiled == Profiled(0, 0, step_ms=80.0, other_step_ms=12.0)


def test_trigger_covers_the_next_tokens_of_each_slow_answer() -> None:
    session = begin(slow=SlowTokens(over_ms=50, num_tokens=2))
    session.decoded({1: 4, 2: 30}, 0.06, 0.0, profiled=False)
    assert wanted(session, range(40), sequence=1) == [0, 1, 2, 3, 4, 5]
    assert wanted(session, range(30, 40), sequence=2) == [30, 31]


def test_slow_token_is_forgotten_with_its_answer() -> None:
    session = begin(slow=SlowTokens(over_ms=50))
    decode(session, 60, token=4)
    session.keep({2})
    assert wanted(session, range(20)) == []


def test_session_ends_after_its_tokens_or_seconds_with_a_reason() -> None:
    session = begin(now=100.0, max_tokens=2, max_seconds=7.0)
    assert session.over(106.9) is None
    assert session.over(107.0) == "7 seconds have passed (max_seconds)"
    session.num_tokens = 2
    assert session.over(101.0) == "2 tokens are profiled (max_tokens)"
