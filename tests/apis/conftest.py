"""OpenAI's client of the scripted server, and the event loop of asynchronous tests."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.running_server import RunningServer


@pytest.fixture(scope="module")
def client(scripted: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anyio_backend() -> str:
    """What runs asynchronous tests."""
    return "asyncio"
