"""Which heartbeats an engine sends."""

from genai_server.engine.supervisor_link import Heartbeat
from genai_server.messages.launch import BEAT_SECONDS, Beat


class Beats:
    """The heartbeats that were sent, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[Beat] = []
        self.heartbeat = Heartbeat(self.sent.append, lambda: self.now)
        self.beat = self.heartbeat.beat


def test_a_pass_that_differs_from_the_last_one_is_announced() -> None:
    beats = Beats()
    for tokens in (0, 256, 256, 1, 1, 0):
        beats.beat(tokens, 2, 9)
    assert beats.sent == [Beat(1, 0, 2, 9), Beat(2, 256, 2, 9), Beat(3, 1, 2, 9), Beat(4, 0, 2, 9)]


def test_equal_passes_are_announced_again_after_a_while() -> None:
    beats = Beats()
    beats.beat(4, 2, 9)
    beats.now = 0.9 * BEAT_SECONDS
    beats.beat(4, 3, 10)
    beats.now = BEAT_SECONDS
    beats.beat(4, 3, 11)
    assert beats.sent == [Beat(1, 4, 2, 9), Beat(2, 4, 3, 11)]


def test_the_first_and_the_last_request_are_announced_at_once() -> None:
    beats = Beats()
    for requests in (0, 0, 1, 2, 1, 0):
        beats.beat(0, requests, 9)
    assert [beat.requests for beat in beats.sent] == [0, 1, 0]


def test_beats_have_the_bytes_of_keys_and_values() -> None:
    beats = Beats()
    beats.heartbeat.kv_bytes = 2**40
    beats.beat(7, 2, 9)
    assert beats.sent == [Beat(1, 7, 2, 9, 2**40)]
