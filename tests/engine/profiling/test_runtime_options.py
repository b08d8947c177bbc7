"""The runtime options of a device: who is profiled, under which name, and how it ends."""

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.profiling import manifest
from genai_server.engine.profiling.folder import DEFAULT_PREFIX, ProfileFolder
from genai_server.engine.profiling.runtime_options import RuntimeOptionState
from genai_server.engine.runners.base import Opening, Row
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.runner_pair import RunnerPair
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.scheduling.step import Read, Step
from genai_server.engine.sequence import Sequence
from genai_server.generation import GenerationRequest, ModelInfo, Sampling
from genai_server.messages.admin import ProfiledRequest
from genai_server.profiles.manifest import find_manifests
from genai_server.timing import Clock

PROMPT = [1, 2, 3]


class Recorder:
    """A runner that remembers the options it was given, and writes a profile for each pass that is to have one."""

    max_rows = 1

    def __init__(self) -> None:
        self.model = ModelInfo(100, 10, [0], Sampling())
        self.options: list[tuple[int, str, str]] = []
        self.files = 0
        self._prefix: dict[int, str] = {}

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        self._prefix[sequence] = "0"
        return 0

    def forward(self, rows: Iterable[Row]) -> list[Scores]:
        return [Scores(self.prefill(row.sequence, row.tokens)[np.newaxis]) for row in rows]

    def prefill(self, sequence: int, tokens: Iterable[int], *, positions: bool = False) -> Logits:
        if self._prefix[sequence] != "0":
            self.files += 1
            Path(f"{self._prefix[sequence]}_{self.files}.json").write_text("[]", encoding="utf-8")
        return np.zeros(10, np.float32)

    def decode(self, sequences: Iterable[int], tokens: Iterable[int]) -> Logits:
        (sequence,) = sequences
        return self.prefill(sequence, tokens)[np.newaxis]

    def interrupt(self) -> None:
        pass

    def export(self, sequence: int, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        assert sequence in self._prefix
        return {}

    def load_adapter(self, path: Path) -> object:
        return path

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        self.options.append((sequence, option, value))
        self._prefix[sequence] = value

    def close(self, sequence: int) -> None:
        del self._prefix[sequence]

    def end_session(self) -> None:
        self._prefix.clear()


class Device:
    """The options of a device, with a runner, a folder and some sequences."""

    def __init__(
        self,
        root: Path,
        *,
        num_sequences: int = 2,
        max_files: int = 100,
        max_bytes: int = 10_000,
        state_file: Path | None = None,
        clock: Clock = lambda: 0.0,
    ) -> None:
        self.clock = clock
        self.runner = Recorder()
        self.folder = ProfileFolder(root, "cpu", max_files=max_files, max_bytes=max_bytes)
        self.runners = RunnerPair(self.runner)
        self.state = RuntimeOptionState(self.runners, self.folder, state_file=state_file, clock=clock)
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

    def run(self, sequence: Sequence, num_tokens: int | None = None, seconds: float = 0.01) -> None:
        """One step, as the loop does it, which reads what is unread and gives a token, or only part of it: of a past
        that is read anew all but the last.
        """
        self.state.choose(self.sequences)
        for other in self.sequences:
            self.state.place(other)
        anew = not sequence.is_decoding and sequence.num_produced > 0
        step = Step([Read(sequence, num_tokens or sequence.num_unread - anew)])
        self.state.before_step(step)
        self.runners.forward(step)
        self.state.after_step(step, self.sequences)
        if sequence.num_unread == 0:
            sequence.append(1)
        self.state.sessions.observe(step, seconds)

    def profile(self, value: str, *sequences: Sequence) -> None:
        """Set enable_profiling on these, or on the whole device."""
        self.state.set_profiling(value, sequences or self.sequences, whole_device=not sequences)
        self.state.choose(self.sequences)

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
    files = sorted(path.name for path in device.folder.directory.glob("*.json"))
    assert files == ["after_2.json", "before_1.json"]


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
    ("max_files", "max_bytes", "named"),
    [(3, 10_000, "GENAI_PROFILE_MAX_FILES (3)"), (100, 5, "GENAI_PROFILE_MAX_BYTES (5)")],
)
def test_at_a_limit_profiling_ends_for_all_and_the_limit_is_named(
    tmp_path: Path, max_files: int, max_bytes: int, named: str
) -> None:
    device = Device(tmp_path, max_files=max_files, max_bytes=max_bytes)
    device.profile("1")
    for _ in range(3):
        for sequence in device.sequences:
            device.run(sequence)
    device.run(device.arrive())
    options = device.state.describe(device.sequences)
    assert (device.runner.files, options.profile_files) == (3, 3)
    assert (options.enable_profiling, options.requests) == ("0", [])
    assert named in (options.profile_stopped or "")


