"""The runtime options of a device: who is profiled, under which name, and how it ends."""

from pathlib import Path

import numpy as np
import pytest

from genai_server.engine.profiling import DEFAULT_PREFIX, ProfileFolder
from genai_server.engine.runners.base import Logits, Tokens
from genai_server.engine.runtime_options import RuntimeOptionState
from genai_server.engine.sequence import Sequence
from genai_server.generation import GenerationRequest, ModelInfo, Sampling
from genai_server.messages import ProfiledRequest


class Recorder:
    """A runner that remembers the options it was given, and writes a profile for each pass that is to have one."""

    def __init__(self) -> None:
        self.model = ModelInfo(100, 10, [0], Sampling())
        self.options: list[tuple[int, str, str]] = []
        self.files = 0
        self._prefix: dict[int, str] = {}

    def open(self, sequence: int, max_length: int) -> None:
        pass

    def forward(self, sequence: int, tokens: Tokens) -> Logits:
        prefix = self._prefix.get(sequence, "0")
        if prefix != "0":
            self.files += 1
            Path(f"{prefix}_{self.files}.json").write_text("{}", encoding="utf-8")
        return np.zeros(10, np.float32)

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        self.options.append((sequence, option, value))
        self._prefix[sequence] = value

    def close(self, sequence: int) -> None:
        pass


class Device:
    """The options of a device, with a runner, a folder and some sequences."""

    def __init__(self, root: Path, *, num_sequences: int = 2, max_files: int = 100, max_bytes: int = 10_000) -> None:
        self.runner = Recorder()
        self.folder = ProfileFolder(root, "cpu", max_files=max_files, max_bytes=max_bytes)
        self.state = RuntimeOptionState(self.runner, self.folder)
        self.sequences: list[Sequence] = []
        for _ in range(num_sequences):
            self.arrive()

    def arrive(self) -> Sequence:
        number = len(self.sequences)
        sequence = Sequence(number, (0, number), GenerationRequest(f"r{number}", [1], 10, 20), lambda: 0.0)
        self.sequences.append(sequence)
        self.state.admit(sequence)
        return sequence

    def run(self, sequence: Sequence) -> None:
        """One pass, as the loop does it."""
        self.state.before_pass(sequence)
        self.runner.forward(sequence.id, sequence.take(10))
        self.state.after_pass(sequence, self.sequences)
        sequence.append(1)

    def profile(self, value: str, *sequences: Sequence) -> None:
        """Set enable_profiling on these, or on the whole device."""
        self.state.set_profiling(value, sequences or self.sequences, whole_device=not sequences)

    def profiled(self) -> list[ProfiledRequest]:
        return self.state.describe(self.sequences).requests


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path)


def test_nothing_is_set_at_first(device: Device, tmp_path: Path) -> None:
    device.run(device.sequences[0])
    options = device.state.describe(device.sequences)
    assert (options.terminate_session, options.enable_profiling, options.requests) == ("0", "0", [])
    assert (options.profile_dir, options.profile_stopped) == (str(tmp_path / "cpu"), None)
    assert device.runner.options == []


def test_a_terminated_device_says_so(device: Device) -> None:
    device.state.terminated = True
    assert device.state.describe([]).terminate_session == "1"


def test_the_library_is_told_once_and_with_the_full_path(device: Device, tmp_path: Path) -> None:
    device.profile("slow")
    for _ in range(3):
        device.run(device.sequences[0])
    assert device.runner.options == [(0, "enable_profiling", str(tmp_path.resolve() / "cpu" / "slow"))]
    assert device.state.describe(device.sequences).profile_files == 3


def test_a_one_means_the_usual_prefix(device: Device) -> None:
    device.profile("1")
    device.run(device.sequences[0])
    assert device.runner.options[0][2].endswith(DEFAULT_PREFIX)
    assert device.state.describe([]).enable_profiling == DEFAULT_PREFIX


def test_profiling_a_device_concerns_the_requests_to_come_too(device: Device) -> None:
    device.profile("slow")
    late = device.arrive()
    device.run(late)
    assert device.profiled() == [ProfiledRequest("r0", 0), ProfiledRequest("r1", 0), ProfiledRequest("r2", 0)]
    assert device.runner.files == 1


def test_profiling_one_request_concerns_no_other(device: Device) -> None:
    device.profile("slow", device.sequences[1])
    device.arrive()
    for sequence in device.sequences:
        device.run(sequence)
    assert device.profiled() == [ProfiledRequest("r1", 0)]
    assert device.runner.files == 1
    assert device.state.describe([]).enable_profiling == "0"


def test_profiling_begins_with_the_token_that_comes_next(device: Device) -> None:
    for _ in range(3):
        device.run(device.sequences[0])
    device.profile("1")
    assert device.profiled() == [ProfiledRequest("r0", 3), ProfiledRequest("r1", 0)]


def test_one_request_can_be_left_out_of_a_devices_profiling(device: Device) -> None:
    device.profile("1")
    device.run(device.sequences[0])
    device.profile("0", device.sequences[0])
    for sequence in device.sequences:
        device.run(sequence)
    assert device.profiled() == [ProfiledRequest("r1", 0)]
    assert device.runner.files == 2


def test_a_prefix_can_be_changed_while_profiling(device: Device) -> None:
    for prefix in ("before", "after"):
        device.profile(prefix)
        device.run(device.sequences[0])
    assert sorted(path.name for path in device.folder.directory.iterdir()) == ["after_2.json", "before_1.json"]


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
def test_at_a_limit_profiling_ends_for_all_and_the_limit_is_named(
    tmp_path: Path, limits: dict[str, int], named: str
) -> None:
    device = Device(tmp_path, **limits)
    device.profile("1")
    for _ in range(3):
        for sequence in device.sequences:
            device.run(sequence)
    device.run(device.arrive())
    options = device.state.describe(device.sequences)
    assert (device.runner.files, options.profile_files) == (3, 3)
    assert (options.enable_profiling, options.requests) == ("0", [])
    assert named in (options.profile_stopped or "")


def test_in_a_full_folder_profiling_does_not_begin(tmp_path: Path) -> None:
    full = Device(tmp_path, max_files=1)
    full.profile("1")
    full.run(full.sequences[0])
    device = Device(tmp_path, max_files=1)
    device.profile("1")
    device.run(device.sequences[0])
    options = device.state.describe(device.sequences)
    assert (options.enable_profiling, options.requests, options.profile_files) == ("0", [], 1)
    assert "GENAI_PROFILE_MAX_FILES" in (options.profile_stopped or "")


def test_when_there_is_room_again_profiling_begins_again(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=1)
    device.profile("1")
    device.run(device.sequences[0])
    for path in device.folder.directory.iterdir():
        path.unlink()
    device.profile("1")
    options = device.state.describe(device.sequences)
    assert (options.enable_profiling, options.profile_stopped) == (DEFAULT_PREFIX, None)
    device.run(device.sequences[0])
    assert device.runner.files == 2


def test_without_a_folder_nothing_is_profiled(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    device = Device(tmp_path / "taken")
    with pytest.raises(OSError, match="taken"):
        device.profile("1")
    device.state.report_failure("why")
    device.run(device.sequences[0])
    options = device.state.describe(device.sequences)
    assert (options.enable_profiling, options.requests, options.profile_stopped) == ("0", [], "why")
    assert device.runner.options == []
