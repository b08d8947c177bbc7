"""Admin calls to several engines, against real scripted engines."""

import asyncio
import os
import signal

import pytest

from genai_server.apis.admin.engines import ask
from genai_server.errors import NoEngineReady
from genai_server.messages.admin import ListRequests
from tests.engine_client.test_client import own_router

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("needs_all", [False, True])
async def test_an_engine_that_ends_during_a_call_is_left_out(needs_all: bool) -> None:
    async with own_router() as router:
        engines = [router.engines["scripted:0"], router.engines["scripted:1"]]
        pid = engines[0].status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it can no longer reply, so the call is pending when the engine ends
        call = asyncio.ensure_future(ask(engines, ListRequests, needs_all=needs_all))
        await engines[1].admin.ask(ListRequests)
        assert not call.done()
        os.kill(pid, signal.SIGKILL)
        if needs_all:
            with pytest.raises(NoEngineReady, match="scripted:0 died"):
                await call
        else:
            assert [(engine, found.requests) for engine, found in await call] == [(engines[1], [])]


async def test_a_call_fails_if_all_its_engines_end() -> None:
    async with own_router() as router:
        engine = router.engines["scripted:0"]
        pid = engine.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.ensure_future(ask([engine], ListRequests))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(NoEngineReady, match="scripted:0"):  # its death may be seen before the call is sent
            await call
