"""What `cli/serve` overrides and reads of uvicorn's classes. None of it is documented, so a new version may differ."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process
from uvicorn.supervisors.statreload import StatReload


async def _app(scope: Any, receive: Any, send: Any) -> None: ...


def _config() -> Config:
    return Config(_app, log_config=None, lifespan="off")


# Overridden or called, with the parameters after `self`.
METHODS: dict[type, str] = {
    Config: "get_loop_factory()",
    HttpToolsProtocol: "connection_made(transport) connection_lost(exc) data_received(data) eof_received() "
    "pause_writing() resume_writing() on_message_begin() on_headers_complete() on_body(body) on_message_complete() "
    "on_response_complete() send_400_response(msg)",
    WebSocketsSansIOProtocol: "connection_lost(exc) data_received(data) pause_writing() resume_writing() "
    "handle_text(event) handle_bytes(event) handle_cont(event) send_receive_event_to_app() receive()",
}
# Read or set.
ATTRIBUTES = {
    "Config": "is_ssl timeout_keep_alive",
    "HttpToolsProtocol": "app app_state config cycle expect_100_continue headers loop parser pipeline scheme scope "
    "timeout_keep_alive transport",
    "RequestResponseCycle": "chunked_encoding disconnected expected_content_length keep_alive message_event "
    "response_complete response_started scope",
    "WebSocketsSansIOProtocol": "app_state close_sent conn curr_msg_data_type disconnected frames loop queue "
    "read_paused transport",
    "Process": "exitcode pid",
    "Multiprocess": "processes should_exit",
    "StatReload": "should_exit",
}


@pytest.mark.parametrize("owner", METHODS, ids=lambda owner: owner.__name__)
def test_uvicorn_has_the_methods_that_are_overridden(owner: type) -> None:
    def found(method: str) -> str:
        name = method.partition("(")[0]
        return f"{name}({','.join([*inspect.signature(getattr(owner, name)).parameters][1:])})"

    expected = METHODS[owner].split()
    assert [found(method) for method in expected] == expected, "cli/serve overrides or calls these"


@pytest.fixture(scope="module")
def instances() -> Iterator[dict[str, Any]]:
    """One object of each class."""

    async def connected() -> list[Any]:
        loop, state = asyncio.get_running_loop(), ServerState()
        parameters = inspect.signature(RequestResponseCycle).parameters
        return [
            HttpToolsProtocol(_config(), state, {}, loop),
            WebSocketsSansIOProtocol(_config(), state, {}, loop),
            RequestResponseCycle(**dict.fromkeys(parameters, None)),  # type: ignore[arg-type]
        ]

    processes = [Process(_config(), []), Multiprocess(_config(), []), StatReload(_config(), target=print, sockets=[])]
    yield {type(one).__name__: one for one in [_config(), *asyncio.run(connected()), *processes]}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_uvicorn_has_the_attributes_that_are_read(instances: dict[str, Any], name: str) -> None:
    missing = [attribute for attribute in ATTRIBUTES[name].split() if not hasattr(instances[name], attribute)]
    assert not missing, f"uvicorn's {name} lacks attributes that cli/serve reads or sets"
