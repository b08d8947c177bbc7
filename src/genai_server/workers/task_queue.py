"""What tasks of the worker pool wait for: their turn, which a `TaskQueue` decides fairly among API keys, and disk space
for decoded recordings and prepared images, which a `SpaceBudget` reserves before anything is written.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from genai_server.fair_queue import FairQueue
from genai_server.messages.supervisor_protocol import TaskOwner

# Seconds that each running task counts for from its beginning, so that two free slots are not for the same one.
_MIN_RUNNING_SECONDS = 0.001
T = TypeVar("T")


@dataclass
class _Running:
    """A running task, with the owner of its request and the time at which it began."""

    owner: TaskOwner
    # When it began, by the clock.
    since: float
    is_abandoned: bool = False


class TaskQueue(Generic[T]):
    """Decides the order in which the tasks of the worker pool run. `slots` tasks run at a time.

    Tenants (API keys) take turns by the process time that their tasks have used, and so do the requests of a tenant.
    Tasks of one request keep their order. Low-priority tasks come after all others, and leave one slot free if there
    are several. A tenant without running tasks need not wait for other tenants: its first task may run in addition to
    `slots`, but only one task at a time does.

    `clock` returns seconds. A running task that nobody waits for any more has `grace` seconds before it may be ended.
    """

    def __init__(self, slots: int, clock: Callable[[], float], grace: float) -> None:
        self._slots = slots
        self._clock = clock
        self._grace = grace
        # By whether they are of low priority, by tenant and by request, in order of arrival.
        self._waiting: dict[bool, dict[str, OrderedDict[str, OrderedDict[T, TaskOwner]]]] = {False: {}, True: {}}
        self._running: dict[T, _Running] = {}
        self._tenants = {False: FairQueue(), True: FairQueue()}
        self._requests: dict[tuple[bool, str], FairQueue] = {}

    @property
    def running(self) -> Iterator[T]:
        """The tasks that run now."""
        return iter(self._running)

    @property
    def waiting(self) -> Iterator[T]:
        """The tasks that wait for their turn, those of low priority last."""
        for tenants in self._waiting.values():
            for requests in tenants.values():
                for tasks in requests.values():
                    yield from tasks

    def add(self, task: T, owner: TaskOwner) -> None:
        """Add a waiting task. `owner` says to which request and tenant (API key) it belongs, and whether it has low
        priority.
        """
        low_priority = owner.low_priority
        tenants = self._waiting[low_priority]
        if owner.tenant not in (present := self._present(low_priority=low_priority)):
            self._tenants[low_priority].arrive(owner.tenant, present)
        requests = self._requests.setdefault((low_priority, owner.tenant), FairQueue())
        if owner.request not in (present := self._present(owner.tenant, low_priority=low_priority)):
            requests.arrive(owner.request, present)
        tenants.setdefault(owner.tenant, OrderedDict()).setdefault(owner.request, OrderedDict())[task] = owner

    def next(self) -> T | None:
        """Return the waiting task whose turn it is and count it as running; None if no task may start now."""
        for low_priority in (False, True):
            tenants = self._waiting[low_priority]
            may_run = [tenant for tenant in tenants if self._may_run(tenant, low_priority=low_priority)]
            if may_run:
                in_flight, turns = self._in_flight(low_priority=low_priority), self._tenants[low_priority]
                tenant = min(may_run, key=lambda tenant: turns.turn(tenant, in_flight.get(tenant, 0.0)))
                return self._start(tenant, low_priority=low_priority)
        return None

    def _start(self, tenant: str, *, low_priority: bool) -> T:
        """Choose the next task among the waiting tasks of `tenant` with this priority, count it as running and return
        it.
        """
        requests, turns = self._waiting[low_priority][tenant], self._requests[low_priority, tenant]
        in_flight = self._in_flight(tenant, low_priority=low_priority)
        request = min(requests, key=lambda request: turns.turn(request, in_flight.get(request, 0.0)))
        task, owner = next(iter(requests[request].items()))
        self._take(task, owner)
        self._running[task] = _Running(owner, self._clock())
        return task

    def finish(self, task: T) -> None:
        """Remove a running task that has ended, and count the process time that it used for its tenant (API key) and
        request.
        """
        ended = self._running.pop(task)
        seconds = self._clock() - ended.since
        low_priority, tenant, request = ended.owner.low_priority, ended.owner.tenant, ended.owner.request
        if seconds:  # otherwise it was no turn
            self._tenants[low_priority].serve(tenant, seconds)
            self._requests[low_priority, tenant].serve(request, seconds)
        self._forget(ended.owner)

    def abandon(self, task: T, owner: TaskOwner) -> bool:
        """Handle a task that nobody waits for any more. A waiting task is removed from the queue, and True is returned;
        otherwise False.

        A running task continues until it keeps others waiting (see `overdue`). Does nothing for a task that has ended.
        """
        if task in self._running:
            self._running[task].is_abandoned = True
        elif self._waits(task, owner):
            self._take(task, owner)
            self._forget(owner)
            return True
        return False

    def overdue(self) -> list[T]:
        """Return the running tasks that the caller is to end: nobody waits for them, their grace period is over, and
        other tasks wait.
        """
        if not any(self._waiting.values()):
            return []
        until = self._clock() - self._grace
        return [task for task, running in self._running.items() if running.is_abandoned and running.since <= until]

    def _may_run(self, tenant: str, *, low_priority: bool) -> bool:
        """Return whether a task of `tenant` (an API key) with this priority may start now."""
        num_running = len(self._running)
        if low_priority:
            num_low_priority = sum(running.owner.low_priority for running in self._running.values())
            return num_running < self._slots and num_low_priority < max(1, self._slots - 1)
        return num_running < self._slots or (
            num_running == self._slots and not self._has_running(tenant, low_priority=low_priority)
        )

    def _has_running(self, tenant: str, *, low_priority: bool) -> bool:
        return any(
            running.owner.tenant == tenant and running.owner.low_priority == low_priority
            for running in self._running.values()
        )

    def _waits(self, task: T, owner: TaskOwner) -> bool:
        tenants = self._waiting[owner.low_priority]
        return (
            owner.tenant in tenants
            and owner.request in tenants[owner.tenant]
            and task in tenants[owner.tenant][owner.request]
        )

    def _take(self, task: T, owner: TaskOwner) -> None:
        """Remove a task of the request `owner` from the waiting tasks."""
        tenants = self._waiting[owner.low_priority]
        requests = tenants[owner.tenant]
        del requests[owner.request][task]
        if not requests[owner.request]:
            del requests[owner.request]
        if not requests:
            del tenants[owner.tenant]

    def _present(self, of_tenant: str | None = None, *, low_priority: bool) -> set[str]:
        """Return the tenants (API keys) that have waiting or running tasks of this priority. With `of_tenant`, return
        the ids of that tenant's requests that have such tasks.
        """
        waiting = self._waiting[low_priority]
        users = set(waiting if of_tenant is None else waiting.get(of_tenant, ()))
        return users | self._in_flight(of_tenant, low_priority=low_priority).keys()

    def _in_flight(self, of_tenant: str | None = None, *, low_priority: bool) -> dict[str, float]:
        """Return for how many seconds, in total, the running tasks of this priority have run so far, by tenant (API
        key). With `of_tenant`, only tasks of that tenant count, and the result is by request.
        """
        now, seconds = self._clock(), dict[str, float]()
        for running in self._running.values():
            owner = running.owner
            if owner.low_priority == low_priority and of_tenant in (None, owner.tenant):
                user = owner.tenant if of_tenant is None else owner.request
                seconds[user] = seconds.get(user, 0.0) + now - running.since + _MIN_RUNNING_SECONDS
        return seconds

    def _forget(self, owner: TaskOwner) -> None:
        """Forget the process time used by the request and by the tenant (API key) of a task that has ended, if they
        have no other tasks.
        """
        low_priority, tenant = owner.low_priority, owner.tenant
        if owner.request not in self._present(tenant, low_priority=low_priority):
            self._requests[low_priority, tenant].forget(owner.request)
        present = self._present(low_priority=low_priority)
        if tenant not in present:
            del self._requests[low_priority, tenant]
            self._tenants[low_priority].leave(tenant, present)
        if not present:
            self._tenants[low_priority] = FairQueue()


@dataclass(eq=False)
class Reservation:
    """Bytes of disk space that a request has reserved or waits for. The future `granted` is done once they are
    reserved. SpaceBudget creates it.
    """

    owner: TaskOwner
    num_bytes: int
    # Done once the bytes are taken.
    granted: "asyncio.Future[None]"


class SpaceBudget:
    """Shares a fixed number of bytes of disk space among tenants (API keys), who reserve bytes before they write. Only
    the event loop may use it.

    A tenant may hold at most as many bytes as then remain free, so that another tenant always finds space: one tenant
    can hold half of the space, two tenants a third each. The tenant with the fewest bytes comes first; while its
    reservation does not fit, no other tenant gets space. Low-priority requests wait until no others wait.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._taken: list[Reservation] = []
        self._waiting: list[Reservation] = []
        self._by_tenant: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        """The number of bytes of disk space that are reserved now."""
        return sum(reservation.num_bytes for reservation in self._taken)

    def reserve(self, owner: TaskOwner, num_bytes: int) -> Reservation:
        """Request `num_bytes` bytes for the request `owner`, and return the reservation at once. It is valid when its
        future `granted` is done, because it may have to wait until there is space.

        To stop waiting, resize the reservation to 0.
        """
        reservation = Reservation(owner, num_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(reservation)
        self._grant()
        return reservation

    def resize(self, reservation: Reservation, num_bytes: int) -> None:
        """Reduce a reservation to `num_bytes` bytes; 0 ends the reservation, or the wait for it. Waiting reservations
        may then be granted.
        """
        if reservation in self._taken:
            self._by_tenant[reservation.owner.tenant] += num_bytes - reservation.num_bytes
            reservation.num_bytes = num_bytes
            if not num_bytes:
                self._taken.remove(reservation)
                self._by_tenant += Counter()  # forget tenants without any
        elif reservation in self._waiting and not num_bytes:
            self._waiting.remove(reservation)
        self._grant()

    def _grant(self) -> None:
        """Grant all waiting reservations that fit and whose turn it is, by setting their futures."""
        free = self._total - self.num_bytes
        order = sorted(
            self._waiting, key=lambda waiting: (waiting.owner.low_priority, self._by_tenant[waiting.owner.tenant])
        )
        first = None
        for reservation in order:
            if reservation.owner.low_priority and not all(waiting.owner.low_priority for waiting in self._waiting):
                return
            wanted, tenant = reservation.num_bytes, reservation.owner.tenant
            if self._by_tenant[tenant] + wanted > free - wanted:
                first = tenant if first is None else first
            elif first in (None, tenant):
                free -= wanted
                self._by_tenant[tenant] += wanted
                self._waiting.remove(reservation)
                self._taken.append(reservation)
                if not reservation.granted.done():
                    reservation.granted.set_result(None)
