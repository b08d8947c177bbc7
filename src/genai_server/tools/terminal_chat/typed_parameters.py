"""The fields of a chat request that the user of a terminal chat may set."""

from genai_server.errors import ChatFailed, did_you_mean, quoted

Value = float | int | str
# The server checks the ranges.
_KINDS: dict[str, type[float] | type[int] | type[str]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "stop": str,
    "repetition_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repeat_last_n": int,
    "reasoning_effort": str,
    "thinking_token_budget": int,
}
PARAMETERS = tuple(_KINDS)
_WORDS = {float: "a number", int: "a whole number"}


def require_known(name: str) -> None:
    """Raise ChatFailed if the user may not set a field with this name."""
    if name not in _KINDS:
        meant = did_you_mean(name, PARAMETERS)
        raise ChatFailed(f"there is no setting {quoted(name)}{meant} (known: {', '.join(PARAMETERS)})")


def parse(name: str, text: str) -> Value:
    """Return the value of a field, parsed from text. Raises ChatFailed for an unknown field and for a wrong type."""
    require_known(name)
    kind = _KINDS[name]
    try:
        return kind(text)
    except ValueError:
        raise ChatFailed(f"{name} must be {_WORDS[kind]}, not {quoted(text)}") from None
