"""An operator's calls to a running engine."""

from collections.abc import Callable, Iterable

from genai_server.engine.profiling.folder import DEFAULT_PREFIX
from genai_server.engine.profiling.runtime_options import PROFILING, TERMINATE, RuntimeOptionState
from genai_server.engine.profiling.session import ProfileSession
from genai_server.engine.requests import RequestTable
from genai_server.engine.runners.loaded_model import RunnerPair
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import GenaiServerError, Unavailable, quoted
from genai_server.messages import admin
from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import FinishReason


class AdminCalls:
    """Owned by the loop's thread. `forward` runs a step."""

    def __init__(
        self,
        runners: RunnerPair,
        scheduler: Scheduler,
        options: RuntimeOptionState,
        requests: RequestTable,
        forward: Callable[[Step], None],
    ) -> None:
        self._runners, self._loaded = runners, runners.loaded
        self._scheduler = scheduler
        self._options = options
        self._requests = requests
        self._forward = forward

    def reply(self, message: admin.AdminCall) -> admin.AdminReply:
        """Carry out a call; returns its result or its error."""
        try:
            return self._result(message)
        except GenaiServerError as error:
            return admin.CallFailed(message.call, ErrorInfo.from_error(error))

    def _result(self, message: admin.AdminCall) -> admin.AdminReply:
        match message:
            case admin.SetRuntimeOption():
                return self._set_runtime_option(message)
            case admin.GetRuntimeOptions(call):
                return admin.RuntimeOptionsReply(call, self._options.describe(self._requests.accepted))
            case admin.StartProfile() | admin.EndProfile() | admin.ListProfiles():
                return self._profile_sessions(message)
            case admin.ResetPrefixCache(call):
                if self._scheduler.answers is not None:
                    self._scheduler.answers.clear()
                return admin.CacheReset(call, self._loaded.forget())
            case admin.ListRequests(call, name, tenant):
                sequences = list(self._requests) if name is None else self._requests.named(name, tenant=tenant)
                return admin.RequestList(call, [sequence.describe() for sequence in sequences])
            case admin.CancelRequest() | admin.EndReasoning():
                return self._end(message)
            case admin.LoadAdapter(call, adapter):
                self._loaded.adapters.load(adapter)
                return admin.AdapterReply(call)
            case admin.UnloadAdapter(call, id):
                return admin.AdapterReply(call, self._unload_adapter(id))

    def _unload_adapter(self, id: str) -> list[str]:
        """Unload an adapter; returns the names of the requests that keep using it to their end."""
        self._loaded.adapters.unload(id)
        having = (sequence.request for sequence in self._requests)
        return sorted({r.request_id for r in having if r.adapter is not None and r.adapter.id == id})

    def _end(self, message: admin.CancelRequest | admin.EndReasoning) -> admin.RequestList | admin.ReasoningEnded:
        """End a request, or only its thoughts."""
        if isinstance(message, admin.CancelRequest):
            return admin.RequestList(message.call, self._cancel(message))
        return self._end_reasoning(message)

    def _cancel(self, message: admin.CancelRequest) -> list[admin.RequestState]:
        """End a request on an operator's behalf, unless several have its name; returns all that have it."""
        sequences = self._requests.named(message.name, is_unique=message.is_unique)
        found = [sequence.describe() for sequence in sequences]
        if len(_requests_of(sequences)) == 1:
            for sequence in sequences:
                self._requests.finish(sequence, FinishReason.CANCELLED)
            self._requests.tell_load(terminated=self._options.terminated)
        return found

    def _end_reasoning(self, message: admin.EndReasoning) -> admin.ReasoningEnded:
        """Close the thoughts of a request, unless several have its name."""
        sequences = self._requests.named(message.name, is_unique=message.is_unique, tenant=message.tenant)
        thoughts = [sequence.thought for sequence in sequences if sequence.thought is not None]
        found = [sequence.describe() for sequence in sequences]
        if len(_requests_of(sequences)) != 1:
            return admin.ReasoningEnded(message.call, found)
        for thought in thoughts:
            thought.end()
        return admin.ReasoningEnded(message.call, found, len(thoughts))

    def _profile_sessions(
        self, message: admin.StartProfile | admin.EndProfile | admin.ListProfiles
    ) -> admin.OpenProfiles:
        """Begin or end a session; returns the new session, or all open ones. Raises GenaiServerError."""
        begun: list[ProfileSession] = []
        try:
            if isinstance(message, admin.StartProfile):
                begun = [self._options.start_session(message.plan, self._requests.accepted)]
            elif isinstance(message, admin.EndProfile):
                self._options.sessions.end(message.id)
        except OSError as error:
            raise Unavailable(str(error)) from error
        self._options.choose(self._scheduler.running, self._scheduler.waiting)
        return admin.OpenProfiles(message.call, self._options.sessions.describe(self._requests.accepted, begun))

    def _set_runtime_option(self, message: admin.SetRuntimeOption) -> admin.RuntimeOptionsReply:
        whole_device = message.name is None
        concerned = self._requests.accepted
        found: list[admin.RequestState] = []
        if message.name is not None:
            named = self._requests.named(message.name, is_unique=message.is_unique)
            concerned = [sequence for sequence in named if sequence in concerned]
            found = [sequence.describe() for sequence in concerned]
        refused = None
        if not whole_device and len(_requests_of(concerned)) != 1:
            pass  # nothing has this name, or the caller must choose one of several requests
        elif message.option == PROFILING:
            refused = self._profile(message.value, concerned, whole_device=whole_device)
        elif message.option == TERMINATE:
            if whole_device:
                self._options.terminated = message.value == "1"
            if message.value == "1":
                for sequence in concerned:
                    self._terminate(sequence)
        state = self._options.describe(self._requests.accepted)
        # The load is sent before the reply, so that the reader of the reply finds the new state everywhere.
        self._requests.tell_load(terminated=self._options.terminated)
        return admin.RuntimeOptionsReply(message.call, state, found, refused)

    def _terminate(self, sequence: Sequence) -> None:
        """End a sequence. On a Generator the library's own option does it: the next pass raises at once."""
        if sequence.batched or self._runners.main.abilities.pools or sequence.state is not SequenceState.RUNNING:
            self._requests.finish(sequence, FinishReason.TERMINATED)
            return
        with self._requests.failing([sequence]):
            self._runners.of(sequence).set_runtime_option(sequence.id, TERMINATE, "1")
            self._forward(Step([ScheduledChunk.next(sequence)]))
        # The pass may have been interrupted, and the option is lost if the sequence is preempted.
        self._requests.finish(sequence, FinishReason.TERMINATED)

    def _profile(self, value: str, sequences: list[Sequence], *, whole_device: bool) -> str | None:
        """Switch profiling; returns why that is not possible, if so. Raises Unavailable if nothing can be written."""
        if value != "0" and (why := self._loaded.why_no_profile):
            return why
        if (value if value != "1" else DEFAULT_PREFIX) in self._options.sessions.prefixes:
            return f"prefix {quoted(value)} belongs to an open profile session: choose another, or end the session"
        try:
            self._options.set_profiling(value, sequences, whole_device=whole_device)
            self._options.choose(self._scheduler.running, self._scheduler.waiting)
        except OSError as error:
            raise Unavailable(str(error)) from error
        return None


def _requests_of(sequences: Iterable[Sequence]) -> set[str]:
    """The unique ids of the requests that sequences belong to."""
    return {sequence.request.own_id for sequence in sequences}
