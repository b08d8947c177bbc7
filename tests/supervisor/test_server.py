"""The connection of an API process to its supervisor, over a real socket."""

import asyncio
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from genai_server.engine_client.supervisor import SupervisorClient
from genai_server.errors import ConfigurationError, ModelNotFound, NoEngineReady
from genai_server.messages.server_status import NO_SERVER, EngineState, EngineStatus, ServerStatus
from genai_server.messages.supervisor_protocol import (
    Command,
    LoadModel,
    SetAlias,
    SupervisorAddress,
    WantModel,
    read_address,
    write_address,
)
from genai_server.supervisor.server import SupervisorServer
from tests.reported_status import SECRET, reporting

pytestmark = pytest.mark.anyio
BEFORE = ServerStatus("secret", [EngineStatus("cpu", EngineState.STARTING)])
AFTER = ServerStatus(
    "secret",
    [EngineStatus("cpu", EngineState.READY, 123, 1, "/tmp/cpu.sock"), EngineStatus("cuda:1", EngineState.FAILED)],
)


class Supervised:
    """A supervisor in a folder that obeys commands, and the clients of API processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.obeyed: list[Command] = []
        self.server: SupervisorServer | None = None

    def client(self) -> "closing[SupervisorClient]":
        return closing(SupervisorClient(partial(read_address, self.folder)))

    def execute(self, command: Command) -> None:
        if command == WantModel("missing"):
            raise ModelNotFound("no model 'missing' is served", param="name")
        if command == WantModel("broken"):
            raise ValueError("embedded null byte")
        self.obeyed.append(command)
        assert self.server is not None
        if command == WantModel("a"):
            self.server.publish(AFTER)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[SupervisorClient]:
        """A client that is connected."""
        with reporting(self.folder, BEFORE, self.execute) as self.server, self.client() as client:
            await client.ready()
            yield client


@pytest.fixture
def supervised(short_folder: Path) -> Supervised:
    return Supervised(short_folder)


async def test_each_change_reaches_all_that_are_connected(supervised: Supervised) -> None:
    async with supervised.connected() as client:
        assert client.status == BEFORE
        with supervised.client() as other:
            await other.ready()
            assert other.status == BEFORE
            changes = [asyncio.create_task(each.changed()) for each in (client, other)]
            await asyncio.sleep(0)
            assert supervised.server is not None
            await asyncio.to_thread(supervised.server.publish, AFTER)
            await asyncio.gather(*changes)
            assert client.status == other.status == AFTER


async def test_a_command_and_its_effect_are_known_when_its_sender_continues(supervised: Supervised) -> None:
    async with supervised.connected() as client:
        for command in (LoadModel("a", "/é", ["cpu"]), SetAlias("x", None)):
            await client.command(command)
            assert supervised.obeyed[-1] == command
        await client.command(WantModel("a"))
        assert client.status == AFTER


async def test_refusal_of_a_command_is_raised_at_the_sender(supervised: Supervised) -> None:
    async with supervised.connected() as client:
        with pytest.raises(ModelNotFound, match="no model 'missing' is served") as raised:
            await client.command(WantModel("missing"))
        assert raised.value.param == "name"
        with pytest.raises(ConfigurationError, match="ValueError: embedded null byte"):
            await client.command(WantModel("broken"))
        await client.command(SetAlias("x", None))
        assert supervised.obeyed == [SetAlias("x", None)]


async def test_nothing_is_said_or_done_without_the_secret(supervised: Supervised) -> None:
    async with supervised.connected() as client:
        address = read_address(supervised.folder)
        write_address(supervised.folder, SupervisorAddress(address.address, "guess"))
        with supervised.client() as stranger:
            with pytest.raises(NoEngineReady, match="cannot be reached"):
                await stranger.command(WantModel("a"))
            assert stranger.status == NO_SERVER
        assert supervised.obeyed == []
        await client.command(WantModel("a"))


async def test_an_ended_supervisor_is_noticed_and_the_next_one_is_found(supervised: Supervised) -> None:
    with supervised.client() as client:
        await client.ready()
        assert client.status == NO_SERVER
        with pytest.raises(NoEngineReady):
            await client.command(WantModel("a"))
        for status in (BEFORE, AFTER):
            with reporting(supervised.folder, status):
                while client.status != status:
                    await client.changed()
            (supervised.folder / "supervisor.json").unlink()
            while client.status != NO_SERVER:
                await client.changed()


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
async def test_a_status_from_before_the_connection_is_sent_and_the_secret_is_the_users(supervised: Supervised) -> None:
    with reporting(supervised.folder, AFTER):
        assert read_address(supervised.folder).secret == SECRET
        assert stat.S_IMODE((supervised.folder / "supervisor.json").stat().st_mode) == 0o600
        with supervised.client() as client:
            await client.ready()
            assert client.status == AFTER
