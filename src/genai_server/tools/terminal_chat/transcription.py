"""Sends a recording to an OpenAI-style server, and receives its transcript."""

import http.client
import secrets
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_client import ChatClient

_PATHS = {False: "/v1/audio/transcriptions", True: "/v1/audio/translations"}
# Seconds without a byte of the transcript: a server without events sends nothing until its end.
_PATIENCE = 86_400.0
_PIECE = 256 * 1024


def transcript(
    client: ChatClient, path: Path, fields: Mapping[str, str], *, translates: bool
) -> Generator[str, None, None]:
    """Send a file, and yield the transcript, piece by piece with the field `stream`. Raises ChatFailed.

    Closing the iterator closes the connection, and the server stops transcribing.
    """
    boundary = secrets.token_hex(16)
    before = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    )
    before += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="recording"\r\n\r\n'.encode()
    after = f"\r\n--{boundary}--\r\n".encode()
    try:
        size, file = path.stat().st_size, path.open("rb")
    except OSError as error:
        raise ChatFailed(f"{path} cannot be read: {error.strerror}") from None

    def body() -> Iterator[bytes]:
        yield before
        while piece := file.read(_PIECE):
            yield piece
        yield after

    headers = {
        "content-type": f"multipart/form-data; boundary={boundary}",
        "content-length": str(len(before) + size + len(after)),
    }
    with file, closing(client.connect(_PATIENCE)) as connection:
        response = client.response(connection, "POST", _PATHS[translates], body(), headers)
        if "stream" in fields:
            for event in client.events(response):
                yield event.get("delta", "")
            return
        try:
            yield response.read().decode()
        except (OSError, http.client.HTTPException):
            raise ChatFailed("the answer broke off: the connection was closed before its end") from None
