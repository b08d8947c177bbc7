"""The runtime options of a device: which requests are profiled, under which name, and how profiling ends."""

import errno
import shutil
from collections import abc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from genai_server.engine.abilities import Abilities
from genai_server.engine.profiling import profile_files
from genai_server.engine.profiling.profile_files import DEFAULT_PREFIX, ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.loaded_model import LoadedModel, RunnerPair
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import Unavailable
from genai_server.messages.admin import ProfiledRequest, RuntimeOptions
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling
from genai_server.messages.launch import RetainedOptions
from genai_server.profiles.manifest import find_manifests
from genai_server.timing import Clock

PROMPT = [1, 2, 3]


class Recorder(Runner):
    """A runner that records its options, and writes a profile for each profiled pass."""

    def __init__(self) -> None:
        self.model = ModelInfo(100, 10, [0], Sampling())
        self.abilities = Abilities("generator")
        self.options: list[tuple[int, str, str]] = []
        self.files = 0
        self._prefix: dict[int, str] = {}

    def open(self, sequence: Sequence) -> int:
        self._prefix[sequence.id] = "0"
        return 0

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        (chunk,) = chunks
        prefix = self._prefix[chunk.sequence.id]
        if prefix != "0":
            self.files += 1
            Path(f"{prefix}_{self.files}.json").write_text("[]", encoding="utf-8")
        return [Scores(np.zeros((1, 10), np.float32))]

    @property
    def sequences(self) -> set[int]:
        return set(self._prefix)

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        self.options.append((sequence, option, value))
        self._prefix[sequence] = value

    def close(self, sequence: int) -> None:
        del self._prefix[sequence]

    def end_session(self) -> None:
        self._prefix.clear()


class Device:
    """The runtime options of a device, with a runner, a folder and some sequences."""

    def __init__(
        self,
        root: Path,
        *,
        num_sequences: int = 2,
        max_files: int = 100,
        max_bytes: int = 10_000,
        kept: RetainedOptions | None = None,
        keep: Callable[[RetainedOptions], None] = lambda kept: None,
        clock: Clock = lambda: 0.0,
    ) -> None:
        self.runner = Recorder()
        self.folder = ProfileFolder(root, "cpu", max_files=max_files, max_bytes=max_bytes)
        self.runners = RunnerPair(LoadedModel(self.runner))
        self.state = RuntimeOptionState(
            self.runners, self.folder, kept=kept or RetainedOptions(), keep=keep, clock=clock
        )
        self.sequences: list[Sequence] = []
        for _ in range(num_sequences):
            self.arrive()

    def arrive(self, *, exact: bool = False) -> Sequence:
        number = len(self.sequences)
        request = GenerationRequest(f"r{number}", PROMPT, 10, 20, exact=exact)
        sequence = Sequence(number, (0, number), request, lambda: 0.0)
        self.sequences.append(sequence)
        self.state.choose(self.sequences)
        self.runners.open(sequence)
        return sequence

    def run(self, *sequences: Sequence) -> None:
        """One step for each, in this order."""
        for sequence in sequences:
            self.step(sequence)

    def step(self, sequence: Sequence, num_tokens: int | None = None, seconds: float = 0.01) -> None:
        """One step, as the loop does it: it reads the unread tokens and yields a token, or reads only part of them: all
        but the last token of a past that is recomputed.
        """
        self.state.choose(self.sequences)
        anew = not sequence.is_decoding and sequence.num_produced > 0
        step = Step([ScheduledChunk.next(sequence, num_tokens or sequence.num_unread - anew)])
        self.state.before_step(step)
        self.runners.forward(step)
        self.state.after_step(step, self.sequences)
        if sequence.num_unread == 0:
            sequence.append(1)
            self.state.produced(sequence)
        self.state.observe(step, seconds)

    def profile(self, value: str, *sequences: Sequence) -> None:
        """Set enable_profiling on these sequences, or on the device."""
        self.state.set_profiling(value, sequences or self.sequences, whole_device=not sequences)
        self.state.choose(self.sequences)

    def files(self) -> list[str]:
        """The names of the profiles."""
        return sorted(path.name for path in self.folder.directory.glob("*.json"))

    def describe(self) -> RuntimeOptions:
        return self.state.describe(self.sequences)

    def profiled(self) -> list[ProfiledRequest]:
        return self.describe().requests


def assert_stopped(device: Device, reason: str) -> None:
    """Fails unless profiling has ended for this reason."""
    options = device.describe()
    assert (options.enable_profiling, options.requests) == ("0", [])
    assert reason in (options.profile_stopped or "")


def full_device(root: Path) -> Device:
    """A device whose folder has as many profiles as it may have."""
    device = Device(root, max_files=1)
    device.folder.prepare()
    (device.folder.directory / "mine.json").write_text("{}", encoding="utf-8")
    return device


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


