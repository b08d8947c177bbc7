"""The profile sessions of a device: which sequences run alone, and how sessions end."""

from pathlib import Path

import pytest

from genai_server.engine.profiling.sessions import MAX_OPEN, ProfileSession
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField, ProfileNotFound, RequestNotFound, Unavailable
from genai_server.messages.admin import Profiled, ProfilePlan, SlowTokens
from genai_server.profiles.manifest import Manifest, find_manifests
from tests.engine.profiling.test_runtime_options import BatchedDevice, Device, full_device
from tests.hand_clock import HandClock


@pytest.fixture
def device(tmp_path: Path, clock: HandClock) -> BatchedDevice:
    return BatchedDevice(tmp_path, clock=clock)


def start(device: Device, prefix: str = "slow", **fields: object) -> str:
    plan = ProfilePlan(prefix, **fields)  # type: ignore[arg-type]
    return device.state.start_session(plan, device.sequences).id


def manifest(device: Device) -> Manifest:
    (found,) = find_manifests(device.folder.directory.parent)
    return found


def profiled(device: Device) -> list[tuple[str, int]]:
    """The tokens with files, in order."""
    return [(record.request_id, record.token) for record in manifest(device).passes]


def reason(device: Device) -> str | None:
    end = manifest(device).end
    assert end is not None
    return end.reason


def state(device: Device) -> str:
    device.state.choose(device.sequences)
    (found,) = device.state.sessions.describe(device.sequences)
    return found.state


def places(device: BatchedDevice, sequence: Sequence, steps: int) -> dict[int, bool]:
    """Whether the passes of the next tokens shared none with others."""
    found = {}
    for _ in range(steps):
        token = sequence.num_produced
        device.step(sequence)
        if sequence.num_produced > token:
            found[token] = not sequence.shares_passes
    return found


def test_session_writes_its_plan_before_any_pass(device: BatchedDevice) -> None:
    id = start(device, last_token=3)
    found = manifest(device)
    assert (found.session.id, found.session.plan, found.passes) == (id, ProfilePlan("slow", last_token=3), [])


def test_sequence_runs_alone_only_for_profiled_tokens(device: BatchedDevice) -> None:
    sequence = device.sequences[0]
    start(device, first_token=3, last_token=4)
    assert state(device) == "waiting"
    alone = places(device, sequence, 7)
    assert alone == {0: False, 1: False, 2: False, 3: True, 4: True, 5: False, 6: False}
    assert profiled(device) == [("r0", 3), ("r0", 4)]
    assert sequence.profile.num_tokens == 2
    assert state(device) == "waiting"


def test_the_others_share_passes(device: BatchedDevice) -> None:
    start(device)
    device.run(*device.sequences * 3)
    assert device.alone() == [0]
    assert state(device) == "recording"
    assert {request for request, _ in profiled(device)} == {"r0"}


def test_a_session_for_one_request_is_over_when_the_request_is(device: BatchedDevice) -> None:
    with pytest.raises(RequestNotFound, match='"missing"'):
        start(device, request_id="missing")
    start(device, request_id="r1")
    device.run(*device.sequences)
    device.runners.close(device.sequences.pop(1))
    device.state.choose(device.sequences)
    assert profiled(device) == [("r1", 0)]
    assert reason(device) == 'request "r1" has ended'


def test_session_of_a_queued_request_keeps_waiting(device: BatchedDevice) -> None:
    start(device, request_id="r1")
    waiting = device.sequences.pop(1)
    device.state.choose(device.sequences, [waiting])
    assert [each.state for each in device.state.sessions.describe(device.sequences)] == ["waiting"]


def test_session_that_ends_in_a_pause_profiles_nothing_later(device: BatchedDevice) -> None:
    id = start(device)
    device.run(device.sequences[0])
    preempted = device.sequences.pop(0)
    device.runners.close(preempted)
    preempted.preempt()
    device.state.sessions.end(id)
    device.state.choose(device.sequences, [preempted])
    device.runners.open(preempted)
    device.sequences.insert(0, preempted)
    device.run(preempted, preempted)
    assert profiled(device) == [("r0", 0)]
    assert device.alone() == []


def test_session_ends_after_its_tokens_with_its_cost(device: BatchedDevice) -> None:
    sequence = device.sequences[0]
    start(device, first_token=2, max_tokens=2)
    for seconds in (0.02, 0.01, 0.04, 0.04, 0.01):  # the first reads the prompt
        device.step(sequence, seconds=seconds)
    assert device.alone() == []
    end = manifest(device).end
    assert end is not None
    assert end.reason == "2 tokens are profiled (max_tokens)"
    assert end.profiled is not None
    assert (end.profiled.tokens, end.profiled.step_ms, end.profiled.other_step_ms) == (2, 40.0, 10.0)


