"""One line of `genai-server doctor`."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """`remedy` says what to do about it, where something can be."""

    state: str
    subject: str
    found: str
    remedy: str = ""
