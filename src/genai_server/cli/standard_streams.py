"""Text on standard input and output of commands: output in encodings that lack characters (`replace_unencodable`), and
text that is piped into a command (`piped_text`, `piped_line`) or typed as an argument (`typed_text`).

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
    """Change standard input and output of this process so that characters which the output's encoding lacks are written
    as "?" and do not raise UnicodeEncodeError.

    The encodings stay unchanged, and so does an error handler that PYTHONIOENCODING names. This covers print, Rich and
    argparse, which all write to these streams; prompt_toolkit writes "?" by itself, and Python's standard error never
    raises. A line typed into a terminal with another encoding has "�" for bytes that cannot be decoded.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _STRICT_ERROR_HANDLERS:
            stream.reconfigure(errors="replace")


def piped_text() -> str:
    """Read standard input to its end and return it as text, decoded as UTF-8 or else in the system's encoding.

    Raises ChatFailed if it is not text in either encoding.
    """
    return _decoded(sys.stdin.buffer.read())


def piped_line() -> str:
    """Read the next line of standard input and return it without its line break, decoded as UTF-8 or else in the
    system's encoding.

    Raises EOFError at the end of the input, and ChatFailed if the line is not text in either encoding.
    """
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return _decoded(line).removesuffix("\n")


def typed_text(text: str) -> str:
    """Return an argument of the command line as the user has typed it; a type for argparse. If Python could not decode
    its bytes in the locale's encoding, they are decoded as UTF-8, provided that they are UTF-8.
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