def test_in_a_folder_full_of_files_without_a_manifest_profiling_does_not_begin(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=1)
    device.folder.prepare()
    (device.folder.directory / "mine.json").write_text("{}", encoding="utf-8")
    device.profile("1")
    device.run(device.sequences[0])
    options = device.state.describe(device.sequences)
    assert (options.enable_profiling, options.requests, options.profile_files) == ("0", [], 1)
    assert "GENAI_PROFILE_MAX_FILES" in (options.profile_stopped or "")


def test_a_session_that_has_ended_makes_room_for_the_next(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=2)
    for prefix in ("first", "second"):
        device.profile(prefix)
        device.run(device.sequences[0])
        device.run(device.sequences[0])
    assert sorted(path.name for path in device.folder.directory.glob("*.json")) == ["second_3.json", "second_4.json"]
    (manifest,) = find_manifests(tmp_path)
    assert manifest.session.prefix == "second"
    assert "GENAI_PROFILE_MAX_FILES (2)" in ((manifest.end and manifest.end.reason) or "")


def test_an_open_session_does_not_make_room_for_another(tmp_path: Path) -> None:
    device = Device(tmp_path, max_files=2)
    one, other = device.sequences
    device.profile("first", one)
    device.profile("second", other)
    device.run(one)
    device.run(other)
    assert len(list(device.folder.directory.glob("*.json"))) == 2
    assert "GENAI_PROFILE_MAX_FILES" in (device.state.describe(device.sequences).profile_stopped or "")


def test_what_is_profiled_for_one_request_is_over_when_the_request_is(tmp_path: Path) -> None:
    device = Device(tmp_path)
    device.profile("mine", device.sequences[0])
    device.run(device.sequences[0])
    device.runners.close(device.sequences.pop(0))
    device.run(device.sequences[0])
    (manifest,) = find_manifests(tmp_path)
    assert manifest.end is not None
    assert [record.request_id for record in manifest.passes] == ["r0"]


@pytest.mark.parametrize("where", ["manifest", "profile"])
def test_a_full_disk_ends_profiling_and_no_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    device = Device(tmp_path)
    device.profile("1")
    device.run(device.sequences[0])
    if where == "manifest":
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(manifest, "_write", lambda *_: (_ for _ in ()).throw(full))
    else:
        monkeypatch.setattr(Path, "write_text", lambda path, *_, **__: path.touch())
    device.run(device.sequences[0])
    device.run(device.sequences[0])
    options = device.state.describe(device.sequences)
    assert (options.enable_profiling, options.profile_files) == ("0", 2)
    assert "cannot be written" in (options.profile_stopped or "")
    assert device.sequences[0].num_produced == 3


@pytest.mark.parametrize("folder", ["profiles", "profiles/cpu"])
def test_a_folder_that_becomes_a_file_ends_profiling_and_no_generation(tmp_path: Path, folder: str) -> None:
    device = Device(tmp_path / "profiles")
    device.profile("1")
    device.run(device.sequences[0])
    shutil.rmtree(tmp_path / folder)
    (tmp_path / folder).write_text("a file", encoding="utf-8")
    for sequence in (*device.sequences, device.arrive()):
        device.run(sequence)
    options = device.state.describe(device.sequences)
    assert (options.enable_profiling, options.requests, device.runner.files) == ("0", [], 1)
    assert "cannot be written" in (options.profile_stopped or "")
    assert [sequence.num_produced for sequence in device.sequences] == [2, 1, 1]
    (tmp_path / folder).unlink()
    device.profile("1")
    device.run(device.sequences[0])
    assert device.runner.files == 2


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


def test_an_engine_that_is_started_anew_goes_on_with_what_was_set(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    first = Device(tmp_path, state_file=kept)
    first.profile("slow")
    first.state.terminated = True
    device = Device(tmp_path, state_file=kept)
    options = device.state.describe([])
    assert (options.terminate_session, options.enable_profiling) == ("1", "slow")
    device.run(device.sequences[0])
    assert device.runner.files == 1


def test_the_state_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept.json"
    state = Device(tmp_path, state_file=kept).state
    state.terminated = True
    before = kept.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("the engine dies here")))
    state.terminated = False
    assert kept.read_bytes() == before


