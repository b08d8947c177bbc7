"""Whether a device has room for the answers to one request, for all that its engine has told."""

from collections.abc import Sequence

from genai_server.errors import InvalidField, QueueFull
from genai_server.messages.figures import Capacity, Load


def require_capacity(load: Load, device: str, num_answers: int, lengths: Sequence[int] = (), *, param: str) -> None:
    """Raise QueueFull if the device would not take so many answers now, and InvalidField if it never would.

    `lengths` are the tokens of the prompt of each, where they are known. `param` is the field that makes so many of
    them.
    """
    if load.capacity is not None:
        _require_capacity(load.capacity, device, num_answers, lengths, param)
    rooms = (
        (load.room, num_answers, "requests", "GENAI_MAX_QUEUE"),
        (load.room_tokens, sum(lengths), "tokens of prompts", "GENAI_MAX_QUEUE_TOKENS"),
    )
    for room, number, kind, limit in rooms:
        if room is not None and number > room:
            raise QueueFull(
                f"{room} more {kind} may wait for device {device} now ({limit}), given {number}",
                retry_after=load.retry_after or None,
            )


def _require_capacity(capacity: Capacity, device: str, num_answers: int, lengths: Sequence[int], param: str) -> None:
    """Raise InvalidField if not even an idle device takes them all."""
    if num_answers > capacity.requests:
        raise InvalidField(
            f"{param} may make {capacity.requests} answers on device {device}, as many as may run and wait there "
            f"(GENAI_MAX_BATCH_SIZE, GENAI_MAX_QUEUE), given {num_answers}",
            param=param,
        )
    waiting = sum(lengths[capacity.running :])
    if capacity.waiting_tokens is not None and waiting > capacity.waiting_tokens:
        raise InvalidField(
            f"{param} may make answers on device {device} of which those that cannot run at once, all beyond "
            f"{capacity.running}, wait with prompts of at most {capacity.waiting_tokens} tokens together "
            f"(GENAI_MAX_QUEUE_TOKENS), given {num_answers} answers, {waiting} tokens",
            param=param,
        )
