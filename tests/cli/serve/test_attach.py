"""How API processes find the supervisor that they share, on real processes."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from genai_server.cli.serve import attach
from genai_server.cli.serve.attach import find_or_start
from genai_server.config.sources import load_settings
from genai_server.engine_client.supervisor import SupervisorClient
from genai_server.errors import ConfigurationError
from genai_server.messages.server_status import NO_SERVER
from genai_server.messages.supervisor_protocol import SetAlias
from genai_server.system.processes import open_runtime_folder
from tests.running_server import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def forget_processes() -> Iterator[None]:
    """Wait for the supervisors that a test has started."""
    yield
    for process in attach._started:
        process.wait(PATIENCE)
    attach._started.clear()


@pytest.fixture
def temporary(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    return short_folder


def test_api_processes_that_start_at_once_share_a_supervisor_that_leaves_after_them(temporary: Path) -> None:
    settings = load_settings({"device": "scripted"}, environ={}, dotenv=None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as first:
        find = partial(find_or_start, settings, first.pid)
        with ThreadPoolExecutor(4) as starters:
            found = list(starters.map(lambda _: find(), range(4)))
        assert len({address.secret for address in found}) == 1

        async def connect() -> None:
            with closing(SupervisorClient(find)) as client:
                await client.ready()
                assert client.status != NO_SERVER
                first.kill()
                first.wait()
                await client.command(SetAlias("x", "demo"))  # it stays while an API process is left

        asyncio.run(connect())
    wait_until(lambda: list(temporary.iterdir()) == [])


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's, and links need a right there")
@pytest.mark.parametrize("mode", [0o755, 0o777, None])
def test_a_folder_that_others_can_enter_and_a_link_are_refused(temporary: Path, mode: int | None) -> None:
    folder = open_runtime_folder(7)
    assert open_runtime_folder(7) == folder
    if mode is None:
        folder.rename(temporary / "other")
        folder.symlink_to(temporary / "other")
    else:
        folder.chmod(mode)
    with pytest.raises(ConfigurationError, match="must be a folder that belongs to this user, with mode 0700"):
        open_runtime_folder(7)
