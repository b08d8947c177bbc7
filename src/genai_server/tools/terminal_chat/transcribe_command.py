"""`genai-server transcribe FILE`: the transcript of a recording, with a running server or one of its own.

With --url, the recording is sent to this server. Without it, a --model that is a directory, or the name of one in
GENAI_MODELS_DIR, gets a server on a free port, which is stopped afterwards. With neither, the command uses the server
at HOST and PORT if one is running, or else starts one for the model in GENAI_MODEL_DIR.

In the format text, the transcript is printed piece by piece while the model writes it; in the other formats, when it is
complete.
"""

import argparse
import contextlib
import http.client
import secrets
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from genai_server.cli.model_argument import find
from genai_server.cli.parser import path_of
from genai_server.cli.screen import print_to_stderr
from genai_server.errors import ChatFailed, ConfigurationError
from genai_server.tools.server_answers import checked_url
from genai_server.tools.terminal_chat.chat_client import ChatClient
from genai_server.tools.terminal_chat.chat_command import connected, exit_cleanly_on_signals

_TEXT = "text"
_FORMATS = (_TEXT, "srt", "vtt", "json", "verbose_json")
_PATHS = {False: "/v1/audio/transcriptions", True: "/v1/audio/translations"}
# Seconds without a byte of the transcript: a server without events sends nothing until its end.
_PATIENCE = 86_400.0
_PIECE = 256 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments and options of `genai-server transcribe` to `parser`, and set `run` as the function that
    executes the command.
    """
    parser.add_argument("file", metavar="FILE", help="a recording: flac, mp3, mp4, m4a, ogg, wav or webm")
    parser.add_argument("--url", metavar="URL", help="a running server")
    parser.add_argument("--model", metavar="NAME|DIR", help="model (default: the server's first that transcribes)")
    parser.add_argument("--language", metavar="CODE", help="language of the recording, such as en (default: detected)")
    parser.add_argument("--format", choices=_FORMATS, default=_TEXT, help="format of the transcript (default: text)")
    parser.add_argument("--translate", action="store_true", help="write the transcript in English")
    parser.add_argument("--prompt", metavar="TEXT", help="text before the recording, with names or words that it has")
    parser.add_argument("-o", "--output", metavar="OUT", help="file for the transcript (default: standard output)")
    parser.add_argument("--api-key", metavar="KEY", help="an API key of the server")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Execute `genai-server transcribe`: send a recording to a server, and print or write the transcript. `arguments`
    are the parsed command line. Returns the exit status, 130 after Ctrl-C.

    Raises ConfigurationError for wrong settings, and ChatFailed if the file cannot be read or the request fails.
    """
    exit_cleanly_on_signals()
    path = path_of(arguments.file)
    if not path.is_file():
        raise ChatFailed(f"there is no file {path}")
    target, model = checked_url(arguments.url) if arguments.url else None, arguments.model
    if target is None and model is not None and _is_local_model(model):
        target, model = model, None
    values = {"model": model, "language": arguments.language, "prompt": arguments.prompt}
    fields = {name: value for name, value in values.items() if value} | {"response_format": arguments.format}
    if arguments.format == _TEXT:
        fields["stream"] = "true"
    try:
        with connected(target, arguments.api_key, print_to_stderr) as client, _writer(arguments.output) as write:
            pieces = _transcript(client, path, fields, translates=arguments.translate)
            with contextlib.closing(pieces):
                for piece in pieces:
                    write(piece)
            if arguments.format == _TEXT:
                write("\n")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return 0


def _is_local_model(model: str) -> bool:
    """Whether the option --model names a model directory, or a model in GENAI_MODELS_DIR, and not a model of a running
    server.
    """
    try:
        find(model)
    except ConfigurationError:
        return False
    return True


@contextmanager
def _writer(output: str | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes pieces of text to the file `output` or, if that is None, to standard output. The
    file is closed at the end of the `with` block. Raises ChatFailed if it cannot be written.
    """
    if output is None:
        yield lambda piece: print(piece, end="", flush=True)
        return
    try:
        with path_of(output).open("w", encoding="utf-8") as file:

            def write(piece: str) -> None:
                file.write(piece)
                file.flush()

            yield write
    except OSError as error:
        raise ChatFailed(f"{output} cannot be written: {error.strerror or error}") from None


def _transcript(
    client: ChatClient, path: Path, fields: Mapping[str, str], *, translates: bool
) -> Generator[str, None, None]:
    """Send the recording in the file `path` to the server and yield its transcript: piece by piece if `fields`, the
    form fields of the request, has `stream`, otherwise as one piece. With `translates`, the transcript is translated to
    English.

    Closing the iterator closes the connection, and the server then stops transcribing. Raises ChatFailed if the file
    cannot be read or the request fails.
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
    with file, contextlib.closing(client.connect(_PATIENCE)) as connection:
        response = client.response(connection, "POST", _PATHS[translates], body(), headers)
        if "stream" in fields:
            for event in client.events(response):
                yield event.get("delta", "")
            return
        try:
            yield response.read().decode()
        except (OSError, http.client.HTTPException):
            raise ChatFailed("the answer broke off: the connection was closed before its end") from None
