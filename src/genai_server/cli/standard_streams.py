"""Text on standard input and output, whose encoding is the system's and need not have all characters.

Redirected output on Windows and terminals in Latin-1 locales have encodings without characters that commands and models
write, such as "…".
"""

import io
import os
import sys
from contextlib import suppress

from genai_server.errors import ChatFailed

# Handlers of Python's streams that raise UnicodeError.
_RAISING = ("strict", "surrogateescape")


def tolerate_characters() -> None:
    """Write "?" for characters that the encoding of standard output lacks, instead of raising UnicodeEncodeError.

    The encodings stay, and so does an error handler that PYTHONIOENCODING names. What rich, argparse and print write is
    covered, since all of them write to these streams; prompt_toolkit writes "?" by itself. Python's standard error
    never raises. A line that is typed into a terminal in another encoding has "�" for what cannot be read.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _RAISING:
            stream.reconfigure(errors="replace")


def piped_text() -> str:
    """All text that is piped into the command: UTF-8, or else in the system's encoding. Raises ChatFailed."""
    return _decoded(sys.stdin.buffer.read())


def piped_line() -> str:
    """The next line that is piped into the command, decoded like `piped_text`. Raises EOFError and ChatFailed."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return _decoded(line).removesuffix("\n")


def typed_text(text: str) -> str:
    """An argument of the command. One that is UTF-8 in a locale of another encoding is decoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:  # Python keeps bytes that it cannot decode as surrogates
        with suppress(UnicodeDecodeError):
            return os.fsencode(text).decode()
    return text


def _decoded(data: bytes) -> str:
    for encoding in ("utf-8-sig", sys.stdin.encoding):
        try:
            return data.decode(encoding).replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
    raise ChatFailed("what is piped into the command is not text, neither in UTF-8 nor in the system's encoding")
