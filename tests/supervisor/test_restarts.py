"""When a dead engine is restarted."""

from genai_server.supervisor.restarts import FIRST_PAUSE, MAX_PAUSE, RECOVERED_AFTER, Restarts


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    restarts = Restarts(max_restarts=20)
    pauses = [restarts.pause() for _ in range(20)]
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[-1] == MAX_PAUSE


def test_restarts_end_after_the_maximum_in_a_row() -> None:
    restarts = Restarts(max_restarts=2)
    assert [restarts.pause() is None for _ in range(4)] == [False, False, True, True]
    assert restarts.in_a_row == 2


def test_an_engine_that_has_served_for_a_minute_begins_a_new_row() -> None:
    restarts = Restarts(max_restarts=2)
    restarts.pause()
    restarts.served(RECOVERED_AFTER)
    assert restarts.in_a_row == 1
    restarts.served(RECOVERED_AFTER + 1)
    assert restarts.pause() == FIRST_PAUSE
