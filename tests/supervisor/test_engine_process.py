"""When heartbeats indicate that an engine hangs; the tests of the supervisor show that it is killed."""

from genai_server.messages.launch import Beat
from genai_server.supervisor.engine_process import CHECK_INTERVAL, SECONDS_PER_TOKEN, Watchdog

LOOKS = round(100 / CHECK_INTERVAL)


def test_an_engine_that_beats_never_hangs() -> None:
    watchdog = Watchdog(step_timeout=1)
    assert [watchdog.check(Beat(number, 0)) for number in range(1, LOOKS + 1)] == [None] * LOOKS


def test_the_same_beat_for_longer_than_the_timeout_is_a_hang() -> None:
    watchdog = Watchdog(step_timeout=3)
    found = [watchdog.check(Beat(7, 0)) for _ in range(5)]
    assert found[:3] == [None] * 3
    assert found[4] == "the engine's loop has not ended for 3 s (GENAI_STEP_TIMEOUT=3)"


def test_a_pass_has_more_time_for_each_of_its_tokens() -> None:
    watchdog = Watchdog(step_timeout=3)
    allowed = round((3 + 200 * SECONDS_PER_TOKEN) / CHECK_INTERVAL)
    found = [watchdog.check(Beat(7, 200)) for _ in range(allowed + 2)]
    assert found[: allowed + 1] == [None] * (allowed + 1)
    assert found[allowed + 1] == "a step of 200 tokens has not ended for 23 s (GENAI_STEP_TIMEOUT=3)"


def test_timeout_of_0_waits_forever() -> None:
    watchdog = Watchdog(step_timeout=0)
    assert {watchdog.check(Beat(7, 0)) for _ in range(LOOKS)} == {None}
