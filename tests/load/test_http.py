"""The load tools read an answer strictly, to the last byte of its connection."""

import asyncio

import pytest
from _load.http import BrokenAnswer, Response, ask

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


async def answered(data: bytes) -> Response:
    """The client's result for a server that sends this and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await ask(server.sockets[0].getsockname()[1], "GET", "/")


def test_a_whole_answer_is_read() -> None:
    response = asyncio.run(answered(WHOLE))
    assert (response.status, bytes(response.body)) == (200, b"hi")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WHOLE[:-1],
        WHOLE + WHOLE,
        WHOLE + b"x",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_an_answer_that_is_cut_off_or_goes_on_is_broken(data: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        asyncio.run(answered(data))