@pytest.mark.parametrize(("value", "prefix"), [("slow", "slow"), ("1", DEFAULT_PREFIX)])
def test_library_gets_the_option_once_with_the_full_path(
    device: Device, tmp_path: Path, value: str, prefix: str
) -> None:
    device.profile(value)
    device.run(*[device.sequences[0]] * 3)
    assert device.runner.options == [(0, "enable_profiling", str(tmp_path.resolve() / "cpu" / prefix))]
    assert (device.describe().profile_files, device.describe().enable_profiling) == (3, prefix)


def test_profiling_a_device_concerns_the_requests_to_come_too(device: Device) -> None:
    device.profile("slow")
    device.run(device.arrive())
    assert device.profiled() == [ProfiledRequest(f"r{number}", 0) for number in range(3)]
    assert device.runner.files == 1


def test_profiling_one_request_concerns_no_other(device: Device) -> None:
    device.profile("slow", device.sequences[1])
    device.arrive()
    device.run(*device.sequences)
    assert device.profiled() == [ProfiledRequest("r1", 0)]
    assert device.runner.files == 1
    assert device.state.describe([]).enable_profiling == "0"


def test_one_request_can_be_left_out_of_a_devices_profiling(device: Device) -> None:
    device.profile("1")
    device.run(device.sequences[0])
    device.profile("0", device.sequences[0])
    device.run(*device.sequences)
    assert device.profiled() == [ProfiledRequest("r1", 0)]
    assert device.runner.files == 2


def test_a_prefix_can_be_changed_while_profiling(device: Device) -> None:
    for prefix in ("before", "after"):
        device.profile(prefix)
        device.run(device.sequences[0])
    assert device.files() == ["after_2.json", "before_1.json"]


def test_profiling_ends_for_present_and_future_requests_alike(device: Device) -> None:
    device.profile("1")
    device.run(device.sequences[0])
    device.profile("0")
    device.run(device.sequences[0])
    device.run(device.arrive())
    assert device.runner.options[-1] == (0, "enable_profiling", "0")
    assert device.runner.files == 1
    assert device.profiled() == []


@pytest.mark.parametrize(
    ("limits", "named"),
    [({"max_files": 3}, "GENAI_PROFILE_MAX_FILES (3)"), ({"max_bytes": 5}, "GENAI_PROFILE_MAX_BYTES (5)")],
)
def test_limit_ends_profiling_for_all_and_is_named(tmp_path: Path, limits: dict[str, Any], named: str) -> None:
    device = Device(tmp_path, **limits)
    device.profile("1")
    device.run(*device.sequences * 3, device.arrive())
    assert (device.runner.files, device.describe().profile_files) == (3, 3)
    assert_stopped(device, named)


def test_profiling_does_not_start_in_a_full_folder(tmp_path: Path) -> None:
    device = full_device(tmp_path)
    device.profile("1")
    device.run(device.sequences[0])
    assert device.describe().profile_files == 1
    assert_stopped(device, "GENAI_PROFILE_MAX_FILES")


def test_ended_session_is_evicted_for_the_next(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=2)
    for prefix in ("first", "second"):
        device.profile(prefix)
        device.run(device.sequences[0], device.sequences[0])
    assert device.files() == ["second_3.json", "second_4.json"]
    (manifest,) = find_manifests(tmp_path)
    assert manifest.session.prefix == "second"
    assert "GENAI_PROFILE_MAX_FILES (2)" in ((manifest.end and manifest.end.reason) or "")


def test_open_session_is_not_evicted(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=2)
    one, other = device.sequences
    device.profile("first", one)
    device.profile("second", other)
    device.run(one, other)
    assert len(device.files()) == 2
    assert "GENAI_PROFILE_MAX_FILES" in (device.describe().profile_stopped or "")


def test_profiling_of_one_request_ends_with_the_request(device: Device, tmp_path: Path) -> None:
    device.profile("mine", device.sequences[0])
    device.run(device.sequences[0])
    device.runners.close(device.sequences.pop(0))
    device.run(device.sequences[0])
    (manifest,) = find_manifests(tmp_path)
    assert manifest.end is not None
    assert [record.request_id for record in manifest.passes] == ["r0"]


