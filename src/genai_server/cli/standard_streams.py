"""Text on standard input and output, whose encoding is the system's and may lack characters.

Redirected output on Windows and terminals in Latin-1 locales have encodings without characters that commands and models
write, such as "…".
"""

import io
import os
import sys
from contextlib import suppress

from genai_server.errors import ChatFailed

# Handlers of Python's streams that raise UnicodeError.
_STRICT_ERROR_HANDLERS = ("strict", "surrogateescape")


def replace_unencodable() -> None:
    """Write "?" for characters that the encoding of standard output lacks, instead of raising UnicodeEncodeError.

    The encodings stay unchanged, and so does an error handler that PYTHONIOENCODING names. This covers print, Rich and
    argparse, which all write to these streams; prompt_toolkit writes "?" by itself, and Python's standard error never
    raises. A line typed into a terminal with another encoding has "�" for bytes that cannot be decoded.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _STRICT_ERROR_HANDLERS:
            stream.reconfigure(errors="replace")


def piped_text() -> str:
    """Return all text that is piped into the command, decoded as UTF-8, else in the system's encoding.

    Raises ChatFailed.
    """
    return _decoded(sys.stdin.buffer.read())


def piped_line() -> str:
    """Return the next line that is piped into the command, decoded like `piped_text`.

    Raises EOFError and ChatFailed.
    """
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return _decoded(line).removesuffix("\n")


def typed_text(text: str) -> str:
    """Return an argument of the command as the user typed it. Bytes that Python could not decode in the locale's
    encoding are decoded as UTF-8, if they are UTF-8.
    """
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
