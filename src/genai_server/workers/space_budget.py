"""The disk space for decoded recordings and prepared images, which is reserved before anything is written."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from genai_server.messages.supervisor_protocol import TaskOwner


@dataclass(eq=False)
class Reservation:
    """Bytes of disk space that a request has reserved or waits for."""

    owner: TaskOwner
    num_bytes: int
    # Done once the bytes are taken.
    granted: "asyncio.Future[None]"


class SpaceBudget:
    """Disk space, in bytes, that tenants (API keys) share. For use in the event loop only.

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
        """The number of bytes that are reserved now."""
        return sum(reservation.num_bytes for reservation in self._taken)

    def reserve(self, owner: TaskOwner, num_bytes: int) -> Reservation:
        """Reserve `num_bytes` bytes. The returned reservation is valid when its future `granted` is done, because it
        may have to wait until there is space.

        To stop waiting, resize the reservation to 0.
        """
        reservation = Reservation(owner, num_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(reservation)
        self._grant()
        return reservation

    def resize(self, reservation: Reservation, num_bytes: int) -> None:
        """Reduce a reservation to `num_bytes`; 0 ends it."""
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
        """Grant all waiting reservations that fit and whose turn it is."""
        free = self._total - self.num_bytes
        order = sorted(self._waiting, key=lambda one: (one.owner.low_priority, self._by_tenant[one.owner.tenant]))
        first = None
        for reservation in order:
            if reservation.owner.low_priority and not all(one.owner.low_priority for one in self._waiting):
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
