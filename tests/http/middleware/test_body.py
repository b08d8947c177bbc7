"""The limits of a request's body, and of all bodies together: size, time, number and depth."""

import asyncio
import base64
import contextlib
import io
import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy
import psutil
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from genai_server.http.request_state import ParsingThread
from tests.media.images.vision_directory import make_vision_directory
from tests.running_server import ROOT, SCRIPTED, RunningServer, body, suspended, wait_until
from tests.server_here import module_server, run_here

JSON = {"content-type": "application/json"}
ALICE, BOB = "alice-0123456789", "bob-0123456789ab"
_FRAGMENTS = (Opcode.TEXT, Opcode.CONT)
# The seconds in which a WebSocket's close is answered: never, for the server takes it for a part of the message.
_NO_REPLY = 0.1


def test_a_body_over_the_limit_is_refused_with_limit_and_size(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", content=b" " * 1_100_000, headers=JSON)
    error = _error(response, "body_too_large")
    assert "at most 1048576 bytes (GENAI_MAX_BODY_BYTES), given 1100000" in error["message"]
    assert response.headers["x-request-id"]
    chunks = (b" " * 65536 for _ in range(64))  # of unknown length
    _error(scripted.client.post("/v1/chat", content=chunks, headers=JSON), "body_too_large")


def _error(response: httpx.Response, code: str) -> dict[str, str]:
    """The error of a refused body, which has this code."""
    error: dict[str, str] = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (400, code, "invalid_request_error")
    return error


def test_a_body_without_end_is_not_read_for_ever(scripted: RunningServer) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4096:
            sent += 1
            yield b" " * 65536

    # The response may be lost if the server closes the connection while the body is sent.
    with contextlib.suppress(httpx.TransportError):
        _error(scripted.client.post("/v1/chat", content=chunks(), headers=JSON), "body_too_large")
    assert sent < 2048  # eight times a MiB, and the system's buffers


@pytest.mark.parametrize("content", ["[1, 2]", '"x"', "7", "null", "", "\x00", "[" * 100_000, '{"messages": NaN}'])
def test_body_that_is_not_an_object_is_a_400(scripted: RunningServer, content: str) -> None:
    response = scripted.client.post("/v1/chat", content=content, headers=JSON)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "text",
    [b"[" * 50_000, b'{"messages":' * 50_000, b'["' + b'\\"[' * 300_000 + b'",' + b"[" * 101],
    ids=["lists", "objects", "behind a text"],
)
def test_a_body_that_is_nested_too_deep_is_a_400(scripted: RunningServer, text: bytes) -> None:
    error = _error(scripted.client.post("/v1/chat", content=text, headers=JSON), "nested_too_deep")
    assert "may be nested 100 deep" in error["message"]


@pytest.mark.parametrize("deep", [60, 90])
def test_nesting_below_the_limit_is_accepted_everywhere(scripted: RunningServer, deep: int) -> None:
    """In a template variable, in a tool's schema, in a schema of the answer, in a field without effect."""
    value: object = {}
    for _ in range(deep):
        value = {"a": value}
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": value}}}
    function = {"name": "f", "parameters": {"type": "object", "properties": value}}
    for fields in (
        {"chat_template_kwargs": {"tools_": value}},
        {"tools": [{"type": "function", "function": function}]},
        {"response_format": schema},
        {"metadata": value},
    ):
        assert scripted.chat("say x", max_tokens=2, **fields).status_code in (200, 400)


def test_too_many_lists_and_objects_are_a_400_everywhere(scripted: RunningServer) -> None:
    for path, content in (
        ("/v1/responses", b'{"input":[{"role":"user","content":[' + b"{}," * 345_000 + b"{}]}]}"),
        ("/v1/chat/completions", b'{"messages":[],"metadata":[' + b"{}," * 60_000 + b"{}]}"),
        ("/v1/admin/runtime_options", b"[" + b"[]," * 60_000 + b"[]]"),
    ):
        error = _error(scripted.client.post(path, content=content, headers=JSON), "too_many_values")
        assert "at most 50000 lists and objects in all, given" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/admin/runtime_options"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"messages": "\xff"}', "not UTF-8: byte 0xff at 14, invalid start byte"),
        (b'{"seed": ' + b"9" * 4400 + b"}", "limit (4300 digits) for integer string conversion: value has 4400 digits"),
        (b'{"messages": [}', "not JSON: Expecting value at character 14"),
        *(('{"messages": []}'.encode(encoding), "not ") for encoding in ("utf-16", "utf-16-be", "utf-32")),
    ],
    ids=["byte", "number", "JSON", "UTF-16", "UTF-16 without mark", "UTF-32"],
)
def test_invalid_unicode_and_huge_numbers_are_named_in_errors(
    scripted: RunningServer, path: str, content: bytes, reason: str
) -> None:
    assert reason in _error(scripted.client.post(path, content=content, headers=JSON), "invalid_json")["message"]


def _chat(server: RunningServer, *, key: str = "") -> httpx.Response:
    """The response to a chat of 90,000 bytes."""
    asked = body("say hi", metadata="x" * 90_000)
    return server.client.post("/v1/chat", json=asked, headers={"x-api-key": key})


