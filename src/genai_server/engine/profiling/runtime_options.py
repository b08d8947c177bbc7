"""Two options that operators can set while an engine runs: `terminate_session`, which makes the engine refuse requests,
and `enable_profiling`, which makes ONNX Runtime write profiles of forward passes. Both have the names of options in
onnxruntime-genai. `RuntimeOptionState` has their values and carries them out.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable

from genai_server.engine.profiling.profile_files import (
    DEFAULT_PREFIX,
    ProfileFolder,
    ProfileManifest,
    wait_for_next_file_name,
)
from genai_server.engine.profiling.sessions import ProfileSession, ProfileSessions
from genai_server.engine.runners.loaded_model import RunnerPair
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField, RequestNotFound, Unavailable, quoted
from genai_server.messages.admin import ProfiledRequest, ProfilePlan, RuntimeOptions
from genai_server.messages.launch import RetainedOptions
from genai_server.profiles.manifest import Session
from genai_server.timing import Clock

log = logging.getLogger(__name__)
TERMINATE = "terminate_session"
PROFILING = "enable_profiling"
_UNWRITABLE = "a profile cannot be written: {}"
_NOTHING_SET = RetainedOptions()


class RuntimeOptionState:
    """The values of the options `terminate_session` and `enable_profiling` of one engine. It decides in each step which
    sequences are profiled. The engine process creates one, and the engine's loop calls it before and after each pass.

    A profiled sequence does not share forward passes with other sequences. If requests run as a batch, at most
    `max_rows` sequences are therefore profiled at once for the whole device and for profile sessions; the sequences
    that have run longest come first. Requests that an operator names are always profiled. `folder` is where profiles
    are written.

    Whenever an operator has set an option for the whole device, `keep` is called with the new values. After a crash,
    the engine that replaces this one gets them as `kept`, so that a terminated device stays terminated. `about` has the
    contents that the manifests of all profile sessions share; `clock` returns the time in seconds.
    """

    def __init__(
        self,
        runners: RunnerPair,
        folder: ProfileFolder,
        *,
        max_rows: int = 1,
        kept: RetainedOptions = _NOTHING_SET,
        keep: Callable[[RetainedOptions], None] = lambda kept: None,
        about: Session | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._runners, self._loaded = runners, runners.loaded
        self._max_rows = sys.maxsize if self._loaded.batch is None else max_rows
        self._folder = folder
        self._manifest = ProfileManifest(folder.directory, about or Session(id="", prefix="", started=0))
        self.sessions = ProfileSessions(self._manifest, clock)
        self._stopped: str | None = None
        self._keep_for_successor = keep
        self._kept = kept
        # Whether anything has been profiled. Until then, steps spend no time on profiles.
        self._has_profiled = self._kept.profile != "0"

    @property
    def terminated(self) -> bool:
        """Whether an operator has set `terminate_session` for the device, so that the engine refuses all requests."""
        return self._kept.terminated

    @terminated.setter
    def terminated(self, value: bool) -> None:
        self._keep(RetainedOptions(value, self._kept.profile))

    def _keep(self, options: RetainedOptions) -> None:
        self._kept = options
        self._keep_for_successor(options)

    def set_profiling(self, value: str, sequences: Iterable[Sequence], *, whole_device: bool) -> None:
        """Set the option `enable_profiling` for `sequences`.

        The `value` "0" stops profiling, "1" starts it with the default file prefix, and any other value is the file
        prefix with which it starts. With `whole_device`, the option also holds for all sequences that run later. If a
        limit for the number or size of profiles is reached, profiling does not start, and `describe` gives the reason.
        Raises Unavailable or OSError if no profile can be written.
        """
        prefix = {"0": None, "1": DEFAULT_PREFIX}.get(value, value)
        if prefix is not None:
            self._folder.prepare()
            self._has_profiled = True
            self._folder.remove_old()
            self._manifest.end(prefix)
            self._stopped = self._folder.make_room(self._manifest.open_sessions)
            if self._stopped:
                prefix = None
        if whole_device:
            self._keep(RetainedOptions(self.terminated, prefix or "0"))
        for sequence in sequences:
            sequence.profile.left_out = prefix is None and not whole_device
            if prefix is None or not whole_device or sequence.profile.is_on:
                sequence.profile.switch(prefix, sequence.num_produced)

    @property
    def num_profile_sessions(self) -> int:
        """Number of profile sessions that have begun since the engine's start."""
        return self._manifest.num_begun if self._has_profiled else 0

    def start_session(self, plan: ProfilePlan, sequences: Collection[Sequence]) -> ProfileSession:
        """Begin a profile session that follows `plan`, and return it. `sequences` are all running and waiting
        sequences.

        Raises RequestNotFound if the plan names a request to which none of `sequences` belongs; InvalidField if the
        model cannot be profiled, the plan's file prefix is in use, or too many sessions are open; and Unavailable or
        OSError if no profile can be written.
        """
        named = [s for s in sequences if plan.request_id in (None, s.request.request_id)]
        if plan.request_id is not None and not named:
            raise RequestNotFound(f"no request {quoted(plan.request_id)} is running or waiting", param="request_id")
        if why := self._loaded.why_no_profile:
            raise InvalidField("device" if plan.request_id is None else "request_id", f"cannot be profiled: {why}")
        self._folder.prepare()
        self._folder.remove_old()
        if reached := self._folder.make_room(self._manifest.open_sessions):
            raise Unavailable(reached)
        self._has_profiled = True
        return self.sessions.start(plan, self._prefixes(sequences))

    def choose(self, running: list[Sequence], waiting: Collection[Sequence] = ()) -> None:
        """End the profile sessions that are over, and decide which of the `running` sequences are profiled in their
        next passes. `waiting` are the sequences that wait to run. Called before each step.
        """
        if not self._has_profiled:
            return
        self.sessions.release(running, waiting)
        if self._manifest.open_sessions:
            self._manifest.end_except({*self._prefixes(running), *self.sessions.prefixes})
        for sequence in running:
            sequence.profile.is_awaited = self.sessions.awaits(sequence)
        if self._device_prefix is None and not self.sessions.prefixes:
            return
        free = self._max_rows - sum(sequence.profile.is_on for sequence in running)
        for sequence in running:
            is_able = free > 0 and not sequence.profile.is_on and not sequence.profile.left_out
            prefix = self._device_prefix or self.sessions.prefix_for(sequence)
            if is_able and prefix is not None and not self._loaded.why_no_profile:
                sequence.profile.switch(prefix, sequence.num_produced)
                free -= 1

    @property
    def _device_prefix(self) -> str | None:
        return None if self._kept.profile == "0" else self._kept.profile

    def _prefixes(self, sequences: Iterable[Sequence]) -> set[str]:
        """Return the file prefixes of profiles that are in use, for the whole device or for one of `sequences`."""
        prefixes = {self._device_prefix, *(sequence.profile.prefix for sequence in sequences)}
        return {prefix for prefix in prefixes if prefix is not None}

    def observe(self, step: Step, seconds: float) -> None:
        """Record that `step` took `seconds` seconds, for profile sessions that begin to profile after slow tokens."""
        if self._has_profiled:
            self.sessions.observe(step, seconds)

    def before_step(self, step: Step) -> None:
        """Switch ONNX Runtime's profiling on or off for each sequence of `step`, as `choose` or an operator has
        decided. Called immediately before the pass.

        Profiling is off while a sequence that was preempted reads its earlier tokens again. If a limit is reached or
        the disk is full, profiling stops, and the pass runs without it.
        """
        if not self._has_profiled:
            return
        first = step.sequences[0]  # a profiled one has a pass of its own
        if first.profile.is_on and (obstacle := self._obstacle(first)):
            self._stop(obstacle, [first])
        for sequence in step.sequences:
            reads_anew = not sequence.is_decoding and sequence.num_produced > 0
            prefix = None if reads_anew else sequence.profile.prefix
            if prefix != sequence.profile.active:
                value = "0" if prefix is None else self._folder.path_prefix(prefix)
                self._runners.of(sequence).set_runtime_option(sequence.id, PROFILING, value)
                sequence.profile.active = prefix

    def _obstacle(self, sequence: Sequence) -> str | None:
        """Return the reason why the next pass of `sequence` cannot be profiled, or prepare the manifest for the pass
        and return None.

        An error of the disk is returned as such a reason and is not raised, because it must not end the request.
        """
        try:
            reached = self._folder.make_room(self._manifest.open_sessions)
            if not reached:
                self._manifest.before_step(sequence)
            return reached
        except OSError as error:
            return _UNWRITABLE.format(error)

    def after_step(self, step: Step, running: Iterable[Sequence]) -> None:
        """Record the profile of `step`, whose pass is complete, in the manifest; does nothing if the step was not
        profiled. If a limit is reached or the disk is full, profiling stops for the device and for the `running`
        sequences.
        """
        sequence = step.sequences[0]
        if sequence.profile.active is None:
            return
        wait_for_next_file_name()
        try:
            self._folder.wrote(self._manifest.after_step(sequence))
            reached = self._folder.make_room(self._manifest.open_sessions)
        except OSError as error:
            reached = _UNWRITABLE.format(error)
        if reached:
            self._stop(reached, running)

    def produced(self, sequence: Sequence) -> None:
        """Count an output token of `sequence` as profiled, if the pass that led to the token was."""
        if sequence.profile.active is not None:
            sequence.profile.num_tokens += 1
            self.sessions.profiled(sequence)

    def drop_step(self, step: Step) -> None:
        """Remove the profile of `step`, whose pass was interrupted or has failed. Does nothing if the step was not
        profiled.
        """
        if step.sequences[0].profile.active is not None:
            self._manifest.drop_step(step.sequences[0].profile.active)

    def _stop(self, reason: str, sequences: Iterable[Sequence]) -> None:
        self.sessions.end_all(reason)
        self._manifest.end_except((), reason)
        self.set_profiling("0", sequences, whole_device=True)
        self._stopped = reason
        log.warning("profiling has stopped: %s", reason)

    def describe(self, sequences: Iterable[Sequence]) -> RuntimeOptions:
        """Return what the admin API reports: the current values of the options, the profiled requests among
        `sequences`, the folder of profiles with their number and size, and why profiling has stopped.
        """
        files, size = self._folder.usage()
        return RuntimeOptions(
            terminate_session="1" if self.terminated else "0",
            enable_profiling=self._kept.profile,
            requests=[
                ProfiledRequest(sequence.request.request_id, sequence.profile.from_token)
                for sequence in sequences
                if sequence.profile.is_on
            ],
            profile_dir=str(self._folder.directory),
            profile_files=files,
            profile_bytes=size,
            profile_stopped=self._stopped,
        )