def test_what_cannot_be_read_of_the_state_counts_as_nothing_set(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("{", encoding="utf-8")
    options = Device(tmp_path, state_file=kept).state.describe([])
    assert (options.terminate_session, options.enable_profiling) == ("0", "0")


# where a batched runner is beside the generator's


class Batch:
    """Stands for the batched runner: only knows who is there."""

    present_names = ("present.0.key",)
    takes_past = True
    chooses = False
    max_rows = 4

    def __init__(self, *, lone_row_is_exact: bool = True) -> None:
        self.lone_row_is_exact = lone_row_is_exact
        self.sequences: set[int] = set()

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        self.sequences.add(sequence)
        return 0

    def forward(self, rows: Iterable[Row]) -> list[Scores]:
        assert {row.sequence for row in rows} <= self.sequences
        return [Scores(np.zeros((1, 10), np.float32)) for _ in rows]

    def adopt(
        self,
        sequence: int,
        read: list[int],
        num_prefilled: int,
        past: dict[str, NDArray[Any]],
        *,
        exact: bool = False,
        salt: str | None = None,
    ) -> None:
        self.sequences.add(sequence)

    def close(self, sequence: int) -> None:
        self.sequences.remove(sequence)


class BatchedDevice(Device):
    """A device whose sequences run in a batch unless they are profiled."""

    def __init__(
        self,
        root: Path,
        *,
        num_sequences: int = 3,
        max_rows: int = 1,
        lone_row_is_exact: bool = True,
        clock: Clock = lambda: 0.0,
    ) -> None:
        super().__init__(root, num_sequences=0, clock=clock)
        self.batch = Batch(lone_row_is_exact=lone_row_is_exact)
        self.runners = RunnerPair(self.runner, cast(BatchedRunner, self.batch))
        self.state = RuntimeOptionState(self.runners, self.folder, max_rows=max_rows, clock=clock)
        for _ in range(num_sequences):
            self.arrive()

    def on_generators(self) -> list[int]:
        """Who runs outside the batch; nobody is in both."""
        alone = {sequence.id for sequence in self.sequences if not sequence.batched}
        assert not alone & self.batch.sequences
        return sorted(alone)


@pytest.mark.parametrize("max_rows", [1, 2])
def test_a_switch_for_the_device_takes_only_so_many_out_of_the_batch_the_oldest_first(
    tmp_path: Path, max_rows: int
) -> None:
    device = BatchedDevice(tmp_path, max_rows=max_rows)
    device.profile("1")
    device.run(device.sequences[2])
    assert device.on_generators() == [0, 1][:max_rows]
    assert [request.request_id for request in device.profiled()] == ["r0", "r1"][:max_rows]


def test_when_a_profiled_one_has_ended_the_next_takes_its_place(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path)
    device.profile("1")
    device.run(device.sequences[0])
    device.runners.close(device.sequences.pop(0))
    device.run(device.sequences[0])
    assert device.on_generators() == [1]


def test_the_past_that_is_read_anew_is_not_profiled_and_what_follows_is(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path)
    sequence = device.sequences[0]
    for _ in range(3):
        device.run(sequence)
    device.profile("1")
    device.run(sequence)
    anew = device.runner.files
    device.run(sequence)
    device.run(sequence)
    assert (anew, device.runner.files) == (0, 2)


def test_a_prompt_that_has_no_token_yet_is_profiled_from_its_first_pass_on(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path)
    device.profile("1")
    device.run(device.sequences[0])
    assert device.runner.files == 1


def test_after_profiling_a_sequence_is_back_in_the_batch_and_can_leave_it_again(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path)
    sequence = device.sequences[0]
    places = []
    for value in ("1", "0", "1", "0"):
        device.profile(value)
        device.run(sequence)
        device.run(sequence)
        places.append(device.on_generators())
    assert places == [[0], [], [0], []]
    # What was profiled the second time counts, too: the new Generator was told anew.
    assert device.runner.files == 3


def test_whoever_is_profiled_again_before_its_first_token_has_all_these_passes_profiled(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path)
    for value in ("1", "0", "1"):
        device.profile(value)
        device.run(device.sequences[0], 1)
    assert device.runner.files == 2


def test_an_exact_request_is_not_taken_out_of_the_batch_where_it_would_round_otherwise(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path, num_sequences=0, lone_row_is_exact=False)
    exact, other = device.arrive(exact=True), device.arrive()
    device.profile("1")
    device.run(exact)
    assert device.on_generators() == [other.id]
    same = BatchedDevice(tmp_path, num_sequences=0)
    exact = same.arrive(exact=True)
    same.profile("1")
    same.run(exact)
    assert same.on_generators() == [exact.id]


def test_one_request_that_was_named_is_profiled_whatever_the_device_is(tmp_path: Path) -> None:
    device = BatchedDevice(tmp_path)
    device.profile("1", device.sequences[2])
    for sequence in device.sequences:
        device.run(sequence)
    assert device.on_generators() == [2]
    assert device.runner.files == 1