@contextlib.contextmanager
def _unfinished(server: RunningServer, size: int, *, key: str = "") -> Iterator[socket.socket]:
    """A connection that has sent this many bytes of a body of 100,000."""
    head = f"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: {JSON['content-type']}\r\nx-api-key: {key}\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as connection:
        connection.sendall(f"{head}content-length: 100000\r\n\r\n".encode() + b" " * size)
        yield connection


@contextlib.contextmanager
def _filled(server: RunningServer, *, key: str = "") -> Iterator[list[socket.socket]]:
    """Unfinished bodies of 90,000 bytes that leave no capacity for one more of the same key."""
    with contextlib.ExitStack() as connections:
        found: list[socket.socket] = []
        while _chat(server, key=key).status_code != 503:
            found.append(connections.enter_context(_unfinished(server, 90_000, key=key)))
            found[-1].settimeout(90)
        yield found


@contextlib.contextmanager
def _unfinished_message(
    server: RunningServer, size: int, *, before: bytes = b"", key: str = ""
) -> Iterator[Connection]:
    """A WebSocket with a message of this size without its last byte, after these frames."""
    fragment = Frame(Opcode.TEXT, b" " * (size // 3), fin=False)
    more = [Frame(Opcode.CONT, fragment.data, fin=False), Frame(Opcode.CONT, fragment.data)]
    sent = b"".join(frame.serialize(mask=True, extensions=[]) for frame in (fragment, *more))
    url, headers = f"ws{server.url.removeprefix('http')}/v1/responses", {"x-api-key": key}
    with connect(url, additional_headers=headers, close_timeout=_NO_REPLY) as connection:
        connection.socket.sendall(before + sent[:-1])
        yield connection


@contextlib.contextmanager
def _empty_fragments(server: RunningServer, number: int) -> Iterator[Connection]:
    """A WebSocket with a message of this number of empty fragments, without the last one."""
    first, more = (Frame(opcode, b"", fin=False).serialize(mask=True, extensions=[]) for opcode in _FRAGMENTS)
    url = f"ws{server.url.removeprefix('http')}/v1/responses"
    with connect(url, close_timeout=_NO_REPLY) as connection:
        connection.socket.sendall(first + number * more)
        yield connection


def test_concurrent_bodies_have_a_limit_that_asks_to_retry(own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"GENAI_MAX_BODY_BYTES": "100000", "GENAI_MAX_BODIES_BYTES": "200000"}
    with run_here(own_folder, *SCRIPTED, settings=settings) as server:

        def ask(size: int) -> httpx.Response:
            asked = json.dumps(body("say hi", metadata="x" * size)).encode()
            return server.client.post("/v1/chat", content=asked, headers=JSON)

        @contextlib.contextmanager
        def filled(size: int) -> Iterator[None]:
            """Unfinished bodies that leave no capacity for one more of their size."""
            with contextlib.ExitStack() as connections:
                while ask(size).status_code != 503:
                    connections.enter_context(_unfinished(server, size))
                yield

        with filled(90_000):
            refused = ask(90_000)
            error = refused.json()["error"]
            assert error["code"] == "bodies_too_large"
            assert "at most 200000 bytes (GENAI_MAX_BODIES_BYTES), and 1" in error["message"]
            assert refused.headers["retry-after"] == "1"
            assert ask(5_000).status_code == 200
        wait_until(lambda: ask(90_000).status_code == 200)
        with _unfinished(server, 60_000) as late, filled(30_000):
            late.sendall(b" " * 40_000)  # finally, it no longer fits
            assert b"503 " in late.recv(100)
        wait_until(lambda: ask(90_000).status_code == 200)
        assert [ask(90_000).status_code for _ in range(5)] == [200] * 5
        with contextlib.ExitStack() as sockets:
            while ask(90_000).status_code != 503:
                sockets.enter_context(_unfinished_message(server, 90_000))
            with _unfinished_message(server, 90_000) as surplus, pytest.raises(ConnectionClosed, match="1013"):
                surplus.recv(timeout=90)
            with _empty_fragments(server, 4_000) as surplus, pytest.raises(ConnectionClosed, match="1013"):
                surplus.recv(timeout=90)
            whole = Frame(Opcode.TEXT, b"{}").serialize(mask=True, extensions=[])
            with _unfinished_message(server, 90_000, before=whole) as surplus, pytest.raises(ConnectionClosed):
                surplus.recv(timeout=90)
            assert not [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
        wait_until(lambda: ask(90_000).status_code == 200)


def test_bytes_of_a_body_count_until_it_is_parsed(own_folder: Path) -> None:
    settings = {"GENAI_MAX_BODY_BYTES": "100000", "GENAI_MAX_BODIES_BYTES": "150000"}
    with run_here(own_folder, *SCRIPTED, settings=settings) as server:
        with server.begun("count 1000; delay 0.2", metadata="x" * 90_000):
            assert _chat(server).status_code == 200
        with _filled(server):
            assert _chat(server).status_code == 503


@pytest.mark.parametrize(("path", "keeps_images"), [("/v1/chat/completions", False), ("/v1/responses", True)])
def test_bytes_of_images_count_until_they_are_read_or_until_the_end_where_they_are_kept(
    own_folder: Path, path: str, keeps_images: bool
) -> None:
    noise = numpy.random.default_rng(0).integers(0, 256, (650, 650, 3), dtype=numpy.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    chat = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    response = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}
    settings = {"GENAI_MAX_BODY_BYTES": "2000", "GENAI_MAX_BODIES_BYTES": "2000000"}
    with run_here(own_folder, "--model-dir", str(ROOT / "models/demo-vision"), settings=settings) as server:

        def render() -> int:
            """The status of another request with the image, which needs no engine."""
            return server.client.post("/v1/chat/completions/render", json=chat).status_code

        engine = psutil.Process(server.device("cpu")["pid"])
        with ThreadPoolExecutor() as threads, httpx.Client(base_url=server.url, timeout=60) as client:
            with suspended(engine):  # so that the answer does not begin
                asked = threads.submit(client.post, path, json=response if keeps_images else chat)
                wait_until(lambda: 'genai:images_total{result="read"} 1.0' in server.client.get("/metrics").text)
                if keeps_images:
                    assert [render() for _ in range(5)] == [503] * 5
                else:
                    wait_until(lambda: render() == 200)
            assert asked.result().status_code == 200
        assert render() == 200


_LIMITS = {"GENAI_MAX_BODY_BYTES": "100000", "GENAI_MAX_BODIES_BYTES": "200000"}
with_keys = module_server(*SCRIPTED, "--api-keys", f"alice:{ALICE},bob:{BOB}", **_LIMITS)


def test_unfinished_bodies_of_one_key_refuse_no_request_of_another(with_keys: RunningServer) -> None:
    with _filled(with_keys, key=ALICE) as alices:
        for _ in range(5):
            assert _chat(with_keys, key=BOB).status_code == 200
        answers = []
        for connection in alices:
            connection.sendall(b" " * 10_000)
            answers.append(connection.recv(1000))
    # Only one of hers was in his way.
    assert len([answer for answer in answers if b"another API key needed its share of 100000" in answer]) == 1
    assert len([answer for answer in answers if answer.split()[1] == b"400"]) == 1  # complete, and no JSON


def test_unfinished_message_of_one_key_is_closed_where_another_needs_its_share(with_keys: RunningServer) -> None:
    with contextlib.ExitStack() as connections:
        alices = [connections.enter_context(_unfinished_message(with_keys, 90_000, key=ALICE))]
        while _chat(with_keys, key=ALICE).status_code != 503:
            alices.append(connections.enter_context(_unfinished_message(with_keys, 90_000, key=ALICE)))
        assert _chat(with_keys, key=BOB).status_code == 200
        with pytest.raises(ConnectionClosed, match="1013"):
            alices[-1].recv(timeout=90)


@pytest.mark.anyio
async def test_long_bodies_are_parsed_in_a_thread_one_at_a_time() -> None:
    parsing, happened, go_on = ParsingThread(), list[str](), threading.Event()
    loop, here, begun = asyncio.get_running_loop(), threading.get_ident(), asyncio.Event()

    def look(name: str) -> None:
        happened.append(f"{name} here" if threading.get_ident() == here else f"{name} aside")
        loop.call_soon_threadsafe(begun.set)
        if name == "first":
            go_on.wait(90)
            happened.append("first ends")

    first = asyncio.create_task(parsing.run(lambda: look("first"), num_bytes=100_000))
    second = asyncio.create_task(parsing.run(lambda: look("second"), num_bytes=100_000))
    await begun.wait()
    await parsing.run(lambda: look("short"), num_bytes=100)
    go_on.set()
    await asyncio.gather(first, second)
    assert happened == ["first aside", "short here", "first ends", "second aside"]


@pytest.mark.parametrize(("kind", "limit"), [("qwen3_vl", 4000), ("text", 2000)])
def test_body_may_be_larger_where_a_model_takes_images(own_folder: Path, kind: str, limit: int) -> None:
    settings = {"GENAI_MAX_BODY_BYTES": "2000", "GENAI_MAX_MEDIA_BODY_BYTES": "4000", "GENAI_MAX_LENGTH": "5000"}
    model_dir = make_vision_directory(own_folder / kind)
    config = model_dir / "genai_config.json"
    config.write_text(config.read_text(encoding="utf-8").replace("qwen3_vl", kind), encoding="utf-8")
    setting = {2000: "GENAI_MAX_BODY_BYTES", 4000: "GENAI_MAX_MEDIA_BODY_BYTES"}[limit]
    with run_here(own_folder, "--device", "scripted", "--model-dir", str(model_dir), settings=settings) as server:
        assert server.client.post("/v1/chat", json=body("say x" + " " * (limit - 500))).status_code == 200
        error = _error(server.client.post("/v1/chat", json=body("say x" + " " * limit)), "body_too_large")
    assert f"at most {limit} bytes ({setting})" in error["message"]
