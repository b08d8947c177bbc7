"""The open profile sessions of an engine: which forward passes each of them profiles, and when it ends.

A session follows a plan of an operator, which names requests, output tokens and durations. `ProfileSession` decides for
one plan, and uses no files. `ProfileSessions` has all open sessions of the engine, and connects them with their
manifests and with the sequences that are profiled. Times are in seconds of a monotonic clock.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable
from statistics import median

from genai_server.engine.profiling.profile_files import ProfileManifest
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField, ProfileNotFound, quoted
from genai_server.messages.admin import Profiled, ProfilePlan, ProfileState, SlowTokens
from genai_server.timing import Clock

_HOUR = 3600.0
# Maximum number of steps in a median, and the minimum before a step can be slow compared with it.
_MAX_STEPS = 256
_MIN_STEPS = 16


class ProfileSession:
    """One profile session, which decides by its plan what to profile. `ProfileSessions.start` creates it; it is open
    until its plan is fulfilled or an operator ends it.

    `id` names the session, and `now` is the time in seconds at which it begins. The attribute `num_tokens` is the
    number of tokens that were profiled, and `num_triggers` the number of slow tokens after which profiling began.
    """

    def __init__(self, id: str, plan: ProfilePlan, now: float) -> None:
        self.id = id
        self.plan = plan
        self.num_tokens = 0
        self.num_triggers = 0
        self._ends = now + plan.max_seconds
        # When slow tokens have triggered profiling, as often as the plan allows within an hour.
        self._fired: deque[float] = deque(maxlen=None if plan.slow is None else plan.slow.max_per_hour)
        self._until: dict[int, int] = {}
        self._profiled: deque[float] = deque(maxlen=_MAX_STEPS)
        self._unprofiled: deque[float] = deque(maxlen=_MAX_STEPS)

    def concerns(self, name: str) -> bool:
        """Return whether the session's plan includes the request whose id is `name`. A plan includes one request or
        all.
        """
        return self.plan.request_id in (None, name)

    def selects(self, sequence: int, name: str, token: int) -> bool:
        """Return whether the plan asks for a profile of the pass that leads to output token number `token` of a
        sequence.

        `sequence` is the id of the sequence, and `name` the id of its request.
        """
        last = self.plan.last_token
        within = token >= self.plan.first_token and (last is None or token <= last)
        triggered = self.plan.slow is None or token < self._until.get(sequence, 0)
        return within and triggered and self.concerns(name)

    def awaits(self, name: str, token: int) -> bool:
        """Return whether a sequence must get no draft tokens now, because the first output token to profile follows
        soon. With a draft, one pass leads to several tokens, and could go beyond the first token to profile.

        `token` is the number of the sequence's next output token, and `name` the id of its request.
        """
        first = self.plan.first_token
        return self.plan.slow is None and token < first <= token + MAX_DRAFTED and self.concerns(name)

    def decoded(self, next_tokens: dict[int, int], seconds: float, now: float, *, profiled: bool) -> None:
        """Record the duration of a decode step, which is a forward pass that generates tokens. If the plan waits for
        slow tokens and this step was slow, the next tokens of its sequences are selected for profiling.

        `next_tokens` has the number of the next output token by sequence id, for those sequences of the step that the
        plan includes. `seconds` is the duration of the step, and `now` the time. `profiled` says whether this session
        has profiled the step: such a step does not count as slow, because profiling takes time.
        """
        if profiled:
            self._profiled.append(seconds)
            return
        slow = self.plan.slow
        if slow is not None and self._is_slow(slow, seconds) and self._may_fire(now):
            self._fired.append(now)
            self.num_triggers += 1
            self._until |= {sequence: token + slow.num_tokens for sequence, token in next_tokens.items()}
        self._unprofiled.append(seconds)

    def _is_slow(self, slow: SlowTokens, seconds: float) -> bool:
        if slow.over_ms is not None:
            return seconds * 1000 > slow.over_ms
        assert slow.ratio is not None
        return len(self._unprofiled) >= _MIN_STEPS and seconds > slow.ratio * median(self._unprofiled)

    def _may_fire(self, now: float) -> bool:
        return len(self._fired) != self._fired.maxlen or now - self._fired[0] >= _HOUR

    def keep(self, sequences: Collection[int]) -> None:
        """Discard what the session knows of sequences that have ended. `sequences` are the ids of the running ones."""
        self._until = {sequence: token for sequence, token in self._until.items() if sequence in sequences}

    def over(self, now: float) -> str | None:
        """Return the reason why the session must end at the time `now`, which is a limit of its plan; None if it
        continues.
        """
        if self.num_tokens >= self.plan.max_tokens:
            return f"{self.num_tokens} tokens are profiled (max_tokens)"
        if now >= self._ends:
            return f"{self.plan.max_seconds:g} seconds have passed (max_seconds)"
        return None

    @property
    def profiled(self) -> Profiled:
        """Results of the session so far: the number of profiled tokens, how often slow tokens began profiling, and the
        median durations of profiled and of other decode steps.
        """
        times = _milliseconds(self._profiled), _milliseconds(self._unprofiled)
        return Profiled(self.num_tokens, self.num_triggers, *times)


def _milliseconds(seconds: deque[float]) -> float | None:
    return round(median(seconds) * 1000, 3) if seconds else None


MAX_OPEN = 8


class ProfileSessions:
    """All open profile sessions of an engine. A session is found by the prefix with which the names of its profiles
    begin, and each profiled sequence has the file prefix of the session that profiles it.

    Used by the thread of the engine's loop only. `manifest` writes the manifests of the sessions, and `clock` returns
    the time in seconds.
    """

    def __init__(self, manifest: ProfileManifest, clock: Clock = time.monotonic) -> None:
        self._manifest = manifest
        self._clock = clock
        self._open: dict[str, ProfileSession] = {}
        self._ended: set[str] = set()

    @property
    def prefixes(self) -> Collection[str]:
        """Prefixes of the file names of the open sessions."""
        return self._open.keys()

    def start(self, plan: ProfilePlan, other_prefixes: Collection[str]) -> ProfileSession:
        """Begin a session that follows `plan`, and return it. `other_prefixes` are file prefixes that are in use
        without a session.

        Raises InvalidField if the plan's file prefix is in use or too many sessions are open, and OSError if the
        manifest cannot be written.
        """
        if plan.prefix in self._open or plan.prefix in other_prefixes:
            raise InvalidField("prefix", f"{quoted(plan.prefix)} is in use")
        if len(self._open) >= MAX_OPEN:
            raise InvalidField("device", f"may have at most {MAX_OPEN} open profile sessions; end one")
        session = ProfileSession(self._manifest.begin(plan), plan, self._clock())
        self._open[plan.prefix] = session
        self._ended.discard(plan.prefix)
        return session

    def end(self, id: str) -> None:
        """End the session with the id `id`, because an operator asks for that. Raises ProfileNotFound if no open
        session has this id.
        """
        for session in list(self._open.values()):
            if session.id == id:
                self._end(session)
                return
        raise ProfileNotFound(f"no open profile session {quoted(id)} is on this device", param="session_id")

    def end_all(self, reason: str) -> None:
        """End all open sessions. `reason` is the text that their manifests give as the reason."""
        for session in list(self._open.values()):
            self._end(session, reason)

    def release(self, running: Collection[Sequence], waiting: Collection[Sequence]) -> None:
        """End the sessions whose plans are fulfilled or whose request has ended, and stop profiling sequences that
        their session no longer selects. Called before each step with the running and waiting sequences.
        """
        if not self._open and not self._ended:
            return
        now, names = self._clock(), {sequence.request.request_id for sequence in (*running, *waiting)}
        for session in list(self._open.values()):
            session.keep({sequence.id for sequence in running})
            reason = session.over(now)
            if session.plan.request_id is not None and session.plan.request_id not in names:
                reason = f"request {quoted(session.plan.request_id)} has ended"
            if reason is not None:
                self._end(session, reason)
        for sequence in (*running, *waiting):  # a preempted one, too
            prefix = sequence.profile.prefix
            if prefix is None:
                continue
            session_of = self._open.get(prefix)
            if prefix in self._ended or (session_of is not None and not _selects(session_of, sequence)):
                sequence.profile.switch(None, sequence.num_produced)
        self._ended.clear()

    def prefix_for(self, sequence: Sequence) -> str | None:
        """Return the file prefix of the first open session that asks for a profile of the next pass of `sequence`; None
        if no session does.
        """
        return next((prefix for prefix, session in self._open.items() if _selects(session, sequence)), None)

    def awaits(self, sequence: Sequence) -> bool:
        """Return whether `sequence` must get no draft tokens now, because an open session will soon profile it. A pass
        with a draft could go beyond the first token to profile.
        """
        name = sequence.request.request_id
        return any(session.awaits(name, sequence.num_produced) for session in self._open.values())

    def profiled(self, sequence: Sequence) -> None:
        """Count one output token of `sequence`, whose pass was profiled, in the session that profiles the sequence."""
        active = sequence.profile.active
        if active is not None and (session := self._open.get(active)) is not None:
            session.num_tokens += 1

    def observe(self, step: Step, seconds: float) -> None:
        """Record that `step` took `seconds` seconds, in each session whose plan includes a request of the step. Steps
        that read a part of a prompt, and steps that another session has profiled, are not recorded.
        """
        if not self._open or not step.decodes:
            return
        under = step.sequences[0].profile.active
        for prefix, session in self._open.items():
            tokens = {s.id: s.num_produced for s in step.sequences if session.concerns(s.request.request_id)}
            if tokens and under in (None, prefix):
                session.decoded(tokens, seconds, self._clock(), profiled=under == prefix)

    def describe(self, sequences: Collection[Sequence], sessions: Iterable[ProfileSession] = ()) -> list[ProfileState]:
        """Return the states that the admin API reports for the given `sessions`, which may have ended, or for all open
        sessions if `sessions` is empty.

        The state of a session is "recording" if one of `sequences` is profiled for it, and otherwise "waiting".
        """
        recording = {sequence.profile.prefix for sequence in sequences}
        return [
            ProfileState(session.id, "recording" if session.plan.prefix in recording else "waiting", session.profiled)
            for session in sessions or self._open.values()
        ]

    def _end(self, session: ProfileSession, reason: str | None = None) -> None:
        del self._open[session.plan.prefix]
        self._ended.add(session.plan.prefix)
        self._manifest.end(session.plan.prefix, reason, session.profiled)


def _selects(session: ProfileSession, sequence: Sequence) -> bool:
    return session.selects(sequence.id, sequence.request.request_id, sequence.num_produced)
