"""When heartbeats indicate that an engine hangs; the tests of the supervisor show that it is killed."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest
from msgspec import structs

from genai_server.config.sources import engine_spec
from genai_server.messages.launch import Beat, EngineLaunch, EngineReport, RetainedOptions
from genai_server.messages.server_status import EngineState, EngineStatus
from genai_server.supervisor import engine_process
from genai_server.supervisor.engine_process import (
    CHECK_INTERVAL,
    FIRST_PAUSE,
    MAX_PAUSE,
    RECOVERED_AFTER,
    SECONDS_PER_TOKEN,
    EngineWatch,
    Restarts,
    Watchdog,
)
from tests.given_settings import given

LOOKS = round(100 / CHECK_INTERVAL)


def test_an_engine_that_beats_never_hangs_and_a_timeout_of_0_waits_forever() -> None:
    watchdog = Watchdog(step_timeout=1)
    assert [watchdog.check(Beat(number, 0)) for number in range(1, LOOKS + 1)] == [None] * LOOKS
    watchdog = Watchdog(step_timeout=0)
    assert {watchdog.check(Beat(7, 0)) for _ in range(LOOKS)} == {None}


@pytest.mark.parametrize(
    ("tokens", "said"),
    [(0, "the engine's loop has not ended for 3 s"), (200, "a step of 200 tokens has not ended for 23 s")],
)
def test_the_same_beat_for_longer_than_the_timeout_and_its_tokens_take_is_a_hang(tokens: int, said: str) -> None:
    watchdog = Watchdog(step_timeout=3)
    allowed = round((3 + tokens * SECONDS_PER_TOKEN) / CHECK_INTERVAL)
    found = [watchdog.check(Beat(7, tokens)) for _ in range(allowed + 2)]
    assert found[: allowed + 1] == [None] * (allowed + 1)
    assert found[allowed + 1] == f"{said} (GENAI_STEP_TIMEOUT=3)"


# Leaves this number of files to the supervisor; its engine needs six to start.
BEGIN = """
import os, resource, signal, sys, time
from genai_server.config.sources import load_settings
from genai_server.supervisor.supervisor import Supervisor

def until(condition):
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, supervisor.statuses()
        time.sleep(0.01)

def status():
    (found,) = supervisor.statuses()
    return found

def take_files(left):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    while True:
        try:
            held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    for _ in range(left):
        os.close(held.pop())
    return held

settings = load_settings({"device": "scripted", "max_restarts": "1"}, environ={}, dotenv=None)
supervisor = Supervisor(settings)
"""
CONTINUE = """
print(status().state, status().error)
for file in held:
    os.close(file)
until(lambda: status().state == "ready")
print(status().state, status().restarts, status().error)
supervisor.stop()
"""
KILL = """
supervisor.start()
until(lambda: status().state == "ready")
held = take_files(0)
os.kill(status().pid, signal.SIGKILL)
until(lambda: status().error is not None and "Too many open files" in status().error)
"""
STOP = """
supervisor.stop()
print("stopped")
"""
FIRST_START = """
held = take_files(8)
supervisor.start()
until(lambda: status().error is not None)
"""
WAITS = "the engine process waits for free file descriptors: [Errno 24] Too many open files"


def output(program: str) -> list[str]:
    finished = subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=200)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("program", "waiting", "restarts"),
    [
        pytest.param(FIRST_START + CONTINUE, "starting", 0, id="first", marks=pytest.mark.slow),
        pytest.param(KILL + CONTINUE, "restarting", 1, id="next"),
    ],
)
def test_start_is_retried_while_files_are_exhausted(program: str, waiting: str, restarts: int) -> None:
    assert output(program) == [f"{waiting} {WAITS}", f"ready {restarts} None"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_start_that_waits_for_files_does_not_hold_up_the_stop() -> None:
    assert output(KILL + STOP) == ["stopped"]


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


class LoadedByHand:
    """An engine process that loads and dies when the test says so."""

    pid = 1

    def __init__(self, launch: EngineLaunch, started: SimpleQueue["LoadedByHand"]) -> None:
        self.first_size, self.sizes = launch.spec.kv_bytes, SimpleQueue[int]()
        self.beat, self.kept = Beat(kv_bytes=7), launch.kept
        self.may_load, self.may_die = threading.Event(), threading.Event()
        self.resize = self.sizes.put
        self.leave = self.end = self.may_die.set
        self.close = lambda: None
        started.put(self)

    def report(self, load_timeout: float) -> EngineReport:
        self.may_load.wait(90)
        return EngineReport("address", min_kv_bytes=1, max_kv_bytes=9)

    def wait(self, step_timeout: float, on_hang: object) -> str:
        self.may_die.wait(90)
        return "it died"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EngineWatch, SimpleQueue[LoadedByHand]]]:
    """A watch that has started an engine process, and a queue of such processes."""
    started = SimpleQueue[LoadedByHand]()
    monkeypatch.setattr(engine_process, "EngineProcess", lambda launch: LoadedByHand(launch, started))
    launch = EngineLaunch(structs.replace(engine_spec(given(), "cpu", ""), kv_bytes=8))
    status = EngineStatus("cpu", EngineState.STARTING)
    watch = EngineWatch(launch, status, Restarts(9), lambda: None, step_timeout=0, load_timeout=0)
    watch.start()
    yield watch, started
    watch.leave()
    watch.end()


def test_a_size_that_is_set_during_a_load_reaches_the_engine(
    watched: tuple[EngineWatch, SimpleQueue[LoadedByHand]],
) -> None:
    watch, started = watched
    for before, loading, later in ((8, 5, 3), (3, 4, 6)):  # the second is a restart
        process = started.get(timeout=90)
        watch.resize(loading)
        assert (process.first_size, process.sizes.empty(), watch.kv_bytes) == (before, True, 0)
        process.may_load.set()
        assert process.sizes.get(timeout=90) == loading
        assert watch.kv_bytes == 7
        watch.resize(later)
        assert process.sizes.get(timeout=90) == later
        process.may_die.set()


def test_the_next_engine_gets_what_an_operator_has_set(watched: tuple[EngineWatch, SimpleQueue[LoadedByHand]]) -> None:
    _, started = watched
    process = started.get(timeout=90)
    assert process.kept == RetainedOptions()
    process.may_load.set()
    process.kept = RetainedOptions(terminated=True, profile="slow")
    process.may_die.set()
    restarted = started.get(timeout=90)
    assert restarted.kept == RetainedOptions(terminated=True, profile="slow")
    restarted.may_load.set()
