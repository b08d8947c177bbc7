"""The type of the findings that `genai-server doctor` prints."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """The result of one check, printed as one line."""

    # OK, WARN or FAIL.
    state: str
    subject: str
    found: str
    # What to do about it; "" if nothing can be done.
    remedy: str = ""
