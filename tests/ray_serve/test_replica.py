"""A replica without an engine."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from genai_server.errors import ConfigurationError
from genai_server.messages.server_status import EngineState, EngineStatus

pytestmark = pytest.mark.usefixtures("ray_serve")

FAILED = EngineStatus("cpu", EngineState.FAILED, model="m", error="no more restarts")
READY = EngineStatus("cuda:0", EngineState.READY, model="m")


def _check(*statuses: EngineStatus) -> None:
    from genai_server.ray_serve.replica import Replica  # takes seconds

    replica: Any = SimpleNamespace(_supervisor=SimpleNamespace(status=SimpleNamespace(engines=list(statuses))))
    Replica.check_health(replica)


def test_replica_is_unhealthy_only_if_all_devices_failed() -> None:
    _check(FAILED, READY)
    _check()
    with pytest.raises(ConfigurationError, match="device cpu: no more restarts"):
        _check(FAILED)


def test_replica_stops_on_ray_serves_call_not_on_collection() -> None:
    from genai_server.ray_serve.replica import Replica

    class Stopped(Replica):
        stops = 0

        async def _stop(self) -> None:
            Stopped.stops += 1

    never_up = Stopped.__new__(Stopped)
    assert never_up.__del__() is None
    replica = Stopped.__new__(Stopped)
    replica._is_up = True
    stopping = replica.__del__()
    assert stopping is not None
    asyncio.run(stopping)
    assert replica.__del__() is None
    assert Stopped.stops == 1
