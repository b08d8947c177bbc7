"""Carries out what operators ask of a running engine by the admin API, such as listing or cancelling requests,
profiling, and loading LoRA adapters (`AdminCalls`).
"""

from collections.abc import Callable, Iterable

from genai_server.engine.profiling.profile_files import DEFAULT_PREFIX
from genai_server.engine.profiling.runtime_options import PROFILING, TERMINATE, RuntimeOptionState
from genai_server.engine.profiling.sessions import ProfileSession
from genai_server.engine.requests import RequestTable
from genai_server.engine.runners.loaded_model import RunnerPair
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import GenaiServerError, Unavailable, quoted
from genai_server.messages import admin
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import FinishReason


class AdminCalls:
    """Carries out the administrative calls that API processes send to the engine. The engine's loop creates it; only
    the loop's thread uses it.

    `options` has the state of profiling, `requests` has all requests of the engine, and `runners` run the model.
    `forward` runs the forward pass of a step. It is needed to terminate a sequence that onnxruntime-genai runs in an
    `og.Generator` of its own instead of in the batch.
    """

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
        """Carry out the call `message`, and return its result for the API process. If the call raises a
        GenaiServerError, the result is `CallFailed` with that error.
        """
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
        """Unload the LoRA adapter with the id `id`. Returns the sorted ids of the requests that still use the adapter,
        which they may do until they end.
        """
        self._loaded.adapters.unload(id)
        having = (sequence.request for sequence in self._requests)
        return sorted({r.request_id for r in having if r.adapter is not None and r.adapter.id == id})

    def _end(self, message: admin.CancelRequest | admin.EndReasoning) -> admin.RequestList | admin.ReasoningEnded:
        """Cancel a request, or end only its reasoning, depending on the type of `message`. Returns the reply for the
        API process.
        """
        if isinstance(message, admin.CancelRequest):
            return admin.RequestList(message.call, self._cancel(message))
        return self._end_reasoning(message)

    def _cancel(self, message: admin.CancelRequest) -> list[admin.RequestState]:
        """Cancel the request whose id or name is in `message`. Nothing is cancelled if several requests have this name.

        Returns the states of all sequences of requests with this name, as they were before; an empty list if there are
        none.
        """
        sequences = self._requests.named(message.name, is_unique=message.is_unique)
        states = [sequence.describe() for sequence in sequences]
        if len(_requests_of(sequences)) == 1:
            for sequence in sequences:
                self._requests.finish(sequence, FinishReason.CANCELLED)
            self._requests.send_load(terminated=self._options.terminated)
        return states

    def _end_reasoning(self, message: admin.EndReasoning) -> admin.ReasoningEnded:
        """Make the answers of a request stop reasoning and continue with their visible part. `message` has the id or
        name of the request; nothing happens if several requests have this name.

        The reply has the states of all sequences of requests with this name, and the number of answers whose reasoning
        ends.
        """
        sequences = self._requests.named(message.name, is_unique=message.is_unique, tenant=message.tenant)
        trackers = [sequence.reasoning for sequence in sequences if sequence.reasoning is not None]
        states = [sequence.describe() for sequence in sequences]
        if len(_requests_of(sequences)) != 1:
            return admin.ReasoningEnded(message.call, states)
        for tracker in trackers:
            tracker.end()
        return admin.ReasoningEnded(message.call, states, len(trackers))

    def _profile_sessions(
        self, message: admin.StartProfile | admin.EndProfile | admin.ListProfiles
    ) -> admin.OpenProfiles:
        """Start or end a profile session, or only list the sessions, depending on the type of `message`. Raises
        GenaiServerError if the session cannot be started or ended.

        The reply has the new session after a start, and otherwise all open sessions.
        """
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
        states: list[admin.RequestState] = []
        if message.name is not None:
            named = self._requests.named(message.name, is_unique=message.is_unique)
            concerned = [sequence for sequence in named if sequence in concerned]
            states = [sequence.describe() for sequence in concerned]
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
        self._requests.send_load(terminated=self._options.terminated)
        return admin.RuntimeOptionsReply(message.call, state, states, refused)

    def _terminate(self, sequence: Sequence) -> None:
        """End a sequence with the finish reason "terminated", because an operator has set the option
        `terminate_session`.

        If the sequence runs in an `og.Generator` of its own, the option is set for the generator, too, whose next pass
        then ends at once with an error of onnxruntime-genai.
        """
        if sequence.batched or self._runners.main.abilities.pools or sequence.state is not SequenceState.RUNNING:
            self._requests.finish(sequence, FinishReason.TERMINATED)
            return
        with self._requests.failing([sequence]):
            self._runners.of(sequence).set_runtime_option(sequence.id, TERMINATE, "1")
            self._forward(Step([ScheduledChunk.next(sequence)]))
        # The pass may have been interrupted, and the option is lost if the sequence is preempted.
        self._requests.finish(sequence, FinishReason.TERMINATED)

    def _profile(self, value: str, sequences: list[Sequence], *, whole_device: bool) -> str | None:
        """Switch profiling on or off for `sequences` or, with `whole_device`, for the whole device.

        `value` is "0" to stop, "1" to start with the default file prefix, or a file prefix with which to start. Returns
        the reason if profiling is impossible, otherwise None. Raises Unavailable if no profile can be written.
        """
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
    """Return the internal ids of the requests to which `sequences` belong. Several sequences may belong to one
    request.
    """
    return {sequence.request.own_id for sequence in sequences}
