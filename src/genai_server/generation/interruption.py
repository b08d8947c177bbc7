"""The errors of results that were ended from outside, where a part of them is of no use."""

from genai_server.errors import DeadlinePassed, RequestCancelled, SessionTerminated
from genai_server.generation.dependencies import Deadline
from genai_server.messages.generation_request import FinishReason


def require_end(reason: FinishReason | None, deadline: Deadline) -> None:
    """Check why an engine has ended a request. Raises DeadlinePassed, SessionTerminated and RequestCancelled."""
    match reason:
        case FinishReason.TIMEOUT:
            raise DeadlinePassed(
                f"the request did not finish within {deadline.seconds:g} s (its timeout or GENAI_REQUEST_TIMEOUT)"
            )
        case FinishReason.TERMINATED:
            raise SessionTerminated("an operator has terminated the device's session")
        case FinishReason.CANCELLED:
            raise RequestCancelled("an operator has cancelled the request")
