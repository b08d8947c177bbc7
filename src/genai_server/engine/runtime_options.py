"""The two runtime options of onnxruntime-genai for a whole device: their state, and applying it to sequences."""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from genai_server.engine.profiling import DEFAULT_PREFIX, ProfileFolder, wait_for_next_file_name
from genai_server.engine.runners.base import Runner
from genai_server.engine.sequence import Sequence
from genai_server.messages import ProfiledRequest, RuntimeOptions

log = logging.getLogger(__name__)
TERMINATE = "terminate_session"
PROFILING = "enable_profiling"


class Kept(Struct, frozen=True):
    """What the operator has set for the device; it outlives the engine process."""

    terminated: bool = False
    profile: str = "0"


class RuntimeOptionState:
    """Which sequences are profiled, and whether the device's session is terminated.

    `sequence.profile` holds the prefix that a sequence is profiled under, or "0". With a `state_file`, an engine that
    is started anew goes on with what was set before: a device that an operator has terminated does not come back to
    life by a crash.
    """

    def __init__(self, runner: Runner, folder: ProfileFolder, state_file: Path | None = None) -> None:
        self._runner = runner
        self._folder = folder
        self._stopped: str | None = None
        self._state_file = state_file
        self._kept = _read(state_file)

    @property
    def terminated(self) -> bool:
        """Whether the operator has ended the device's session."""
        return self._kept.terminated

    @terminated.setter
    def terminated(self, value: bool) -> None:
        self._keep(Kept(value, self._kept.profile))

    def _keep(self, kept: Kept) -> None:
        self._kept = kept
        if self._state_file is not None:
            self._state_file.write_bytes(msgspec.json.encode(kept))

    def set_profiling(self, value: str, sequences: Iterable[Sequence], *, whole_device: bool) -> None:
        """Profile these sequences ("1" or a prefix), or no longer ("0"). Raises OSError without the folder."""
        prefix = DEFAULT_PREFIX if value == "1" else value
        if prefix != "0":
            self._folder.prepare()
            self._stopped = self._folder.limit_reached()
            if self._stopped:
                prefix = "0"
        if whole_device:
            self._keep(Kept(self.terminated, prefix))
        for sequence in sequences:
            if sequence.profile != prefix:
                sequence.profile, sequence.profiled_from = prefix, sequence.num_produced

    def report_failure(self, reason: str) -> None:
        """Say why nothing is profiled."""
        self._stopped = reason

    def admit(self, sequence: Sequence) -> None:
        """Give a new sequence the device's options."""
        sequence.profile = self._kept.profile

    def before_pass(self, sequence: Sequence) -> None:
        """Switch the library's profiling for a sequence's next forward pass."""
        if sequence.profile != "0" and (reached := self._folder.limit_reached()):
            self._stop(reached, [sequence])
        if sequence.profile != sequence.active_profile:
            value = "0" if sequence.profile == "0" else self._folder.path_prefix(sequence.profile)
            self._runner.set_runtime_option(sequence.id, PROFILING, value)
            sequence.active_profile = sequence.profile

    def after_pass(self, sequence: Sequence, running: Iterable[Sequence]) -> None:
        """Account for the file that a profiled pass has written; at a limit all profiling stops."""
        if sequence.active_profile == "0":
            return
        wait_for_next_file_name()
        if reached := self._folder.limit_reached():
            self._stop(reached, running)

    def _stop(self, reason: str, sequences: Iterable[Sequence]) -> None:
        self.set_profiling("0", sequences, whole_device=True)
        self._stopped = reason

    def describe(self, sequences: Iterable[Sequence]) -> RuntimeOptions:
        """The state for the operator."""
        files, size = self._folder.usage()
        return RuntimeOptions(
            terminate_session="1" if self.terminated else "0",
            enable_profiling=self._kept.profile,
            requests=[
                ProfiledRequest(sequence.request.request_id, sequence.profiled_from)
                for sequence in sequences
                if sequence.profile != "0"
            ],
            profile_dir=str(self._folder.directory),
            profile_files=files,
            profile_bytes=size,
            profile_stopped=self._stopped,
        )


def _read(state_file: Path | None) -> Kept:
    try:
        return msgspec.json.decode(state_file.read_bytes(), type=Kept) if state_file is not None else Kept()
    except FileNotFoundError:
        return Kept()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("what the operator had set is lost: %s", error)
        return Kept()
