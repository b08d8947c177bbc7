"""The message with which a process sends an error to another process of the server."""

from msgspec import Struct

from genai_server.errors import ALL_ERRORS, GenaiServerError, InvalidField

_BY_CODE = {error.code: error for error in ALL_ERRORS}


class ErrorInfo(Struct, frozen=True):
    """An error as one process reports it to another, in place of an exception."""

    # Names a class of errors.py.
    code: str
    # The rule, for an InvalidField, whose sentence the receiver makes.
    message: str
    # The request's field at fault, if one is.
    param: str | None = None
    # Seconds after which the same request may succeed; None if waiting does not help.
    retry_after: int | None = None

    @classmethod
    def from_error(cls, error: GenaiServerError) -> "ErrorInfo":
        """The message that reports this error."""
        if isinstance(error, InvalidField):
            return cls(error.code, error.sentence(None, error.other, error.given), error.param)
        return cls(error.code, error.message, error.param, error.retry_after)

    def to_error(self) -> GenaiServerError:
        """The reported error as an exception of the class with this code; a GenaiServerError if no class has the
        code.
        """
        error = _BY_CODE.get(self.code, GenaiServerError)
        if issubclass(error, InvalidField):
            return error(self.param, self.message)
        return error(self.message, param=self.param, retry_after=self.retry_after)