def test_session_ends_after_its_seconds_without_a_request(device: BatchedDevice, clock: HandClock) -> None:
    start(device, first_token=50, max_seconds=10.0)
    clock.wait(10.0)
    device.state.choose(device.sequences)
    assert reason(device) == "10 seconds have passed (max_seconds)"


def test_slow_token_triggers_passes_within_the_hourly_limit(device: BatchedDevice, clock: HandClock) -> None:
    sequence = device.sequences[0]
    start(device, slow=SlowTokens(over_ms=50, num_tokens=2, max_per_hour=1), max_seconds=7200.0)
    for seconds in (0.1, 0.01, 0.06, 0.01, 0.01, 0.01, 0.06, 0.01, 0.01):  # the first reads the prompt
        device.step(sequence, seconds=seconds)
    assert profiled(device) == [("r0", 3), ("r0", 4)]
    clock.wait(3600.0)
    device.step(sequence, seconds=0.06)
    slow = sequence.num_produced
    device.run(sequence, sequence)
    assert profiled(device)[2:] == [("r0", slow), ("r0", slow + 1)]


def profiled_under(device: Device, prefix: str) -> list[int]:
    found = find_manifests(device.folder.directory.parent)
    return [record.token for each in found if each.session.prefix == prefix for record in each.passes]


def test_switch_precedes_sessions_which_continue_afterwards(device: BatchedDevice) -> None:
    sequence = device.sequences[0]
    start(device)
    device.run(sequence)
    device.profile("mine")
    device.run(sequence)
    device.profile("0")
    device.run(sequence)
    assert (profiled_under(device, "slow"), profiled_under(device, "mine")) == ([0, 2], [1])
    assert len(find_manifests(device.folder.directory.parent)) == 2


def test_two_sessions_have_each_its_own_tokens(device: BatchedDevice) -> None:
    start(device, "one", last_token=1)
    start(device, "other", first_token=2, last_token=3)
    places(device, device.sequences[0], 6)
    assert (profiled_under(device, "one"), profiled_under(device, "other")) == ([0, 1], [2, 3])


def test_sequence_of_an_ended_session_shares_passes(device: BatchedDevice) -> None:
    id = start(device)
    device.run(device.sequences[0])
    device.state.sessions.end(id)
    device.run(device.sequences[0])
    assert device.alone() == []
    assert reason(device) is None
    with pytest.raises(ProfileNotFound, match=id):
        device.state.sessions.end(id)


def test_prefix_belongs_to_one_session_of_a_limited_number(device: BatchedDevice) -> None:
    for number in range(MAX_OPEN - 1):
        start(device, f"p{number}")
    with pytest.raises(InvalidField, match='"p0" is in use'):
        start(device, "p0")
    device.profile("mine", device.sequences[1])
    with pytest.raises(InvalidField, match='"mine" is in use'):
        start(device, "mine")
    start(device, "last")
    with pytest.raises(InvalidField, match=f"at most {MAX_OPEN}"):
        start(device, "another")


def test_folder_limit_ends_sessions_but_not_the_answer(
    tmp_path: Path, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device(tmp_path, max_files=2, clock=clock)
    start(device)
    device.run(*device.sequences[:1] * 4)
    assert len(profiled(device)) == 2
    assert "GENAI_PROFILE_MAX_FILES (2)" in (reason(device) or "")
    assert device.sequences[0].num_produced == 4
    assert device.profiled() == []
    (line,) = caplog.messages
    assert line.startswith("profiling has stopped: 2 profiles reach GENAI_PROFILE_MAX_FILES")


def test_session_does_not_start_in_a_full_folder(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="GENAI_PROFILE_MAX_FILES"):
        start(full_device(tmp_path))


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


def decode(session: ProfileSession, *milliseconds: float, now: float = 0.0, token: int = 1, sequence: int = 1) -> None:
    for each in milliseconds:
        session.decoded({sequence: token}, each / 1000, now, profiled=False)


def test_slow_token_ratio_needs_enough_other_tokens_whose_median_follows() -> None:
    session = begin(slow=SlowTokens(ratio=3.0, num_tokens=1, max_per_hour=1000))
    for milliseconds, num_triggers in (([100, *[10] * 14, 90], 0), ([30], 0), ([31], 1)):
        decode(session, *milliseconds)
        assert session.num_triggers == num_triggers
    # All tokens become slower.
    decode(session, *[10] * 256)
    decode(session, *[40] * 256)
    before = session.num_triggers
    decode(session, *[40] * 100)
    assert session.num_triggers == before
    decode(session, 121)
    assert session.num_triggers == before + 1


def test_trigger_has_an_hourly_limit() -> None:
    session = begin(slow=SlowTokens(over_ms=50, max_per_hour=2))
    # The first one is an hour old at 3600 s, and the second one at 4200 s.
    for times, num_triggers in (((0.0, 600.0, 1200.0, 3599.9), 2), ((3600.0, 4199.0), 3), ((4200.0,), 4)):
        for now in times:
            decode(session, 60, now=now)
        assert session.num_triggers == num_triggers


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
