"""The open profile sessions of a device, with their manifests and the sequences that they profile."""

import time
from collections.abc import Collection, Iterable

from genai_server.engine.profiling.manifest import ProfileManifest
from genai_server.engine.profiling.session import ProfileSession
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.sequence import Sequence
from genai_server.errors import InvalidField, ProfileNotFound, quoted
from genai_server.messages.profile_plan import ProfilePlan, ProfileState
from genai_server.timing import Clock

MAX_OPEN = 8


class ProfileSessions:
    """Starts and ends profile sessions. Used by the thread of the engine's loop only.

    The session that profiles a sequence is the one whose file prefix the sequence has.
    """

    def __init__(self, manifest: ProfileManifest, clock: Clock = time.monotonic) -> None:
        self._manifest = manifest
        self._clock = clock
        self._open: dict[str, ProfileSession] = {}
        self._ended: set[str] = set()

    @property
    def prefixes(self) -> Collection[str]:
        """File prefixes of the open sessions."""
        return self._open.keys()

    def start(self, plan: ProfilePlan, others: Collection[str]) -> ProfileSession:
        """Begin a session. Raises InvalidField and OSError.

        `others` are file prefixes that are in use outside of sessions.
        """
        if plan.prefix in self._open or plan.prefix in others:
            raise InvalidField("prefix", f"{quoted(plan.prefix)} is in use")
        if len(self._open) >= MAX_OPEN:
            raise InvalidField("device", f"may have at most {MAX_OPEN} open profile sessions; end one")
        session = ProfileSession(self._manifest.begin(plan), plan, self._clock())
        self._open[plan.prefix] = session
        self._ended.discard(plan.prefix)
        return session

    def end(self, id: str) -> None:
        """End the session with this id. Raises ProfileNotFound."""
        for session in list(self._open.values()):
            if session.id == id:
                self._end(session)
                return
        raise ProfileNotFound(f"no open profile session {quoted(id)} is on this device", param="session_id")

    def end_all(self, reason: str) -> None:
        """End all sessions for a reason that concerns all of them."""
        for session in list(self._open.values()):
            self._end(session, reason)

    def release(self, running: Collection[Sequence], waiting: Collection[Sequence]) -> None:
        """End the sessions whose time is over, and stop profiling sequences that no session selects any more."""
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
        """File prefix of the first session that selects a sequence's next pass; None if no session does."""
        return next((prefix for prefix, session in self._open.items() if _selects(session, sequence)), None)

    def awaits(self, sequence: Sequence) -> bool:
        """Whether a session could soon select a sequence, which must not have draft tokens until then."""
        name = sequence.request.request_id
        return any(session.awaits(name, sequence.num_produced) for session in self._open.values())

    def profiled(self, sequence: Sequence) -> None:
        """Count a token of a sequence whose pass was profiled."""
        active = sequence.profile.active
        if active is not None and (session := self._open.get(active)) is not None:
            session.num_tokens += 1

    def observe(self, step: Step, seconds: float) -> None:
        """Record the duration of a completed step in the sessions that its sequences concern."""
        if not self._open or not step.decodes:
            return
        under = step.sequences[0].profile.active
        for prefix, session in self._open.items():
            tokens = {s.id: s.num_produced for s in step.sequences if session.concerns(s.request.request_id)}
            if tokens and under in (None, prefix):
                session.decoded(tokens, seconds, self._clock(), profiled=under == prefix)

    def describe(self, sequences: Collection[Sequence], sessions: Iterable[ProfileSession] = ()) -> list[ProfileState]:
        """States of the given sessions, which may have ended, or of all open ones if none are given."""
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
