"""The tasks that wait for a process and those that run, and the order in which they get their turns."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from genai_server.messages.worker_tasks import TaskOwner
from genai_server.workers.usage import Usage

# Seconds that each running task counts for from its beginning, so that two free slots are not for the same one.
_JUST_BEGUN = 0.001

T = TypeVar("T")


@dataclass
class _Running:
    """A task that runs."""

    owner: TaskOwner
    # When it began, by the clock.
    since: float
    is_abandoned: bool = False


class TaskQueue(Generic[T]):
    """Tasks that share `slots`, the number of tasks that run at a time.

    Whose tasks have used the least time of the processes comes next: first among tenants, then among the requests of
    the tenant; a request's own tasks keep their order. Tasks of the background come after all others, and leave one
    slot free where there are several. A tenant of which nothing runs need not wait for those of others: its first task
    may run beyond `slots`, if no other tenant's does.
    """

    def __init__(self, slots: int, clock: Callable[[], float], grace: float) -> None:
        self._slots = slots
        self._clock = clock
        self._grace = grace
        # By whether they are of the background, by tenant and by request, in order of arrival.
        self._waiting: dict[bool, dict[str, OrderedDict[str, OrderedDict[T, TaskOwner]]]] = {False: {}, True: {}}
        self._running: dict[T, _Running] = {}
        self._tenants = {False: Usage(), True: Usage()}
        self._requests: dict[tuple[bool, str], Usage] = {}

    @property
    def num_running(self) -> int:
        """Number of tasks that run."""
        return len(self._running)

    @property
    def waiting(self) -> Iterator[T]:
        """The tasks that wait."""
        for tenants in self._waiting.values():
            for requests in tenants.values():
                for tasks in requests.values():
                    yield from tasks

    def add(self, task: T, owner: TaskOwner) -> None:
        """Let a task wait for its turn."""
        background = owner.background
        tenants = self._waiting[background]
        if owner.tenant not in tenants:
            if not self._has_running(owner.tenant, background=background):
                self._tenants[background].arrive(owner.tenant)
            tenants[owner.tenant] = OrderedDict()
        usage = self._requests.setdefault((background, owner.tenant), Usage())
        if owner.request not in tenants[owner.tenant]:
            usage.arrive(owner.request)
            tenants[owner.tenant][owner.request] = OrderedDict()
        tenants[owner.tenant][owner.request][task] = owner

    def next(self) -> T | None:
        """The task whose turn it is, which runs from now on; None if none may run now."""
        for background in (False, True):
            tenants = self._waiting[background]
            usage = self._tenants[background]
            for tenant in usage.in_order(tenants, self._using(background=background)):
                if not self._may_run(tenant, background=background):
                    continue
                usage.choose(tenant)
                requests, shares = tenants[tenant], self._requests[background, tenant]
                (request, *_) = shares.in_order(requests, self._using(tenant, background=background))
                shares.choose(request)
                task, owner = next(iter(requests[request].items()))
                self._take(task, owner)
                self._running[task] = _Running(owner, self._clock())
                return task
        return None

    def finish(self, task: T) -> None:
        """Note that a running task has ended."""
        ended = self._running.pop(task)
        seconds = self._clock() - ended.since
        background, tenant, request = ended.owner.background, ended.owner.tenant, ended.owner.request
        self._tenants[background].add(tenant, seconds)
        if (shares := self._requests.get((background, tenant))) is not None:
            shares.add(request, seconds)
        self._forget(ended.owner)

    def abandon(self, task: T, owner: TaskOwner) -> bool:
        """Note that nobody waits for a task any more: it is not run, or runs on until it holds up another one.

        Returns whether it is not run. Does nothing for a task that has ended.
        """
        if task in self._running:
            self._running[task].is_abandoned = True
        elif self._waits(task, owner):
            self._take(task, owner)
            self._forget(owner)
            return True
        return False

    def overdue(self) -> list[T]:
        """The running tasks to end: nobody waits for them, others wait for their turn, and their grace is over."""
        if not any(self._waiting.values()):
            return []
        until = self._clock() - self._grace
        return [task for task, running in self._running.items() if running.is_abandoned and running.since <= until]

    def _may_run(self, tenant: str, *, background: bool) -> bool:
        """Whether a task of the tenant may run now."""
        num_running = len(self._running)
        if background:
            own = sum(running.owner.background for running in self._running.values())
            return num_running < self._slots and own < max(1, self._slots - 1)
        return num_running < self._slots or (
            num_running == self._slots and not self._has_running(tenant, background=background)
        )

    def _has_running(self, tenant: str, *, background: bool) -> bool:
        return any(
            running.owner.tenant == tenant and running.owner.background == background
            for running in self._running.values()
        )

    def _waits(self, task: T, owner: TaskOwner) -> bool:
        tenants = self._waiting[owner.background]
        return (
            owner.tenant in tenants
            and owner.request in tenants[owner.tenant]
            and task in tenants[owner.tenant][owner.request]
        )

    def _take(self, task: T, owner: TaskOwner) -> None:
        """Remove a task from those that wait."""
        tenants = self._waiting[owner.background]
        requests = tenants[owner.tenant]
        del requests[owner.request][task]
        if not requests[owner.request]:
            del requests[owner.request]
        if not requests:
            del tenants[owner.tenant]

    def _using(self, of_tenant: str | None = None, *, background: bool) -> dict[str, float]:
        """The seconds that running tasks have taken, by tenant, or by request of one tenant."""
        now, found = self._clock(), dict[str, float]()
        for running in self._running.values():
            owner = running.owner
            if owner.background == background and of_tenant in (None, owner.tenant):
                user = owner.tenant if of_tenant is None else owner.request
                found[user] = found.get(user, 0.0) + now - running.since + _JUST_BEGUN
        return found

    def _forget(self, owner: TaskOwner) -> None:
        """Forget what is not needed any more of the request and the tenant that a task belonged to."""
        background, tenant = owner.background, owner.tenant
        tenants = self._waiting[background]
        is_waiting = tenant in tenants
        own = [
            one.owner
            for one in self._running.values()
            if one.owner.tenant == tenant and one.owner.background == background
        ]
        if not (is_waiting and owner.request in tenants[tenant]) and not any(
            one.request == owner.request for one in own
        ):
            self._requests[background, tenant].leave(owner.request, comes_back=False)
        if not is_waiting and not own:
            del self._requests[background, tenant]
            self._tenants[background].leave(tenant, comes_back=True)
            if not self._waiting[background] and not any(
                one.owner.background == background for one in self._running.values()
            ):
                self._tenants[background] = Usage()
