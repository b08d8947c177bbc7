"""One line of `genai-server doctor`."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "fail"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """One check's result."""

    # OK, WARN or FAIL.
    state: str
    subject: str
    found: str
    # What to do about it; "" if nothing can be done.
    remedy: str = ""