@pytest.mark.parametrize("where", ["manifest", "profile"])
def test_full_disk_ends_profiling_only(device: Device, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    device.profile("1")
    device.run(device.sequences[0])
    if where == "manifest":
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(profile_files, "_write", Mock(side_effect=full))
    else:
        monkeypatch.setattr(Path, "write_text", lambda path, *_, **__: path.touch())
    device.run(device.sequences[0], device.sequences[0])
    assert_stopped(device, "cannot be written")
    assert (device.describe().profile_files, device.sequences[0].num_produced) == (2, 3)


@pytest.mark.parametrize("folder", ["profiles", "profiles/cpu"])
def test_folder_replaced_by_a_file_ends_profiling_only(tmp_path: Path, folder: str) -> None:
    device = Device(tmp_path / "profiles")
    device.profile("1")
    device.run(device.sequences[0])
    shutil.rmtree(tmp_path / folder)
    (tmp_path / folder).write_text("a file", encoding="utf-8")
    device.run(*device.sequences, device.arrive())
    assert_stopped(device, "cannot be written")
    assert ([each.num_produced for each in device.sequences], device.runner.files) == ([2, 1, 1], 1)
    (tmp_path / folder).unlink()
    device.profile("1")
    device.run(device.sequences[0])
    assert device.runner.files == 2


def test_profiling_restarts_when_space_is_free_again(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=1)
    device.profile("1")
    device.run(device.sequences[0])
    for path in device.folder.directory.iterdir():
        path.unlink()
    device.profile("1")
    options = device.describe()
    assert (options.enable_profiling, options.profile_stopped) == (DEFAULT_PREFIX, None)
    device.run(device.sequences[0])
    assert device.runner.files == 2


def test_profiling_without_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    device = Device(tmp_path / "taken")
    with pytest.raises(Unavailable, match=r"GENAI_PROFILE_DIR=.*taken: profiles cannot be written: (not a d|file ex)"):
        device.profile("1")
    device.run(device.sequences[0])
    assert_stopped(device, "")
    assert (device.describe().profile_stopped, device.runner.options) == (None, [])


def test_profiling_in_a_folder_that_takes_no_files_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "folder")
    monkeypatch.setattr(profile_files, "TemporaryFile", Mock(side_effect=refused))
    with pytest.raises(Unavailable, match="profiles cannot be written: permission denied"):
        device.profile("1")
    assert device.describe().enable_profiling == "0"


def test_restarted_engine_restores_its_runtime_options(tmp_path: Path) -> None:
    kept: list[RetainedOptions] = []
    first = Device(tmp_path, keep=kept.append)
    first.profile("slow")
    first.state.terminated = True
    device = Device(tmp_path, kept=kept[-1])
    options = device.state.describe([])
    assert (options.terminate_session, options.enable_profiling) == ("1", "slow")
    device.run(device.sequences[0])
    assert device.runner.files == 1


# with a batched runner


class BatchedDevice(Device):
    """A device with a batch."""

    def __init__(self, root: Path, *, max_rows: int = 1, clock: Clock = lambda: 0.0) -> None:
        super().__init__(root, num_sequences=0, clock=clock)
        self.batch = Recorder()
        self.batch.abilities = Abilities("batched", 4)
        self.runners = RunnerPair(LoadedModel(self.batch, self.batch))
        self.state = RuntimeOptionState(self.runners, self.folder, max_rows=max_rows, clock=clock)
        for _ in range(3):
            self.arrive()

    def alone(self) -> list[int]:
        """The sequences that share no pass."""
        assert self.batch.sequences == {sequence.id for sequence in self.sequences}
        return [sequence.id for sequence in self.sequences if not sequence.shares_passes]


@pytest.fixture
def batched(tmp_path: Path) -> BatchedDevice:
    return BatchedDevice(tmp_path)


@pytest.mark.parametrize("max_rows", [1, 2])
def test_device_switch_concerns_a_limited_number_of_oldest_rows(tmp_path: Path, max_rows: int) -> None:
    device = BatchedDevice(tmp_path, max_rows=max_rows)
    device.profile("1")
    device.run(device.sequences[2])
    assert device.alone() == [0, 1][:max_rows]
    assert [request.request_id for request in device.profiled()] == ["r0", "r1"][:max_rows]


def test_next_request_replaces_a_profiled_one_that_ended(batched: BatchedDevice) -> None:
    batched.profile("1")
    batched.run(batched.sequences[0])
    batched.runners.close(batched.sequences.pop(0))
    batched.run(batched.sequences[0])
    assert batched.alone() == [1]


def test_profiled_sequence_runs_alone_only_while_it_is_profiled(batched: BatchedDevice) -> None:
    sequence = batched.sequences[0]
    places = []
    for value in ("1", "0", "1", "0"):
        batched.profile(value)
        batched.run(sequence, sequence)
        places.append(batched.alone())
    assert places == [[0], [], [0], []]
    assert len(batched.files()) == 4


def test_sequence_profiled_again_before_a_token_is_profiled(batched: BatchedDevice) -> None:
    for value in ("1", "0", "1"):
        batched.profile(value)
        batched.step(batched.sequences[0], 1)
    assert len(batched.files()) == 2


def test_preempted_sequence_is_profiled_again(batched: BatchedDevice) -> None:
    sequence = batched.sequences[0]
    batched.profile("1")
    batched.run(sequence)
    batched.runners.close(sequence)
    sequence.preempt()
    batched.runners.open(sequence)
    batched.run(sequence, sequence)
    assert len(batched.files()) == 2  # all tokens but the last one are read again without a file


def test_profile_ends_in_a_pass_with_others(batched: BatchedDevice) -> None:
    batched.run(*batched.sequences)
    batched.profile("1", batched.sequences[1])
    batched.run(*batched.sequences)
    batched.profile("0", batched.sequences[1])
    batched.state.before_step(Step([ScheduledChunk.next(sequence) for sequence in batched.sequences]))
    assert batched.batch.options[-1][2] == "0"
    batched.run(*batched.sequences)
    assert len(batched.files()) == 1
